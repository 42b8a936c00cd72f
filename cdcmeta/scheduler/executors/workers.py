"""A few threads that write for all pipelines of a changefeed."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import count

from cdcmeta.scheduler.core.states import TableState
from cdcmeta.scheduler.executors.pipeline import Pipeline
from snapkv.base.waiting import monotonic

log = logging.getLogger("cdcmeta.scheduler")

THREADS = 4
THREADS_MAX = 64
HUNG_S = 2.0
"""A call that lasts longer does not count as one of `THREADS`: another thread takes its place."""
MAY_NOT_WRITE_S = 0.1
"""The pause before the capture's session is asked again."""


class Workers:
    """Calls `Pipeline.work`, for each pipeline in one thread at a time.

    `may_write()` is asked before each call that writes: it is false once the capture's session may
    end before the call does. Threads start when they are needed.
    """

    def __init__(self, may_write: Callable[[], bool], threads: int = THREADS) -> None:
        self._may_write, self._threads_max = may_write, threads
        self._condition = threading.Condition()
        self._ready: deque[Pipeline] = deque()
        self._delayed: list[tuple[float, int, Pipeline]] = []
        self._order = count()
        self._threads: list[threading.Thread] = []
        self._began: dict[threading.Thread, float] = {}
        """Since when each thread is in a call."""
        self._idle = 0
        self._closed = False

    def submit(self, pipeline: Pipeline) -> None:
        """Let a thread call `work` if the pipeline has work; may be called at any time."""
        with self._condition:
            if self._closed or pipeline.is_queued or not pipeline.has_work:
                return
            stops = pipeline.state is TableState.STOPPING
            if pipeline.not_before > monotonic() and not stops:
                return  # it is among the delayed
            self._put(pipeline)

    def look(self) -> None:
        """Replace threads that hang, while pipelines wait. O(1), O(threads) if some wait."""
        if self._ready:
            with self._condition:
                self._grow()

    def close(self, timeout: float) -> bool:
        """End the threads; False if one is still in a call after `timeout` seconds."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        deadline = monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _put(self, pipeline: Pipeline) -> None:
        pipeline.is_queued = True
        self._ready.append(pipeline)
        if len(self._ready) <= self._idle:  # each needs a thread of its own: a call may hang
            self._condition.notify()
        else:
            self._grow()

    def _grow(self) -> None:
        """Start a thread if pipelines wait and too few threads are free or in a short call."""
        if len(self._ready) <= self._idle or len(self._threads) >= THREADS_MAX:
            return
        before = monotonic() - HUNG_S
        hung = sum(began < before for began in self._began.values())
        if len(self._threads) - hung < self._threads_max:
            thread = threading.Thread(target=self._run, name="cdcmeta-writer", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while (pipeline := self._take(me)) is not None:
            again_s: float | None = MAY_NOT_WRITE_S
            if pipeline.is_stopping or self._may_write():
                again_s = pipeline.work()
            with self._condition:
                del self._began[me]
                pipeline.is_queued = False
                if again_s is not None and again_s > 0 and not pipeline.is_stopping:
                    pipeline.not_before = monotonic() + again_s
                    entry = (pipeline.not_before, next(self._order), pipeline)
                    heapq.heappush(self._delayed, entry)
                    self._condition.notify()
                elif pipeline.has_work and (pipeline.is_stopping or not self._closed):
                    self._put(pipeline)

    def _take(self, me: threading.Thread) -> Pipeline | None:
        """Return the next pipeline to call; None at the end, and for a thread too many."""
        with self._condition:
            while True:
                now = monotonic()
                while self._delayed and self._delayed[0][0] <= now:
                    pipeline = heapq.heappop(self._delayed)[2]
                    if pipeline.not_before > now and not pipeline.is_stopping:
                        continue  # it has failed again since, and is there a second time
                    if not pipeline.is_queued and pipeline.has_work:
                        self._put(pipeline)
                if self._ready:
                    self._began[me] = now
                    return self._ready.popleft()
                if self._closed:
                    return None
                if self._idle >= self._threads_max:
                    self._threads.remove(me)
                    return None
                self._idle += 1
                self._condition.wait(self._delayed[0][0] - now if self._delayed else None)
                self._idle -= 1
