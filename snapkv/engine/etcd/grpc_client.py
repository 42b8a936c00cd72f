"""The part of gRPC that the engine needs: the channel of an endpoint, calls, streams, failures.

With `aio_client` the only module that imports grpc. Retries and configuration from DNS are off: a
request is sent once, and only the engine repeats it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import re
import threading
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Generic, TypeVar

# gRPC's default way of polling keeps state for the whole process that a forked child inherits
# broken; with this one each call has its own. It is read when grpc is first imported.
os.environ.setdefault("GRPC_POLL_STRATEGY", "poll")

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Message

from snapkv.base.lifecycle import ForkBarrier
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.security import Security
from snapkv.errors import EngineUnavailableError, SnapKVError

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)

KEEPALIVE_MS = 10_000
RECONNECT_MS_MIN = 50
RECONNECT_MS_MAX = 1_000
CONNECT_MS_MAX = 2_000
"""The longest that connecting may take, in milliseconds: several exchanges over a slow network."""

CLOSE_S = 2.0
"""The longest that a channel may take to end its calls, in seconds."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS // 2),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MS_MAX),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
)

WATCH_ANSWER_BYTES_MAX = 256 << 20
"""The largest answer of a watch: while it catches up, the server sends 1,000 revisions at once."""

_calls = ForkBarrier()
"""A fork while a call is inside gRPC was seen to abort the child. An idle stream does no
harm; one that receives events at that moment did, in one fork of a hundred.
"""


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """A method by its name on the wire, and the classes of its requests and answers."""

    path: str
    request: type[Q]
    answer: type[A]


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
COMPACT = Method("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
KEEP_ALIVE = Method(  # a stream, but one request that ends its side looks the same on the wire
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
)
AUTHENTICATE = Method(
    "/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse
)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
TOO_LARGE = "RESOURCE_EXHAUSTED"
WATCH_PATH = "/etcdserverpb.Watch/Watch"

Metadata = tuple[tuple[str, str], ...]


class CallFailed(SnapKVError, ConnectionError):
    """A call ended with a status instead of an answer: its name `code` and its `text`."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


def failure_of(error: grpc.RpcError) -> CallFailed:
    """Return gRPC's error as ours."""
    code = error.code() if hasattr(error, "code") else None
    text = error.details() if hasattr(error, "details") else str(error)
    return CallFailed(code.name if code is not None else "UNKNOWN", text or "")


def answered(answer: A | None) -> A:
    """Return an answer; gRPC returns None for a call that ended well, but without one."""
    if answer is None:
        raise CallFailed("INTERNAL", "the call ended without an answer")
    if answer is _GARBLED:
        raise CallFailed("INTERNAL", NOT_A_MESSAGE)
    return answer


NOT_A_MESSAGE = "the answer is not a message of etcd's protocol"
_GARBLED: Any = object()


def serializers(kind: type[Message]) -> dict[str, Any]:
    """Return what makes bytes of messages, and answers, for `answered`, of bytes."""

    def read(sent: bytes) -> Any:
        try:
            return kind.FromString(sent)
        except DecodeError:  # gRPC would log its traceback
            return _GARBLED

    return {"request_serializer": methodcaller("SerializeToString"), "response_deserializer": read}


def ended_watch(reason: str) -> CallFailed:
    """Return why a server ended a watch.

    >>> ended_watch("rpc error: code = InvalidArgument desc = no such option")
    CallFailed('INVALID_ARGUMENT: no such option')
    """
    described = re.fullmatch(r"rpc error: code = (\w+) desc = (.+)", reason, re.DOTALL)
    if described is None:
        return CallFailed("CANCELLED", reason or "the server ended the watch")
    return CallFailed(re.sub(r"\B([A-Z])", r"_\1", described[1]).upper(), described[2])


class ChannelRetired(SnapKVError):
    """The channel was replaced; this call was not sent."""


class ClientClosedError(EngineUnavailableError):
    """The etcd3 client has closed its channel; nothing was sent."""

    def __init__(self) -> None:
        super().__init__("the etcd3 client was closed; pass a new one")


def channel_options(answer_bytes_max: int) -> tuple[tuple[str, int], ...]:
    """Return the options of a channel that receives answers of so many bytes (-1: no bound)."""
    return (*_OPTIONS, ("grpc.max_receive_message_length", answer_bytes_max))


def is_socket(endpoint: str) -> bool:
    """Return whether an endpoint is a socket of this machine; a host may be called "unix"."""
    return endpoint.startswith("unix:/")


def target_of(endpoint: str) -> str:
    """Return `host:port`, or `unix:/PATH`, as a target of gRPC."""
    return endpoint if is_socket(endpoint) else f"dns:///{endpoint}"


def credentials_of(security: Security) -> grpc.ChannelCredentials:
    """Return the TLS credentials of a channel."""
    authorities = security.authorities()
    return grpc.ssl_channel_credentials(authorities, security.key, security.cert)


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """A connection to one endpoint, made when it is first used.

    A channel that is not `owned` belongs to an etcd3 client, which closes it.
    """

    breaks_on_interrupt = True
    """An interrupt may leave one of its locks taken."""

    def __init__(self, channel: Any, *, owned: bool = False) -> None:
        self._channel, self._owned = channel, owned
        self._unary: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._inside = 0  # calls on their way
        self._retired = False
        _channels.add(self)

    @classmethod
    def to(cls, endpoint: str, security: Security, *, answer_bytes_max: int = -1) -> Channel:
        """Return a channel to `host:port`; nothing is sent yet.

        A call whose answer is larger than `answer_bytes_max` (-1: no bound) fails with the code
        `TOO_LARGE`.
        """
        options, target = channel_options(answer_bytes_max), target_of(endpoint)
        if not security.tls:
            return cls(grpc.insecure_channel(target, options=options), owned=True)
        credentials = credentials_of(security)
        return cls(grpc.secure_channel(target, credentials, options=options), owned=True)

    def call(self, method: Method[Q, A], request: Q, timeout: float, metadata: Metadata) -> A:
        """Send one request, once; `CallFailed` after `timeout` seconds at the latest.

        Raises `ChannelRetired` and `ClientClosedError` when it was not sent for that.
        """
        send = self._unary.get(method.path)
        if send is None:
            send = self._channel.unary_unary(method.path, **serializers(method.answer))
            self._unary[method.path] = send
        with _calls:
            with self._lock:
                if self._retired:
                    raise ChannelRetired("the channel was replaced")
                self._inside += 1
            try:
                answer: A | None = send(request, timeout=timeout, metadata=metadata)
                return answered(answer)
            except grpc.RpcError as e:
                raise failure_of(e) from e
            except ValueError as e:
                raise self._closed(e) from e
            except BaseException as e:
                release_lock(e)
                raise
            finally:
                with self._lock:
                    self._inside -= 1
                    is_over = self._is_over()
                if is_over:
                    self.close()

    def _is_over(self) -> bool:
        return self._retired and not self._inside

    def retire(self) -> None:
        """Take no more calls, and close once the running calls have ended.

        A channel that is only dropped continues to connect until it is garbage-collected.
        """
        with self._lock:
            if not self._owned or self._retired:
                return
            self._retired = True
            is_over = self._is_over()
        if is_over:
            self.close()

    def watch(
        self, first: pb.WatchRequest, metadata: Metadata, timeout: float | None
    ) -> WatchStream:
        """Open a stream of watch answers, for `timeout` seconds (None: until it is cancelled)."""
        method = self._channel.stream_stream(WATCH_PATH, **serializers(pb.WatchResponse))
        try:
            return WatchStream(method, first, metadata, timeout)
        except ValueError as e:
            raise self._closed(e) from e
        except BaseException as e:
            release_lock(e)
            raise

    def _closed(self, error: ValueError) -> SnapKVError:
        """Return gRPC's error for a call on a closed channel as ours."""
        return CallFailed("CANCELLED", str(error)) if self._owned else ClientClosedError()

    def close(self) -> None:
        """End the connection and all its calls.

        gRPC waits until each call has ended, and a call that an interrupt cut short never ends. So
        gRPC waits in a thread, and this method waits for that thread for `CLOSE_S` seconds at most.
        """
        closing = threading.Thread(target=self._channel.close, name="snapkv close", daemon=True)
        try:
            closing.start()
        except RuntimeError:  # the process ends: Python 3.12 starts no more threads
            self._channel.close()
        else:
            closing.join(CLOSE_S)


def release_lock(interrupt: BaseException) -> None:
    """Release the lock that all calls of the process take in gRPC, if an interrupt left it taken.

    gRPC takes it in a generator, which is suspended then, and which the interrupt's traceback
    refers to. Until the generator is closed, calls of all channels hang, for ever if another thread
    closes it: so did they after one of 600 interrupts.
    """
    traceback.clear_frames(interrupt.__traceback__)


_streams: weakref.WeakSet[WatchStream] = weakref.WeakSet()


@atexit.register
def _keep_from_finalizers() -> None:
    """Let no finalizer of gRPC's run once the process ends, which it might keep from ending."""
    # a stream's finalizer takes a lock that a thread may hold, which no longer runs: 1 process of
    # 300 did not end; a channel's waits for calls that an interrupt cut short: 1 of 8 did not
    for stream in list(_streams):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream._call))
    for channel in list(_channels):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(channel._channel))


class WatchStream:
    """One open watch call: answers by iterating, questions by `ask_progress`."""

    breaks_on_interrupt = True

    def __init__(
        self, method: Any, first: pb.WatchRequest, metadata: Metadata, timeout: float | None
    ) -> None:
        self._requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
        self._requests.put(first)
        with _calls:
            self._call = method(self._asked(), metadata=metadata, timeout=timeout)
        _streams.add(self)

    def _asked(self) -> Iterator[pb.WatchRequest]:
        """Yield requests to gRPC's thread, which asks for the next when it has sent the last."""
        while (request := self._requests.get()) is not None:
            with _calls:
                yield request
        with _calls:  # released: ending the requests would not end the answers
            self._call.cancel()

    def __iter__(self) -> Iterator[pb.WatchResponse]:
        """Yield answers until the stream ends; raises `CallFailed` when it broke."""
        try:
            while True:
                with _calls:
                    pass  # no thread begins to read while the process forks
                yield answered(next(self._call))
        except StopIteration:
            return
        except grpc.RpcError as e:
            raise failure_of(e) from e
        except RuntimeError as e:
            # gRPC waits in Python: a signal there may leave its lock released, and then the end of
            # its `with` raises this error instead of what the signal's handler raised.
            if e.__context__ is None or isinstance(e.__context__, Exception):
                raise
            raise e.__context__ from None

    def ask_progress(self) -> None:
        """Request the progress of the stream; the answer is one of the iterated answers."""
        self._requests.put(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))

    def cancel_soon(self) -> None:
        """End the stream soon, in gRPC's thread. Takes no lock: for finalizers."""
        self._requests.put(None)

    def cancel(self) -> None:
        """End the stream, also for a thread that iterates; may be repeated."""
        self._requests.put(None)
        with _calls:
            self._call.cancel()
