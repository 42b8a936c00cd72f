"""Point reads of an asyncio loop: many at once share a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from snapkv.base.concurrency import here
from snapkv.base.waiting import bounded, monotonic, no_later_than
from snapkv.engine.contract import GetResult, Range, ReadResult
from snapkv.engine.etcd.cluster_client import READ_TIMEOUT_S
from snapkv.errors import SnapKVError

ALONE_MAX = 8
"""The most requests that are sent at once; further reads wait and share one."""
BATCH_MAX = 100
KEY_BYTES_MAX = 4_096
"""The size of the longest key that shares a request; a longer one is read alone, so that a batch
fits into a request."""


class _Batch:
    """Reads that are sent together; `answer` is None until then, and if that failed."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.answer: ReadResult | None = None
        self.done = here().event()


class PointReads:
    """Sends the reads of a loop: a few alone and at once, reads that come meanwhile together.

    A request takes about 90 us of CPU in `grpc.aio` alone. 1,000 loads at once, which share
    requests, take two thirds of that each (`benchmarks/aio.py`). For example, with `ALONE_MAX` 2:

        event                     on their way      waiting
        a, b are asked for        a | b             -
        c, d, e come              a | b             c d e
        b is answered             a | c d e         -
        f comes                   a | c d e         f

    `one` reads a key at a revision, `read` several ranges of one state. Each read is sent after it
    was asked for, so it is as new as one of its own. If a batch fails, perhaps because of one key,
    each of its reads is repeated alone.
    """

    def __init__(
        self,
        one: Callable[[bytes, int], GetResult],
        read: Callable[[Sequence[Range]], ReadResult],
        ops_max: int,
    ) -> None:
        self._one, self._read, self._batch_max = one, read, min(BATCH_MAX, ops_max)
        self._sent = 0  # requests on their way
        self._waiting: list[_Batch] = []

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision; one round trip, or two after many requests at once."""
        if self._sent < ALONE_MAX or len(key) > KEY_BYTES_MAX:
            self._sent += 1
            try:
                return self._one(key, revision)
            finally:
                self._end()
        if not self._waiting or len(self._waiting[-1].ranges) == self._batch_max:
            self._waiting.append(_Batch())
        batch, index = self._waiting[-1], len(self._waiting[-1].ranges)
        batch.ranges.append(Range(key, revision=revision))
        deadline = monotonic() + bounded(READ_TIMEOUT_S)
        batch.done.wait(max(0.0, deadline - monotonic()))
        if batch.answer is None:
            with no_later_than(deadline):
                return self._one(key, revision)
        kvs = batch.answer.results[index].kvs
        return GetResult(batch.answer.header, kvs[0] if kvs else None)

    def _end(self) -> None:
        self._sent -= 1
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self._sent += 1
            here().start(partial(self._answer, batch), "snapkv point reads")

    def _answer(self, batch: _Batch) -> None:
        try:
            batch.answer = self._read(batch.ranges)
        except SnapKVError:
            pass  # each of its calls finds out why
        finally:
            batch.done.set()
            self._end()
