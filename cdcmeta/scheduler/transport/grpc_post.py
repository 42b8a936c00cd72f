"""Messages between processes by gRPC: one unary call carries what waits for a peer.

    a call's body    msgpack: [1, [[changefeed, message], ...]]; the answer is empty
    for each peer    one call at a time; meanwhile the newest heartbeats wait, and other messages

A call that fails loses its messages: the protocol repeats what matters, and gRPC connects again by
itself. What waits is bounded (`Waiting`), so a peer that does not answer costs bounded memory, and
only the thread that gRPC keeps for a call under way.

gRPC prints errors of its own to the standard error, one for each client that it rejects. This
module turns that off, unless GRPC_VERBOSITY is set, or grpc was imported earlier.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import logging
import os
import re
import socket
import ssl
import threading
import traceback
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

# Both are read when grpc is first imported. With gRPC's default way of polling a forked child
# inherits broken state; with this one each call has its own, as the etcd engine needs it, too.
os.environ.setdefault("GRPC_POLL_STRATEGY", "poll")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import msgpack

from cdcmeta.errors import InvalidArgumentError, InvalidMessageError
from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.protocol.messages import Envelope
from cdcmeta.scheduler.transport.mailbox import Waiting, is_heartbeat
from snapkv.base.waiting import monotonic, pause

log = logging.getLogger("cdcmeta.scheduler")
P = ParamSpec("P")
R = TypeVar("R")

SERVICE, METHOD = "cdcmeta.scheduler.v1.Post", "Deliver"
VERSION = 1
WAITING_MAX = 20_000
"""The most messages that wait for a peer, or to be received."""
WAITING_BYTES_MAX = encoding.MESSAGE_BYTES_MAX + (16 << 20)
"""The most bytes that wait for a peer: the largest message, and the messages after it."""
ARRIVED_BYTES_MAX = 128 << 20
"""The most bytes that wait to be received."""
CALL_BYTES = 8 << 20
"""The most bytes of a call, which carries one larger message alone."""
CALL_S = 5.0
UNUSED_S = 60.0
"""The time without use after which a connection is closed, in seconds."""
TIDY_S = 1.0
"""The pause between two searches for unused connections, in seconds."""
PEERS_MAX = 500
"""The most open connections; failing connections are closed first, then the least used."""
FORK_WAIT_S = 1.0
"""The longest that a fork waits for calls under way, in seconds: a fork during a call can crash the
child."""
FORK_SETTLE_S = 0.01
"""The time that gRPC's own threads get after the last call before a fork, in seconds."""
THREADS = 4
CALLS_MAX = 256
"""The most calls of other captures that run or wait at once; more are rejected."""
_BYTES_MAX = encoding.MESSAGE_BYTES_MAX + (1 << 20)
_SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", _BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),  # allows the peers' keepalive
)
_CLIENT_OPTIONS = (
    ("grpc.max_send_message_length", _BYTES_MAX),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),  # finds connections that the network has lost
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_HOST = re.compile(r"[\w.%-]+|\[[\w.:%-]+\]")


@dataclass(frozen=True)
class Tls:
    """The files of mutual TLS, as PEM: both sides show a certificate of the same authority.

    The certificate names the host that other captures use (a subject alternative name), and is
    valid for servers and for clients. The files are read once.
    """

    authority: str
    certificate: str
    key: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return what the files contain. Raises `OSError`, also for files that do not fit."""
        names = self.authority, self.certificate, self.key
        ca, certificate, key = (Path(each).read_bytes() for each in names)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        what = f"the authority {self.authority}"
        try:
            context.load_verify_locations(self.authority)
            what = f"the certificate {self.certificate} with the key {self.key}"
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except (ssl.SSLError, ValueError) as e:  # not PEM, another key, an encrypted key
            raise OSError(f"TLS cannot use {what}: {e}") from e
        return ca, certificate, key


class Peer:
    """Sends to one address over a channel of gRPC, one call at a time."""

    def __init__(
        self,
        address: str,
        channel: Any,
        call: Callable[[list[tuple[str, bytes]]], Any],
        waiting: Waiting[tuple[str, bytes]],
        call_bytes: int,
    ) -> None:
        """`call` begins a call with messages, and returns its future."""
        self._address, self.channel, self._call = address, channel, call
        self._waiting, self._call_bytes = waiting, call_bytes
        self._lock = threading.Lock()
        self._closed = self._fails = self._pauses = False
        self._is_cut_short = False  # an interrupt came inside a call, which may never end
        self.is_calling = False
        """Whether a call is under way."""
        self.used_at = monotonic()

    def put(self, beat: Hashable, feed: str, raw: bytes) -> None:
        """Send a message, or let it wait; `beat` identifies a heartbeat that replaces another."""
        self.used_at = monotonic()
        with self._lock:
            self._waiting.put((feed, raw), len(raw), is_beat=beat is not None, replaces=beat)
            batch = self._next()
        self._send(batch)

    def rank(self) -> tuple[bool, float]:
        """Return what is smaller the sooner it is closed."""
        return not self._fails, self.used_at

    def pause(self) -> None:
        """Begin no call until `resume`; messages wait."""
        with self._lock:
            self._pauses = True

    def resume(self) -> None:
        """Begin calls again."""
        with self._lock:
            self._pauses = False
            batch = self._next()
        self._send(batch)

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        if self._is_cut_short:  # closing would wait for that call, and so would a finalizer
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.channel))
        else:
            self.channel.close()

    def _next(self) -> list[tuple[str, bytes]]:
        """Return the messages of the next call; none if one is under way or nothing waits."""
        if self.is_calling or self._closed or self._pauses or not self._waiting:
            return []
        self.is_calling = True
        return self._waiting.take(self._call_bytes)

    def _send(self, batch: list[tuple[str, bytes]]) -> None:
        if not batch:
            return
        try:
            self._call(batch).add_done_callback(self._done)
        except (ValueError, RuntimeError):  # the channel was closed, or the process ends
            with self._lock:
                self.is_calling = False
        except (KeyboardInterrupt, SystemExit) as e:
            self._is_cut_short = True
            # gRPC takes a lock of all calls in a generator, which an interrupt's traceback would
            # keep suspended: so this process could send nothing more, and not close its stores
            traceback.clear_frames(e.__traceback__)
            raise

    def _done(self, call: Any) -> None:
        if not self._closed:
            self._note(call)
        with self._lock:
            self.is_calling = False
            batch = self._next()
        self._send(batch)

    def _note(self, call: Any) -> None:
        """Log when calls begin to fail, and when they no longer do."""
        code = call.code().name
        fails = code != "OK"
        if fails and not self._fails:
            why = " ".join(f"{code}: {call.details()}".split())
            log.warning("messages to %s are lost: %.300s", self._address, why)
        elif self._fails and not fails:
            log.warning("messages to %s arrive again", self._address)
        self._fails = fails


class GrpcPost:
    """Listens at an address, and sends to the addresses of other captures.

    `listen` is `HOST:PORT`, with the port 0 for any free one. `advertise` is how other captures
    reach it, if that differs. Without `tls`, only addresses of this machine are allowed, unless
    `insecure=True`: any client that reaches the port could stop tables. In a forked child it is
    closed.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        advertise: str | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
    ) -> None:
        """Listen. Raises `InvalidArgumentError`, and `OSError` if the port is taken."""
        host, port = split_address(listen)
        if tls is None and not insecure and not is_local(host):
            raise InvalidArgumentError(
                f"{listen} can be reached from other machines: give the files of TLS, or allow it "
                "as insecure"
            )
        _check_addresses(listen, advertise)
        self._tls = tls.read() if tls is not None else None
        self._arrived = Waiting[tuple[str, Envelope]](WAITING_MAX, ARRIVED_BYTES_MAX)
        self._lock = threading.Lock()
        self._peers: dict[str, Peer] = {}
        self._tidied_at = monotonic()
        self._closed = self._pauses = False
        self.refused = 0
        """The number of calls and messages that were not understood."""
        self._pool = _Pool(THREADS, thread_name_prefix="cdcmeta-post")
        self._server = grpc.server(
            self._pool, options=_SERVER_OPTIONS, maximum_concurrent_rpcs=CALLS_MAX
        )
        handler = grpc.unary_unary_rpc_method_handler(self._deliver)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        for each in free_addresses(host, port):
            port = self._bound(joined(each, port))
        self.port = port
        """The port at which it listens."""
        self.address = advertise or joined(host, port)
        self._server.start()
        _posts.add(self)

    def send(self, address: str, feed: str, envelope: Envelope) -> None:
        """Send a message; it is encoded here, and leaves when the peer has answered the last.

        Raises `InvalidMessageError` for one that cannot be encoded.
        """
        raw = encoding.encode(envelope)
        beat = None
        if is_heartbeat(envelope.body):
            beat = feed, envelope.header.to, type(envelope.body)
        with self._lock:
            peer = self._peers.get(address)
            is_new = peer is None and not self._closed
            unused = self._unused(is_new=is_new)
            if is_new:
                peer = self._new_peer(address)
        if peer is not None:
            peer.put(beat, feed, raw)
        for each in unused:
            each.close()

    def receive(self) -> list[tuple[str, Envelope]]:
        """Return the messages that have arrived."""
        with self._lock:
            arrived, unused = self._arrived.take_all(), self._unused(is_new=False)
        for each in unused:
            each.close()
        return arrived

    def close(self) -> None:
        """End the server and all connections."""
        with self._lock:
            if self._closed and not self._peers:
                return
            self._closed = True
            peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.close()
        self._server.stop(None).wait(CALL_S)
        self._pool.shutdown(wait=True)

    # --- forks ---

    def pause(self) -> None:
        """Begin no call until `resume`; messages wait."""
        with self._lock:
            self._pauses = True
            for peer in self._peers.values():
                peer.pause()

    def resume(self) -> None:
        """Begin calls again."""
        with self._lock:
            self._pauses = False
            peers = list(self._peers.values())
        for peer in peers:
            peer.resume()

    @property
    def is_calling(self) -> bool:
        """Whether a call to any peer is under way."""
        return any(peer.is_calling for peer in list(self._peers.values()))

    def after_fork(self) -> None:
        """Close it in a forked child, without gRPC: its threads are not in the child."""
        self._lock = threading.Lock()
        self._closed = True
        self.keep_from_finalizers()
        self._peers = {}
        self._arrived.clear()

    def keep_from_finalizers(self) -> None:
        """Let no finalizer of gRPC's run: it would wait for threads that do not run any more."""
        for each in (self._server, *(peer.channel for peer in list(self._peers.values()))):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))

    def _bound(self, address: str) -> int:
        try:
            if self._tls is None:
                return int(self._server.add_insecure_port(address))
            ca, certificate, key = self._tls
            credentials = grpc.ssl_server_credentials(
                [(key, certificate)], ca, require_client_auth=True
            )
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as e:  # taken in this very moment, or files that only gRPC rejects
            raise OSError(f"gRPC cannot listen at {address}: {e}") from e

    # --- peers; the caller has the lock ---

    def _new_peer(self, address: str) -> Peer | None:
        try:
            split_address(address)
        except InvalidArgumentError as e:
            log.warning("a message is lost: %s", e)
            return None
        channel = self._channel(address)
        method = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        peer = self._peers[address] = Peer(
            address,
            channel,
            lambda batch: method.future(msgpack.packb([VERSION, batch]), timeout=CALL_S),
            Waiting(WAITING_MAX, WAITING_BYTES_MAX),
            CALL_BYTES,
        )
        if self._pauses:
            peer.pause()
        return peer

    def _channel(self, address: str) -> grpc.Channel:
        target = f"dns:///{address}"  # or a host called "unix" would be a path
        if self._tls is None:
            return grpc.insecure_channel(target, _CLIENT_OPTIONS)
        ca, certificate, key = self._tls
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.secure_channel(target, credentials, _CLIENT_OPTIONS)

    def _unused(self, *, is_new: bool) -> list[Peer]:
        """Remove and return the peers to be closed, with room for a new one."""
        now = monotonic()
        if not is_new and now - self._tidied_at < TIDY_S:
            return []
        self._tidied_at = now
        found = [a for a, peer in self._peers.items() if now - peer.used_at >= UNUSED_S]
        if is_new and not found and len(self._peers) >= PEERS_MAX:
            found = [min(self._peers, key=lambda a: self._peers[a].rank())]
        return [self._peers.pop(address) for address in found]

    # --- calls of other captures ---

    def _deliver(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        """Take the messages of a call, but for messages that only a newer version understands."""
        try:
            found, unknown = _read(raw)
        except Exception as e:  # what a foreign sender makes of it
            with self._lock:
                self.refused += 1
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a call: {e}"[:200])
        with self._lock:
            self.refused += len(unknown)
            if not self._closed:
                for feed, envelope, size in found:
                    self._arrived.put((feed, envelope), size, is_beat=is_heartbeat(envelope.body))
        if unknown:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, unknown[0][:200])
        return b""


def _read(raw: bytes) -> tuple[list[tuple[str, Envelope, int]], list[str]]:
    """Return the messages of a call with their sizes, and why the rest is not understood."""
    version, messages = msgpack.unpackb(raw)
    if type(version) is not int or version != VERSION:
        raise InvalidMessageError("another version of calls", "unsupported")
    if type(messages) is not list:
        raise InvalidMessageError("the messages are not an array")
    found, unknown = [], []
    for feed, message in messages:
        if type(feed) is not str or type(message) is not bytes:
            raise InvalidMessageError("not a changefeed with a message")
        try:
            found.append((feed, encoding.decode(message), len(message)))
        except InvalidMessageError as e:
            if e.reason != "unsupported":
                raise
            unknown.append(str(e))
    return found, unknown


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`. Raises `InvalidArgumentError`.

    >>> split_address("[::1]:7000")
    ('::1', 7000)
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535
    if not is_port or not _HOST.fullmatch(host):
        raise InvalidArgumentError(
            f"an address is HOST:PORT, or [HOST]:PORT for IPv6, not {address!r}"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def joined(host: str, port: int) -> str:
    """Return `HOST:PORT`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_local(host: str) -> bool:
    """Return whether only this machine reaches a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_any(host: str) -> bool:
    """Return whether a host means every address of this machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def free_addresses(host: str, port: int) -> list[str]:
    """Return the numeric addresses of a host at which a server may listen.

    Raises `OSError` if the port is taken at one of them, with a reason that gRPC would only print.
    """
    found: list[str] = []
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        absent: OSError | None = None
        for family, kind, protocol, _, place in infos:
            try:
                _try_to_bind(family, kind, protocol, place)
                found.append(str(place[0]))
            except OSError as e:
                if e.errno not in _ABSENT:
                    raise
                absent = e  # say, localhost is ::1 as well, and the machine has no IPv6
        if not found and absent is not None:
            raise absent
    except OSError as e:
        reason = e.strerror or str(e)
        if e.errno == errno.EADDRINUSE:
            reason += "; is the port taken by another process?"
        raise OSError(f"cannot listen at {joined(host, port)}: {reason}") from e
    return found


def _try_to_bind(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> None:
    with socket.socket(family, kind, protocol) as tried:
        if os.name != "nt":  # there it would take a port from another process
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        tried.bind(place)


def _check_addresses(listen: str, advertise: str | None) -> None:
    """Check that other captures get an address that they can reach."""
    if advertise is None:
        if is_any(split_address(listen)[0]):
            raise InvalidArgumentError(
                f"{listen} means every address of this machine: advertise the HOST:PORT at which "
                "other captures reach it"
            )
        return
    host, port = split_address(advertise)
    if port == 0 or is_any(host):
        raise InvalidArgumentError(f"other captures cannot reach {advertise!r}: advertise another")


_posts: weakref.WeakSet[GrpcPost] = weakref.WeakSet()
_forking: list[GrpcPost] = []


def _before_fork() -> None:
    _forking[:] = _posts
    until = monotonic() + FORK_WAIT_S
    for post in _forking:
        post.pause()
    while any(post.is_calling for post in _forking) and monotonic() < until:
        pause(0.001)
    if _forking:
        pause(FORK_SETTLE_S)


def _after_fork_in_parent() -> None:
    for post in _forking:
        post.resume()
    _forking.clear()


def _after_fork_in_child() -> None:
    for post in _forking:
        post.after_fork()
    _forking.clear()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


@atexit.register
def _keep_all_from_finalizers() -> None:
    """Leave posts that were not closed as they are: what gRPC waits for does not run any more."""
    for post in list(_posts):
        post.keep_from_finalizers()


class _Pool(ThreadPoolExecutor):
    """Threads for calls; at the end of the process it takes no more calls, and does not raise."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call a function in a thread."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:  # it would end gRPC's thread, with a traceback
            never = Future[R]()
            never.cancel()
            return never
