"""Elections: one of the candidates for a name leads at a time, and its commits can prove it.

Each candidate puts a key (`requests.py`) under its session's lease. The candidate with the smallest
create revision leads. Each other one waits until the key just before its own is removed, so that
each removal wakes one candidate. A request that was not answered may arrive late; its guards make
it harmless then (`Candidacy`). Source of the recipe: etcd's `client/v3/concurrency/election.go`.

A process may believe that it leads although its lease has ended, for example after it was
suspended. Clocks cannot exclude that; `Election.guard` does: a commit with it succeeds only while
the leader's own key exists, and no other candidate is elected as long as it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from snapkv.base.arguments import check_bytes
from snapkv.base.concurrency import here
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.base.waiting import monotonic, pause
from snapkv.coordination.requests import (
    ELECTIONS,
    REQUEST_S,
    candidate_key,
    check_ttl,
    election_name,
    election_prefix,
    found,
    lease_of,
    transact,
)
from snapkv.coordination.session import TTL_S, Session, SessionInfo, check_session, end_session
from snapkv.engine.contract import (
    Compare,
    Delete,
    Engine,
    KeyValue,
    Put,
    Range,
    Target,
    Txn,
    TxnResult,
    WatchBatch,
    Watcher,
)
from snapkv.errors import (
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidKeyError,
    NoSpaceError,
    SessionLostError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.model import Held
from snapkv.reading.deadline import WAIT_S_MAX, check_wait
from snapkv.reading.reader import Reader
from snapkv.reading.watches import Steps, deadline_of, left_of

# --- a candidate's key: made, changed and removed by requests that may be repeated ---
# A request that was not answered may arrive late, when much has happened since. So each request has
# a guard that makes a late copy harmless:
#
# * the key is made only while the session's key is unchanged; removing the candidate's key after an
#   unknown outcome writes the session's key again, with the same value, so that the guard fails;
# * it is changed only at its last revision;
# * it is removed only with its create revision.
#
# An engine that is out of space removes keys but writes none. Then only the candidate's key is
# removed; the next removal also makes late copies harmless.


class Candidacy:
    """One try to lead, from its key's creation to its removal; requests from one thread at a time.

    `revision` is the one that made the key, 0 before. The election sets `elected`, and `ended` when
    the candidate has resigned, timed out or lost its key; `removed` means that the key is gone.
    """

    def __init__(self, engine: Engine, session: Session, key: bytes, before: Candidacy | None):
        """`before` is this process's previous candidacy in the election: its key may be left."""
        self.session, self.key, self.revision = session, key, 0
        self.elected = self.ended = self.removed = False
        self._engine, self._mod = engine, 0
        left = before if before is not None and before.key == key and not before.removed else None
        # whether a copy of a request that makes the key may still arrive, or may have been applied
        self._open: bool = left is not None and left._open
        self._may_exist = left is not None

    def create(self, value: bytes, check: Callable[[], None]) -> None:
        """Make the key, once, however often that is sent; or take over the key that `before` left.

        `check` raises what ends the candidacy. Raises `CommitTooLargeError`, and as `transact`.
        """
        put = self._put(value)
        try:
            self._create(value, put, check)
        except SnapKVError:
            if self._may_exist and not self.revision:
                self._open = True
            raise
        except BaseException:
            self._open = True
            raise

    def _create(self, value: bytes, put: Put, check: Callable[[], None]) -> None:
        def on_open() -> None:
            self._open = True

        session, seen = self.session, self.session.revision
        while not self.revision:
            check()
            unchanged = Compare(session.key, Target.MOD, "=", seen)
            txn = Txn(
                (Compare(self.key, Target.CREATE, "=", 0), unchanged),
                (put,),
                (Range(self.key), Range(session.key, keys_only=True)),
            )
            answer = transact(self._engine, txn, on_open=on_open)
            if answer.succeeded:
                self.revision = self._mod = answer.header.revision
                break
            seen = self._written(answer)
            for mine in found(answer, 0).kvs:
                self.revision, self._mod = mine.create_revision, mine.mod_revision
                if mine.value != value:
                    self.write(value)

    def write(self, value: bytes) -> None:
        """Change the key's value; raises `SessionLostError` if the key is gone."""
        put = self._put(value)
        while True:
            unchanged = Compare(self.key, Target.MOD, "=", self._mod)
            answer = transact(self._engine, Txn((unchanged,), (put,), (Range(self.key),)))
            if answer.succeeded:
                self._mod = answer.header.revision
                return
            kvs = found(answer, 0).kvs
            if not kvs or kvs[0].create_revision != self.revision:
                self.ended = True
                raise SessionLostError(f"candidate {self.key!r} was removed")
            self._mod = kvs[0].mod_revision
            if kvs[0].value == value:  # an earlier copy was applied
                return

    def remove(self) -> None:
        """Remove the key, if it exists, and make sure that no late copy makes it again.

        Raises `NoSpaceError` if the key is removed, but a late copy may make it again; and as
        `transact`.
        """
        try:
            if self._open:
                self._remove_and_stop_copies()
            elif self.revision:
                self._remove_at(self.revision)
        except NoSpaceError:
            answer = self._engine.read([Range(self.key, keys_only=True)], timeout=REQUEST_S)
            for kv in answer.results[0].kvs:
                self._remove_at(kv.create_revision)
            raise
        except SessionLostError:
            pass  # the key vanished with the session

    def _remove_at(self, revision: int) -> None:
        mine = Compare(self.key, Target.CREATE, "=", revision)
        transact(self._engine, Txn((mine,), (Delete(self.key),)))

    def _remove_and_stop_copies(self) -> None:
        session = self.session
        seen = session.revision
        while True:
            unchanged = Compare(session.key, Target.MOD, "=", seen)
            again = Put(session.key, session.record, lease=session.id)
            seeing = (Range(self.key, keys_only=True), Range(session.key, keys_only=True))
            txn = Txn((unchanged,), (again, Delete(self.key)), seeing)
            answer = transact(self._engine, txn)
            if answer.succeeded:
                return
            seen = self._written(answer)

    def _put(self, value: bytes) -> Put:
        put = Put(self.key, value, lease=self.session.id)
        self._engine.check_limits(Txn(success=(put,)))
        return put

    def _written(self, answer: TxnResult) -> int:
        """Return the revision that last wrote the session's key, from the second range."""
        kvs = found(answer, 1).kvs
        if not kvs:
            raise SessionLostError(f"session {self.session.id:x} has ended: its key is gone")
        return kvs[0].mod_revision


# --- the leader of an election, from the keys of its candidates: read once, or followed ---
# The candidate whose key has the smallest create revision leads. Keys sort by lease, not by that.


@dataclass(frozen=True, slots=True)
class Leader:
    """A leader: its value, the id of its session, the create revision of its candidate's key."""

    value: bytes
    session: int
    revision: int


def leader_of(kvs: Iterable[KeyValue]) -> Leader | None:
    """Return the leader among the candidates' keys, None if there are none."""
    first = min(kvs, key=lambda kv: kv.create_revision, default=None)
    if first is None:
        return None
    return Leader(first.value, lease_of(first.key), first.create_revision)


def leaders(core: Reader) -> dict[str, Leader]:
    """Return the leader of each election that has one, by name; one round trip."""
    core.check_open()
    start, end = core.layout.live.range_of(ELECTIONS)
    kvs = core.engine.read([Range(start, end)]).results[0].kvs
    elections = groupby(kvs, key=lambda kv: kv.key[len(start) :].rpartition(b"/")[0])
    led = ((election_name(name), leader_of(candidates)) for name, candidates in elections)
    return {name: leader for name, leader in led if leader is not None}


class Leaders(Steps[Leader]):
    """An iterator of the leaders of an election: the present one, then each change of them.

    A change is another leader or another proclaimed value. No leader is returned twice in a row,
    and times without a leader are skipped. No change is missed unless compaction overtakes it. Its
    waits and threads are as of a `Watch`, but `close()` raises `StoreClosedError` in the thread
    that waits. One round trip and one watch.
    """

    def __init__(self, core: Reader, wanted: Range, timeout: float | None) -> None:
        super().__init__(timeout)
        self._core, self._wanted = core, wanted
        self._candidates: dict[bytes, KeyValue] = {}
        self._returned: Leader | None = None
        self._closed = False
        self._watcher = self._start()
        core.follow(self)

    def _start(self) -> Watcher:
        """Read the candidates, and watch them from that revision on."""
        answer = self._core.engine.read([self._wanted])
        self._candidates = {kv.key: kv for kv in answer.results[0].kvs}
        start, end = self._wanted.key, self._wanted.range_end
        return self._core.engine.watch(start, end, start_revision=answer.header.revision + 1)

    def next(self, timeout: float | None = None) -> Leader | None:
        """Return the next leader; None if `timeout` seconds (None: no bound) pass without one."""
        check_wait(timeout)
        deadline = deadline_of(timeout)
        while True:
            if self._closed:
                raise StoreClosedError("the watch was closed")
            leader = leader_of(self._candidates.values())
            if leader is not None and leader != self._returned:
                self._returned = leader
                return leader
            try:
                batch = self._watcher.next(left_of(deadline))
            except CompactedError:
                self._start_again()
                continue
            if batch is None:
                return None
            self._take(batch)

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._closed = True
        self._watcher.close()

    def _start_again(self) -> None:
        self._watcher.close()
        self._watcher = self._start()
        if self._closed:
            self._watcher.close()

    def _take(self, batch: WatchBatch) -> None:
        for event in batch.events:
            if event.is_delete:
                self._candidates.pop(event.kv.key, None)
            else:
                self._candidates[event.kv.key] = event.kv


# --- election ---

RETRY_S = 0.2
LOOK_AGAIN_S = 5.0
"""The pause after a failed read of the candidates, in seconds; the session bounds their number."""


class Election(Closing):
    """One candidate of an election, from `store.election(name)`: it campaigns, leads and resigns.

    `campaign` may be called by one thread at a time, everything else by any. As a context manager
    it resigns at the end. A forked child is not a candidate: the candidacy stays the parent's.
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
        """Prepare a candidate, as `store.election`; `writer` is in the records of its sessions."""
        check_ttl(ttl)
        if session is not None:
            check_session(session, core)
        self.name, self._writer, self._ttl, self._core = name, writer, ttl, core
        self._prefix = election_prefix(name)
        longest = core.layout.live.encode(candidate_key(self._prefix, 0))
        if len(longest) > core.engine.limits.key_bytes:
            raise InvalidKeyError(f"the name is too long for a key: {name[:80]!r}...", name)
        self._session = session
        self._candidacy: Candidacy | None = None
        self._watcher: Watcher | None = None
        self._guard: Held | None = None
        self.resigned = object()
        """Another object after each `resign`, which a campaign may not have a candidacy for yet."""
        self._renew_locks()
        renew_in_children(self)
        core.follow(self)

    def _renew_locks(self) -> None:
        self._campaigning = here().lock()
        self._requesting = here().lock()  # held while our key is written or removed

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
        """The fencing token: larger for each new leader of the election; 0 before one was won here.

        It is the create revision of the leader's key, and remains after the leadership has ended.
        """
        return self._guard.revision if self._guard is not None else 0

    @property
    def guard(self) -> Held:
        """A guard: a commit with it raises `ConflictError` unless this leadership still holds.

        Raises `SessionLostError` if no election was won here.
        """
        if self._guard is None:
            raise SessionLostError(f"election {self.name!r} was not won here")
        return self._guard

    # --- campaigning ---

    def campaign(self, value: bytes = b"", timeout: float | None = None) -> Election:
        """Become a candidate and wait until the election is won; return this object.

        Other processes read `value` as the leader's; a candidate that leads already only proclaims
        it. If `timeout` seconds (None: no bound) pass first, the candidacy is withdrawn. Costs two
        round trips, two more for a session of its own, and one watch while it waits.

        The timeout bounds the wait for other candidates. Requests to an engine that does not
        answer may take longer, 10 s each, so that no candidate is left behind.

        Raises `EngineBusyError` if the time passed while another candidate led, if `resign` ended
        the wait, or if another thread campaigns with this object; `InvalidOptionError` if another
        object is the candidate of the same session, also as the leader; `SessionLostError`;
        `EngineUnavailableError`; `NoSpaceError`; `AccessDeniedError`; `StoreClosedError`;
        `InvalidTypeError`; `CommitTooLargeError`.
        """
        return self.campaign_since(self.resigned, value, timeout)

    def campaign_since(self, resigned: object, value: bytes, timeout: float | None) -> Election:
        """Campaign as long as `self.resigned` is `resigned`, read where the campaign was wanted."""
        check_bytes("value", value)
        check_wait(timeout)
        self._core.check_open()
        deadline = None if timeout is None else monotonic() + timeout
        campaigning = self._campaigning
        if not campaigning.acquire(blocking=False):
            raise EngineBusyError(
                f"another thread already campaigns in election {self.name!r} with this object"
            )
        try:
            if self.leading:
                self.proclaim(value)
            else:
                self._campaign(resigned, value, deadline)
            return self
        finally:
            campaigning.release()

    def _campaign(self, resigned: object, value: bytes, deadline: float | None) -> None:
        candidacy = self._enter()
        try:
            if self.resigned is not resigned:  # the call came before there was a candidacy to end
                candidacy.ended = True
            with self._requesting:
                candidacy.create(value, lambda: self._check(candidacy))
            while not self._is_elected(candidacy, deadline):
                pass  # it waited for the candidate before it
        except BaseException:
            candidacy.ended = True
            # the key ends with its session, or the next candidacy removes it
            with suppress(SnapKVError):
                self._withdraw(candidacy)
            raise

    def _enter(self) -> Candidacy:
        before, session = self._candidacy, self._session
        if session is None:
            if before is not None:  # its lease may outlive its session here
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
        """Return whether no candidate is before us; else wait for the last of those to end."""
        self._check(candidacy)
        try:
            answer = self._core.engine.read([self._range(keys_only=True)], timeout=REQUEST_S)
            kvs = answer.results[0].kvs
            self._check_exists(candidacy, kvs)
            ahead = [kv for kv in kvs if kv.create_revision < candidacy.revision]
            if not ahead:
                self._check(candidacy)
                self._guard = Held(self._core.layout.live.decode(candidacy.key), candidacy.revision)
                candidacy.elected = True
                return True
            last = max(ahead, key=lambda kv: kv.create_revision)
            self._wait_for_end(candidacy, last.key, answer.header.revision + 1, deadline)
        except CompactedError:
            pass  # the next read shows what has happened
        except EngineUnavailableError:  # the session's life bounds how often this is tried
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
                    return  # read the candidates again: one lost event must not stop us
        except StoreClosedError:
            self._check(candidacy)  # it was woken: raise the reason
            raise
        finally:
            self._watcher = None
            watcher.close()

    def wake(self) -> None:
        """End the wait of a campaign, which then raises the reason."""
        watcher = self._watcher
        if watcher is not None:
            watcher.close()

    def _check(self, candidacy: Candidacy) -> None:
        """Raise the error that has ended a candidacy, if any."""
        self._core.check_open()
        if candidacy.ended:
            raise EngineBusyError(f"election {self.name!r}: resigned while it waited")
        candidacy.session.check()

    def _check_exists(self, candidacy: Candidacy, kvs: list[KeyValue]) -> None:
        ours = (candidacy.key, candidacy.revision)
        if ours not in ((kv.key, kv.create_revision) for kv in kvs):
            self._check(candidacy)
            raise SessionLostError(f"election {self.name!r}: the candidate's key was removed")

    def _check_time(self, deadline: float | None) -> None:
        if deadline is not None and monotonic() >= deadline:
            raise EngineBusyError(
                f"election {self.name!r}: another candidate led until the timeout passed"
            )

    # --- leading and resigning ---

    def proclaim(self, value: bytes) -> None:
        """Change the leader's value; the leadership and its guard stay. One round trip.

        Raises `SessionLostError` if this process does not lead, or not any more.
        """
        check_bytes("value", value)
        self._core.check_open()
        candidacy = self._candidacy
        if candidacy is None or not candidacy.elected or candidacy.ended:
            raise SessionLostError(f"election {self.name!r}: this process does not lead")
        candidacy.session.check()
        with self._requesting:
            candidacy.write(value)

    def resign(self) -> None:
        """Give up the leadership, or the candidacy that another thread waits with; may be repeated.

        The next candidate leads at once. One round trip. Raises `EngineUnavailableError` or
        `EngineBusyError` if the engine does not answer, and `NoSpaceError` if removing needs space
        (lmdb); then the key exists until the session ends, or until this is called again.
        """
        self.resigned = object()  # before the look: a campaign makes its candidacy, then looks here
        candidacy = self._candidacy
        if candidacy is None:
            return
        candidacy.ended = True
        self.wake()
        self._withdraw(candidacy)

    def close(self) -> None:
        """Resign; never fails: the key of an engine that does not answer ends with its session."""
        with suppress(SnapKVError):
            self.resign()

    def _withdraw(self, candidacy: Candidacy) -> None:
        session = candidacy.session
        with self._requesting:
            if candidacy.removed or candidacy is not self._candidacy:
                return
            if session is not self._session:
                session.close()
            elif session.alive and not self._core.closed:  # else the key goes with the session
                candidacy.remove()
            candidacy.removed = True
            session.dismiss(self.name, self)

    def end_session(self, session: SessionInfo) -> bool:
        """End another process's session if this leadership holds; return whether this call did.

        Its keys vanish at once. Its process learns of it when it renews the session, a third of
        its time to live later at most, and may rely on it until then. Two round trips.

        Raises `SessionLostError` if no election was won here, `EngineUnavailableError`,
        `NoSpaceError`, `AccessDeniedError`, `StoreClosedError`.
        """
        self._core.check_open()
        return end_session(self._core, session, self.guard)

    # --- looking ---

    def leader(self) -> Leader | None:
        """Return the leader, None without a candidate. One round trip."""
        self._core.check_open()
        return leader_of(self._core.engine.read([self._range()]).results[0].kvs)

    def watch_leader(self, timeout: float | None = None) -> Leaders:
        """Return an iterator of the leaders, from the present one on: see `Leaders`."""
        self._core.check_open()
        return Leaders(self._core, self._range(), timeout)

    def _range(self, *, keys_only: bool = False) -> Range:
        start, end = self._core.layout.live.range_of(self._prefix)
        return Range(start, end, keys_only=keys_only)
