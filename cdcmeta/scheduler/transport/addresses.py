"""Addresses `HOST:PORT`: read, written, and checked before a server listens at them."""

from __future__ import annotations

import errno
import os
import re
import socket
from ipaddress import ip_address

from cdcmeta.errors import InvalidArgumentError

_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_HOST = re.compile(r"[\w.%-]+|\[[\w.:%-]+\]")


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
