"""The commits of a source that pages leave out because only ignored paths differ, remembered."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from threading import Lock
from typing import NamedTuple

from snapkv.base.lifecycle import renew_in_children
from snapkv.layout import Mark
from snapkv.reading.history import windows_back
from snapkv.reading.reader import Reader

CHUNK_COMMITS, CHUNK_COMMITS_MAX = 64, 4_096
"""The commits of the first chunk, and the most of one; each is four times the one before."""
QUIET_MAX = 500_000
"""The most commits that are remembered; when there are more, all are forgotten."""
SPANS_MAX = 16


class _Span(NamedTuple):
    """What is known of the commits in (low, high]: which were shown, and the times of ignored ones.

    A commit that is in neither is a tick.
    """

    low: Mark
    high: Mark
    loud: tuple[int, ...]
    ignored: tuple[int, ...]


class QuietCommits:
    """Remembers which commits are heartbeats, so that no page reads them again; safe for threads.

    History does not change, so a page reads what no page before it has read, and of the rest only
    the commits that it shows.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._spans: tuple[_Span, ...] = ()  # newest first
        self._epoch = reader.timeline.tracker.continuity.epoch
        self.after_fork()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = Lock()

    def windows(self, low: Mark, high: Mark) -> Iterator[tuple[Mark, Mark]]:
        """Yield the parts of (low, high] that have commits to show, or were not read; newest first.

        A commit to show costs two round trips, a part that was not read what `windows_back` costs.
        """
        for span, after, until in self._parts(low, high):
            if span is None:
                yield from windows_back(
                    self._reader, after, until, CHUNK_COMMITS, CHUNK_COMMITS_MAX
                )
                continue
            at_revision = self._reader.policy.at_revision
            loud = span.loud
            chosen = loud[bisect_right(loud, after.revision) : bisect_right(loud, until.revision)]
            for revision in reversed(chosen):
                yield at_revision(revision - 1).mark, at_revision(revision).mark

    def unread(self, low: Mark, high: Mark) -> Iterator[tuple[Mark, Mark]]:
        """Yield the parts of (low, high] that were not read; newest first."""
        for span, after, until in self._parts(low, high):
            if span is None:
                yield from windows_back(
                    self._reader, after, until, CHUNK_COMMITS, CHUNK_COMMITS_MAX
                )

    def _parts(self, low: Mark, high: Mark) -> Iterator[tuple[_Span | None, Mark, Mark]]:
        self._forget_other_history()
        for span in self._spans:
            if span.high.revision <= low.revision or high.revision <= low.revision:
                break
            if span.low.revision >= high.revision:
                continue
            if span.high.revision < high.revision:
                yield None, span.high, high
                high = span.high
            yield span, max(span.low, low), high
            high = span.low
        if high.revision > low.revision:
            yield None, low, high

    def note(self, low: Mark, high: Mark, loud: Iterable[int], ignored: Iterable[int]) -> None:
        """Remember what (low, high] has: revisions of shown commits, times of ignored ones."""
        found = _Span(low, high, tuple(sorted(loud)), tuple(sorted(ignored)))
        with self._lock:
            spans = sorted((*self._spans, found), key=lambda each: -each.high.revision)
            joined: list[_Span] = []
            for span in spans:
                if joined and joined[-1].low.revision <= span.low.revision:
                    continue  # known already
                if joined and joined[-1].low.revision == span.high.revision:
                    _, high, *newer = joined[-1]
                    joined[-1] = _Span(
                        span.low, high, span.loud + newer[0], span.ignored + newer[1]
                    )
                elif not joined or joined[-1].low.revision > span.high.revision:
                    joined.append(span)
            many = sum(len(span.ignored) + len(span.loud) for span in joined) > QUIET_MAX
            self._spans = () if many or len(joined) > SPANS_MAX else tuple(joined)

    def ticks(self, low: Mark, high: Mark) -> int:
        """Return how many commits in (low, high] are known to be ticks."""
        count = 0
        for span in self._spans:
            first, last = max(low, span.low), min(high, span.high)
            if first < last:
                count += last.ordinal - first.ordinal
                count -= count_between(span.loud, first.revision, last.revision)
                count -= count_between(span.ignored, first.timestamp, last.timestamp)
        return count

    @property
    def ignored(self) -> list[int]:
        """The times of all commits that are known to be ignored, in order."""
        self._forget_other_history()
        return list(merge(*(span.ignored for span in self._spans)))

    def _forget_other_history(self) -> None:
        epoch = self._reader.timeline.tracker.continuity.epoch
        if epoch != self._epoch:
            self._epoch, self._spans = epoch, ()


def count_between(times: Sequence[int], low: int, high: int) -> int:
    """Return how many of some sorted times are in (low, high].

    >>> count_between([1, 4, 4, 9], 1, 4)
    2
    """
    return bisect_right(times, high) - bisect_right(times, low)
