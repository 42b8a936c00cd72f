"""Search the history of the timestamp key for a mark: interpolation, then 128 reads at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from snapkv.records import Mark

INTERPOLATIONS_MAX = 2
"""Single reads to try before the wide ones; steady writers are found by these."""
PROBES_MAX = 128
"""Reads in one wide step: etcd's limit of operations in a transaction."""

TIMESTAMP, REVISION, ORDINAL = range(3)
"""Fields of a `Mark` that can be searched by."""

Probe = Callable[[Sequence[int]], list[Mark]]
"""Reads the mark in force at each of some revisions, in one round trip."""


@dataclass(slots=True)
class Bracket:
    """Two marks around the wanted one: `low[field] <= wanted < high[field]`.

    `low` is known to be in force up to the revision `low_until`, so the search goes on above it.
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
        """Whether nothing lies between the two."""
        return self.high.ordinal == self.low.ordinal + 1 or self.low_until + 1 >= self.high.revision

    def narrow(self, revision: int, mark: Mark) -> None:
        """Take in that `mark` is in force at `revision`."""
        if mark[self.field] <= self.wanted:
            if revision > self.low_until:
                self.low, self.low_until = mark, revision
        elif mark.revision < self.high.revision:
            self.high = mark

    def interpolate(self) -> int | None:
        """Guess the wanted revision from a straight line through both marks."""
        low, high = self.low[self.field], self.high[self.field]
        if self.field == TIMESTAMP and self.low.ordinal == 1:
            return None  # the creation's timestamp is 0: the line would lead nowhere
        share = (self.wanted - low) / (high - low)
        guess = self.low.revision + int(share * (self.high.revision - self.low.revision))
        return min(max(guess, self.low_until + 1), self.high.revision - 1)

    def spread(self) -> list[int]:
        """Return up to `PROBES_MAX` revisions that cut the open part evenly, its end included."""
        open_from, open_until = self.low_until + 1, self.high.revision - 1
        count = min(PROBES_MAX, open_until - open_from + 1)
        width = open_until - open_from + 1
        return [open_from + width * (i + 1) // count - 1 for i in range(count)]


def search(bracket: Bracket, probe: Probe) -> tuple[Mark, Mark]:
    """Return the wanted mark (the newest with `mark[field] <= wanted`) and the one after it.

    Cost: at most `INTERPOLATIONS_MAX` + log(revisions) / log(128) round trips, rounded up: 3 for
    30,000 revisions after the interpolations; about 2 in all when commits come at a steady rate.
    What `probe` raises passes through.
    """
    for _ in range(INTERPOLATIONS_MAX):
        if bracket.found or (guess := bracket.interpolate()) is None:
            break
        bracket.narrow(guess, probe([guess])[0])
    while not bracket.found:
        revisions = bracket.spread()
        for revision, mark in zip(revisions, probe(revisions), strict=True):
            bracket.narrow(revision, mark)
    return bracket.low, bracket.high
