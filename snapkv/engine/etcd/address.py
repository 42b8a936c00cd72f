"""The endpoints in the URL of a cluster."""

from __future__ import annotations

import ipaddress
import re

from snapkv.errors import InvalidOptionError

PORT = 2379
SCHEME = "etcd://"
_ENDPOINT = re.compile(r"(?P<host>\[[^\s\[\]]+\]|[^\s:\[\]]+)(:(?P<port>[0-9]{1,5})?)?")


def endpoints_of(url: str) -> tuple[str, ...]:
    """Return the `host:port` of each endpoint of a URL, in its order.

    >>> endpoints_of("etcd://a,b:2380,[::1]:2379")
    ('a:2379', 'b:2380', '[::1]:2379')

    Raises `InvalidOptionError`, without repeating what may be a secret.
    """
    rest = url.removeprefix(SCHEME)
    if not url.startswith(SCHEME):
        raise InvalidOptionError("an etcd URL has the form etcd://HOST:PORT,HOST:PORT")
    if "@" in rest:
        message = "an etcd URL must not hold secrets: give user= and password= as options, or set "
        raise InvalidOptionError(f"{message}SNAPKV_ETCD_USER and SNAPKV_ETCD_PASSWORD")
    rest = rest.removesuffix("/")
    if "/" in rest or "?" in rest:
        raise InvalidOptionError("an etcd URL has no path: `name=` selects the store")
    endpoints = tuple(_endpoint(part.strip()) for part in rest.split(","))
    if len(set(endpoints)) < len(endpoints):
        raise InvalidOptionError("the URL names an endpoint twice")
    return endpoints


def _endpoint(text: str) -> str:
    match = _ENDPOINT.fullmatch(text)
    port = int(match["port"] or PORT) if match else 0
    if match is None or not 0 < port < 65_536 or not text.isprintable():
        host = text.partition(":")[0]  # what follows may be a password
        raise InvalidOptionError(f"the endpoint {host!r}... is not HOST:PORT")
    return f"{match['host']}:{port}"


def is_loopback(address: str) -> bool:
    """Return whether a HOST:PORT is this machine, by its name or number.

    >>> [is_loopback(f"{host}:2379") for host in ("127.0.0.5", "[::1]", "localhost", "10.0.0.1")]
    [True, True, True, False]
    """
    host = address.rpartition(":")[0].strip("[]").lower()
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return host.removesuffix(".") == "localhost"
    mapped = getattr(number, "ipv4_mapped", None)
    return bool((mapped or number).is_loopback)
