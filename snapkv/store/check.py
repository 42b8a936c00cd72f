"""The invariants of a whole store, engine and time line together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import WatchBatch
from snapkv.errors import CorruptStoreError, HistoryGapError, StoreRecreatedError
from snapkv.layout import Mark, prefix_end
from snapkv.store.core import Core


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The size of what `check()` examined, and every broken rule that it found."""

    commits: int
    keys: int
    problems: tuple[str, ...]


def check(core: Core, progress: Callable[[int], None] = lambda _: None) -> CheckReport:
    """Check the engine's own rules, the time line, and that every write carries a timestamp.

    `progress` is called now and then with the number of commits checked.
    """
    core.check_open()
    problems = [f"engine: {problem}" for problem in core.engine.check()]
    try:
        core.timeline.tracker.check()
    except AssertionError as e:
        problems.append(f"timeline: {e!r}")
    commits, until = 0, core.engine.read([]).header.revision
    for batch in _batches(core, until):
        found, stamped = _judge(core, batch)
        problems += found
        commits += stamped
        if stamped:
            progress(commits)
    try:
        problems += _order(core, core.timeline.head())
    except StoreRecreatedError as e:
        problems.append(str(e))
        return CheckReport(commits, 0, tuple(problems))
    data = core.layout.data
    keys = core.source(None, None, False).count(data.prefix, prefix_end(data.prefix))
    return CheckReport(commits, keys, tuple(problems))


def _batches(core: Core, until: int) -> Iterator[WatchBatch]:
    """Yield everything that was written to the store since it was made, or compacted."""
    root = core.layout.root
    start = max(core.timeline.tracker.creation.revision, core.engine.compacted_revision())
    return replayed(core.engine, root, prefix_end(root), start, until)


def _judge(core: Core, batch: WatchBatch) -> tuple[list[str], int]:
    layout, problems = core.layout, []
    stamps = [event.kv for event in batch.events if event.kv.key == layout.ts]
    # a part of a recorded commit that found no timestamp belongs to the next one that has one
    stamped = bool(stamps) or any(e.kv.key == layout.part and not e.is_delete for e in batch.events)
    for event in batch.events:
        kv = event.kv
        if kv.key == layout.ts and event.is_delete:
            problems.append(f"revision {batch.revision} deletes the timestamp key")
        elif (
            not stamped
            and kv.key.startswith((layout.data.prefix, layout.spaces))
            and not _is_lost(core, batch.revision)
        ):
            problems.append(f"revision {batch.revision} writes {kv.key!r} without a timestamp")
        if kv.key.startswith(layout.data.prefix):
            try:
                kv.key.decode()
            except UnicodeDecodeError:
                problems.append(f"key {kv.key!r} is not valid UTF-8")
    return problems, sum(1 for kv in stamps if kv.version > 1)  # 1: the store's creation


def _is_lost(core: Core, revision: int) -> bool:
    """Return whether a revision is in a gap of an archive, where no write has a time of its own."""
    try:
        core.engine.get(core.layout.data.prefix, revision)
    except HistoryGapError:
        return True
    return False


def _order(core: Core, head: Mark) -> Iterator[str]:
    """Timestamps, revisions and ordinals of the log rise together, by one in the ordinals."""
    last = core.timeline.oldest()
    try:
        for mark, _ in core.timeline.replay(last, head):
            if not (mark.timestamp > last.timestamp and mark.revision > last.revision):
                yield f"commit {mark} does not come after {last}"
            if mark.ordinal != last.ordinal + 1:
                yield f"commit {mark} does not follow {last}"
            last = mark
    except CorruptStoreError as e:
        yield str(e)
