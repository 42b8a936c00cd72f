"""Commits that changed nothing but what readers ignore, such as heartbeats of Kubernetes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Protocol

from snapkv.errors import CompactedError
from snapkv.layout import Keyspace
from snapkv.reading.change_replay import PRIOR_READS_MAX, CommitChanges, Touched, values_at
from snapkv.reading.reader import Reader

HELD_COMMITS_MAX = 512
HELD_BYTES_MAX = 4 << 20
"""The most bytes of values of commits that wait until the values before them are read."""
KNOWN_KEYS_MAX = 1_024
KNOWN_BYTES_MAX = 1 << 16
"""The size of the largest value that is remembered as the one before its key's next change."""


class Ignores(Protocol):
    """Says which changes of values do not count; `snapkv.rendering.ignored_paths` has one."""

    def may_ignore(self, value: bytes) -> bool:
        """Return whether a change to this value may be one that does not count; cheap."""

    def ignores(self, before: bytes | None, after: bytes | None) -> bool:
        """Return whether the change does not count; to create or remove a key (None) does."""

    def shows(self, key: str) -> bool:
        """Return whether the values of a key may be looked at."""


class IgnoredCommits:
    """Finds commits that only changed values, and only in what is ignored.

    One with a note or meta, that added or removed a key, or that changed a key outside of `space`
    counts. Commits are seen in their order, so the values before a change are known if its key was
    changed by an earlier one; the rest are read, 128 in a round trip, only of values that may be
    ignored.
    """

    def __init__(self, reader: Reader, space: Keyspace, ignores: Ignores) -> None:
        self._reader, self._space, self._ignores = reader, space, ignores
        self._known = OrderedDict[bytes, bytes]()
        self._held: list[tuple[CommitChanges, list[bytes | None] | None]] = []
        self._asked: list[tuple[bytes, int]] = []
        self._bytes = 0

    def marked(self, found: Iterable[CommitChanges]) -> Iterator[tuple[CommitChanges, bool]]:
        """Yield commits, oldest first, each with whether it is ignored."""
        for each in found:
            self._take(each)
            full = len(self._asked) >= PRIOR_READS_MAX or len(self._held) >= HELD_COMMITS_MAX
            if full or self._bytes > HELD_BYTES_MAX or not self._asked:
                yield from self._flushed()
        yield from self._flushed()

    def _take(self, each: CommitChanges) -> None:
        befores: list[bytes | None] | None = None
        says_nothing = each.stamp is None or each.stamp.says_nothing
        if says_nothing and each.touched and all(map(self._may_ignore, each.touched)):
            befores = [self._known.get(touched.last.kv.key) for touched in each.touched]
            for touched, before in zip(each.touched, befores, strict=True):
                if before is None:
                    kv = touched.first.kv
                    self._asked.append((kv.key, kv.mod_revision - 1))
                self._bytes += len(touched.last.kv.value)
        for touched in each.touched:
            self._remember(touched)
        self._held.append((each, befores))

    def _may_ignore(self, touched: Touched) -> bool:
        if not (touched.existed and touched.exists):
            return False
        key, start = touched.last.kv.key, self._space.prefix
        return (
            key.startswith(start)
            and self._ignores.may_ignore(touched.last.kv.value)
            and self._ignores.shows(self._space.decode(key))
        )

    def _remember(self, touched: Touched) -> None:
        key, value = touched.last.kv.key, touched.last.kv.value
        self._known.pop(key, None)
        if touched.exists and len(value) <= KNOWN_BYTES_MAX and self._ignores.may_ignore(value):
            self._known[key] = value
            if len(self._known) > KNOWN_KEYS_MAX:
                self._known.popitem(last=False)

    def _flushed(self) -> Iterator[tuple[CommitChanges, bool]]:
        held, self._held, self._bytes = self._held, [], 0
        read = iter(self._read())
        for each, befores in held:
            if befores is None:
                yield each, False
                continue
            # all that this commit asked for, whatever is decided first
            whole = [next(read) if before is None else before for before in befores]
            afters = (touched.last.kv.value for touched in each.touched)
            yield each, all(map(self._ignores.ignores, whole, afters))

    def _read(self) -> list[bytes | None]:
        asked, self._asked = self._asked, []
        found: list[bytes | None] = []
        for at in range(0, len(asked), PRIOR_READS_MAX):
            some = asked[at : at + PRIOR_READS_MAX]
            try:
                found += values_at(self._reader, some, 0)
            except CompactedError:
                found += [None] * len(some)
        return found
