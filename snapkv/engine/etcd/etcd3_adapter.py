"""An engine on the connection of an `etcd3` client (python-etcd3) that a service holds already."""

from __future__ import annotations

from typing import Any

from snapkv.engine.etcd.address import Login, warn_of_plain_password
from snapkv.engine.etcd.connection import Connection
from snapkv.engine.etcd.endpoint import Endpoint
from snapkv.engine.etcd.engine import REQUEST_BYTES_MAX, EtcdEngine, check_number
from snapkv.engine.etcd.grpc_client import Channel
from snapkv.engine.etcd.reading import OPS_MAX
from snapkv.engine.etcd.server import Server
from snapkv.errors import EngineUnavailableError, InvalidTypeError

ANSWER_BYTES = 1 << 20
"""Pages of scans on a channel that may take no more than 4 MiB, which is gRPC's default."""


class BorrowedEndpoint(Endpoint):
    """The endpoint of somebody else's channel: never closed, never made anew."""

    def __init__(self, address: str, channel: Any) -> None:
        self._borrowed: Channel | None = Channel(channel)
        super().__init__(address, self._lent)

    def _lent(self) -> Channel:
        if self._borrowed is None:
            raise EngineUnavailableError(
                "the etcd3 client was made before this process was forked; hand over a new one"
            )
        return self._borrowed

    def close(self) -> None:
        """Leave the channel to its owner."""

    def after_fork(self) -> None:
        """Forget the channel: it does not survive."""
        super().after_fork()
        self._borrowed = None


def engine_on(
    client: Any,
    home: bytes,
    user: str | None,
    password: str | None,
    *,
    max_request_bytes: int = REQUEST_BYTES_MAX,
    max_txn_ops: int = OPS_MAX,
) -> EtcdEngine:
    """Return an engine on an etcd3 client's channel, with its token.

    The client keeps no credentials, so renewing the token needs `user` and `password`; the
    environment does not stand in, for the client is not of its making. Raises `InvalidTypeError`
    when the client is none of etcd3's. Over TLS it warns with `ServerWarning`: how to reach the
    server's clock is not known.
    """
    check_number("max_request_bytes", max_request_bytes, 8 << 10)
    check_number("max_txn_ops", max_txn_ops, 48)
    channel, address = getattr(client, "channel", None), getattr(client, "_url", None)
    if not callable(getattr(channel, "unary_unary", None)) or not isinstance(address, str):
        raise InvalidTypeError(
            f"from_etcd3 takes an etcd3 client, not {type(client).__name__}; for that package: "
            "pip install 'snapkv[etcd3]', and PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python "
            "in the environment"
        )
    token = dict(getattr(client, "metadata", None) or ()).get("token")
    endpoint, login = BorrowedEndpoint(address, channel), Login.given(user, password)
    secure = getattr(client, "uses_secure_channel", False)
    warn_of_plain_password([address], login, tls=secure)
    connection = Connection([endpoint], login, token=token)
    addresses = (lambda: ()) if secure else (lambda: connection.addresses)
    server = Server(addresses, None, connection.server_version)
    server.look()
    url = f"etcd://{address}"
    return EtcdEngine(
        connection,
        url=url,
        home=home,
        server=server,
        max_request_bytes=max_request_bytes,
        max_txn_ops=max_txn_ops,
        page_bytes=ANSWER_BYTES,
    )
