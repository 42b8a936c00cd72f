"""The commit log by what commits changed: which of them are ticks, and which changed given keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby, islice
from typing import Any, NamedTuple

from snapkv.engine.contract import SCAN, KeyEvent
from snapkv.errors import CompactedError
from snapkv.layout import Keyspace, Mark, Selection, prefix_end
from snapkv.model import Change, Commit, Difference
from snapkv.reading.change_replay import (
    PRIOR_READS_MAX,
    CommitChanges,
    Touched,
    changed,
    check_unbroken,
    events_of,
    first_after,
    values_at,
)
from snapkv.reading.deadline import bounds
from snapkv.reading.history import LOG_PAGE_COMMITS, commit_of, windows_back
from snapkv.reading.history import bounds as marks_of
from snapkv.reading.ignored_commits import IgnoredCommits, Ignores
from snapkv.reading.reader import Reader
from snapkv.reading.text_search import TextSearch
from snapkv.reading.view import KeyspaceReads
from snapkv.timeline.lookup import recorded_of
from snapkv.timeline.moment import compaction_error
from snapkv.times import When

PAGE_COMMITS_MAX = 65_536
"""The most commits of a page; newest first, each page is four times as long as the one before."""
DETAILED_COMMITS_MAX = 4_096
"""The same if the keys of each commit are held."""
PAIRS_MAX = 64
"""The most changes whose values, before and after, are read in one round trip."""
EVENTS_MAX = 128
HELD_COMMITS_MAX = 64
"""The most commits whose changes wait until the values before them are read."""
COUNTS_MAX = 100_000
"""The number of keys after which a search for a text forgets how often their values had it."""


class Moved(NamedTuple):
    """A stored key that a commit changed.

    `before` and `after` are revisions at which its values are read, None where it is absent.
    """

    key: bytes
    before: int | None
    after: int | None


class Logged(NamedTuple):
    """A commit of the log; of observed keys also a write by another program.

    `moved` are the keys that it changed, None if that was compacted, or a recording `begins` with
    it, which says so, and what it found. A tick changed no key of the
    store, has no note, no meta but that of a fleet's round, and is not a fence. One is ignored that
    changed only what a reader's `Ignores` does not count.
    """

    mark: Mark
    commit: Commit
    moved: tuple[Moved, ...] | None
    is_tick: bool = False
    is_ignored: bool = False
    begins: str | None = None


def selection_in(space: Keyspace, prefixes: Iterable[Any]) -> Selection:
    """Return the stored keys with a prefix, none of which begins with another; "" or none: all."""
    starts = sorted(space.range_of(each)[0] for each in prefixes if each)
    return Selection(tuple(starts) or (space.prefix,))


@bounds
def log(
    kv: KeyspaceReads[Any],
    since: When | None = None,
    until: When | None = None,
    *,
    keys: Sequence[Any] = (),
    prefixes: Sequence[Any] = (),
    newest_first: bool = True,
    wanted: int | None = None,
    details: bool = False,
    ignores: Ignores | None = None,
    text: TextSearch | None = None,
    timeout: float | None = None,
) -> Iterator[Logged]:
    """Yield the commits in (since, until], or only the commits that changed given keys.

    With `keys` or `prefixes`, only commits that changed one of them, with a `text` only commits in
    which a value gained or lost it, and only these keys are `moved`; of observed keys always.
    Without `details`, `moved` is empty. If compaction left the oldest commit, but not what it
    changed, that is yielded only if all commits are wanted.

    Costs two watches over the keys, from the first to the last prefix; for `keys` of a store one
    watch over each, and a round trip for 128 versions. Newest first, that for each page. The first
    page has `wanted` commits, and pages grow, so a day of ticks is a few pages. At most a page is
    in memory, without values. With `ignores` the values before changes that may be ignored are
    read, too: see `IgnoredCommits`.

    Raises `CompactedError`, `EngineUnavailableError`, `ReadTimeoutError`.
    """
    core = kv.reader
    core.check_open()
    low, high = _ends(core, since, until)
    read = _Reading(core, kv.keyspace, keys, prefixes, details, ignores, text)
    # what the oldest commit left did is not known
    has_oldest = since is None and low.ordinal > 1 and read.everything
    oldest = map(read.oldest, [low] if has_oldest else [])
    if not newest_first:
        return chain(oldest, read.span(low, high))
    size = min(LOG_PAGE_COMMITS, wanted or LOG_PAGE_COMMITS)
    most = DETAILED_COMMITS_MAX if details else PAGE_COMMITS_MAX
    parts = windows_back(core, low, high, size, most)
    return chain((each for part in parts for each in reversed(list(read.span(*part)))), oldest)


def _ends(core: Reader, since: When | None, until: When | None) -> tuple[Mark, Mark]:
    """Return the marks that bound (since, until]; of observed keys a revision between two marks."""
    low, high = marks_of(core, since, until)
    if core.policy.at_head:
        return low, high
    if (revision := core.revision_of(since)) is not None:
        low = core.policy.at_revision(revision).mark
    if (revision := core.revision_of(until)) is not None:
        high = core.policy.at_revision(revision).mark
    return low, high


class _Reading:
    """What is read of each commit between two marks."""

    def __init__(
        self,
        core: Reader,
        space: Keyspace,
        keys: Sequence[Any],
        prefixes: Sequence[Any],
        details: bool,
        ignores: Ignores | None,
        text: TextSearch | None,
    ) -> None:
        self._core, self._details, self._space, self._ignores = core, details, space, ignores
        self._keys = [space.encode(key) for key in keys]
        self._wanted = selection_in(space, prefixes)
        self._own = core.layout.data.prefix, core.layout.spaces
        self._text = text
        self.everything = not (keys or prefixes or text) and core.policy.at_head

    def oldest(self, mark: Mark) -> Logged:
        """Return the oldest commit left; with details, whether a recording begins with it."""
        begins = self._begins(mark) if self._details else None
        return Logged(mark, commit_of(mark, self._core.timeline.stamp(mark)), None, begins=begins)

    def _begins(self, mark: Mark) -> str | None:
        core, (data, spaces) = self._core, self._own
        pages = core.timeline.moment(mark).pages(SCAN, data, prefix_end(spaces), keys_only=True)
        if recorded_of(core.engine, core.layout.ts) is None:
            return None
        kvs = [kv for page in pages for kv in page if kv.key.startswith(self._own)]
        # before it are the creation, and a commit for each part of the state, of different keys
        parts = {kv.mod_revision for kv in kvs} - {mark.revision}
        if not hasattr(core.engine, "manifest") and mark.ordinal != len(parts) + 2:
            return None
        found = sum(kv.key.startswith(data) for kv in kvs)
        return f"the recording begins here: it found {found:,} {'key' if found == 1 else 'keys'}"

    def span(self, low: Mark, high: Mark) -> Iterator[Logged]:
        """Yield the commits in (low, high] that are wanted, oldest first."""
        if self.everything:
            return self._all(low, high)
        if not self._keys:
            ranges = self._wanted.ranges()
            replayed = changed(self._core, ranges[0][0], ranges[-1][1], low, high)
            return self._logged(replayed if len(ranges) == 1 else map(self._chosen, replayed))
        found = merge(
            *(self._of_key(key, low, high) for key in dict.fromkeys(self._keys)),
            key=lambda each: each.mark.revision,
        )
        return map(_joined, (list(each) for _, each in groupby(found, lambda each: each.mark)))

    def _all(self, low: Mark, high: Mark) -> Iterator[Logged]:
        start, end = self._own[0], prefix_end(self._own[1])
        found = self._marked(changed(self._core, start, end, low, high))
        for (mark, stamp, touched), is_ignored in found:
            assert stamp is not None, "every commit of a store has one"
            # between the two are leased keys, and stores whose names begin with that of this one
            nothing = not any(each.last.kv.key.startswith(self._own) for each in touched)
            mine = (each for each in touched if each.last.kv.key.startswith(self._own[0]))
            is_tick = nothing and stamp.says_nothing
            yield Logged(mark, commit_of(mark, stamp), self._moved(mine), is_tick, is_ignored)

    def _chosen(self, found: CommitChanges) -> CommitChanges:
        mine = [each for each in found.touched if self._wanted.has(each.last.kv.key)]
        return found._replace(touched=mine)

    def _logged(self, found: Iterable[CommitChanges]) -> Iterator[Logged]:
        for (mark, stamp, touched), is_ignored in self._marked(found):
            if touched:
                moved = self._moved(touched)
                foreign = Commit(mark.timestamp, 0, mark.revision, None)
                commit = foreign if stamp is None else commit_of(mark, stamp)
                yield Logged(mark, commit, moved, is_ignored=is_ignored)

    def _marked(self, found: Iterable[CommitChanges]) -> Iterator[tuple[CommitChanges, bool]]:
        return marked(self._core, self._space, found, self._ignores, self._text)

    def _moved(self, touched: Iterable[Touched]) -> tuple[Moved, ...]:
        return tuple(map(_moved, touched)) if self._details else ()

    def _of_key(self, key: bytes, low: Mark, high: Mark) -> Iterator[Logged]:
        """Yield the commits that changed a key; of a store from the key's own history."""
        core, first = self._core, first_after(self._core, low)
        if not core.policy.at_head:
            yield from self._logged(changed(core, key, key + b"\0", low, high))
            return
        events = events_of(core.engine, key, b"", first, high.revision)
        try:
            pages = iter(lambda: list(islice(events, EVENTS_MAX)), [])
            yield from self._logged(chain.from_iterable(map(self._stamped, pages)))
        except CompactedError as e:
            raise compaction_error(core.policy, low.timestamp) from e
        check_unbroken(core, high)

    def _stamped(self, page: list[KeyEvent]) -> Iterator[CommitChanges]:
        timeline = self._core.timeline
        stamps = timeline.stamps([event.kv.mod_revision for event in page])
        for event, found in zip(page, stamps, strict=True):
            mark = timeline.tracker.creation if found is None else found[0]
            if found is None or mark.revision != event.kv.mod_revision:
                # another program wrote between two commits: part of the later one, as in reads
                later = timeline.following(mark)
                if later is None:
                    continue
                found = later, timeline.stamp(later)
            yield CommitChanges(*found, [Touched(event, event)])


def marked(
    reader: Reader,
    space: Keyspace,
    found: Iterable[CommitChanges],
    ignores: Ignores | None,
    text: TextSearch | None,
) -> Iterator[tuple[CommitChanges, bool]]:
    """Yield commits, each with whether it is ignored; with a `text` as `gained_or_lost`."""
    pairs: Iterator[tuple[CommitChanges, bool]] = ((each, False) for each in found)
    if ignores is not None:
        pairs = IgnoredCommits(reader, space, ignores).marked(found)
    return pairs if text is None else gained_or_lost(reader, space, text, pairs)


def gained_or_lost(
    reader: Reader, space: Keyspace, text: TextSearch, found: Iterator[tuple[CommitChanges, bool]]
) -> Iterator[tuple[CommitChanges, bool]]:
    """Yield the commits, of all in order, after which values have a text more or less often.

    `touched` are the keys of these values. Remembers of each key how often its value has the text;
    before its first change, 128 values are read in a round trip. Holds `HELD_COMMITS_MAX` commits;
    when it remembers more than `COUNTS_MAX` keys, it forgets them and reads again.
    """
    counts = dict[bytes, int]()
    for page in iter(lambda: list(islice(found, HELD_COMMITS_MAX)), []):
        if len(counts) > COUNTS_MAX:
            counts.clear()
        first = {each.last.kv.key: each for one, _ in reversed(page) for each in one.touched}
        new = [each for key, each in first.items() if each.existed and key not in counts]
        for at in range(0, len(new), PRIOR_READS_MAX):
            some = new[at : at + PRIOR_READS_MAX]
            asked = [(each.first.kv.key, each.first.kv.mod_revision - 1) for each in some]
            befores = values_at(reader, asked, page[0][0].mark.timestamp)
            counts |= {
                each.last.kv.key: text.count(value or b"")
                for each, value in zip(some, befores, strict=True)
            }
        for one, is_ignored in page:
            mine = [each for each in one.touched if _counts_more(counts, text, each)]
            mine = [each for each in mine if text.shows(space.decode(each.last.kv.key))]
            if mine:
                yield one._replace(touched=mine), is_ignored


def _counts_more(counts: dict[bytes, int], text: TextSearch, touched: Touched) -> bool:
    key = touched.last.kv.key
    before = counts.get(key, 0)
    counts[key] = text.count(touched.last.kv.value) if touched.exists else 0
    return counts[key] != before


def _moved(touched: Touched) -> Moved:
    first, last = touched.first.kv, touched.last.kv
    before = first.mod_revision - 1 if touched.existed else None
    return Moved(last.key, before, last.mod_revision if touched.exists else None)


def _joined(same: list[Logged]) -> Logged:
    """Return one commit that was found for several keys, or several times for one."""
    moved: dict[bytes, Moved] = {}
    for each in chain.from_iterable(one.moved or () for one in same):
        seen = moved.get(each.key)
        moved[each.key] = each if seen is None else Moved(each.key, seen.before, each.after)
    is_ignored = all(one.is_ignored for one in same)
    return same[0]._replace(moved=tuple(moved[key] for key in sorted(moved)), is_ignored=is_ignored)


def differences_of(kv: KeyspaceReads[Any], logged: Logged) -> Iterator[Difference[Any]]:
    """Return what a commit changed, in key order; it was logged with `details`.

    A round trip for 64 changes; their values are in memory together. Keys whose value is the same
    as before are left out. Raises `CompactedError` if that history is gone.
    """
    if logged.moved is None:
        following = kv.reader.timeline.following(logged.mark)
        earliest = None if following is None else following.timestamp
        raise compaction_error(kv.reader.policy, logged.mark.timestamp, earliest)
    return _differences(kv, logged.mark, logged.moved)


@bounds
def _differences(
    kv: KeyspaceReads[Any], mark: Mark, moved: tuple[Moved, ...]
) -> Iterator[Difference[Any]]:
    for at in range(0, len(moved), PAIRS_MAX):
        some = moved[at : at + PAIRS_MAX]
        asked = [(each.key, end) for each in some for end in each[1:] if end is not None]
        values = dict(zip(asked, values_at(kv.reader, asked, mark.timestamp), strict=True))
        for key, *ends in some:
            before, after = (None if end is None else values[key, end] for end in ends)
            if before != after:
                yield Difference(kv.keyspace.decode(key), before, after)


@bounds
def values_before(kv: KeyspaceReads[Any], changes: Sequence[Change[Any]]) -> list[bytes | None]:
    """Return the values of keys just before they were changed; a round trip for 128.

    Raises `CompactedError` if that history is gone.
    """
    found: list[bytes | None] = []
    for at in range(0, len(changes), 2 * PAIRS_MAX):
        some = changes[at : at + 2 * PAIRS_MAX]
        asked = [(kv.keyspace.encode(each.key), each.commit.revision - 1) for each in some]
        found += values_at(kv.reader, asked, some[0].commit.ts)
    return found
