"""An engine whose ranges have only selected keys, for several observed prefixes and exceptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, cast

from snapkv.engine.bulk_reads import changes
from snapkv.engine.contract import (
    COLUMNS,
    PAIRS,
    SCAN,
    ChangeColumns,
    Engine,
    PageForm,
    Range,
    RangeResult,
    ReadResult,
    Replay,
    WatchBatch,
    Watcher,
)
from snapkv.errors import AccessDeniedError
from snapkv.layout import LAST_END, Selection


def selected(engine: Engine, selection: Selection) -> Engine:
    """Return an engine whose ranges have only selected keys: itself if that is one prefix."""
    return engine if selection.is_one else cast(Engine, SelectedEngine(engine, selection))


class SelectedEngine:
    """An engine whose ranges have only selected keys; a key that is named is read as it is.

    A range becomes several ranges of the same request. A watch stays one, over all of them, and
    leaves other keys out: so its batches are in order, whatever they are of. What is not defined
    here is the engine's own, such as `pieces`, which need not be exact.
    """

    def __init__(self, engine: Engine, selection: Selection) -> None:
        self._engine, self._selection = engine, selection
        self._ranges = selection.ranges()
        self.scan, self.pairs, self.columns = (
            partial(self._pages, form) for form in (SCAN, PAIRS, COLUMNS)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _within(self, key: bytes, range_end: bytes) -> list[tuple[bytes, bytes]]:
        """Return the selected parts of a range, in order; a single key as it is."""
        if not range_end:
            return [(key, range_end)]
        parts = []
        for start, end in self._ranges:
            low, high = max(start, key), range_end if end == LAST_END else end
            if range_end != LAST_END:
                high = min(high, range_end)
            if low < high or high == LAST_END:
                parts.append((low, high))
        return parts

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one state; at most `limit` keys come of each selected part."""
        parts = [
            [wanted._replace(key=low, range_end=high) for low, high in self._within(*wanted[:2])]
            for wanted in ranges
        ]
        flat = list(chain.from_iterable(parts))
        answer = self._engine.read(flat, serializable=serializable, timeout=timeout)
        results = iter(answer.results)
        found = [
            _joined(wanted, list(islice(results, len(some))))
            for wanted, some in zip(ranges, parts, strict=True)
        ]
        return ReadResult(answer.header, found)

    def _pages(
        self, form: PageForm[Any], key: bytes, range_end: bytes, **options: Any
    ) -> Iterator[Any]:
        for part in self._within(key, range_end):
            yield from form.listed(self._engine, *part, **options)

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> Watcher:
        """Return a watcher of a range, from the first selected key in it to the last one."""
        parts = self._within(key, range_end)
        low, high = parts[0][0], parts[-1][1]
        watcher = self._engine.watch(low, high, start_revision=start_revision)
        return watcher if len(parts) == 1 else SelectedWatcher(watcher, self._selection, low, high)

    def changes(self, wanted: Replay) -> Iterator[ChangeColumns]:
        """Yield what some revisions did; of several parts, from one watch."""
        parts = self._within(*wanted[:2])
        if len(parts) > 1:
            return changes(cast(Engine, self), wanted)
        return self._engine.changes(wanted._replace(key=parts[0][0], range_end=parts[0][1]))


def _joined(wanted: Range, results: Sequence[RangeResult]) -> RangeResult:
    """Return the answers to the parts of a range as one."""
    kvs = [kv for result in results for kv in result.kvs]
    count, more = sum(result.count for result in results), any(result.more for result in results)
    if 0 < wanted.limit < len(kvs):
        return RangeResult(kvs[: wanted.limit], count, True)
    return RangeResult(kvs, count, more)


class SelectedWatcher:
    """A watcher of a range that has other keys, too: their changes become progress."""

    def __init__(self, watcher: Watcher, selection: Selection, low: bytes, high: bytes) -> None:
        self._watcher, self._selection, self._range = watcher, selection, (low, high)
        self.close = watcher.close

    @property
    def reopened(self) -> int:
        """The number of times that the watcher reconnected."""
        return self._watcher.reopened

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch; see `Watcher`.

        Raises `AccessDeniedError`, also if the user may read the selected keys only.
        """
        try:
            batch = self._watcher.next(timeout)
        except AccessDeniedError as e:
            low, high = self._range
            raise AccessDeniedError(
                f"{e}: {self._selection} are watched as one range, from {low!r} to {high!r}: "
                "let the user read all of it, or observe one prefix at a time"
            ) from e
        if batch is None:
            return None
        own = tuple(event for event in batch.events if self._selection.has(event.kv.key))
        return WatchBatch(batch.revision, own)
