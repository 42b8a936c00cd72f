"""Endpoints that are dead, refuse, or are silent: calls go on at another, within bounds."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from etcd_engines import LOOSELY_S, Background, events_until, get, head, opened, put, within
from etcd_server import EtcdProxy, EtcdServer, eventually

import snapkv
from snapkv.engine.contract import OutcomeUnknown, Range, Refused
from snapkv.engine.etcd.cluster_client import TRY_S
from snapkv.engine.etcd.engine import EtcdEngine
from snapkv.errors import EngineUnavailableError, StoreClosedError

pytestmark = pytest.mark.slow


@pytest.fixture
def second(etcd: EtcdServer) -> Iterator[EtcdProxy]:
    """Another way to the server of `proxy`."""
    with EtcdProxy(etcd) as proxy:
        yield proxy


def both(proxy: EtcdProxy, second: EtcdProxy) -> str:
    return f"etcd://{proxy.endpoint},{second.endpoint}"


# --- the first endpoint does not work -------------------------------------------------------


def test_the_first_endpoint_refuses(proxy: EtcdProxy, second: EtcdProxy) -> None:
    proxy.refuse()
    with opened(both(proxy, second)) as engine, within(1.0):
        put(engine, b"k")
        assert get(engine, b"k") == b"v"
        assert engine._connection.addresses == (second.endpoint, proxy.endpoint)


def test_the_first_endpoint_is_silent_from_the_start(proxy: EtcdProxy, second: EtcdProxy) -> None:
    proxy.pause()
    with within(1.0):  # the look at its version
        engine = snapkv.open(both(proxy, second))
    with engine as store, within(TRY_S):
        store.save("a", b"1")
        assert store.load("a") == b"1"


def test_the_endpoint_in_use_falls_silent(proxy: EtcdProxy, second: EtcdProxy) -> None:
    with opened(both(proxy, second)) as engine:
        put(engine, b"k", b"1")
        assert second.requests == 0
        proxy.pause()
        with within(TRY_S):
            assert get(engine, b"k") == b"1"
        with within(1.0):
            put(engine, b"k", b"2")
            assert get(engine, b"k") == b"2"


def test_the_endpoint_in_use_dies_and_comes_back(proxy: EtcdProxy, second: EtcdProxy) -> None:
    with opened(both(proxy, second)) as engine:
        for turn in range(4):
            dead, alive = (proxy, second) if turn % 2 == 0 else (second, proxy)
            get(engine, b"k")
            dead.refuse()
            with within(1.0):
                assert get(engine, b"k") == (b"%d" % (turn - 1) if turn else None)
                put(engine, b"k", b"%d" % turn)
            assert engine._connection.addresses[0] == alive.endpoint
            dead.resume()


def test_one_endpoint_comes_back(proxy: EtcdProxy) -> None:
    with opened(proxy.url) as engine:
        put(engine, b"k")
        for hurt in (proxy.refuse, proxy.pause):
            hurt()
            reading = Background(lambda: get(engine, b"k"))
            before = head_of(proxy)
            engine._connection._current().drop()  # nothing is known to be there
            with pytest.raises(Refused) as refused:
                put(engine, b"k", b"never", timeout=0.3)
            assert isinstance(refused.value.error, EngineUnavailableError)
            assert reading.running
            proxy.resume()
            assert reading.result(TRY_S + LOOSELY_S) == b"v"
            assert head_of(proxy) == before


def head_of(proxy: EtcdProxy) -> int:
    return proxy.server.gateway.revision()


@pytest.mark.kills_etcd
def test_a_server_that_restarts(etcd: EtcdServer) -> None:
    with opened(etcd.url) as engine:
        put(engine, b"k")
        etcd.kill()
        reading = Background(lambda: get(engine, b"k"))
        etcd.start()
        assert reading.result() == b"v"
        put(engine, b"k")


def test_a_slow_network_is_no_dead_one(etcd: EtcdServer, proxy: EtcdProxy) -> None:
    """A quarter of a second each way: connecting takes several such exchanges."""
    proxy.latency_s = 0.25
    with opened(proxy.url) as engine:
        put(engine, b"k")
        assert get(engine, b"k") == b"v"
        assert proxy.connections == 2  # one for the version


def test_a_failed_endpoint_is_left_alone(proxy: EtcdProxy, second: EtcdProxy) -> None:
    """What it was connected by is closed, also when nobody collects garbage."""
    with opened(both(proxy, second)) as engine:
        get(engine, b"k")
        proxy.pause()
        get(engine, b"k")
        proxy.resume()
        eventually(lambda: proxy.open_connections == 0, "the old connection to close")
        assert second.open_connections == 1


# --- all endpoints are dead -----------------------------------------------------------------


def test_all_endpoints_dead(proxy: EtcdProxy, second: EtcdProxy) -> None:
    with opened(both(proxy, second)) as engine:
        put(engine, b"k")
        proxy.refuse()
        second.refuse()
        with within(0.5), pytest.raises(EngineUnavailableError) as read:
            get(engine, b"k", timeout=0.5)
        for endpoint in (proxy.endpoint, second.endpoint):
            assert endpoint in str(read.value)
        with within(0.5), pytest.raises(Refused) as refused:
            put(engine, b"k", timeout=0.5)
        assert isinstance(refused.value.error, EngineUnavailableError)
        assert proxy.endpoint in str(refused.value)


def test_open_says_that_nobody_is_there(proxy: EtcdProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snapkv.engine.etcd.cluster_client.READ_TIMEOUT_S", 0.5)
    proxy.refuse()
    with within(0.5), pytest.raises(EngineUnavailableError, match=proxy.endpoint):
        snapkv.open(proxy.url)


def test_calls_end_with_the_engine(proxy: EtcdProxy) -> None:
    with opened(proxy.url) as engine:
        put(engine, b"k")
        proxy.pause()
        reads = [Background(lambda: get(engine, b"k")) for _ in range(3)]
        writing = Background(lambda: put(engine, b"k"))
        eventually(lambda: proxy.open_connections > 0)
        engine.close()
        for read in reads:
            with pytest.raises(StoreClosedError):
                read.result(LOOSELY_S)
        with pytest.raises((OutcomeUnknown, Refused)):
            writing.result(LOOSELY_S)
        with pytest.raises(StoreClosedError):
            get(engine, b"k")
        with pytest.raises(Refused) as refused:
            put(engine, b"k")
        assert isinstance(refused.value.error, StoreClosedError)


# --- a connection that breaks under a call --------------------------------------------------


def test_a_read_whose_connection_breaks_is_repeated(proxy: EtcdProxy) -> None:
    with opened(proxy.url) as engine:
        put(engine, b"needle")
        for fault in (proxy.cut_before, proxy.cut_after):
            met = fault(b"needle")
            assert get(engine, b"needle") == b"v"
            met.wait_triggered()


def test_a_write_whose_connection_breaks_is_of_unknown_outcome(proxy: EtcdProxy) -> None:
    with opened(proxy.url) as engine:
        before = put(engine, b"k", b"0")
        proxy.cut_before(b"never-there")
        with pytest.raises(OutcomeUnknown) as unknown:
            put(engine, b"k", b"never-there")
        assert unknown.value.retry
        assert get(engine, b"k") == b"0"
        met = proxy.cut_after(b"there-once")
        with pytest.raises(OutcomeUnknown):
            put(engine, b"k", b"there-once")
        met.wait_cut()
        assert get(engine, b"k") == b"there-once"
        assert head(engine) == before + 1
        put(engine, b"k", b"after")  # the next one gets through


def test_a_write_without_an_answer_ends_at_its_deadline(proxy: EtcdProxy) -> None:
    with opened(proxy.url) as engine:
        put(engine, b"k")
        held = proxy.delay_answer(b"slow-one")
        with within(0.5), pytest.raises(OutcomeUnknown):
            put(engine, b"k", b"slow-one", timeout=0.5)
        held.release()
        assert get(engine, b"k") == b"slow-one"


def test_calls_between_many_cuts(proxy: EtcdProxy) -> None:
    """A read never fails; a write does or is of unknown outcome, and its value tells which.

    gRPC may fail a call on a broken connection without sending it; nobody sees that in reads.
    """
    with opened(proxy.url) as engine:
        stop = threading.Event()
        reads = [Background(lambda: count_reads(engine, stop)) for _ in range(2)]
        done, unknown = set(), set()
        for number in range(60):
            if number % 3 == 0:
                proxy.cut_all()
            try:
                put(engine, b"w/%03d" % number)
                done.add(b"w/%03d" % number)
            except OutcomeUnknown:
                unknown.add(b"w/%03d" % number)
        stop.set()
        assert all(read.result() > 0 for read in reads)
        there = {kv.key for kv in engine.read([Range(b"w/", b"w0")]).results[0].kvs}
        assert done <= there <= done | unknown
        assert len(done) > 20


def count_reads(engine: EtcdEngine, stop: threading.Event) -> int:
    number = 0
    while not stop.is_set():
        get(engine, b"k")
        number += 1
    return number


# --- time for all of them ---------------------------------------------------------------------


def test_there_is_time_to_ask_every_endpoint(etcd: EtcdServer, proxy: EtcdProxy) -> None:
    """Three take a call and never answer; the fourth is asked before the bound."""
    ways = [EtcdProxy(etcd) for _ in range(2)]
    try:
        silent = [proxy, *ways]
        url = ",".join([*(way.endpoint for way in silent), etcd.endpoint])
        newest = etcd.gateway.put(b"k", b"1")
        with opened(f"etcd://{url}") as engine:
            for way in silent:
                way.pause()
            with within(8.0):
                assert get(engine, b"k", timeout=8.0) == b"1"
            assert head(engine) == newest
    finally:
        for way in ways:
            way.close()


def test_a_commit_leaves_a_silent_endpoint_within_its_time(
    proxy: EtcdProxy, second: EtcdProxy
) -> None:
    """The one in use falls silent; the other one settles what became of the request."""
    with snapkv.open(both(proxy, second)) as store:
        store.save("a", b"1")
        proxy.pause()
        with within(3.0):
            commit = store.commit(puts={"a": b"2"}, timeout=3.0)
        assert store.load("a") == b"2"
        assert [v.revision for v in store.history("a")][-1] == commit.revision
        assert len(list(store.history("a"))) == 2


# --- no etcd at all -------------------------------------------------------------------------


@pytest.mark.long
def test_a_listener_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"etcd://127.0.0.1:{listener.getsockname()[1]}"
        with within(1.0), opened(url) as engine, within(0.5):
            with pytest.raises(EngineUnavailableError):
                get(engine, b"k", timeout=0.5)
            assert engine.server_time_ms() is None


class Quiet(http.server.BaseHTTPRequestHandler):
    """A web server: anything but etcd."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *arguments: object) -> None:
        pass


def test_a_web_server() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with opened(f"etcd://127.0.0.1:{server.server_address[1]}") as engine, within(0.5):
                with pytest.raises(EngineUnavailableError):
                    get(engine, b"k", timeout=0.5)
                with pytest.raises(Refused):
                    put(engine, b"k", timeout=0.5)
                assert engine.server_time_ms() is None
                assert len(engine.check()) == 1
        finally:
            server.shutdown()


@pytest.fixture
def stranger() -> Iterator[str]:
    """A gRPC server that is no etcd: `host:port`."""
    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait(5.0)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("first", ["stranger", "etcd"])
def test_an_endpoint_that_is_no_etcd_is_left(
    first: str, stranger: str, etcd: EtcdServer, proxy: EtcdProxy
) -> None:
    """Or is it for a while: a proxy whose backend is being exchanged answers HTTP's 404."""
    at = [stranger, proxy.endpoint] if first == "stranger" else [proxy.endpoint, stranger]
    with opened(f"etcd://{','.join(at)}") as engine:
        newest = put(engine, b"k", b"1")
        assert get(engine, b"k") == b"1"
        watcher = engine.watch(b"k", b"", start_revision=newest)
        assert len(events_until(watcher, newest)) == 1
        for _ in range(3):
            proxy.cut_all()
            newest = etcd.gateway.put(b"k", b"1")
            assert len(events_until(watcher, newest)) == 1
            assert get(engine, b"k") == b"1"
        proxy.refuse()
        with within(1.0), pytest.raises(EngineUnavailableError):
            get(engine, b"k", timeout=1.0)
        proxy.resume()
        assert get(engine, b"k") == b"1"


def test_where_nobody_is_an_etcd(stranger: str) -> None:
    for url in (f"etcd://{stranger}", f"etcd://{stranger},localhost:{stranger.partition(':')[2]}"):
        with opened(url) as engine, within(0.5):
            with pytest.raises(EngineUnavailableError, match="not an etcd"):
                get(engine, b"k", timeout=10.0)
            with pytest.raises(Refused):
                put(engine, b"k", timeout=10.0)
