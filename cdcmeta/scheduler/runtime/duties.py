"""The owner's writes, in order and under its election: checkpoints, placements, evictions.

One thread does them, so the owner's tick waits for no store. What is not written yet is replaced
by what is newer: checkpoints never go back, whichever are left out. The guard of the election is
in each commit, so a deposed owner writes nothing.
"""

from __future__ import annotations

import logging
import threading
from itertools import islice

from cdcmeta.scheduler.runtime import records
from cdcmeta.scheduler.runtime.cluster_view import Registered
from snapkv import ClockSkewError, ConflictError, Election, SnapKVError, SnapshotKV

log = logging.getLogger("cdcmeta.scheduler")

PUTS_MAX = 100
"""What one commit writes at most."""
WRITE_S = 5.0
RETRY_S = 0.3
PAUSE_S = 0.1
"""The shortest time between two commits."""


class Duties:
    """Writes what an owner decides, until it is closed or deposed."""

    def __init__(self, store: SnapshotKV, cluster: str, election: Election) -> None:
        self._store, self._election = store, election
        self._space = store.space(records.space_of(cluster))
        self.is_deposed = False
        """Whether a write was rejected because another owner was elected."""
        self.is_helpless = False
        """Whether this process can write nothing, while another one could: its clock is wrong."""
        self._waiting: dict[bytes, bytes | None] = {}
        self._evictions: dict[int, Registered] = {}
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cdcmeta-owner", daemon=True)
        self._thread.start()

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write a record soon; None removes it."""
        with self._condition:
            self._waiting[key] = value
            self._condition.notify()

    def evict(self, capture: Registered) -> None:
        """Write that a capture is evicted, then end its session."""
        with self._condition:
            if capture.session.id not in self._evictions:
                self._evictions[capture.session.id] = capture
                self._condition.notify()

    def close(self) -> None:
        """End the thread; what is not written yet is left to the next owner."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join(2 * WRITE_S)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._closed or self._waiting or self._evictions):
                    self._condition.wait()
                if self._closed:
                    return
                batch = dict(islice(self._waiting.items(), PUTS_MAX))
                for key in batch:
                    del self._waiting[key]
                evictions = list(self._evictions.values())
            try:
                self._write(batch)
                for capture in evictions:
                    self._evict(capture)
                    with self._condition:
                        self._evictions.pop(capture.session.id, None)
                wait_s = PAUSE_S
            except ConflictError:
                log.warning("another owner was elected")
                self.is_deposed = True
                return
            except ClockSkewError as e:
                log.error("the owner cannot write, and makes way for another: %s", e)
                self.is_helpless = True
                return
            except SnapKVError as e:
                log.warning("the owner cannot write: %s", e)
                with self._condition:
                    self._waiting = {**batch, **self._waiting}
                wait_s = RETRY_S
            with self._condition:
                if not self._closed:
                    self._condition.wait_for(lambda: self._closed, wait_s)

    def _write(self, batch: dict[bytes, bytes | None]) -> None:
        if batch:
            self._space.commit(
                puts={key: value for key, value in batch.items() if value is not None},
                deletes=[key for key, value in batch.items() if value is None],
                guards=[self._election.guard],
                timeout=WRITE_S,
            )

    def _evict(self, capture: Registered) -> None:
        """Keep on record until when it may write; only then end its session."""
        record = {
            "name": capture.name,
            "revision": capture.session.revision,
            "ttl_s": capture.ttl_s,
        }
        key = records.EVICTED + b"%x" % capture.session.id
        self._write({key: records.encoded(record)})
        self._election.end_session(capture.session)
