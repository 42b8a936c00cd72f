"""The client of a cluster: failover to an endpoint that answers, renewed tokens, deadlines."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from snapkv.base.concurrency import here
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import bounded, check_in_time, monotonic, pause
from snapkv.engine.contract import OutcomeUnknown, Refused
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd import kine
from snapkv.engine.etcd.endpoint import AnyStream, Endpoint
from snapkv.engine.etcd.error_texts import (
    AUTH_NOT_ENABLED,
    COMPACTED,
    FUTURE,
    OVERSIZED_BY_GRPC,
    OversizedAnswerError,
    is_for_elsewhere,
    is_not_serializable,
    is_oversized_answer,
    is_stale_token,
    may_be_applied,
    refusal_of,
    stranger_error,
    too_large,
)
from snapkv.engine.etcd.grpc_client import (
    AUTHENTICATE,
    RANGE,
    STATUS,
    CallFailed,
    ChannelRetired,
    ClientClosedError,
    Message,
    Metadata,
    Method,
)
from snapkv.engine.etcd.security import Credentials
from snapkv.errors import AccessDeniedError, EngineUnavailableError, SnapKVError, StoreClosedError

# --- failovers: another endpoint answers than before. Each one is logged once ---

log = logging.getLogger(__name__)

OnFailover = Callable[[str, str, str], None]
"""Takes the endpoint that was left, the one that answers now, and why the last one failed."""


class Failovers:
    """Notices that another endpoint answers; safe for threads.

    A failover is complete when another endpoint answers. With all endpoints down, calls go round
    them without any. For example, `a` answered last; then a, b and c do not answer, and b does:

        event        answering   logged
        left(a)      a           -
        left(b)      a           -
        left(c)      a           -
        answers(b)   b           a -> b, once
        answers(b)   b           -
    """

    def __init__(self, first: str) -> None:
        self.answering = first
        """The endpoint that answered last; the first one before any has."""
        self.on_failover: OnFailover | None = None
        self._why = ""
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def left(self, why: object) -> None:
        """Note why calls leave an endpoint."""
        self._why = str(why)

    def answers(self, address: str) -> None:
        """Note that the endpoint in use has answered."""
        with self._lock:
            before, self.answering = self.answering, address
            if before == address:
                return
        log.warning("etcd: %s answers instead of %s: %s", address, before, self._why)
        if self.on_failover is not None:
            self.on_failover(before, address, self._why)


# --- the client ---

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

READ_TIMEOUT_S = 12.0
"""The longest that a call that may be repeated is tried, without a timeout of the caller, in
seconds."""
TRY_S = 4.0
"""The longest that one endpoint may take to answer before the next one is asked, in seconds."""
TRY_S_MIN = 0.5
READ_TRY_S_MIN = 0.1
"""The least time for one endpoint when little time is left; less than for a write, because a read
is repeated."""
VERSION_S = 1.0
NO_ANSWER = frozenset(("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"))
RETRY_S_MIN = 0.01
RETRY_S_MAX = 0.5
RENEWALS_MAX = 4
"""The most new tokens for one call: its rights may change several times while it runs."""


class ClusterClient:
    """The endpoints of a cluster behind one interface; safe for threads and forks."""

    def __init__(
        self, endpoints: Sequence[Endpoint], login: Credentials | None, *, token: str | None = None
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._login, self._token = login, token
        self._at = 0
        self.failovers = Failovers(self._endpoints[0].address)
        # endpoints that did not answer as etcd since one last did, and why
        self._strangers: dict[str, SnapKVError] = {}
        self.is_kine: bool | None = None
        """Whether the servers are kine; None until one has answered."""
        self._closed = False
        self._lock = threading.Lock()
        self._renewing = here().lock()  # held while the token is requested
        self._rng = random.Random()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks and the connections."""
        self._lock, self._renewing = threading.Lock(), here().lock()
        for endpoint in self._endpoints:
            endpoint.after_fork()

    @property
    def addresses(self) -> tuple[str, ...]:
        """All endpoints, the one in use first."""
        at = self._at
        return tuple(e.address for e in self._endpoints[at:] + self._endpoints[:at])

    def close(self) -> None:
        """Close all channels; running calls fail."""
        self._closed = True
        for endpoint in self._endpoints:
            endpoint.close()

    # --- calls that may be repeated ---

    def read(
        self, method: Method[Q, A], request: Q, timeout: float | None = None, *, login: bool = True
    ) -> A:
        """Call one endpoint after another until one answers; without `login` it needs no token.

        Raises `EngineUnavailableError` after `timeout` seconds, the cluster's own errors, and
        `CallFailed` with the text `COMPACTED`, `FUTURE` or `AUTH_NOT_ENABLED`.
        """
        bound_s = bounded(READ_TIMEOUT_S if timeout is None else timeout)
        check_in_time()
        deadline, tries, renewals = monotonic() + bound_s, 0, 0
        while True:
            endpoint, token = self._current(), self._token if login else None
            left = deadline - monotonic()
            try:
                return self._call(endpoint, method, request, self._try_s(left, tries), token)
            except CallFailed as e:
                may_renew = login and renewals < RENEWALS_MAX and is_stale_token(e)
                if may_renew and self._renewed(token, deadline):
                    renewals += 1
                    continue
                self._raise_if_final(e, endpoint, request)
                failure = e
            self._move_on(endpoint, failure)
            tries += 1
            self.wait_before(tries, deadline)
            if monotonic() >= deadline:
                why = next(iter(self._strangers.values()), failure)
                raise EngineUnavailableError(
                    f"no answer from {', '.join(self.addresses)} in {bound_s:g} s: {why}"
                ) from failure

    def _raise_if_final(
        self, failure: CallFailed, endpoint: Endpoint, request: Message | None = None
    ) -> None:
        """Raise an error that another attempt, or another endpoint, would return too."""
        if self._closed:
            raise StoreClosedError("the engine was closed") from failure
        final = COMPACTED, FUTURE, AUTH_NOT_ENABLED
        if failure.text.startswith(final) or is_not_serializable(failure):
            raise failure
        if is_oversized_answer(failure):
            message = "an answer is larger than the client's channel takes (see its grpc_options)"
            raise OversizedAnswerError(message) from failure
        size = 0 if request is None else request.ByteSize()
        if OVERSIZED_BY_GRPC in failure.text.lower():
            raise too_large(size) from failure
        error = refusal_of(failure, size)
        if error is not None and not is_for_elsewhere(failure):
            raise error from failure
        stranger = endpoint.handshake_error(failure) or stranger_error(failure, endpoint.address)
        if stranger is None or error is not None:
            self._strangers.pop(endpoint.address, None)
            return
        self._strangers[endpoint.address] = stranger
        if all(e.address in self._strangers for e in self._endpoints):
            raise stranger from failure

    def _try_s(self, left_s: float, tries: int) -> float:
        """Return how long to wait for one endpoint, so that there is time for all of them."""
        unasked = max(1, len(self._endpoints) - tries)
        return max(0.001, min(left_s, TRY_S, max(READ_TRY_S_MIN, left_s / unasked)))

    def _try_once_s(self, left_s: float) -> float:
        """Return the same for a request that is sent once: another endpoint finds its outcome."""
        share = left_s if len(self._endpoints) == 1 else max(TRY_S_MIN, left_s / 2)
        return min(left_s, TRY_S, share)

    def wait_before(self, tries: int, deadline: float) -> None:
        """Wait a little, longer after each round of all endpoints."""
        rounds = tries // len(self._endpoints)
        if rounds:
            wait = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(rounds, 10))
            pause(max(0.0, min(wait * self._rng.uniform(0.5, 1), deadline - monotonic())))

    # --- calls that are sent once ---

    def ready(self, home: bytes, timeout: float) -> None:
        """Make sure that an endpoint answers; no round trip if one does. Raises as `read`."""
        if not self._current().proven:
            with contextlib.suppress(AccessDeniedError):  # an answer, too
                self.read(RANGE, pb.RangeRequest(key=home, count_only=True), timeout)

    def send(self, method: Method[Q, A], request: Q, timeout: float) -> A:
        """Send a request that must not be applied twice; repeat it only if it was rejected.

        Raises `Refused` and `OutcomeUnknown`.
        """
        deadline, tries = monotonic() + timeout, 0
        while True:
            endpoint, token = self._current(), self._token
            left = deadline - monotonic()
            if left <= 0:
                raise Refused(
                    EngineUnavailableError(
                        "the cluster rejected the request for now; try again later"
                    )
                )
            try:
                return self._call(endpoint, method, request, self._try_once_s(left), token)
            except ClientClosedError as e:
                raise Refused(e) from e
            except CallFailed as e:
                failure = e
            tries += 1
            if is_for_elsewhere(failure):
                self._move_on(endpoint, failure)
                self.wait_before(tries, deadline)
            elif not (
                is_stale_token(failure)
                and tries <= RENEWALS_MAX
                and self._renewed_or_refused(token, deadline)
            ):
                outcome = self._outcome(failure, request)
                if isinstance(outcome, OutcomeUnknown) and not outcome.answered:
                    self._move_on(endpoint, failure)  # it did not answer
                raise outcome from failure

    def _outcome(self, failure: CallFailed, request: Message) -> Refused | OutcomeUnknown:
        size = request.ByteSize()
        error = refusal_of(failure, size)
        if error is not None and may_be_applied(failure):
            return OutcomeUnknown(str(failure), retry=False, cause=error, answered=True)
        if error is not None:
            return Refused(error)
        if OVERSIZED_BY_GRPC in failure.text.lower():
            return OutcomeUnknown(str(failure), retry=False, cause=too_large(size))
        return OutcomeUnknown(str(failure), retry=not self._closed)

    def _renewed_or_refused(self, token: str | None, deadline: float) -> bool:
        try:
            return self._renewed(token, deadline)
        except SnapKVError as e:
            raise Refused(e) from e

    # --- streams ---

    def watch(self, first: pb.WatchRequest, timeout: float | None = None) -> OpenWatch:
        """Open a watch at the current endpoint; it ends with the connection."""
        endpoint, token = self._current(), self._token
        stream = endpoint.watches().watch(first, self._metadata(token), timeout)
        return OpenWatch(endpoint, token, stream)

    def is_alive(self, endpoint: Endpoint, home: bytes, timeout: float) -> bool:
        """Return whether an endpoint answers on the connection of its watches; one round trip."""
        request = pb.RangeRequest(key=home, count_only=True, serializable=True)
        try:
            endpoint.watches().call(RANGE, request, timeout, self._metadata(self._token))
        except ClientClosedError:
            return False
        except CallFailed as e:
            return refusal_of(e) is not None or is_not_serializable(e)
        return True

    def server_version(self) -> str | None:
        """Return the server's version; "" when it is not in the answer, None without an answer.

        One round trip, `VERSION_S` seconds at most.
        """
        try:
            return self.status().version
        except StoreClosedError:
            return None
        except CallFailed as e:
            return None if e.code in NO_ANSWER or is_stale_token(e) else ""

    def status(self) -> pb.StatusResponse:
        """Return what a server says of itself, in `VERSION_S` seconds; raises `CallFailed`."""
        bound_s = max(0.001, bounded(VERSION_S))
        return self._call(self._current(), STATUS, pb.StatusRequest(), bound_s, self._token)

    def broken(self, open_watch: OpenWatch, failure: CallFailed, *, renew: bool) -> None:
        """Prepare for the next watch after one failed: a new token, or another endpoint.

        `renew` requests a new token in any case. Raises errors that are final.
        """
        if renew or is_stale_token(failure):
            try:
                if self._renewed(open_watch.token, monotonic() + TRY_S):
                    return
            except EngineUnavailableError as e:  # no quorum, for example: the next one may succeed
                self._move_on(open_watch.endpoint, e)
                return
        self._raise_if_final(failure, open_watch.endpoint)
        self._move_on(open_watch.endpoint, failure)

    # --- endpoints and tokens ---

    def _current(self) -> Endpoint:
        if self._closed:
            raise StoreClosedError("the engine was closed")
        return self._endpoints[self._at]

    def _move_on(self, endpoint: Endpoint, why: object) -> None:
        """Use the next endpoint from now on, unless another thread has moved on already."""
        endpoint.drop()
        with self._lock:
            if self._endpoints[self._at] is endpoint:
                self._at = (self._at + 1) % len(self._endpoints)
                self.failovers.left(why)

    def heard_from(self, endpoint: Endpoint) -> None:
        """Note that an endpoint has answered."""
        if self._endpoints[self._at] is endpoint:
            self.failovers.answers(endpoint.address)

    def _call(
        self,
        endpoint: Endpoint,
        method: Method[Q, A],
        request: Q,
        timeout: float,
        token: str | None,
    ) -> A:
        try:
            while True:
                try:
                    channel = endpoint.calls()
                    answer = channel.call(method, request, timeout, self._metadata(token))
                    break
                except ChannelRetired:
                    continue  # by another thread, just now
        except CallFailed as e:
            endpoint.proven = refusal_of(e) is not None or e.text.startswith((COMPACTED, FUTURE))
            raise
        except BaseException as e:
            if not isinstance(e, Exception):
                endpoint.interrupted()
            raise
        endpoint.proven = True
        self._strangers.clear()
        if endpoint.address != self.failovers.answering:
            self.heard_from(endpoint)
        if self.is_kine is None:
            self._find_kind(endpoint, getattr(answer, "header"), timeout)  # noqa: B009
        return answer

    def _find_kind(self, endpoint: Endpoint, header: pb.ResponseHeader, timeout: float) -> None:
        """Find out from a first answer what the server is; one round trip more if it is kine.

        Raises `NotSupportedError` for a kine whose answers are not reliable.
        """
        found = kine.is_kine(header)
        if found:
            probe = pb.RangeRequest(key=kine.NOT_TEXT)
            try:
                endpoint.calls().call(RANGE, probe, timeout, self._metadata(None))
            except CallFailed as e:
                if e.code == "UNKNOWN":
                    raise kine.unordered_error(e.text) from e
                return  # the next answer shows it
        self.is_kine = found

    @staticmethod
    def _metadata(token: str | None) -> Metadata:
        """Return the metadata of each call: a member without a leader rejects it at once."""
        leader = (("hasleader", "true"),)
        return leader if token is None else (*leader, ("token", token))

    def _renewed(self, used: str | None, deadline: float) -> bool:
        """Get a new token in place of the used one; False without a login."""
        if self._login is None:
            return False
        if not self._renewing.acquire(timeout=max(0.0, deadline - monotonic())):
            raise EngineUnavailableError("the cluster returned no new token in time")
        try:
            if self._token != used:
                return True  # another thread renewed it
            request = pb.AuthenticateRequest(name=self._login.user, password=self._login.password)
            left = max(0.0, deadline - monotonic())
            self._token = self.read(AUTHENTICATE, request, left, login=False).token
        except CallFailed as e:
            if not e.text.startswith(AUTH_NOT_ENABLED):
                raise
            self._token = None
        finally:
            self._renewing.release()
        return True


class OpenWatch(NamedTuple):
    """An open watch stream, where it is open, and the token it was opened with."""

    endpoint: Endpoint
    token: str | None
    stream: AnyStream
