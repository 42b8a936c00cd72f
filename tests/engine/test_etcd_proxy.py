"""The proxy of these tests does what it says, seen by a raw gRPC client and plain HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from etcd_raw import CALL_S, DEADLINE, GIVES_UP_S, UNAVAILABLE, RawClient
from etcd_server import EtcdProxy, EtcdServer, Gateway, eventually
from etcd_server.frames import PREFACE, FrameReader, Messages

pytestmark = pytest.mark.slow


@pytest.fixture
def client(proxy: EtcdProxy) -> Iterator[RawClient]:
    client = RawClient(proxy.endpoint)
    yield client
    client.close()


# --- one request ---------------------------------------------------------------


def test_a_quiet_proxy_passes_and_counts(proxy: EtcdProxy, client: RawClient) -> None:
    for number in range(3):
        client.put(b"k", b"v%d" % number)
    assert proxy.server.gateway.get(b"k").value == b"v2"
    assert (proxy.connections, proxy.requests, proxy.open_connections) == (1, 3, 1)
    assert Gateway(proxy.port).get(b"k").version == 3  # HTTP/1 passes too
    assert (proxy.connections, proxy.requests) == (2, 3)


def test_look_sees_a_request_answered(proxy: EtcdProxy, client: RawClient) -> None:
    fault = proxy.look(b"value-1")
    client.put(b"k", b"value-0")
    assert not fault.triggered.is_set()
    client.put(b"k", b"value-1")
    fault.wait_triggered()
    fault.wait_answered()


def test_cut_before_keeps_the_request_from_the_server(proxy: EtcdProxy, client: RawClient) -> None:
    client.put(b"k", b"before")
    fault = proxy.cut_before(b"lost-value")
    assert client.failure(b"k", b"lost-value") == UNAVAILABLE
    fault.wait_triggered()
    assert proxy.server.gateway.get(b"k").value == b"before"
    client.put_anew(b"k", b"lost-value")  # spent: it passes now
    assert proxy.server.gateway.get(b"k").version == 2


def test_faults_of_one_needle_come_one_by_one(proxy: EtcdProxy, client: RawClient) -> None:
    faults = [proxy.cut_before(b"unlucky"), proxy.cut_before(b"unlucky")]
    assert client.failure(b"k", b"unlucky") == UNAVAILABLE
    assert [fault.triggered.is_set() for fault in faults] == [True, False]
    eventually(lambda: client.failure(b"k", b"unlucky") and faults[1].triggered.is_set())
    client.put_anew(b"k", b"unlucky")
    assert proxy.server.gateway.get(b"k").version == 1


def test_cut_after_loses_only_the_answer(proxy: EtcdProxy, client: RawClient) -> None:
    fault = proxy.cut_after(b"value-1")
    assert client.failure(b"k", b"value-1") == UNAVAILABLE
    fault.wait_cut()
    assert proxy.server.gateway.get(b"k").value == b"value-1"
    client.put_anew(b"k", b"value-2")


def test_cut_after_waits_for_the_condition(proxy: EtcdProxy, client: RawClient) -> None:
    may = threading.Event()
    fault = proxy.cut_after(b"value-1", when=may.is_set)
    call = client.begin(b"k", b"value-1")
    fault.wait_answered()
    assert proxy.server.gateway.get(b"k").value == b"value-1"
    assert not call.done()
    may.set()
    fault.wait_cut()
    assert call.exception().code() == UNAVAILABLE


def test_cut_after_hands_on_what_its_condition_raises(proxy: EtcdProxy, client: RawClient) -> None:
    fault = proxy.cut_after(b"value-1", when=lambda: 1 // 0)
    assert client.failure(b"k", b"value-1") == UNAVAILABLE
    with pytest.raises(ZeroDivisionError):
        fault.wait_cut()


def test_a_delayed_answer_passes_the_deadline(proxy: EtcdProxy, client: RawClient) -> None:
    fault = proxy.delay_answer(b"value-1")
    assert client.failure(b"k", b"value-1", GIVES_UP_S) == DEADLINE
    fault.wait_answered()
    assert proxy.server.gateway.get(b"k").value == b"value-1"
    fault.release()
    client.put(b"k", b"value-2")
    assert proxy.connections == 1  # it held: the same connection goes on


def test_a_delayed_answer_arrives_on_release(proxy: EtcdProxy, client: RawClient) -> None:
    fault = proxy.delay_answer(b"value-1")
    call = client.begin(b"k", b"value-1")
    fault.wait_answered()
    assert not call.done()
    fault.release()
    call.result(CALL_S)


def test_a_delayed_answer_arrives_by_itself(proxy: EtcdProxy, client: RawClient) -> None:
    proxy.delay_answer(b"value-1", seconds=0.2)
    started = time.monotonic()
    client.put(b"k", b"value-1")
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("leaves", [True, False])
def test_a_held_request_arrives_after_its_client_gave_up(
    proxy: EtcdProxy, client: RawClient, leaves: bool
) -> None:
    client.put(b"k", b"value-0")
    fault = proxy.hold(b"value-1")
    assert client.failure(b"k", b"value-1", GIVES_UP_S) == DEADLINE
    fault.wait_triggered()
    if leaves:
        client.close()
        eventually(lambda: proxy.open_connections == 0)
    assert proxy.server.gateway.get(b"k").value == b"value-0"
    fault.release()
    assert proxy.server.gateway.get(b"k").value == b"value-1"
    assert proxy.server.gateway.get(b"k").version == 2
    if not leaves:
        client.put_anew(b"k", b"value-2")
        assert proxy.connections == 2


def test_what_came_before_a_held_request_passes(proxy: EtcdProxy, client: RawClient) -> None:
    watch = client.channel.stream_stream("/etcdserverpb.Watch/Watch")
    fault = proxy.hold(b"value-1")
    done = threading.Event()

    def silent() -> Iterator[bytes]:
        done.wait(CALL_S)  # headers without a message: nobody may wait long for that
        yield from ()

    stream = watch(silent(), timeout=CALL_S)
    client.put(b"k", b"value-0")
    calls = [client.begin(b"other%d" % n, b"other") for n in range(5)]
    held = client.begin(b"k", b"value-1")
    fault.wait_triggered()
    for call in calls:
        call.result(CALL_S)
    assert proxy.server.gateway.get(b"k").value == b"value-0"
    fault.release()
    assert proxy.server.gateway.get(b"k").value == b"value-1"
    assert held.exception().code() == UNAVAILABLE
    done.set()
    stream.cancel()


def test_a_held_request_that_nobody_releases_never_arrives(etcd: EtcdServer) -> None:
    with EtcdProxy(etcd) as proxy:
        client = RawClient(proxy.endpoint)
        proxy.hold(b"value-1")
        assert client.failure(b"k", b"value-1", GIVES_UP_S) == DEADLINE
        client.close()
    assert etcd.gateway.get(b"k") is None


def test_faults_meet_plain_http_too(proxy: EtcdProxy) -> None:
    front = Gateway(proxy.port, timeout_s=GIVES_UP_S)
    cut = proxy.cut_before(b"/v3/kv/put")
    with pytest.raises(ConnectionError):
        front.put(b"k", b"v")
    assert cut.triggered.is_set()
    fault = proxy.delay_answer(b"GET /version")
    with pytest.raises(TimeoutError):
        front.version()
    fault.wait_answered()
    assert front.version()


def test_a_fault_that_meets_nothing_says_so(proxy: EtcdProxy, client: RawClient) -> None:
    fault = proxy.cut_before(b"no such value")
    client.put(b"k", b"v")
    with pytest.raises(AssertionError, match="no such value"):
        fault.wait_triggered(0.01)


def test_a_replay_writes_twice(proxy: EtcdProxy, client: RawClient) -> None:
    fault = proxy.record(b"value-1")
    client.put(b"k", b"value-1")
    assert proxy.server.gateway.get(b"k").version == 1
    fault.replay()
    assert proxy.server.gateway.get(b"k").version == 2
    client.put(b"k", b"value-2")  # the client noticed nothing
    assert proxy.connections == 1


@pytest.mark.parametrize("offset", [16_300, 16_370, 16_376, 16_384, 150_000, 299_990])
def test_a_large_request_is_met_wherever_its_needle_lies(
    proxy: EtcdProxy, client: RawClient, offset: int
) -> None:
    value = b"x" * offset + b"0123456789" + b"x" * (299_990 - offset)
    fault = proxy.cut_after(b"0123456789")
    assert client.failure(b"k", value) == UNAVAILABLE
    fault.wait_cut()
    assert proxy.server.gateway.get(b"k").value == value  # whole, though cut after
    before = proxy.cut_before(b"0123456789")
    eventually(lambda: client.failure(b"k", value) and before.triggered.is_set())
    assert proxy.server.gateway.get(b"k").version == 1


def test_frames_and_needles_are_found_byte_by_byte() -> None:
    message = b"\0" + (12).to_bytes(4, "big") + b"ab-needle-cd"
    frames = [
        len(part).to_bytes(3, "big") + b"\0\0" + (5).to_bytes(4, "big") + part
        for part in (message[:9], message[9:] + message)
    ]
    reader, messages, ends = FrameReader(preface=PREFACE), Messages(framed=True), []
    for byte in PREFACE + b"".join(frames):
        for piece in reader.feed(bytes([byte])):
            if piece.kind is not None:
                assert piece.stream == 5
                messages.feed(piece.payload)
                ends.append(messages.find(b"-needle-"))
    assert ends == [None, len(message)]
    assert FrameReader(preface=PREFACE).feed(b"GET / HTTP/1.1")[0].kind is None


# --- everything ------------------------------------------------------------------


def test_a_paused_proxy_is_silent_and_then_delivers(proxy: EtcdProxy, client: RawClient) -> None:
    client.put(b"k", b"value-0")
    proxy.pause()
    call = client.begin(b"k", b"value-1")
    with socket.create_connection(("127.0.0.1", proxy.port), CALL_S) as stranger:
        stranger.sendall(b"GET /version HTTP/1.1\r\nHost: etcd\r\n\r\n")
        stranger.settimeout(GIVES_UP_S)
        with pytest.raises(TimeoutError):
            stranger.recv(1)
        assert not call.done()
        assert proxy.server.gateway.get(b"k").value == b"value-0"
        proxy.resume()
        stranger.settimeout(CALL_S)
        assert stranger.recv(12) == b"HTTP/1.1 200"
    call.result(CALL_S)


def test_a_refusing_proxy_is_a_dead_server(proxy: EtcdProxy, client: RawClient) -> None:
    client.put(b"k", b"value-0")
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), CALL_S)
    assert client.failure(b"k", b"value-1") == UNAVAILABLE
    proxy.resume()
    client.put_anew(b"k", b"value-2")
    assert proxy.server.gateway.get(b"k").version == 2


def test_cut_all_resets(proxy: EtcdProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), CALL_S) as stranger:
        eventually(lambda: proxy.open_connections == 1)
        proxy.cut_all()
        with pytest.raises(ConnectionResetError):
            stranger.recv(1)
    eventually(lambda: proxy.open_connections == 0)


def test_latency_counts_both_ways(proxy: EtcdProxy, client: RawClient) -> None:
    client.put(b"k", b"value-0")
    proxy.latency_s = 0.1
    started = time.monotonic()
    client.put(b"k", b"value-1")
    assert time.monotonic() - started >= 0.2


def test_a_proxy_of_a_dead_server_closes_connections(proxy: EtcdProxy, client: RawClient) -> None:
    proxy.server.kill()
    assert client.failure(b"k", b"v") == UNAVAILABLE


def test_a_proxy_closes_whatever_it_holds(etcd: EtcdServer) -> None:
    threads = threading.active_count()
    proxy = EtcdProxy(etcd)
    client = RawClient(proxy.endpoint)
    fault = proxy.hold(b"value-1")
    call = client.begin(b"k", b"value-1")
    fault.wait_triggered()
    proxy.pause()
    proxy.close()
    assert call.exception().code() == UNAVAILABLE
    proxy.close()
    client.close()
    eventually(lambda: threading.active_count() <= threads, "the proxy's thread to end")
    assert etcd.gateway.get(b"k") is None
