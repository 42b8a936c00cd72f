"""The watcher: it replays the log from a revision, then waits for commits of any process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from snapkv.base.waiting import monotonic
from snapkv.engine.contract import ALL_KEYS_END, KeyEvent, KeyValue, WatchBatch
from snapkv.engine.lmdb import client, reading, records, writing
from snapkv.engine.lmdb.environment import Environment, Transaction
from snapkv.engine.lmdb.leases import is_due
from snapkv.engine.lmdb.records import BEYOND_ALL, StoredState, checked_stem
from snapkv.errors import (
    CompactedError,
    CorruptStoreError,
    EngineBusyError,
    NoSpaceError,
    SnapKVError,
    StoreClosedError,
)

LOG_ENTRIES, LOG_ENTRIES_MAX = 16, 1_000
"""The log entries that the first read transaction of a watch reads, and the most that one reads.

Each reads twice as many as the one before: a replay ends after few revisions mostly.
"""
EVENT_BYTES_MAX = 4 << 20
"""The bytes of events after which a chunk ends, at the end of a revision."""
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 1e-3, 50e-3


# A watcher has four cursors. Two are revisions, and two say whether anything happened:
#
#     _next           the next revision to read from the log
#     _reported       the newest revision that next() returned
#     _seen_txn       LMDB's transaction number when the log was read to its end
#     _seen_commits   how many commits this process had made when the log was read
#
# For example, a watch of [a, b) that has reported revision 2. LMDB's numbers are 10 larger here:
# compaction and leases write transactions without a revision, too.
#
#     event                            next(0) returns   next   reported   txn   commits
#                                      None              3      2          12    1
#     this process writes a1           3: a1             4      3          13    2
#     another process writes a2        4: a2             5      4          14    2
#     this process writes z            5: no event       6      5          15    3
#     this process writes a3, then z   6: a3             8      6          17    5
#                                      7: no event       8      7          17    5
#                                      None              8      7          17    5
#
# A revision outside the range has no event, but moves the caller forward. The log is read to its
# end at once (8), while its batches are returned one by one (6, 7). While the transaction number is
# still 17, the log is not read. A waiting thread sleeps only while this process has made no commit
# since it looked (5), so it misses none; commits of another process end no sleep, so it looks at
# LMDB's number after each.
class LmdbWatcher:
    """A stream of the events of [key, range_end), from one thread at a time.

    Commits of this process wake it; it finds commits of other processes by polling LMDB's
    transaction number, which costs no transaction, after pauses that grow while nothing happens.
    A waiting watcher ends leases that come due, unless the store is open for reading only.
    """

    reopened = 0

    def __init__(
        self,
        env: Environment,
        is_open: Callable[[], bool],
        key: bytes,
        range_end: bytes,
        start: int,
    ) -> None:
        if not range_end:
            checked_stem(key)
        self._env, self._is_open = env, is_open
        self._key, self._range_end = key, range_end
        self._next = max(1, start)  # the next revision to read
        self._reported = self._next - 1  # the newest revision that `next` returned
        self._ready: deque[WatchBatch] = deque()
        self._state = StoredState(0, 0, 0)  # at the last read of the log
        self._seen_txn = -1  # LMDB's transaction number when the log was last read to its end
        self._seen_commits, self._entries_max = 0, LOG_ENTRIES
        self._closed = False

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch, progress, or None after `timeout` seconds.

        It returns a backlog whatever the timeout: None always means "caught up".
        """
        deadline = None if timeout is None else monotonic() + timeout
        length = POLL_SECONDS_MIN
        while True:
            self._check_open()
            found = bool(self._ready) or self._look() or self._ended_lease()
            if self._ready:
                batch = self._ready.popleft()
                self._reported = batch.revision
                return batch
            if found:
                continue
            left = POLL_SECONDS_MAX if deadline is None else deadline - monotonic()
            if left <= 0:
                return None
            self._wait(min(left, length))
            length = min(2 * length, POLL_SECONDS_MAX)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the watch was closed")
        if not self._is_open():
            raise StoreClosedError("the engine was closed")

    def _wait(self, seconds: float) -> None:
        """Wait for a commit of this process since the last read, for `seconds` at most."""
        env = self._env
        with env.changed:
            if not self._closed and self._is_open() and env.commits == self._seen_commits:
                env.watching += 1
                try:
                    env.changed.wait(seconds)
                finally:
                    env.watching -= 1

    def _look(self) -> bool:
        """Read a chunk of the log; False when it had no events and was the last one."""
        self._seen_commits = self._env.commits
        if 0 <= self._seen_txn == self._env.last_txn():
            return False
        with Transaction(self._env) as txn:
            self._state = txn.state
            head = txn.state.revision
            # not `last_txn()`: LMDB writes a commit's number to the file a moment before it lets
            # readers see the commit
            seen = txn.txn.id()
            self._read_chunk(txn)
        if self._next > head:
            self._seen_txn = seen
            reported = self._ready[-1].revision if self._ready else self._reported
            if reported < head:
                self._ready.append(WatchBatch(head, ()))
        return bool(self._ready) or self._next <= head

    def _ended_lease(self) -> bool:
        """End the leases that are due; False without any, or while the lock is taken."""
        if self._env.readonly or not is_due(self._state):
            return False
        try:
            writing.expire_due(self._env, POLL_SECONDS_MAX)
        except (EngineBusyError, NoSpaceError):
            return False  # the next turn tries again, or finds it done
        except (SnapKVError, OSError):
            self._check_open()  # if closed meanwhile, raise that
            raise
        return True

    def _read_chunk(self, txn: Transaction) -> None:
        head, compacted = txn.state.revision, txn.state.compacted
        if self._next < compacted:
            raise CompactedError(self._next, compacted, unit="revision")
        log, cursor = txn.txn.cursor(txn.databases.log), txn.cursor()
        entries = size = 0
        if log.set_range(records.be64(self._next)):
            for raw, entry in log.iternext():
                if entries == self._entries_max or size > EVENT_BYTES_MAX:
                    self._entries_max = min(2 * self._entries_max, LOG_ENTRIES_MAX)
                    return
                revision, entries = int.from_bytes(raw, "big"), entries + 1
                if events := self._events(cursor, revision, entry):
                    self._ready.append(WatchBatch(revision, events))
                    for event in events:
                        size += len(event.kv.value)
                self._next = revision + 1
        self._next = max(self._next, head + 1)

    def _events(self, cursor: client.Cursor, revision: int, entry: bytes) -> tuple[KeyEvent, ...]:
        start, end = self._key, self._range_end
        if not end:  # one key: most of a long log need not be decoded
            if start not in entry:
                return ()
            kv = reading.point(cursor, start, revision)
            if kv is not None and kv.mod_revision == revision:
                return (KeyEvent(kv, False),)
        beyond = BEYOND_ALL if end == ALL_KEYS_END else end or start + b"\0"
        events = list[KeyEvent]()
        for key, removed in records.decode_changes(entry):
            if start <= key < beyond:
                kv = None if removed else reading.point(cursor, key, revision)
                if not removed and (kv is None or kv.mod_revision != revision):
                    raise CorruptStoreError(
                        f"the log has {key!r} at {revision}, but no record exists"
                    )
                events.append(KeyEvent(kv or KeyValue(key, b"", 0, revision, 0), removed))
        return tuple(events)

    def close(self) -> None:
        """End the watch, also for a thread that waits in `next`."""
        self._closed = True
        self._env.notify()
