"""Reads a store once for all tables of a changefeed, and hands each table its commits.

One watch is at `position`, near the newest commit, and feeds the tables that are live. The tables
that are behind are fetched together by a second watch, from where the first of them is; when that
reaches `position`, they are live. For example, A and B are live at 90, and C starts at 50:

    the watch       ... 90   91   92   93        hands to A and B, from 94 on to C, too
    the second one  51  ...  90   91   92  93    hands to C, and ends
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from cdcmeta.scheduler.executors.pipeline import Pipeline
from snapkv import Change, Changes, CompactedError, SnapKVError, SnapshotKV, Watch
from snapkv.errors import StoreClosedError, StoreRecreatedError, StoreRestoredError

log = logging.getLogger("cdcmeta.scheduler")

WAIT_S = 0.25
RETRY_S = 0.5
NOWHERE = -1
"""The position before the first watch."""
LASTING = (CompactedError, StoreRestoredError, StoreRecreatedError)
"""Errors that do not pass: tables that need these commits end."""


class Router:
    """Finds the table of a key; tables are prefixes, none the beginning of another."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        """Take the prefix of each table."""
        self._tables = {prefix: table for table, prefix in prefixes.items()}
        self._sorted = sorted(self._tables)

    def table_of(self, key: str) -> str | None:
        """Return the table of a key, None outside of all. O(log tables)."""
        at = bisect_right(self._sorted, key) - 1
        if at >= 0 and key.startswith(self._sorted[at]):
            return self._tables[self._sorted[at]]
        return None

    def split(self, changes: Changes[str]) -> dict[str, Changes[str]]:
        """Return the part of each table in a commit. O(changes x log tables)."""
        parts: dict[str, list[Change[str]]] = {}
        for change in changes.changes:
            table = self.table_of(change.key)
            if table is not None:
                parts.setdefault(table, []).append(change)
        return {
            table: changes if len(part) == len(changes.changes) else _part(changes, part)
            for table, part in parts.items()
        }


def _part(changes: Changes[str], part: list[Change[str]]) -> Changes[str]:
    return Changes(changes.commit, tuple(part))


class FeedReader:
    """Reads a source for pipelines in two threads; `wake(pipeline)` is called when one has work."""

    def __init__(
        self, source: SnapshotKV, prefixes: Mapping[str, str], wake: Callable[[Pipeline], None]
    ) -> None:
        self._source, self._router, self._wake = source, Router(prefixes), wake
        self.position = NOWHERE
        """All commits up to it were handed out to live pipelines."""
        self.error: Exception | None = None
        """Why the source cannot be read at the moment."""
        self._live: dict[str, Pipeline] = {}
        self._behind: dict[str, Pipeline] = {}
        self._condition = threading.Condition()
        self._closed = False
        self._watches: set[Watch[str]] = set()
        self._threads: list[threading.Thread] = []

    def join(self, pipeline: Pipeline) -> None:
        """Hand a pipeline all commits after what it has received."""
        with self._condition:
            if self._closed:
                return
            self._behind[pipeline.table] = pipeline
            if not self._threads:
                for run in (self._follow, self._fetch):
                    thread = threading.Thread(target=run, name="cdcmeta-reader", daemon=True)
                    self._threads.append(thread)
                    thread.start()
            self._condition.notify_all()

    def leave(self, table: str) -> None:
        """Hand a table nothing more."""
        with self._condition:
            self._live.pop(table, None)
            self._behind.pop(table, None)

    def close(self) -> None:
        """End the threads; bounded by their waits."""
        with self._condition:
            self._closed = True
            watches = list(self._watches)
            self._condition.notify_all()
        for watch in watches:
            watch.close()
        for thread in self._threads:
            thread.join(2 * WAIT_S)

    # --- the watch ---

    def _follow(self) -> None:
        while not self._closed:
            try:
                with self._opened(None if self.position == NOWHERE else self.position) as watch:
                    self._hand_out_all(watch)
            except StoreClosedError:
                if not self._closed:
                    self._fail_all(StoreClosedError("the source was closed"))
                return
            except CompactedError as e:  # later commits may still be readable
                self._fail_live(e)
                self.position = NOWHERE
            except LASTING as e:
                self._fail_all(e)
                return
            except SnapKVError as e:
                self.error = e
                self._pause()

    def _hand_out_all(self, watch: Watch[str]) -> None:
        while not self._closed:
            with self._condition:
                self.position = max(self.position, watch.timestamp)
            changes = watch.next(WAIT_S)
            self.error = None
            if changes is not None:
                with self._condition:
                    self._hand_out(changes)

    def _hand_out(self, changes: Changes[str]) -> None:
        for table, part in self._router.split(changes).items():
            pipeline = self._live.get(table)
            if pipeline is None:
                continue
            if not pipeline.offer(part):
                pipeline.caught_up(self.position, is_live=False)
                del self._live[table]
                if not pipeline.is_stopping:
                    self._behind[table] = pipeline
            self._wake(pipeline)

    # --- those behind ---

    def _fetch(self) -> None:
        while not self._closed:
            with self._condition:
                waiting = self._joining()
                if not waiting:
                    self._condition.wait(WAIT_S)
                    continue
            try:
                self._fetch_for(waiting)
            except StoreClosedError:
                return
            except LASTING as e:
                first = min(each.received for each in waiting.values())
                for pipeline in waiting.values():
                    if pipeline.received == first:
                        self._fail(pipeline, e)
            except SnapKVError as e:
                self.error = e
                self._pause()

    def _joining(self) -> dict[str, Pipeline]:
        return {table: each for table, each in self._behind.items() if each.has_room}

    def _fetch_for(self, waiting: dict[str, Pipeline]) -> None:
        """Hand commits to pipelines until they are live, full, or gone."""
        since = min(each.received for each in waiting.values())
        if self._made_live(waiting, since):
            return
        with self._opened(since) as watch:
            while waiting and not self._closed:
                changes = watch.next(WAIT_S)
                if changes is not None:
                    for table, part in self._router.split(changes).items():
                        pipeline = waiting.get(table)
                        if pipeline is not None and not pipeline.offer(part):
                            del waiting[table]
                            pipeline.set_prepared()
                        if pipeline is not None:
                            self._wake(pipeline)
                if self._made_live(waiting, watch.timestamp):
                    return

    def _made_live(self, waiting: dict[str, Pipeline], reached: int) -> bool:
        """Hand pipelines over to the watch, if they have all that it has handed out."""
        with self._condition:
            if self.position == NOWHERE or reached < self.position:
                return False
            for table, pipeline in waiting.items():
                if self._behind.pop(table, None) is pipeline and not pipeline.is_stopping:
                    pipeline.caught_up(reached, is_live=True)
                    self._live[table] = pipeline
                    pipeline.set_prepared()
                    self._wake(pipeline)
        return True

    # --- both ---

    @contextmanager
    def _opened(self, since: int | None) -> Iterator[Watch[str]]:
        with self._source.watch(since=since) as watch:
            with self._condition:
                self._watches.add(watch)
                if self._closed:
                    raise StoreClosedError("the reader was closed")
            try:
                yield watch
            finally:
                with self._condition:
                    self._watches.discard(watch)

    def _pause(self) -> None:
        with self._condition:
            if not self._closed:
                self._condition.wait(RETRY_S)

    def _fail_live(self, error: Exception) -> None:
        with self._condition:
            pipelines = list(self._live.values())
        for pipeline in pipelines:
            self._fail(pipeline, error)

    def _fail_all(self, error: Exception) -> None:
        self.error = error
        with self._condition:
            pipelines = [*self._live.values(), *self._behind.values()]
        for pipeline in pipelines:
            self._fail(pipeline, error)

    def _fail(self, pipeline: Pipeline, error: Exception) -> None:
        log.error("table %r cannot be read: %s", pipeline.table, error)
        self.leave(pipeline.table)
        pipeline.fail(error)
        self._wake(pipeline)
