"""The reason why a connection fails, if it is TLS: one handshake with Python's ssl finds it.

gRPC says "Socket closed" or "Unwrap failed" when a server ends a connection. A server that wants a
client certificate does so after the handshake (TLS 1.3), with an alert that gRPC only logs.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import replace
from functools import partial

from snapkv.base.waiting import in_thread
from snapkv.engine.etcd.grpc_client import CallFailed, is_socket
from snapkv.engine.etcd.options import VARIABLES
from snapkv.engine.etcd.security import Security
from snapkv.errors import EngineUnavailableError

PROBE_S = 1.0
"""The longest that a probe takes, in seconds."""
SYMPTOMS = ("socket closed", "unwrap failed", "handshake", "certificate", "connection reset")
"""What gRPC's text has when a server answers, and the connection fails."""
WANTS_CERTIFICATE = ("CERTIFICATE_REQUIRED", "ALERT_HANDSHAKE_FAILURE", "ALERT_BAD_CERTIFICATE")
"""The alerts of a server that was sent no certificate: of TLS 1.3, and of TLS 1.2."""
ALERT = "ALERT_"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of a client of HTTP/2: the preface, and an empty frame of settings."""
SETTINGS = 4
AUTHORITY = f"ca_cert= ({VARIABLES['ca_cert']})"
PAIR = f"cert= and key= ({VARIABLES['cert']}, {VARIABLES['key']})"


def handshake_error(
    failure: CallFailed, address: str, security: Security
) -> EngineUnavailableError | None:
    """Return what is wrong between the certificates of both sides; None if nothing is.

    It connects to `host:port`, and takes `PROBE_S` seconds at most.
    """
    if is_socket(address) or not any(each in failure.text.lower() for each in SYMPTOMS):
        return None
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    probe = partial(_with_tls, place, security) if security.tls else partial(_plain, place)
    try:
        found = in_thread(probe, "snapkv handshake", PROBE_S)
    except OSError:  # no answer in time, or no thread
        return None
    return EngineUnavailableError(f"{address}: {found}") if found else None


def _plain(place: tuple[str, int]) -> str | None:
    """Return what a client without TLS has to do, if the server speaks TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _shake_hands(place, context)
    except ssl.SSLError as e:
        if not _wants_certificate(e):
            return None
        return f"this server speaks TLS and wants a client certificate: give {AUTHORITY}, {PAIR}"
    except OSError:
        return None
    return f"this server speaks TLS: give {AUTHORITY}, or tls=True for the system's authorities"


def _with_tls(place: tuple[str, int], security: Security) -> str | None:
    context = replace(security, ca=security.authorities()).context()
    assert context is not None
    ca, cert, _ = security.paths
    try:
        _shake_hands(place, context)
    except ssl.SSLCertVerificationError as e:
        given = (
            f"{ca} is the authority that was given" if ca else f"give its authority: {AUTHORITY}"
        )
        return f"its certificate is not trusted: {e.verify_message}; {given}"
    except ssl.SSLError as e:
        if cert is None and _wants_certificate(e):
            return f"this server wants a client certificate: give {PAIR}"
        if cert is not None and ALERT in (e.reason or ""):
            why = str(e.reason).partition(ALERT)[2].replace("_", " ").lower()
            return f"this server rejects the client certificate {cert}: {why}"
        if _speaks_plain(place):
            names = ", ".join(VARIABLES[each] for each in ("ca_cert", "cert", "key"))
            return f"this server speaks no TLS: give no certificates (unset {names}), or tls=False"
    except OSError:
        pass
    return None


def _wants_certificate(error: ssl.SSLError) -> bool:
    return (error.reason or "").endswith(WANTS_CERTIFICATE)


def _shake_hands(place: tuple[str, int], context: ssl.SSLContext) -> None:
    """Connect with TLS, and wait for what the server says of the handshake."""
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(place, PROBE_S) as connection,
        context.wrap_socket(connection, server_hostname=place[0]) as encrypted,
    ):
        encrypted.settimeout(PROBE_S / 2)
        try:
            encrypted.recv(1)  # to send first may lose the alert: the server closes
        except TimeoutError:
            return


def _speaks_plain(place: tuple[str, int]) -> bool:
    """Return whether a server answers HTTP/2 without TLS."""
    try:
        with socket.create_connection(place, PROBE_S) as connection:
            connection.sendall(PREFACE)
            return connection.recv(4)[3:] == bytes([SETTINGS])
    except OSError:
        return False
