"""Leased keys of a caller's own: each vanishes when its lease ends, unless that is renewed.

Their bytes, below the store's `N/live/`:

| key | value |
|---|---|
| `key/<UTF-8 text>` | the caller's bytes, under a lease |

A key of a store cannot have a lease: it would vanish at a revision without a timestamp, so no time
would name the state after it. So these keys have no past: snapshots, differences, histories,
watches, restores, dumps and archives of the store never show them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from snapkv.base.arguments import check_bytes, check_int
from snapkv.base.waiting import monotonic
from snapkv.coordination.requests import REQUEST_S, REVOKE_S, check_ttl, found, revoke, transact
from snapkv.coordination.session import Session, check_session
from snapkv.engine.contract import (
    REVISION_MAX,
    Compare,
    Delete,
    KeyValue,
    Put,
    Range,
    Target,
    Txn,
    WatchBatch,
)
from snapkv.errors import (
    EngineBusyError,
    InvalidOptionError,
    LeaseNotFoundError,
)
from snapkv.layout import Keyspace
from snapkv.reading.deadline import bounds, check_wait
from snapkv.reading.reader import Reader
from snapkv.reading.watches import Steps, deadline_of, left_of

# --- following leased keys: every write, removal and end of a lease, by revision ---


class LiveChange(NamedTuple):
    """What happened to a live key: its new value, None if it was removed or its lease ended."""

    key: str
    value: bytes | None
    revision: int


class LiveWatch(Steps[LiveChange]):
    """An iterator of `LiveChange`s, in the order of their revisions, none missing, none twice.

    Its waits, its threads and its end are as of a `Watch`.
    """

    def __init__(
        self, core: Reader, space: Keyspace, prefix: str, since: int | None, timeout: float | None
    ) -> None:
        super().__init__(timeout)
        start, end = space.range_of(prefix)
        since = core.engine.read([]).header.revision if since is None else since
        self._core, self._space = core, space
        self._waiting: deque[LiveChange] = deque()
        self._watcher = core.engine.watch(start, end, start_revision=since + 1)
        core.follow(self)

    def next(self, timeout: float | None = None) -> LiveChange | None:
        """Return the next change; None if `timeout` seconds (None: no bound) bring none."""
        check_wait(timeout)
        deadline = deadline_of(timeout)
        while not self._waiting:
            batch = self._watcher.next(left_of(deadline))
            if batch is None:
                return None
            self._take(batch)
        return self._waiting.popleft()

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._ended = self._ended or not self._core.closed
        self._watcher.close()

    def _take(self, batch: WatchBatch) -> None:
        for event in batch.events:
            key, value = self._space.decode(event.kv.key), event.kv.value
            self._waiting.append(
                LiveChange(key, None if event.is_delete else value, event.kv.mod_revision)
            )


# --- leased keys ---

TRIES = 16
"""The most times that other writers of the same key may come first."""


class LiveItems(list[tuple[str, bytes]]):
    """The live keys and their values at one revision of the engine, in key order."""

    def __init__(self, found: Iterable[tuple[str, bytes]], revision: int) -> None:
        super().__init__(found)
        self.revision = revision


class _Written(NamedTuple):
    """A leased key as it was written."""

    stored: bytes
    revision: int
    lease: int


class LeasedKey:
    """A key that its caller has put under a lease: it vanishes `ttl_s` seconds after `renew`.

    Nothing renews it but `renew`, unless it was put with a session, whose thread does. A handle
    that is dropped leaves the key to its lease. Safe for threads; any process may hold one.
    """

    def __init__(
        self, core: Reader, key: str, written: _Written, ttl_s: float, session: Session | None
    ) -> None:
        self._core, self._written, self._session = core, written, session
        self.key, self.ttl_s = key, ttl_s

    @property
    def revision(self) -> int:
        """The revision of the engine that wrote it."""
        return self._written.revision

    def __repr__(self) -> str:
        return f"<LeasedKey {self.key!r} lease={self._written.lease:x}>"

    def renew(self) -> float:
        """Start the time of the key anew; return its seconds. Two round trips.

        Raises `LeaseNotFoundError` if the key has vanished, or another `put` has replaced it: put
        it again. Raises `EngineUnavailableError`, `StoreClosedError`.
        """
        self._core.check_open()
        stored, revision, lease = self._written
        kv = self._core.engine.get(stored).kv
        if kv is None or (kv.lease, kv.mod_revision) != (lease, revision):
            raise LeaseNotFoundError(lease)
        return self._core.engine.keep_alive(lease, timeout=REQUEST_S)

    def revoke(self) -> None:
        """Remove the key now, unless another `put` has replaced it; may be repeated.

        One round trip. Raises `EngineUnavailableError`, `StoreClosedError`: then the key vanishes
        with its lease.
        """
        self._core.check_open()
        stored, revision, lease = self._written
        if self._session is None:
            self._core.engine.revoke(lease, timeout=REVOKE_S)
            return
        unchanged = Compare(stored, Target.MOD, "=", revision)
        transact(self._core.engine, Txn((unchanged,), (Delete(stored),)), REVOKE_S)


class Live:
    """The leased keys of a store: text keys that vanish unless they are renewed; `store.live`.

    They have no past, and are not in the store's own keys: see `LeasedKey` and the module. For
    signs of life of processes and for leaders there are `store.session` and `store.election`.

    >>> import snapkv
    >>> with snapkv.open("memory:") as store:
    ...     leased = store.live.put("workers/7", b"10.0.0.7:80", ttl=30)
    ...     store.live.items("workers/"), store.live.get("workers/8"), list(store.at().keys())
    ...     leased.renew() >= 30
    ...     leased.revoke()
    ...     store.live.items()
    ([('workers/7', b'10.0.0.7:80')], None, [])
    True
    []
    """

    def __init__(self, core: Reader) -> None:
        self._core, self._read_timeout = core, core.read_timeout
        self._space = Keyspace(core.layout.live.encode(b"key/"), text=True)

    def put(
        self, key: str, value: bytes, ttl: float | None = None, *, session: Session | None = None
    ) -> LeasedKey:
        """Write a key that vanishes after `ttl` seconds without `renew`, or with a session.

        It replaces a live key of that name and its lease, also one of another process. etcd counts
        whole seconds, 2 at least by default. Three round trips, with a session two.

        Raises `InvalidKeyError`, `InvalidTypeError`, `InvalidOptionError`, `CommitTooLargeError`,
        `SessionLostError` (the session has ended, or this took longer than the lease lasts),
        `EngineBusyError` (other writers of this key came first 16 times),
        `EngineUnavailableError`, `NoSpaceError`, `ReadOnlyError`, `AccessDeniedError`.
        """
        stored = self._space.encode(key)
        check_bytes("value", value)
        if (ttl is None) == (session is None):
            raise InvalidOptionError("give a ttl in seconds or a session, one of the two")
        core = self._core
        core.check_open()
        core.engine.check_limits(Txn(success=(Put(stored, value),)))
        if session is not None:
            check_session(session, core)
            session.check()
            lease, ttl_s = session.id, session.ttl_s
            return LeasedKey(core, key, self._write(stored, value, lease), ttl_s, session)
        check_ttl(ttl)
        assert ttl is not None
        lease, ttl_s = core.engine.grant(float(ttl), timeout=REQUEST_S)
        try:
            return LeasedKey(core, key, self._write(stored, value, lease), ttl_s, None)
        except BaseException:
            revoke(core.engine, lease)
            raise

    def _write(self, stored: bytes, value: bytes, lease: int) -> _Written:
        """Put a key under a lease, once, however often that is sent."""
        deadline, kv = monotonic() + REQUEST_S, self._core.engine.get(stored).kv
        for _ in range(TRIES):
            before = 0 if kv is None else kv.mod_revision
            txn = Txn(
                (Compare(stored, Target.MOD, "=", before),),
                (Put(stored, value, lease=lease),),
                (Range(stored),),
            )
            answer = transact(self._core.engine, txn, max(0.0, deadline - monotonic()))
            if answer.succeeded:
                return _Written(stored, answer.header.revision, lease)
            kvs: list[KeyValue] = found(answer, 0).kvs
            kv = kvs[0] if kvs else None
            if kv is not None and (kv.lease, kv.value) == (lease, value):
                return _Written(stored, kv.mod_revision, lease)  # an answer was lost
        raise EngineBusyError(
            f"could not put live key {self._space.decode(stored)!r}: other writers of it came "
            f"first in all {TRIES} tries"
        )

    @bounds
    def get(
        self, key: str, default: bytes | None = None, *, timeout: float | None = None
    ) -> bytes | None:
        """Return the value of a live key, `default` if it is absent. One round trip.

        Raises `InvalidKeyError`, `InvalidTypeError`, `EngineUnavailableError`, `ReadTimeoutError`.
        """
        self._core.check_open()
        kv = self._core.engine.get(self._space.encode(key)).kv
        return default if kv is None else kv.value

    @bounds
    def items(self, prefix: str = "", *, timeout: float | None = None) -> LiveItems:
        """Return the live keys with a prefix and their values, at the list's `revision`.

        One round trip; all of them are in memory. Raises as `get`.
        """
        self._core.check_open()
        answer = self._core.engine.read([Range(*self._space.range_of(prefix))])
        pairs = ((self._space.decode(kv.key), kv.value) for kv in answer.results[0].kvs)
        return LiveItems(pairs, answer.header.revision)

    def watch(
        self, prefix: str = "", since: int | None = None, *, timeout: float | None = None
    ) -> LiveWatch:
        """Return an iterator of what happens to live keys after a revision (None: after now).

        `since` is the `revision` of `items`, of a `LeasedKey`, or of the last change, so that none
        is missed. It is a revision, because live keys have no times. Iteration waits for ever, or
        ends after `timeout` seconds without a change. One watch, and without `since` one round
        trip.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     known = store.live.items()
        ...     store.live.put("a", b"1", ttl=30).revoke()
        ...     [(c.key, c.value) for c in store.live.watch(since=known.revision, timeout=0)]
        [('a', b'1'), ('a', None)]

        Raises `InvalidKeyError`, `InvalidTypeError`, `InvalidOptionError`,
        `EngineUnavailableError`; the iteration raises `CompactedError` if changes were compacted:
        list the keys again.
        """
        self._core.check_open()
        if since is not None:
            check_int("since", since, 0, REVISION_MAX - 1)
        return LiveWatch(self._core, self._space, prefix, since, timeout)
