"""The endpoints of a URL, and their connections: for calls, for watches, for the main thread."""

from __future__ import annotations

import ipaddress
import re
import threading
import warnings
from collections.abc import Callable, Iterable

from snapkv.base.concurrency import THREADS, here
from snapkv.base.lifecycle import renew_in_children
from snapkv.engine.etcd.aio_client import AioChannel, AioWatchStream
from snapkv.engine.etcd.grpc_client import (
    WATCH_ANSWER_BYTES_MAX,
    CallFailed,
    Channel,
    WatchStream,
    is_socket,
)
from snapkv.engine.etcd.handshake import handshake_error
from snapkv.engine.etcd.options import VARIABLES
from snapkv.engine.etcd.security import Credentials, Security
from snapkv.errors import EngineUnavailableError, InvalidOptionError, ServerWarning

PORT = 2379
SCHEME = "etcd://"
_ENDPOINT = re.compile(r"(?P<host>\[[^\s\[\]]+\]|[^\s:\[\]]+)(:(?P<port>[0-9]{1,5})?)?")


def endpoints_of(url: str) -> tuple[str, ...]:
    """Return the `host:port`, or the `unix:/PATH`, of each endpoint of a URL, in its order.

    >>> endpoints_of("etcd://a,b:2380,[::1]:2379")
    ('a:2379', 'b:2380', '[::1]:2379')
    >>> endpoints_of("etcd://unix:///run/kine.sock")
    ('unix:/run/kine.sock',)

    Raises `InvalidOptionError`, without repeating what may be a secret.
    """
    rest = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME):
        raise InvalidOptionError("an etcd URL has the form etcd://HOST:PORT,HOST:PORT")
    if "@" in rest:
        message = "an etcd URL must not hold secrets: give user= and password= as options, or set "
        raise InvalidOptionError(f"{message}SNAPKV_ETCD_USER and SNAPKV_ETCD_PASSWORD")
    parts = [part.strip() for part in rest.removesuffix("/").split(",")]
    if any("?" in part or ("/" in part and not is_socket(part)) for part in parts):
        raise InvalidOptionError(
            "an etcd URL has no path: `name=` selects the store; a socket is etcd://unix:///PATH"
        )
    endpoints = tuple(map(_endpoint, parts))
    if len(set(endpoints)) < len(endpoints):
        raise InvalidOptionError("the URL names an endpoint twice")
    return endpoints


def _endpoint(text: str) -> str:
    if is_socket(text) and text.isprintable() and (path := text.removeprefix("unix:").strip("/")):
        return f"unix:/{path}"
    match = _ENDPOINT.fullmatch(text)
    port = int(match["port"] or PORT) if match else 0
    if match is None or not 0 < port < 65_536 or not text.isprintable():
        host = text.partition(":")[0]  # what follows may be a password
        raise InvalidOptionError(f"the endpoint {host!r}... is not HOST:PORT")
    return f"{match['host']}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether an endpoint is this machine, by its name or number, or as a socket.

    >>> [is_loopback(f"{host}:2379") for host in ("127.0.0.5", "[::1]", "localhost", "10.0.0.1")]
    [True, True, True, False]
    """
    if is_socket(address):
        return True
    host = address.rpartition(":")[0].strip("[]").lower()
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host.removesuffix(".") == "localhost"
    mapped = getattr(number, "ipv4_mapped", None)
    return bool((mapped or number).is_loopback)


def warn_of_plain_password(
    addresses: Iterable[str], login: Credentials | None, *, tls: bool
) -> None:
    """Warn of a password that goes beyond this machine without TLS, once for all endpoints."""
    beyond = [address for address in addresses if not is_loopback(address)]
    if login is not None and beyond and not tls:
        warnings.warn(
            f"the password of user {login.user!r} is sent to {', '.join(beyond)} without TLS, "
            "so that it can be read on the way: give tls=True, or ca_cert= "
            f"({VARIABLES['ca_cert']})",
            ServerWarning,
            stacklevel=6,
        )


# --- connections ---

AnyChannel = Channel | AioChannel
AnyStream = WatchStream | AioWatchStream

_abandoned: list[AnyChannel | AnyStream] = []
"""Channels that must not be used, closed or garbage-collected (which closes them): the parent's
channels in a forked child, and channels in which an interrupt may have left a gRPC lock taken."""


class Endpoint:
    """One endpoint with its channels: an unread watch cannot block calls, which have their own.

    The main thread has channels of its own. Ctrl-C is raised there, often while gRPC holds a lock
    of the channel, which then stays taken: calls of other threads must not use that channel.

    `proven` says that the last call on this thread's channel was answered.
    """

    def __init__(
        self,
        address: str,
        make: Callable[[], AnyChannel],
        make_watches: Callable[[], AnyChannel] | None = None,
        *,
        security: Security | None = None,
    ) -> None:
        self.address, self._make, self._make_watches = address, make, make_watches or make
        self._security, self._has_answered = security, False
        self._calls: dict[bool, AnyChannel] = {}  # by whether they are the main thread's
        self._watches: dict[bool, AnyChannel] = {}
        self._proven: set[bool] = set()

    @property
    def proven(self) -> bool:
        """Whether this thread's channel is known to lead to a server."""
        return _is_main() in self._proven

    @proven.setter
    def proven(self, answered: bool) -> None:
        if answered:
            self._has_answered = True
            self._proven.add(_is_main())
        else:
            self._proven.discard(_is_main())

    @classmethod
    def at(cls, address: str, security: Security) -> Endpoint:
        """Return the endpoint that listens at `host:port`."""
        to = Channel.to if here() is THREADS else AioChannel.to
        return cls(
            address,
            lambda: to(address, security),
            lambda: to(address, security, answer_bytes_max=WATCH_ANSWER_BYTES_MAX),
            security=security,
        )

    def handshake_error(self, failure: CallFailed) -> EngineUnavailableError | None:
        """Return what is wrong with TLS if that is why the endpoint has never answered."""
        if self._security is None or self._has_answered:
            return None
        return handshake_error(failure, self.address, self._security)

    def calls(self) -> AnyChannel:
        """Return the channel for this thread's calls."""
        return _of_thread(self._calls, self._make)

    def watches(self) -> AnyChannel:
        """Return the channel for this thread's watches."""
        return _of_thread(self._watches, self._make_watches)

    def drop(self) -> None:
        """Let the next call connect anew: this connection may be dead; running calls finish."""
        dropped, self._calls, self._proven = self._calls, {}, set()
        for channel in dropped.values():
            channel.retire()

    def interrupted(self, stream: AnyStream | None = None) -> None:
        """Let this thread connect anew: an interrupt may have left a lock of gRPC taken.

        A `stream` that the thread was reading is abandoned, too.
        """
        mine = _is_main()
        for channels in (self._calls, self._watches):
            channel = channels.get(mine)
            if channel is not None and channel.breaks_on_interrupt:
                _abandoned.append(channels.pop(mine))
                self.proven = False
        if stream is not None and stream.breaks_on_interrupt:
            _abandoned.append(stream)
        elif stream is not None:
            stream.cancel()

    def close(self) -> None:
        """Close all channels."""
        for channel in (*self._calls.values(), *self._watches.values()):
            channel.close()

    def after_fork(self) -> None:
        """Connect anew: the child cannot use the parent's connections."""
        _abandoned.extend((*self._calls.values(), *self._watches.values()))
        self._calls, self._watches, self._proven = {}, {}, set()


class _Main:
    """The id of the main thread; in a forked child that is the thread that forked."""

    def __init__(self) -> None:
        self.ident = threading.main_thread().ident
        renew_in_children(self)

    def after_fork(self) -> None:
        self.ident = threading.main_thread().ident


_main = _Main()


def _is_main() -> bool:
    return threading.get_ident() == _main.ident


def _of_thread(channels: dict[bool, AnyChannel], make: Callable[[], AnyChannel]) -> AnyChannel:
    mine = _is_main()
    if (channel := channels.get(mine)) is None:  # another thread may drop it at any time
        channel = channels[mine] = make()
    return channel
