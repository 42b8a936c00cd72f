"""The reader of a source: one read for all tables of a changefeed, each with its commits.

One watch is at `position`, near the newest commit, and feeds the tables that are live. The tables
that are behind are fetched together by a second watch; when that reaches `position`, they are live.
In each turn of `SLICE_S` the second watch begins where one table is, and serves tables that are
farther, too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

from cdcmeta.scheduler.executors.contracts import Part, TableFeed, TableSource
from cdcmeta.scheduler.executors.pipeline import GONE, Pipeline
from snapkv.base.waiting import monotonic
from snapkv.errors import StoreClosedError, StoreRecreatedError, StoreRestoredError

log = logging.getLogger("cdcmeta.scheduler")

WAIT_S = 0.25
RETRY_S = 0.5
NOWHERE = -1
"""The position before the first watch."""
SLICE_S = 1.0
"""The longest that tables that are behind are fetched before another has its turn, in seconds."""
LASTING = (StoreClosedError, StoreRestoredError, StoreRecreatedError)
"""The errors that do not pass: all tables end, also tables that come later."""


class FeedReader:
    """Reads a source for pipelines in two threads; `wake(pipeline)` is called when one has work."""

    def __init__(self, source: TableSource, wake: Callable[[Pipeline], None]) -> None:
        self._source, self._wake = source, wake
        self.position = NOWHERE
        """All commits up to it were handed out to live pipelines."""
        self._errors: dict[str, Exception] = {}
        """Why the watch, or the second one, cannot be read at the moment."""
        self._lasting: Exception | None = None
        self._live: dict[str, Pipeline] = {}
        self._behind: dict[str, Pipeline] = {}
        self._condition = threading.Condition()
        self._closed = False
        self._feeds: set[TableFeed] = set()
        self._threads: list[threading.Thread] = []

    @property
    def error(self) -> Exception | None:
        """Why the source cannot be read at the moment."""
        return self._lasting or next(iter(list(self._errors.values())), None)

    def join(self, pipeline: Pipeline) -> None:
        """Hand a pipeline all commits after what it has received."""
        with self._condition:
            if self._closed:
                return
            if self._lasting is not None:
                self._fail(pipeline, self._lasting)
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
            feeds = list(self._feeds)
            self._condition.notify_all()
        for feed in feeds:
            feed.close()
        for thread in self._threads:
            thread.join(2 * WAIT_S)

    # --- the watch ---

    def _follow(self) -> None:
        while not self._closed:
            try:
                with self._open_feed(None if self.position == NOWHERE else self.position) as feed:
                    self._hand_out_all(feed)
            except LASTING as e:
                self._fail_all(e)
                return
            except GONE as e:
                self._begin_anew(e)
            except Exception as e:
                self._failed("watch", e)

    def _begin_anew(self, error: Exception) -> None:
        """Continue from now on; the second watch finds out which tables have lost commits."""
        log.warning("the source has removed what was not read yet: %s", error)
        with self._condition:
            live, self._live = self._live, {}
            for table, pipeline in live.items():
                pipeline.caught_up(self.position, is_live=False)
                self._behind[table] = pipeline
            self.position = NOWHERE
            self._condition.notify_all()

    def _hand_out_all(self, feed: TableFeed) -> None:
        while not self._closed:
            with self._condition:
                self.position = max(self.position, feed.timestamp)
            parts = feed.next(WAIT_S)
            self._errors.pop("watch", None)
            if parts is not None:
                with self._condition:  # at once: a table may become live in between
                    for pipeline in self._full(parts, self._live):
                        pipeline.caught_up(self.position, is_live=False)
                        if not pipeline.is_stopping:
                            self._behind[pipeline.table] = pipeline
                    self.position = max(self.position, feed.timestamp)

    # --- those behind ---

    def _fetch(self) -> None:
        while not self._closed:
            with self._condition:
                waiting = self._next_group()
                if not waiting:
                    self._errors.pop("fetch", None)
                    self._condition.wait(WAIT_S)
                    continue
            try:
                self._fetch_for(waiting)
                self._errors.pop("fetch", None)
            except LASTING as e:
                self._fail_all(e)
                return
            except GONE as e:
                self._go_on_without(waiting, e)
            except Exception as e:
                self._failed("fetch", e)

    def _next_group(self) -> dict[str, Pipeline]:
        """Return the table that is next, and the tables that are at least as far."""
        ended = [table for table, each in self._behind.items() if each.is_stopping]
        for table in ended:
            del self._behind[table]
        ready = {table: each for table, each in self._behind.items() if each.has_room}
        if not ready:
            return ready
        first = next(iter(ready.values())).received
        return {table: each for table, each in ready.items() if each.received >= first}

    def _fetch_for(self, waiting: dict[str, Pipeline]) -> None:
        """Hand commits to pipelines until they are live, full, or gone, or it is another's turn."""
        since = min(each.received for each in waiting.values())
        if self._made_live(waiting, since):
            return
        reached, until = since, monotonic() + SLICE_S
        with self._open_feed(since) as feed:
            try:
                while waiting and not self._closed:
                    is_one_full = self._offer(feed.next(WAIT_S), waiting)
                    reached = feed.timestamp
                    if self._made_live(waiting, reached):
                        return
                    if is_one_full and all(each.received > reached for each in waiting.values()):
                        return
                    if monotonic() >= until:
                        if self._is_another_waiting(waiting, reached):
                            return
                        until = monotonic() + SLICE_S
            finally:
                for table, pipeline in waiting.items():
                    if pipeline.received <= reached:  # it need not get that again
                        pipeline.caught_up(reached, is_live=False)
                        self._serve_last(table)
                    if not pipeline.has_room:  # it gets no turn until it writes
                        pipeline.set_prepared()

    def _offer(self, parts: Mapping[str, Part] | None, waiting: dict[str, Pipeline]) -> bool:
        """Hand out a commit; return whether a pipeline takes no more for now."""
        is_one_full = False
        for pipeline in self._full(parts or {}, waiting):
            is_one_full = True
            self._serve_last(pipeline.table)
            pipeline.set_prepared()
        return is_one_full

    def _serve_last(self, table: str) -> None:
        with self._condition:
            pipeline = self._behind.pop(table, None)
            if pipeline is not None:
                self._behind[table] = pipeline

    def _is_another_waiting(self, waiting: dict[str, Pipeline], reached: int) -> bool:
        """Return whether a table gets nothing at `reached`. O(tables that are behind), rarely."""
        with self._condition:
            return any(
                waiting.get(table) is not each or each.received > reached
                for table, each in self._behind.items()
                if each.has_room and not each.is_stopping
            )

    def _made_live(self, waiting: dict[str, Pipeline], reached: int) -> bool:
        """Hand pipelines over to the watch, if they have all that it has handed out."""
        with self._condition:
            if self.position == NOWHERE or reached < self.position:
                return False
            for table, pipeline in waiting.items():
                if self._behind.get(table) is not pipeline:
                    continue  # it was removed; the table may be here again
                del self._behind[table]
                if not pipeline.is_stopping:
                    pipeline.caught_up(reached, is_live=True)
                    self._live[table] = pipeline
                    pipeline.set_prepared()
                    self._wake(pipeline)
            waiting.clear()
        return True

    def _go_on_without(self, waiting: dict[str, Pipeline], error: Exception) -> None:
        """Continue the tables whose next commits are gone with what the source has, or end them."""
        first = min((each.received for each in waiting.values()), default=0)
        lost = [each for each in waiting.values() if each.received == first]
        try:
            at = self._source.now() if self._source.restarts else 0
        except Exception as e:
            self._failed("fetch", e)  # they are still behind: it is tried again
            return
        for pipeline in lost:
            if not at:
                self._fail(pipeline, error)
                continue
            log.warning("table %r begins anew: %s", pipeline.table, error)
            pipeline.restart(at)
            self._wake(pipeline)

    # --- both ---

    def _full(
        self, parts: Mapping[str, Part], pipelines: dict[str, Pipeline]
    ) -> Iterator[Pipeline]:
        """Offer each pipeline its part of a commit; remove and yield each that is full."""
        for table, part in parts.items():
            pipeline = pipelines.get(table)
            if pipeline is None:
                continue
            if isinstance(part, Exception):
                del pipelines[table]
                self._fail(pipeline, part)
                continue
            if not pipeline.offer(part):
                del pipelines[table]
                yield pipeline
            self._wake(pipeline)

    @contextmanager
    def _open_feed(self, since: int | None) -> Iterator[TableFeed]:
        if since == 1:
            since = 0  # the checkpoint before all commits: a source knows them as those after 0
        with closing(self._source.feed(since)) as feed:
            with self._condition:
                self._feeds.add(feed)
                if self._closed:
                    raise StoreClosedError("the reader was closed")
            try:
                yield feed
            finally:
                with self._condition:
                    self._feeds.discard(feed)

    def _failed(self, what: str, error: Exception) -> None:
        """Note that the source cannot be read, and wait a moment."""
        if what not in self._errors:
            log.warning("the source cannot be read: %s", error)
        self._errors[what] = error
        with self._condition:
            if not self._closed:
                self._condition.wait(RETRY_S)

    def _fail_all(self, error: Exception) -> None:
        with self._condition:
            if self._closed:
                return
            self._lasting = error
            pipelines = [*self._live.values(), *self._behind.values()]
        for pipeline in pipelines:
            self._fail(pipeline, error)

    def _fail(self, pipeline: Pipeline, error: Exception) -> None:
        log.error("table %r cannot be read: %s", pipeline.table, error)
        with self._condition:
            for tables in (self._live, self._behind):
                if tables.get(pipeline.table) is pipeline:  # it may be here again
                    del tables[pipeline.table]
        pipeline.fail(error)
        self._wake(pipeline)
