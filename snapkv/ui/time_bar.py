"""The time bar: how many commits each part of a span has, and what of it can be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from snapkv.errors import InvalidOptionError
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.times import duration_ms, pack, physical_ms
from snapkv.ui.page_source import Source
from snapkv.ui.page_text import iso_ms
from snapkv.ui.quiet_commits import count_between

BUCKETS_MAX = 160
_S, _M, _H, _D = 1_000, 60_000, 3_600_000, 86_400_000
WIDTHS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, _S, 2 * _S, 5 * _S, 10 * _S, 15 * _S, 30 * _S),
    *(_M, 2 * _M, 5 * _M, 10 * _M, 15 * _M, 30 * _M, _H, 2 * _H, 3 * _H, 6 * _H, 12 * _H),
    *(_D, 2 * _D, 7 * _D, 14 * _D, 28 * _D, 91 * _D, 182 * _D, 364 * _D, 1820 * _D, 3640 * _D),
)
PRESETS = ("15m", "1h", "24h", "7d", "all")
SPAN_MS_MIN = 100
TICKS_MAX = 6
MONDAY_MS = 4 * _D
ALL = "all"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A part of the bar, [start_ms, end_ms), and how many commits it has, without ignored ones."""

    start_ms: int
    end_ms: int
    count: int


@dataclass(frozen=True, slots=True)
class Bar:
    """The buckets of a span, and its marks, in milliseconds since 1970 (None: outside of time).

    `earliest_ms` is the oldest moment that compaction left, `archived_ms` the end of what only the
    archive has, `final_ms` the newest commit: nothing at or below it changes any more. `unit` says
    what is counted: commits of a store, or transactions of all programs in the observed engine.
    `ignored` commits, in which only ignored paths differ, are not counted.
    """

    start_ms: int
    end_ms: int
    width_ms: int
    buckets: tuple[Bucket, ...]
    unit: str
    earliest_ms: int | None
    archived_ms: int | None
    final_ms: int
    now_ms: int
    ignored: int = 0
    known_ms: int | None = None
    """The time before which commits were not counted; None: all were."""

    @property
    def highest(self) -> int:
        """The count of the fullest bucket, at least 1."""
        return max((bucket.count for bucket in self.buckets), default=0) or 1

    @property
    def step_ms(self) -> int:
        """The time between two ticks."""
        whole = self.end_ms - self.start_ms
        return next((ms for ms in WIDTHS_MS if whole < TICKS_MAX * ms), whole)

    @property
    def ticks(self) -> list[tuple[float, str, str]]:
        """The round times in the span: where each is, its time, and how it is written."""
        span = self.end_ms - self.start_ms
        step = self.step_ms
        form = "day" if step >= _D else "minute" if span > _D else "clock"
        first = -(-(self.start_ms - MONDAY_MS) // step) * step + MONDAY_MS
        form = "ms" if step < _S else "second" if step < _M else form
        return [(self.share(ms), iso_ms(ms), form) for ms in range(first, self.end_ms, step)]

    @property
    def total(self) -> int:
        """The commits of all buckets."""
        return sum(bucket.count for bucket in self.buckets)

    def share(self, ms: int) -> float:
        """Return where a time is in the bar, from 0 at its start to 1 at its end."""
        whole = self.end_ms - self.start_ms
        return min(1.0, max(0.0, (ms - self.start_ms) / whole))


def span_of(source: Source, text: str | None, at_ms: int | None) -> tuple[int, int]:
    """Return the start and the end of the span that a URL names, in milliseconds.

    `15m` and so on end at `at_ms`, or now. `A..B` are two times in milliseconds. `all` is
    everything from the oldest commit that is left to the newest one.
    """
    text = (text or ALL).strip()
    if text == ALL:
        return _all(source)
    return span_until(text, source.now_ms() if at_ms is None else at_ms + 1)


def span_until(text: str, end_ms: int) -> tuple[int, int]:
    """Return a span that a text names, which ends at a time unless it names both; not `all`."""
    if ".." in text:
        low, high = text.split("..", 1)
        if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit()):
            raise InvalidOptionError(f"span={text[:40]!r}: write 15m, all, or two times in ms A..B")
        start, end = sorted((int(low[:15]), int(high[:15])))
        return start, max(start + SPAN_MS_MIN, end)
    return max(0, end_ms - max(SPAN_MS_MIN, duration_ms(text))), end_ms


def _all(source: Source) -> tuple[int, int]:
    line = source.reader.timeline
    oldest, head = line.oldest(), line.head()
    if oldest.ordinal == CREATION_ORDINAL and (first := line.following(oldest)) is not None:
        oldest = first
    end = physical_ms(head.timestamp) + 1
    if head.ordinal == CREATION_ORDINAL:
        end = source.now_ms()
        return end - _H, end
    start = physical_ms(oldest.timestamp)
    margin = max(SPAN_MS_MIN, (end - start) // 50)
    return max(0, start - margin), end + margin


def bar(
    source: Source,
    start_ms: int,
    end_ms: int,
    *,
    buckets_max: int = BUCKETS_MAX,
    ignored: Sequence[int] = (),
    ticks: Callable[[Mark, Mark], int] = lambda low, high: 0,
    only: Sequence[int] | None = None,
    known_ms: int | None = None,
) -> Bar:
    """Return the time bar of a span; costs as `Source.ordinals`, however many commits it has.

    `ignored` are the times of commits that do not count, in order, `ticks` how many ticks between
    two marks do not; `only` are the times of commits that count, known from `known_ms` on.
    """
    width = width_ms(end_ms - start_ms, buckets_max)
    start, end = start_ms // width * width, -(-end_ms // width) * width
    edges = range(start, end + 1, width)
    bounds = [max(0, pack(ms) - 1) for ms in edges]
    found = source.ordinals(bounds) if only is None else []
    marks = [Mark(at, revision, n) for at, (n, revision) in zip(bounds, found, strict=False)]
    if only is not None:
        counts = [count_between(only, *pair) for pair in pairwise(bounds)]
    elif source.observed:  # the writes beside the ticks
        made = [(b.revision - a.revision, b.ordinal - a.ordinal) for a, b in pairwise(marks)]
        counts = [max(0, revisions - ordinals) for revisions, ordinals in made]
    else:
        counts = [b.ordinal - a.ordinal - ticks(a, b) for a, b in pairwise(marks)]
    left_out = [count_between(ignored, *pair) for pair in pairwise(bounds)]
    counts = [max(0, count - quiet) for count, quiet in zip(counts, left_out, strict=True)]
    buckets = [Bucket(ms, ms + width, n) for ms, n in zip(edges, counts, strict=False)]
    earliest, archived = _compacted(source), _archived(source)
    head = source.reader.timeline.head()
    return Bar(
        start,
        end,
        width,
        tuple(buckets),
        "writes" if source.observed else "commits",
        None if not earliest else physical_ms(earliest),
        archived,
        physical_ms(head.timestamp),
        source.now_ms(),
        sum(left_out),
        known_ms,
    )


def width_ms(span_ms: int, buckets_max: int) -> int:
    """Return the width of the buckets of a span."""
    for width in WIDTHS_MS:
        if span_ms <= width * (buckets_max - 1):
            return width
    return -(-span_ms // buckets_max)


def _compacted(source: Source) -> int | None:
    """Return the oldest timestamp that can be read, None if no older one was compacted."""
    earliest, line = source.earliest(), source.reader.timeline
    if not source.observed or earliest is None:
        return earliest
    first: Mark | None = line.oldest()
    if first and first.ordinal == CREATION_ORDINAL:
        first = line.following(first)
    whole = first and (first.ordinal, first.timestamp) == (CREATION_ORDINAL + 1, earliest)
    return None if whole else earliest


def _archived(source: Source) -> int | None:
    """Return the time before which only the archive can answer, None without one."""
    engine = source.reader.engine
    if source.frozen:
        return physical_ms(source.reader.timeline.head().timestamp) + 1
    live = getattr(engine, "live", None)
    if live is None or not (compacted := live.compacted_revision()):
        return None
    (found,) = source.reader.timeline.stamps([compacted])
    return None if found is None else physical_ms(found[0].timestamp)
