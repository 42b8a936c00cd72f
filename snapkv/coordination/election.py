"""Elections: of those who stand for a name, one leads at a time, and its commits can prove it.

Each candidate puts a key (`leased.py`) under its session's lease. The one with the smallest create
revision leads; each other waits for the end of the key just before its own, so that one end wakes
one candidate. What was sent and not answered may arrive late: each request has a guard that makes
it harmless then.
Source of the recipe: etcd's `client/v3/concurrency/election.go`.

Two leaders at one time cannot be told apart by clocks: one may stand still and not know that its
lease ended. Hence `Election.guard`: a commit with it succeeds only while the leader's own key
stands, and as long as that stands nobody else is elected.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from snapkv.clock import monotonic, pause
from snapkv.coordination.candidate import Candidacy
from snapkv.coordination.leader import Leader, Leaders, leader_of
from snapkv.coordination.requests import (
    REQUEST_S,
    candidate_key,
    check_ttl,
    check_value,
    election_prefix,
)
from snapkv.coordination.session import TTL_S, Session
from snapkv.engine.contract import KeyValue, Range, Watcher
from snapkv.errors import (
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    SessionLostError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.lifecycle import Closing, renew_in_children
from snapkv.model import Held
from snapkv.reading.deadline import check_wait
from snapkv.reading.reader import Reader
from snapkv.reading.watch import WAIT_S_MAX

RETRY_S = 0.2
LOOK_AGAIN_S = 5.0
"""Pause after a look at the candidates that failed; the session bounds how often."""


class Election(Closing):
    """A place in an election, from `store.election(name)`: stand in it, lead, resign.

    `campaign` may be called by one thread at a time, everything else by any. As a context manager
    it resigns at the end. In a forked child nothing of it is left: the parent leads.
    """

    def __init__(
        self,
        core: Reader,
        name: str,
        *,
        writer: str,
        session: Session | None = None,
        ttl: float = TTL_S,
    ) -> None:
        """Take a place; no round trip. Without a session, each campaign makes one of its own.

        `writer` is the name that such a session carries.

        Raises `InvalidTypeError`, `InvalidKeyError`, `InvalidOptionError`, `StoreClosedError`.
        """
        check_ttl(ttl)
        if session is not None and not isinstance(session, Session):
            raise InvalidTypeError(f"a session is a Session, not {type(session).__name__}")
        if session is not None and not session.belongs_to(core):
            raise InvalidOptionError("the session is of another store")
        self.name, self._writer, self._ttl, self._core = name, writer, ttl, core
        self._prefix = election_prefix(name)
        longest = core.layout.live.encode(candidate_key(self._prefix, 0))
        if len(longest) > core.engine.limits.key_bytes:
            raise InvalidKeyError(f"the name is too long for a key: {name[:80]!r}...", name)
        self._given = session
        self._candidacy: Candidacy | None = None
        self._watcher: Watcher | None = None
        self._guard: Held | None = None
        self._renew_locks()
        renew_in_children(self)
        core.follow(self)

    def _renew_locks(self) -> None:
        self._campaigning = threading.Lock()
        self._requesting = threading.Lock()  # held while our key is written or removed

    def after_fork(self) -> None:
        """Forget the candidacy: it is the parent's."""
        self._renew_locks()
        self._candidacy = self._watcher = self._guard = None

    def __repr__(self) -> str:
        return f"<Election {self.name!r} {'leading' if self.leading else 'not leading'}>"

    # --- what is known here ---

    @property
    def leading(self) -> bool:
        """Whether this process leads, as far as it knows: elected, and the session is alive.

        No round trip. Only `guard` is proof, in the very transaction that needs it.
        """
        candidacy = self._candidacy
        return (
            candidacy is not None
            and candidacy.elected
            and not candidacy.ended
            and candidacy.session.alive
        )

    @property
    def revision(self) -> int:
        """The fencing token: it grows with every leadership of anybody; 0 before one was won here.

        It is the create revision of the leader's key, and stays after the end of the leadership.
        """
        return self._guard.revision if self._guard is not None else 0

    @property
    def guard(self) -> Held:
        """What a commit takes to fail with `ConflictError` unless this leadership still holds.

        Raises `SessionLostError` when none was ever won here.
        """
        if self._guard is None:
            raise SessionLostError(f"election {self.name!r} was not won here")
        return self._guard

    # --- standing ---

    def campaign(self, value: bytes = b"", timeout: float | None = None) -> Election:
        """Stand in the election and wait until it is won; return this object.

        `value` is what others see of the leader. Whoever leads already only proclaims it. With a
        `timeout` (seconds; None: no bound) the candidacy is withdrawn when that passes. It costs
        two round trips, two more for a session of its own, and while it waits one watch.

        The timeout bounds the wait for others. An engine that does not answer is asked a little
        longer, 10 s for each request, so that no candidate is left behind.

        Raises `EngineBusyError` when the time passed while another one led, when `resign` ended
        the wait, or when another thread campaigns with this object; `SessionLostError`;
        `EngineUnavailableError`; `NoSpaceError`; `AccessDeniedError`; `StoreClosedError`;
        `InvalidTypeError`; `CommitTooLargeError`.
        """
        check_value(value)
        check_wait(timeout)
        self._core.check_open()
        deadline = None if timeout is None else monotonic() + timeout
        campaigning = self._campaigning
        if not campaigning.acquire(blocking=False):
            raise EngineBusyError(f"another thread campaigns in election {self.name!r} with this")
        try:
            if self.leading:
                self.proclaim(value)
            else:
                self._campaign(value, deadline)
            return self
        finally:
            campaigning.release()

    def _campaign(self, value: bytes, deadline: float | None) -> None:
        candidacy = self._stand()
        try:
            with self._requesting:
                candidacy.create(value, lambda: self._check(candidacy))
            while not self._is_elected(candidacy, deadline):
                pass  # it waited for the end of the one before
        except BaseException:
            candidacy.ended = True
            with suppress(SnapKVError):  # the key goes with its session, or with the next one's
                self._withdraw(candidacy)
            raise

    def _stand(self) -> Candidacy:
        before, session = self._candidacy, self._given
        if session is None:
            if before is not None:  # its lease may outlive what its session here could rely on
                before.ended = True
                self._withdraw(before)
            session = Session(self._core, self._writer, self._ttl)
        session.check()
        session.enlist(self.name, self)
        key = self._core.layout.live.encode(candidate_key(self._prefix, session.id))
        new = Candidacy(self._core.engine, session, key, before)
        self._candidacy = new
        return new

    def _is_elected(self, candidacy: Candidacy, deadline: float | None) -> bool:
        """Look who is before us; wait for the end of the last of them, and return False."""
        self._check(candidacy)
        try:
            answer = self._core.engine.read([self._range(keys_only=True)], timeout=REQUEST_S)
            kvs = answer.results[0].kvs
            self._check_stands(candidacy, kvs)
            ahead = [kv for kv in kvs if kv.create_revision < candidacy.revision]
            if not ahead:
                self._check(candidacy)
                self._guard = Held(self._relative(candidacy.key), candidacy.revision)
                candidacy.elected = True
                return True
            last = max(ahead, key=lambda kv: kv.create_revision)
            self._wait_for_end(candidacy, last.key, answer.header.revision + 1, deadline)
        except CompactedError:
            pass  # what happened since the read is known by the next one
        except EngineUnavailableError:  # the session's life bounds how long we try
            self._check_time(deadline)
            pause(RETRY_S)
        return False

    def _wait_for_end(
        self, candidacy: Candidacy, key: bytes, start: int, deadline: float | None
    ) -> None:
        self._watcher = watcher = self._core.engine.watch(key, b"", start_revision=start)
        try:
            while True:
                self._check(candidacy)
                left_s = min(WAIT_S_MAX, candidacy.session.left_s)
                if deadline is not None:
                    self._check_time(deadline)
                    left_s = min(left_s, max(0.0, deadline - monotonic()))
                batch = watcher.next(min(left_s, LOOK_AGAIN_S))
                if batch is None or any(event.is_delete for event in batch.events):
                    return  # to look who is before us now: one lost event must not stop us
        except StoreClosedError:
            self._check(candidacy)  # woken: it tells why
            raise
        finally:
            self._watcher = None
            watcher.close()

    def wake(self) -> None:
        """End the waiting of a campaign, which then looks for the reason."""
        watcher = self._watcher
        if watcher is not None:
            watcher.close()

    def _check(self, candidacy: Candidacy) -> None:
        """Raise what ends a candidacy."""
        self._core.check_open()
        if candidacy.ended:
            raise EngineBusyError(f"election {self.name!r}: it was resigned while it waited")
        candidacy.session.check()

    def _check_stands(self, candidacy: Candidacy, kvs: list[KeyValue]) -> None:
        ours = (candidacy.key, candidacy.revision)
        if ours not in ((kv.key, kv.create_revision) for kv in kvs):
            self._check(candidacy)
            raise SessionLostError(f"election {self.name!r}: the candidate's key was removed")

    def _check_time(self, deadline: float | None) -> None:
        if deadline is not None and monotonic() >= deadline:
            raise EngineBusyError(f"election {self.name!r}: another one led for all of the timeout")

    # --- leading and resigning ---

    def proclaim(self, value: bytes) -> None:
        """Change what others see of this leader; the leadership and its guard stay. One round trip.

        Raises `SessionLostError` when this process does not lead (any more).
        """
        check_value(value)
        self._core.check_open()
        candidacy = self._candidacy
        if candidacy is None or not candidacy.elected or candidacy.ended:
            raise SessionLostError(f"election {self.name!r}: this process does not lead")
        candidacy.session.check()
        with self._requesting:
            candidacy.write(value)

    def resign(self) -> None:
        """Give up the leadership, or the candidacy that another thread waits with; twice is fine.

        The next candidate leads at once. One round trip. Raises `EngineUnavailableError` or
        `EngineBusyError` when the engine does not answer, `NoSpaceError` where removing needs
        space (lmdb); then the key stands until the session ends, or until it is resigned again.
        """
        candidacy = self._candidacy
        if candidacy is None:
            return
        candidacy.ended = True
        self.wake()
        self._withdraw(candidacy)

    def close(self) -> None:
        """Resign; an engine that does not answer is no error: the key ends with its session."""
        with suppress(SnapKVError):
            self.resign()

    def _withdraw(self, candidacy: Candidacy) -> None:
        session = candidacy.session
        with self._requesting:
            if candidacy.removed or candidacy is not self._candidacy:
                return
            if session is not self._given:
                session.close()
            elif session.alive and not self._core.closed:  # else the key goes with the session
                candidacy.remove()
            candidacy.removed = True
            session.dismiss(self.name, self)

    # --- looking ---

    def leader(self) -> Leader | None:
        """Return who leads, None when nobody stands. One round trip."""
        self._core.check_open()
        return leader_of(self._core.engine.read([self._range()]).results[0].kvs)

    def watch_leader(self, timeout: float | None = None) -> Leaders:
        """Return an iterator of the leaders, from the present one on; it ends as `Leaders` says."""
        self._core.check_open()
        return Leaders(self._core, self._range(), timeout)

    def _range(self, *, keys_only: bool = False) -> Range:
        start, end = self._core.layout.live.range_of(self._prefix)
        return Range(start, end, keys_only=keys_only)

    def _relative(self, key: bytes) -> bytes:
        relative: bytes = self._core.layout.live.decode(key)
        return relative
