"""The address that a server listens on; other machines reach it only behind a login."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from snapkv.errors import InvalidOptionError
from snapkv.web.login import Login

HOST = "127.0.0.1"
"""The address of a server, unless another one is given: only this machine can reach it."""


class Listener:
    """A socket that is bound to an address, and that child processes do not inherit.

    It listens on `host` only. Port 0 takes any free port, which `port` returns. The server closes
    the socket.

    >>> listener = Listener(HOST, 0)
    >>> listener.local, listener.url == f"http://127.0.0.1:{listener.port}/"
    (True, True)
    >>> listener.socket.close()

    Raises `InvalidOptionError` when other machines can reach the address without a login and
    without `insecure`, and `OSError`, which names the address, when it cannot bind to it.
    """

    def __init__(
        self, host: str, port: int, login: Login | None = None, *, insecure: bool = False
    ) -> None:
        check_exposure(host, login, insecure=insecure)
        self.login, self._host = login, host
        self.socket = _bound(host, port)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Its URL for clients on this machine."""
        host = str(self.socket.getsockname()[0])
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        return _is_loopback(self.socket.getsockname())

    def host_names(self, allowed: Iterable[str] = ()) -> set[str] | None:
        """Return the names that Host headers may have beside this machine's; None for any name.

        Any name will do if there is a login, which pages of other sites cannot send, or if other
        machines can reach the address.
        """
        return {self._host, *allowed} if self.local and self.login is None else None


def check_exposure(host: str, login: Login | None, *, insecure: bool = False) -> None:
    """Raise `InvalidOptionError` if other machines could use the server without a login."""
    if login is None and not insecure and not _is_loopback(_address(host, 0)[4]):
        raise InvalidOptionError(
            f"other machines can reach host {host!r}, and the server has no login: set a user and "
            "a password, or allow everyone with --insecure (in Python: insecure=True)"
        )


def _address(host: str, port: int) -> tuple[int, int, int, str, Any]:
    with _named(host):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Name the address in an `OSError`."""
    try:
        yield
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            why = "another process has that port; end it, or choose another port"
        else:
            why = f"{e.strerror or e}; choose another host or port"
        raise OSError(e.errno, f"cannot listen at {place}: {why}") from e


def _is_loopback(address: tuple[Any, ...]) -> bool:
    return ip_address(address[0]).is_loopback


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = _address(host, port)
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with _named(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"):
            found.bind(address)
    except OSError:
        found.close()
        raise
    return found
