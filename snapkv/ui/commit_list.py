"""Commits with what they changed, newest first or oldest first, as far as a bounded page goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from snapkv.layout import CREATION_ORDINAL, Mark, StampRecord, is_of_round, space_name
from snapkv.model import Scalar
from snapkv.reading.change_replay import CommitChanges, Touched, changed, touched_by, values_before
from snapkv.reading.history import bounds, windows_back
from snapkv.reading.ignored_commits import Ignores
from snapkv.reading.log import marked
from snapkv.reading.text_search import TextSearch
from snapkv.rendering.audit_log import AuditEvent
from snapkv.timeline import READS_MAX
from snapkv.timeline.moment import compaction_error
from snapkv.times import When, physical_ms, revision_of
from snapkv.ui.key_differences import (
    ADDED,
    CHANGED,
    REMOVED,
    Attributed,
    Counted,
    Row,
    Rows,
)
from snapkv.ui.page_source import Budget, Source
from snapkv.ui.quiet_commits import (
    CHUNK_COMMITS,
    CHUNK_COMMITS_MAX,
    QuietCommits,
    count_between,
)

STEPS_MAX = 50
NAMES_MAX = 3
"""The most keys that a list names of one commit."""

Wanted = Callable[["CommitSummary"], bool]
"""Which commits a page shows.

By default, these are with a prefix the commits that changed a key with it, else all but ticks. A
commit that is ignored is not asked about.
"""


@dataclass(frozen=True, slots=True)
class CommitSummary(Counted, Attributed):
    """A commit, or a write of another program: its time, writer, note, and what it did.

    `counts` are of `+ ~ -`, `names` some of the keys. `spaces` counts changes in a store's spaces.
    `timestamp` of a foreign write is the timestamp of its tick. `meta` are the commit's facts.
    `source_revision` is the one that a record's commit recorded. An `ignored` one changed nothing
    but ignored paths.
    """

    revision: int
    timestamp: int
    writer: str | None
    note: str | None
    fence: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    names: tuple[tuple[str, str], ...] = ()
    spaces: Counter[str] = field(default_factory=Counter)
    foreign: bool = False
    meta: Mapping[str, Scalar] = field(default_factory=dict)
    source_revision: int | None = None
    managers: tuple[str, ...] = ()
    audit: AuditEvent | None = None
    ignored: bool = False

    @property
    def tick(self) -> bool:
        """Whether it only moved time on: it changed no key, has no note, and is not a fence."""
        did = self.counts or self.spaces or self.note is not None or self.fence
        return not did and is_of_round(self.meta)


@dataclass(frozen=True, slots=True)
class CommitList:
    """A page of steps. `following` is the revision from which the next page goes on.

    It is None at the end of what is left. `complete` is False if the time was used up before the
    page was full. `ignored` says that commits were left out in which only ignored paths differ.
    """

    steps: list[CommitSummary]
    following: int | None
    complete: bool
    ignored: bool = False


def steps_back(
    source: Source,
    until: When | None,
    *,
    since: When | None = None,
    prefix: str = "",
    wanted: Wanted | None = None,
    limit: int = STEPS_MAX,
    budget: Budget,
    ignores: Ignores | None = None,
    quiet: QuietCommits | None = None,
    text: TextSearch | None = None,
) -> CommitList:
    """Return commits up to a moment, newest first, that changed keys with the prefix.

    With a `text`, only commits in which a value gained or lost it, with the keys of such values.
    Two watches for each chunk of commits. With `ignores` the commits that it ignores are left out;
    `quiet` remembers them.
    """
    wanted = wanted or _shown(prefix)
    low = bounds(source.reader, None, None)[0] if since is None else source.mark(since)
    high, found = source.mark(until), list[CommitSummary]()
    times = low.timestamp, high.timestamp
    span = source.span_of_commits(prefix) if text is None else source.span(prefix)
    parts = windows_back(source.reader, low, high, CHUNK_COMMITS, CHUNK_COMMITS_MAX)
    if quiet is not None:
        parts = quiet.windows(low, high)
    ignored = quiet is not None and count_between(quiet.ignored, *times) > 0
    for after, until_mark in parts:
        steps = list(_between(source, after, until_mark, span, ignores, text))
        if quiet is not None:
            noted(quiet, after, until_mark, steps)
        ignored = ignored or any(step.ignored for step in steps)
        for step in reversed(steps):
            if not step.ignored and wanted(step):
                found.append(step)
                if len(found) == limit:
                    return CommitList(found, step.revision - 1, True, ignored)
        if budget.over and after.revision > low.revision:
            return CommitList(found, after.revision, False, ignored)
    return CommitList(found, None, True, ignored)


def noted(quiet: QuietCommits, after: Mark, high: Mark, steps: list[CommitSummary]) -> None:
    """Remember which of all commits in (after, high] are ignored."""
    loud = (step.revision for step in steps if not (step.ignored or step.tick))
    quiet.note(after, high, loud, (step.timestamp for step in steps if step.ignored))


def look_at(
    source: Source,
    low: Mark,
    high: Mark,
    quiet: QuietCommits,
    ignores: Ignores | None,
    budget: Budget,
) -> None:
    """Find out which commits in (low, high] are ignored, newest first, while there is time."""
    for after, until in quiet.unread(low, high):
        noted(quiet, after, until, list(_between(source, after, until, source.own_span(), ignores)))
        if budget.over:
            return


def times_back(
    source: Source,
    low: Mark,
    high: Mark,
    span: tuple[bytes, bytes],
    wanted: Wanted | None,
    budget: Budget,
    ignores: Ignores | None,
) -> tuple[list[int], int | None]:
    """Return the times of the commits in (low, high] that changed a range of stored keys, in order.

    With them the time in milliseconds down to which the budget sufficed; None: all were found.
    """
    wanted, found = wanted or _shown("keys"), list[int]()
    for after, until in windows_back(source.reader, low, high, CHUNK_COMMITS, CHUNK_COMMITS_MAX):
        steps = _between(source, after, until, span, ignores)
        found += [step.timestamp for step in steps if not step.ignored and wanted(step)]
        if budget.over and after != low:
            return sorted(found), physical_ms(after.timestamp)
    return sorted(found), None


def steps_on(
    source: Source,
    since: When | None,
    *,
    prefix: str = "",
    wanted: Wanted | None = None,
    limit: int = 1,
    budget: Budget,
    ignores: Ignores | None = None,
) -> CommitList:
    """Return commits after a moment, oldest first; otherwise as `steps_back`."""
    wanted = wanted or _shown(prefix)
    low, size = source.mark(since), CHUNK_COMMITS
    head, found = source.reader.policy.now().mark, list[CommitSummary]()
    while low.revision < head.revision:
        last = min(head.ordinal, low.ordinal + size)
        high = head if last == head.ordinal else source.reader.timeline.by_ordinal(last)
        for step in _between(source, low, high, source.span_of_commits(prefix), ignores):
            if not step.ignored and wanted(step):
                found.append(step)
                if len(found) == limit:
                    return CommitList(found, step.revision, complete=True)
        low, size = high, min(4 * size, CHUNK_COMMITS_MAX)
        if budget.over:
            return CommitList(found, low.revision, complete=False)
    return CommitList(found, None, complete=True)


def _shown(prefix: str) -> Wanted:
    return (lambda step: bool(step.counts)) if prefix else (lambda step: not step.tick)


def _between(
    source: Source,
    low: Mark,
    high: Mark,
    span: tuple[bytes, bytes],
    ignores: Ignores | None = None,
    text: TextSearch | None = None,
) -> Iterator[CommitSummary]:
    found = changed(source.reader, *span, low, high)
    for each, ignored in marked(source.reader, source.reads.keyspace, found, ignores, text):
        yield replace(step_of(source, each), ignored=ignored)


def step_of(source: Source, found: CommitChanges) -> CommitSummary:
    """Return a commit and what it did as a step."""
    mark, stamp, touched = found
    counts, spaces, names = Counter[str](), Counter[str](), list[tuple[str, str]]()
    for each in touched:
        if (space := space_of(source, each)) is not None:
            spaces[space] += 1
        elif is_own(source, each):
            kind = ADDED if not each.existed else CHANGED if each.exists else REMOVED
            counts[kind] += 1
            if len(names) < NAMES_MAX:
                names.append((kind, source.decode(each.last.kv.key)))
    said = stamp or StampRecord(mark.timestamp)
    return CommitSummary(
        mark.revision,
        mark.timestamp,
        said.writer or None,
        said.note,
        said.fence_of is not None,
        counts,
        tuple(names),
        spaces,
        stamp is None,
        dict(said.meta or {}),
        said.source_revision,
    )


def is_own(source: Source, touched: Touched) -> bool:
    """Return whether a change is of the keys that the pages show."""
    return touched.last.kv.key.startswith(source.base)


def space_of(source: Source, touched: Touched) -> str | None:
    """Return the space of a store in which a change is, None for a key."""
    if source.observed:
        return None
    spaces, key = source.reader.layout.spaces, touched.last.kv.key
    return space_name(key[len(spaces) :]) if key.startswith(spaces) else None


# --- one commit ---


@dataclass(frozen=True, slots=True)
class CommitPage:
    """A commit with a page of its differences in key order, `more` of which come after it.

    They are those from the revision `since` on; of a tick, of all writes that it stamps. The next
    page begins behind the key `after`, None at the end.
    """

    step: CommitSummary
    rows: list[Row]
    more: int
    since: int
    after: str | None = None


def commit_at(
    source: Source, when: When | None, *, prefix: str = "", after: str | None = None, limit: int
) -> CommitPage:
    """Return the commit at or before a moment, with `limit` keys that it changed, behind `after`.

    Of observed keys, it is the write at a revision, or the tick at or before a time with all that
    it stamps. Raises `CompactedError` if what it changed is not left.
    """
    mark = source.mark(when)
    low = _before(source, mark, when)
    span = source.span_of_commits(prefix)
    found: list[CommitChanges] = list(changed(source.reader, *span, low, mark))
    if not found:
        nothing = CommitSummary(mark.revision, mark.timestamp, None, None)
        return CommitPage(nothing, [], 0, low.revision)
    whole = _joined(found)
    first = b"" if after is None else source.encode(after) + b"\0"
    own = (each for each in whole.touched if is_own(source, each))
    touched = [each for each in own if each.last.kv.key >= first]
    rows = _rows(source, touched[:limit], low)
    more = max(0, len(touched) - limit)
    last = rows[-1].key if rows and more else None
    return CommitPage(step_of(source, whole), rows, more, low.revision, last)


def _before(source: Source, mark: Mark, when: When | None) -> Mark:
    """Return the mark after which the changes of a commit begin."""
    if source.observed and when is not None and revision_of(when) is not None:
        return source.mark(f"rev:{max(1, mark.revision - 1)}")
    if mark.ordinal <= CREATION_ORDINAL:
        return mark
    line = source.reader.timeline
    if line.oldest().ordinal >= mark.ordinal:
        raise compaction_error(line, mark.timestamp)
    return line.by_ordinal(mark.ordinal - 1)


def _joined(found: list[CommitChanges]) -> CommitChanges:
    """Return the last of them, which is the commit, with what all of them did to each key."""
    if len(found) == 1:
        return found[0]
    touched = (each for one in found for each in one.touched)
    return found[-1]._replace(touched=touched_by(event for each in touched for event in each))


def _rows(source: Source, touched: list[Touched], low: Mark) -> Rows:
    rows = Rows(source)
    for at in range(0, len(touched), READS_MAX):
        some = touched[at : at + READS_MAX]
        befores = values_before(source.reader, some, low)
        for each, before in zip(some, befores, strict=True):
            kv = each.last.kv
            rows.add(source.decode(kv.key), before, kv.value if each.exists else None)
    return rows
