"""An engine on the connection of an `etcd3` client (python-etcd3) that a service already has."""

from __future__ import annotations

from typing import Any

from snapkv.engine.etcd.cluster_client import ClusterClient
from snapkv.engine.etcd.endpoint import Endpoint, warn_of_plain_password
from snapkv.engine.etcd.engine import EtcdEngine
from snapkv.engine.etcd.grpc_client import Channel
from snapkv.engine.etcd.options import EtcdOptions
from snapkv.engine.etcd.security import Credentials
from snapkv.engine.etcd.server import ServerClock
from snapkv.errors import EngineUnavailableError, InvalidTypeError

ANSWER_BYTES = 1 << 20
"""The bytes of a page of a scan on a channel that may take no more than 4 MiB, which is gRPC's
default."""


class Etcd3Endpoint(Endpoint):
    """An endpoint that uses the channel of an etcd3 client; it never closes or replaces it."""

    def __init__(self, address: str, channel: Any) -> None:
        self._channel: Channel | None = Channel(channel)
        super().__init__(address, self._of_client)

    def _of_client(self) -> Channel:
        if self._channel is None:
            raise EngineUnavailableError(
                "the etcd3 client was made before this process was forked; pass a new one"
            )
        return self._channel

    def close(self) -> None:
        """Leave the channel to its owner."""

    def after_fork(self) -> None:
        """Forget the channel, which does not survive a fork."""
        super().after_fork()
        self._channel = None


def engine_on(client: Any, home: bytes, options: EtcdOptions) -> EtcdEngine:
    """Return an engine on an etcd3 client's channel, with its token.

    The client keeps no credentials, so `options` has the user and password that renew the token.
    The environment is not read, because it did not make the client. Raises `InvalidTypeError` for
    anything but an etcd3 client. Over TLS it warns with `ServerWarning`: the engine cannot read
    the server's clock.
    """
    channel, address = getattr(client, "channel", None), getattr(client, "_url", None)
    if not callable(getattr(channel, "unary_unary", None)) or not isinstance(address, str):
        raise InvalidTypeError(
            f"from_etcd3 takes an etcd3 client, not {type(client).__name__}; for that package: "
            "pip install 'snapkv[etcd3]', and PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python "
            "in the environment"
        )
    token = dict(getattr(client, "metadata", None) or ()).get("token")
    login = Credentials.given(options.user, options.password)
    endpoint = Etcd3Endpoint(address, channel)
    secure = getattr(client, "uses_secure_channel", False)
    warn_of_plain_password([address], login, tls=secure)
    connection = ClusterClient([endpoint], login, token=token)
    addresses = (lambda: ()) if secure else (lambda: connection.addresses)
    server = ServerClock(addresses, None, connection.server_version)
    server.look()
    url = f"etcd://{address}"
    return EtcdEngine(
        connection,
        url=url,
        home=home,
        server=server,
        options=options,
        page_bytes=ANSWER_BYTES,
    )
