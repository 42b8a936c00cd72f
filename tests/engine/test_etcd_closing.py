"""Closing a channel to etcd: gRPC may wait for ever, we do not."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from snapkv.engine.etcd import grpc_client as rpc

pytestmark = pytest.mark.slow

WAIT_S = 10


class _Stuck:
    """A channel of gRPC that never gets the end of a call which was interrupted."""

    def __init__(self) -> None:
        self.asked, self.over = threading.Event(), threading.Event()

    def close(self) -> None:
        self.asked.set()
        self.over.wait()


def test_a_channel_that_cannot_end_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "CLOSE_S", 0.05)
    stuck: Any = _Stuck()
    closing = threading.Thread(target=rpc.Channel(stuck, owned=True).close, daemon=True)
    closing.start()
    try:
        assert stuck.asked.wait(WAIT_S)
        closing.join(WAIT_S)
        assert not closing.is_alive()
    finally:
        stuck.over.set()


def test_a_channel_is_closed_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    stuck: Any = _Stuck()
    stuck.over.set()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    rpc.Channel(stuck, owned=True).close()
    assert stuck.asked.is_set()
