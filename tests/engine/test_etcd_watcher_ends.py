"""Ends of watchers: closed, dropped, or by an error; nobody waits for ever, no thread is left."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from etcd_engines import Background, events_until, get, opened, put
from etcd_server import EtcdProxy, EtcdServer, eventually

from snapkv.engine.etcd.engine import EtcdEngine, open_etcd
from snapkv.engine.etcd.grpc_client import WatchStream
from snapkv.engine.etcd.watch_stream import QUEUE_BYTES_MAX
from snapkv.errors import EngineUnavailableError, StoreClosedError

pytestmark = pytest.mark.slow

LOOSELY_S = 5.0


@pytest.fixture
def engine(etcd: EtcdServer) -> Iterator[EtcdEngine]:
    with opened(etcd.url) as engine:
        yield engine


# --- the end --------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["watcher", "engine"])
@pytest.mark.parametrize("state", ["idle", "silent", "dead"])
def test_close_from_another_thread(who: str, state: str, proxy: EtcdProxy) -> None:
    with opened(proxy.url) as engine:
        first = put(engine, b"k")
        watcher = engine.watch(b"k", b"", start_revision=first)
        events_until(watcher, first)
        if state != "idle":
            (proxy.pause if state == "silent" else proxy.refuse)()
        waiting = Background(lambda: events_until(watcher, first + 1))
        reader = watcher._thread
        (watcher.close if who == "watcher" else engine.close)()
        with pytest.raises(StoreClosedError):
            waiting.result(LOOSELY_S)
        with pytest.raises(StoreClosedError):
            watcher.next(0)
        watcher.close()
        assert reader is not None
        reader.join(LOOSELY_S)
        assert not reader.is_alive()


def test_closed_watchers_leave_no_thread(etcd: EtcdServer) -> None:
    with opened(etcd.url) as engine:
        newest = put(engine, b"k")
        events_until(engine.watch(b"k", b"", start_revision=newest), newest)
        engine.close()
        settled = eventually(lambda: threading.active_count(), "a count")
    with opened(etcd.url) as engine:
        for _ in range(10):
            watcher = engine.watch(b"k", b"", start_revision=newest)
            events_until(watcher, newest)
            watcher.close()
        engine.watch(b"k", b"", start_revision=newest).close()  # at once
        engine.watch(b"k", b"", start_revision=newest)  # by the engine
    eventually(lambda: threading.active_count() <= settled, "all threads to end")


def test_a_full_queue_is_closed_too(engine: EtcdEngine) -> None:
    value = os.urandom(1 << 20)
    for i in range(30):
        put(engine, b"s/%d" % i, value)
    watcher = engine.watch(b"s/", b"s0", start_revision=1)
    eventually(lambda: watcher._reader.queued_bytes >= QUEUE_BYTES_MAX, "a full queue")
    watcher.close()
    reader = watcher._thread
    assert reader is not None
    reader.join(LOOSELY_S)
    assert not reader.is_alive()


class ExhaustedError(Exception):
    """No error of ours."""


@pytest.mark.parametrize("error", [RuntimeError("no more threads"), ExhaustedError(), SystemExit()])
def test_whatever_ends_the_thread_is_told(
    error: BaseException, proxy: EtcdProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC needs threads for a stream, for one: nobody may wait for a thread that is gone."""
    with opened(proxy.url) as engine:
        first = put(engine, b"k", b"1")
        watcher = engine.watch(b"k", b"", start_revision=first)
        events_until(watcher, first)

        def fails(*_: Any) -> None:
            raise error

        waiting = Background(lambda: events_until(watcher, first + 1))
        monkeypatch.setattr(WatchStream, "__init__", fails)
        proxy.cut_all()
        with pytest.raises(EngineUnavailableError, match=type(error).__name__) as raised:
            waiting.result(LOOSELY_S)
        assert raised.value.__cause__ is error
        with pytest.raises(EngineUnavailableError):  # and again
            watcher.next(None)


def test_a_thread_that_cannot_start_is_told(
    engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(EngineUnavailableError, match="cannot start a thread"):
            engine.watch(b"k", b"", start_revision=1)
    newest = put(engine, b"k")
    assert len(events_until(engine.watch(b"k", b"", start_revision=newest), newest)) == 1


# --- without an end -------------------------------------------------------------------------


PAUSE_S = 0.05
"""Between looks for garbage: to collect it takes as long in a large process."""


def readers() -> list[str]:
    time.sleep(PAUSE_S)
    gc.collect()
    return [t.name for t in threading.enumerate() if t.name.startswith("snapkv watch")]


def sockets() -> int:
    """Count the sockets of this process."""
    time.sleep(PAUSE_S)
    gc.collect()
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:  # the folder's own
            continue
    return count


@pytest.mark.long_after(2)
@pytest.mark.parametrize("state", ["full", "refused", "taken from", "new"])
def test_dropped_watchers_leave_no_thread(state: str, proxy: EtcdProxy) -> None:
    eventually(lambda: not readers(), "the threads of other tests to end")
    with opened(proxy.url) as engine:
        newest = put(engine, b"k", os.urandom(1 << 20))
        if state == "full":
            newest = [put(engine, b"k", os.urandom(1 << 20)) for _ in range(20)][-1]
        before = threading.active_count()
        watchers = [engine.watch(b"k", b"", start_revision=2) for _ in range(5)]
        for watcher in watchers:
            if state in ("taken from", "refused"):
                events_until(watcher, newest)
            elif state == "full":
                full = lambda w=watcher: w._reader.queued_bytes >= QUEUE_BYTES_MAX  # noqa: E731
                eventually(full, "a full queue")
                del full
        if state == "refused":
            proxy.refuse()
        assert len(readers()) == 5
        del watcher, watchers
        eventually(lambda: not readers(), "all readers to end")
        eventually(lambda: threading.active_count() <= before, "gRPC's threads to end")
        proxy.resume()
        assert get(engine, b"k") is not None


def test_an_engine_that_is_dropped_leaves_no_thread_and_no_socket(etcd: EtcdServer) -> None:
    eventually(lambda: not readers(), "the threads of other tests to end")
    before = sockets()
    for _ in range(3):
        engine = open_etcd(etcd.url)
        newest = put(engine, b"k")
        watcher = engine.watch(b"k", b"", start_revision=newest)
        events_until(watcher, newest)
    assert sockets() > before
    del engine, watcher
    eventually(lambda: not readers(), "all readers to end")
    eventually(lambda: sockets() <= before, "all connections to end")


def test_a_watcher_outlives_its_engine_object(etcd: EtcdServer) -> None:
    engine = open_etcd(etcd.url)
    watcher = engine.watch(b"k", b"", start_revision=1)
    del engine
    gc.collect()
    newest = etcd.gateway.put(b"k", b"1")
    assert [event.kv.value for event in events_until(watcher, newest)] == [b"1"]
    watcher.close()


def test_a_watch_that_comes_while_the_engine_closes(
    engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EtcdEngine.watch.__globals__["EtcdWatcher"]

    def slow(*arguments: Any, **options: Any) -> Any:
        watcher = made(*arguments, **options)
        engine.close()
        return watcher

    monkeypatch.setitem(EtcdEngine.watch.__globals__, "EtcdWatcher", slow)
    with pytest.raises(StoreClosedError):
        engine.watch(b"k", b"", start_revision=1).next(LOOSELY_S)
