"""Sessions: a lease that a thread renews, and a key that shows that its process lives."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from snapkv.base.arguments import check_bytes
from snapkv.base.concurrency import Work, here
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.coordination.requests import (
    REQUEST_S,
    REVOKE_S,
    SESSIONS,
    SessionRecord,
    check_ttl,
    found,
    lease_of,
    revoke,
    session_key,
    transact,
)
from snapkv.engine.contract import Compare, Delete, Engine, Put, Range, Target, Txn
from snapkv.errors import (
    InvalidOptionError,
    InvalidTypeError,
    LeaseNotFoundError,
    SessionLostError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.model import Held
from snapkv.reading.deadline import check_wait
from snapkv.reading.reader import Reader
from snapkv.times import pack

TTL_S = 10.0
CLOSE_S = 5.0
"""The longest that closing waits for the keeper, which may be inside a request, in seconds."""
KEEP_ALIVES_PER_TTL = 3
RETRIES_PER_TTL = 12


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as any process reads it; `revision` is the one that made it.

    `started` is a timestamp of its own process's clock. It and `ttl_s`, the time to live after a
    renewal in seconds, are None for a session of a version that did not write them.
    """

    id: int
    value: bytes
    writer: str
    revision: int
    ttl_s: float | None = None
    started: int | None = None


class Sessions(list[SessionInfo]):
    """The live sessions at one revision of the engine, in the order in which they were made."""

    def __init__(self, found: Iterable[SessionInfo], revision: int) -> None:
        super().__init__(found)
        self.revision = revision


class Candidate(Protocol):
    """A candidate that waits as long as its session lives."""

    def wake(self) -> None:
        """Check again whether the session lives."""


class Session(Closing):
    """A process's sign of life in a store: keys under its lease exist while it is `alive`.

    A daemon thread renews the lease three times in its `ttl_s`. If the process dies or loses the
    engine, the keys vanish `ttl_s` seconds after the last renewal. The thread ends a session that
    is no longer referred to, so keep the object, not only its `guard`. After a fork the session is
    the parent's; in the child it is lost, and closing it does nothing. Safe for threads.
    """

    def __init__(self, core: Reader, writer: str, ttl: float = TTL_S, value: bytes = b"") -> None:
        """Grant a lease and write the session's key with the writer's name: `store.session`."""
        check_ttl(ttl)
        check_bytes("value", value)
        self.value = value
        core.check_open()
        record = SessionRecord(writer, value, float(ttl), pack(core.clock.now_ms()))
        core.engine.check_limits(
            Txn(success=(Put(core.layout.live.encode(session_key(0)), record.encode()),))
        )
        self._core, self._ended = core, here().event()
        self._lock = threading.RLock()  # a signal handler may close the session
        self._closed = self._gone = self._inherited = False
        self._why = ""
        self._candidates: weakref.WeakValueDictionary[str, Candidate] = (
            weakref.WeakValueDictionary()
        )
        asked = monotonic()
        self.id, self.ttl_s = core.engine.grant(float(ttl), timeout=REQUEST_S)
        self._until = asked + self.ttl_s
        self.record = replace(record, ttl_s=self.ttl_s).encode()
        self.key = core.layout.live.encode(session_key(self.id))
        self.revision = 0
        renew_in_children(self)
        self._keeper = _Keeper(self, core.engine)
        try:
            self._keeper.start()
            self.revision = self._create()
            core.follow(self._keeper)
        except BaseException:
            self.close()
            raise

    def _create(self) -> int:
        """Make the key, once, however often that is sent; return the revision that made it."""
        txn = Txn(
            (Compare(self.key, Target.CREATE, "=", 0),),
            (Put(self.key, self.record, lease=self.id),),
            (Range(self.key, keys_only=True),),
        )
        answer = transact(self._core.engine, txn)
        if answer.succeeded:
            return answer.header.revision
        return found(answer, 0).kvs[0].create_revision

    def __repr__(self) -> str:
        return f"<Session {self.id:x} {'alive' if self.alive else 'lost'}>"

    # --- is it alive? ---

    @property
    def alive(self) -> bool:
        """Whether the session can be relied on: false before the engine ends the lease, for good.

        Counted by the local monotonic clock from before the last renewal was sent. No round trip.
        A machine that was suspended may notice the end too late; `guard` never does.
        """
        with self._lock:
            expired = not self._ended.is_set() and monotonic() >= self._until
        if expired:
            self._end("it was not kept alive in time")
        return not self._ended.is_set()

    @property
    def left_s(self) -> float:
        """Seconds that the session lives without another renewal; 0 if it is lost."""
        return max(0.0, self._until - monotonic()) if self.alive else 0.0

    @property
    def guard(self) -> Held:
        """A guard: a commit with it raises `ConflictError` once the session has ended.

        Raises `SessionLostError` in a forked child: the session is the parent's.
        """
        self.check_ours()
        return Held(session_key(self.id), self.revision)

    def check(self) -> None:
        """Raise `SessionLostError` if the session is not alive. No round trip."""
        if not self.alive:
            raise SessionLostError(f"session {self.id:x} has ended: {self._why}")

    def check_ours(self) -> None:
        """Raise `SessionLostError` in a forked child of the process that has the session."""
        if self._inherited:
            raise SessionLostError(f"session {self.id:x} has ended: {self._why}")

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the session is lost or closed; False if `timeout` seconds pass first."""
        check_wait(timeout)
        deadline = None if timeout is None else monotonic() + timeout
        while (left_s := self.left_s) > 0:
            if deadline is not None:
                left_s = min(left_s, deadline - monotonic())
                if left_s <= 0:
                    return False
            self._ended.wait(left_s)
        return True

    # --- the end ---

    def close(self) -> None:
        """End the session: its keys vanish at once. May be repeated, and called for a lost one.

        One round trip, bounded; one more in the background if an interrupt ends it. If the engine
        cannot be reached, the lease ends by itself.
        """
        with self._lock:
            first, self._closed = not self._closed, True
        self._end("it was closed")
        if self._inherited:
            return
        if first and not self._gone:
            end = partial(revoke, self._core.engine, self.id)
            try:
                end()
            except BaseException:  # an interrupt must not leave the session for its ttl
                # in the background, so that a second interrupt does not end it
                again = here().start(end, f"snapkv-revoke-{self.id:x}")
                again.join(REVOKE_S)  # the store may be closed next
                raise
        self._keeper.join()

    def after_fork(self) -> None:
        """Lose the session: the parent keeps it."""
        self._lock, self._ended = threading.RLock(), here().event()
        self._inherited, self._why = True, "it belongs to the parent of this process"
        self._ended.set()

    def _end(self, why: str) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._why = why
            self._ended.set()
            self._keeper.waker.wake()
            candidates = list(self._candidates.values())
        for candidate in candidates:
            candidate.wake()

    def renew(self) -> float | None:
        """Renew the lease; return the seconds until the next renewal, None if it has ended."""
        asked = monotonic()
        if not self.alive:
            return None
        try:
            timeout_s = min(self.left_s, self.ttl_s / KEEP_ALIVES_PER_TTL)
            ttl_s = self._core.engine.keep_alive(self.id, timeout=timeout_s)
        except LeaseNotFoundError:
            self._gone = True
            self._end("the engine let its lease end")
            return None
        except StoreClosedError:
            self._end("the engine was closed")
            return None
        except SnapKVError:  # try again until the lease must have ended
            return min(self.left_s, self.ttl_s / RETRIES_PER_TTL)
        with self._lock:
            if self._ended.is_set():
                return None
            self._until = max(self._until, asked + ttl_s)
        return max(0.0, asked + ttl_s / KEEP_ALIVES_PER_TTL - monotonic())

    # --- candidates ---

    def belongs_to(self, core: Reader) -> bool:
        """Return whether the session belongs to that open store."""
        return self._core is core

    def enlist(self, name: str, candidate: Candidate) -> None:
        """Wake a candidate when the session ends; one candidate for each election.

        Raises `InvalidOptionError` if the election has another one: the two would share a key, and
        the one that resigns would depose the other one.
        """
        with self._lock:
            if self._candidates.setdefault(name, candidate) is not candidate:
                raise InvalidOptionError(
                    f"session {self.id:x} already has a candidate in election {name!r}, another "
                    "Election object: call campaign() of that one, which proclaims if it leads, "
                    "or resign() it first, or give each candidate a session of its own"
                )

    def dismiss(self, name: str, candidate: Candidate) -> None:
        """Forget a candidate."""
        with self._lock:
            if self._candidates.get(name) is candidate:
                del self._candidates[name]


def check_session(session: object, core: Reader) -> None:
    """Raise `InvalidTypeError` or `InvalidOptionError` for anything but a session of a store."""
    if not isinstance(session, Session):
        raise InvalidTypeError(f"session must be a Session, not {type(session).__name__}")
    if not session.belongs_to(core):
        raise InvalidOptionError("the session belongs to another store")


class _Keeper(Closing):
    """The thread that renews a session's lease; it holds no reference to the session.

    It ends when the session is closed, lost, or no longer referred to. Then its waker rings, which
    takes no lock: garbage may be collected in any thread, also in this one, while it holds any.
    """

    def __init__(self, session: Session, engine: Engine) -> None:
        self.waker = waker = here().waker()
        self._session = weakref.ref(session, lambda _: waker.wake())
        self._engine, self._lease = engine, session.id
        self._wait_s: float | None = session.ttl_s / KEEP_ALIVES_PER_TTL
        self.thread: Work | None = None
        self._ident = 0

    def start(self) -> None:
        """Start to renew."""
        self.thread = here().start(self._run, f"snapkv-session-{self._lease:x}")

    def _run(self) -> None:
        self._ident = here().ident()
        while self._wait_s is not None:
            self.waker.wait(self._wait_s)
            session = self._session()
            if session is None:
                revoke(self._engine, self._lease)
                return
            self._wait_s = session.renew()
            del session  # or it would live as long as this thread

    def join(self) -> None:
        """Wait for the thread, whose waker an interrupt may have kept from ringing."""
        self.waker.wake()
        if self.thread is not None and self._ident != here().ident():
            self.thread.join(CLOSE_S)

    def close(self) -> None:
        """Close the session with the store, or wait for the thread of one that was forgotten."""
        session = self._session()
        if session is not None:
            session.close()
        else:
            self.join()


def sessions(core: Reader) -> Sessions:
    """Return the live sessions in the order in which they were made; one round trip."""
    core.check_open()
    start, end = core.layout.live.range_of(SESSIONS)
    answer = core.engine.read([Range(start, end)])
    found = []
    for kv in sorted(answer.results[0].kvs, key=lambda kv: kv.create_revision):
        record = SessionRecord.decode(kv.value)
        facts = record.value, record.writer, kv.create_revision, record.ttl_s, record.started
        found.append(SessionInfo(lease_of(kv.key), *facts))
    return Sessions(found, answer.header.revision)


def end_session(core: Reader, session: SessionInfo, guard: Held) -> bool:
    """End a session of any process if a guard holds; return whether this call ended it."""
    key, held = (core.layout.live.encode(each) for each in (session_key(session.id), guard.key))
    txn = Txn(
        (
            Compare(key, Target.CREATE, "=", session.revision),
            Compare(held, Target.CREATE, "=", guard.revision),
        ),
        (Delete(key),),
    )
    ended = transact(core.engine, txn).succeeded
    if ended:
        revoke(core.engine, session.id)  # its other keys vanish with its lease
    return ended
