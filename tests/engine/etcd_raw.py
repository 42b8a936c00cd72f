"""A client in a few lines that shares nothing with ours: puts over gRPC, encoded by hand."""

from __future__ import annotations

import grpc
import pytest
from etcd_server import eventually

CALL_S = 10.0
GIVES_UP_S = 0.3

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED


def field(number: int, data: bytes) -> bytes:
    """Encode one bytes field of protobuf."""
    length, encoded = len(data), bytearray([number << 3 | 2])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*encoded, length]) + data


class RawClient:
    """A gRPC channel that can put."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.min_reconnect_backoff_ms", 5_000),  # how long an attempt may take
            ("grpc.max_reconnect_backoff_ms", 50),
        ]
        self.channel = (
            grpc.secure_channel(endpoint, credentials, options)
            if credentials
            else grpc.insecure_channel(endpoint, options)
        )
        self._put = self.channel.unary_unary("/etcdserverpb.KV/Put")

    def begin(self, key: bytes, value: bytes, timeout: float = CALL_S) -> grpc.Future:
        """Send a put."""
        return self._put.future(field(1, key) + field(2, value), timeout=timeout)

    def put(self, key: bytes, value: bytes, timeout: float = CALL_S) -> None:
        """Put, and wait for the answer."""
        self.begin(key, value, timeout).result()

    def put_anew(self, key: bytes, value: bytes) -> None:
        """Put after a connection broke: the channel may not have noticed yet, so try again."""
        eventually(lambda: self.begin(key, value).exception() is None, "a new connection")

    def failure(self, key: bytes, value: bytes, timeout: float = CALL_S) -> grpc.StatusCode:
        """Put what cannot be; return the status."""
        with pytest.raises(grpc.RpcError) as raised:
            self.put(key, value, timeout)
        return raised.value.code()

    def close(self) -> None:
        self.channel.close()
