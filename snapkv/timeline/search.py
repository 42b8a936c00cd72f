"""Search the history of the timestamp key for a mark.

In a remote engine by one guess and then 127 reads at a time, in an embedded one by blocks of marks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from snapkv.engine.contract import KeyValue
from snapkv.layout import Mark, stamp_of

READS_MAX = 128
"""The most reads in one transaction, where etcd limits them."""
PROBES_MAX = READS_MAX - 1
"""The most probes of one wide step: one more read is for the witness, see `continuity.py`."""
NEAR_PROBES_MAX = 64
"""The most probes at consecutive revisions around the guess; the rest are spread evenly."""
ABOVE_GUESS = 32
"""The revisions of a block above a guess, because guesses err both ways."""

TIMESTAMP, REVISION, ORDINAL = range(3)
"""Fields of a `Mark` that can be searched by."""

Probe = Callable[[Sequence[int]], list[Mark]]
"""Reads the mark in force at each of some revisions, in one round trip."""


def mark_of(kv: KeyValue) -> Mark:
    """Return the mark of a version of the timestamp key."""
    return Mark(stamp_of(kv.value), kv.mod_revision, kv.version)


class Block(NamedTuple):
    """Consecutive marks, oldest first, up to the one in force at revision `until`.

    `ordinal` is the ordinal of the first mark. A block without marks has `until` before the first
    commit.
    """

    until: int
    ordinal: int
    timestamps: Sequence[int]
    revisions: Sequence[int]

    def mark(self, at: int) -> Mark:
        """Return the mark at an index."""
        return Mark(self.timestamps[at], self.revisions[at], self.ordinal + at)

    def find(self, field: int, wanted: int) -> int:
        """Return the index of the newest mark with `mark[field] <= wanted`, -1 for none."""
        if field == ORDINAL:
            return min(wanted - self.ordinal, len(self.revisions) - 1)
        values = self.timestamps if field == TIMESTAMP else self.revisions
        return bisect_right(values, wanted) - 1


ReadBlock = Callable[[int], Block]
"""Reads the mark in force at a revision, and those before it."""


@dataclass(slots=True)
class Bracket:
    """Two marks around the wanted one: `low[field] <= wanted < high[field]`.

    `low` is known to be in force up to the revision `low_until`; the search continues above that.
    """

    field: int
    wanted: int
    low: Mark
    high: Mark
    low_until: int = 0

    def __post_init__(self) -> None:
        self.low_until = max(self.low_until, self.low.revision)

    @property
    def found(self) -> bool:
        """Whether no mark is between the two."""
        return self.high.ordinal == self.low.ordinal + 1 or self.low_until + 1 >= self.high.revision

    def narrow(self, revision: int, mark: Mark) -> None:
        """Narrow the bracket by the mark that is in force at `revision`."""
        if mark[self.field] <= self.wanted:
            if revision > self.low_until:
                self.low, self.low_until = mark, revision
        elif mark.revision < self.high.revision:
            self.high = mark

    def take(self, block: Block) -> None:
        """Narrow the bracket by a block of marks."""
        at, newest = block.find(self.field, self.wanted), len(block.revisions) - 1
        if at < newest:
            after = block.mark(max(at, -1) + 1)
            if after.revision < self.high.revision:
                self.high = after
            until = after.revision - 1
        else:
            until = block.until
        if at >= 0 and until > self.low_until:
            self.low, self.low_until = block.mark(at), until
        elif newest < 0:
            self.low_until = max(self.low_until, until)

    def interpolate(self) -> int | None:
        """Guess the wanted revision from a straight line through both marks."""
        low, high = self.low[self.field], self.high[self.field]
        if self.field == TIMESTAMP and self.low.ordinal == 1:
            return None  # the creation's timestamp is 0: a line from there is useless
        share = (self.wanted - low) / (high - low)
        guess = self.low.revision + int(share * (self.high.revision - self.low.revision))
        return min(max(guess, self.low_until + 1), self.high.revision - 1)

    def spread(self) -> list[int]:
        """Return up to `PROBES_MAX` open revisions: around the guess, and evenly over the rest.

        If commits come at a steady rate, the revisions around the guess end the search; otherwise
        the even ones reduce the open range to a 64th at least.
        """
        first, last = self.low_until + 1, self.high.revision - 1
        width = last - first + 1
        near: set[int] = set()
        if width > PROBES_MAX and (guess := self.interpolate()) is not None:
            near.update(range(guess - NEAR_PROBES_MAX // 2 + 1, guess + NEAR_PROBES_MAX // 2 + 1))
        probes = {revision for revision in near if first <= revision <= last}
        count = min(PROBES_MAX - len(probes), width)
        probes.update(first + width * (i + 1) // count - 1 for i in range(count))
        return sorted(probes)


def search(bracket: Bracket, probe: Probe) -> tuple[Mark, Mark]:
    """Return the wanted mark (the newest with `mark[field] <= wanted`) and the one after it.

    Cost: 2 round trips when commits come at a steady rate, one of them a single read; otherwise 2
    to 3 on average and at most 1 + log(revisions) / log(64), rounded up: 4 for 262,144 revisions,
    5 for 16 million. Errors of `probe` pass through.
    """
    if not bracket.found and (guess := bracket.interpolate()) is not None:
        bracket.narrow(guess, probe([guess])[0])
    while not bracket.found:
        revisions = bracket.spread()
        for revision, mark in zip(revisions, probe(revisions), strict=True):
            bracket.narrow(revision, mark)
    return bracket.low, bracket.high


def search_blocks(bracket: Bracket, read: ReadBlock) -> tuple[Mark, Mark]:
    """Return what `search` returns, from blocks of marks: for an engine that answers at once.

    Cost: one block or two if commits come at a steady rate, else 2 log2(revisions) at most: after
    a guess that missed, a block is read in the middle of the open range.
    """
    guess: int | None = None
    while not bracket.found:
        first, last = bracket.low_until + 1, bracket.high.revision - 1
        guess = bracket.interpolate() if guess is None else None
        middle = (first + last) // 2
        bracket.take(read(min(last, (middle if guess is None else guess) + ABOVE_GUESS)))
    return bracket.low, bracket.high
