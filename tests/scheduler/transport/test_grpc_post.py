"""Messages between processes: they arrive, and a peer that is away or hostile costs little."""

import socket
import threading

import grpc
import msgpack
import pytest
from etcd_server import eventually, make_certificates

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import RemoveRequest, Token
from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    DispatchTable,
    Envelope,
    Header,
    Heartbeat,
)
from cdcmeta.scheduler.transport import grpc_post
from cdcmeta.scheduler.transport.grpc_post import METHOD, SERVICE, GrpcPost, Tls, split_address

WAIT_S = 20
HEADER = Header("o", "c", 9, 3, 7)


def beat(number):
    return Envelope(HEADER, Heartbeat((("t", Token(9, 1)),), number=number))


def request(number):
    return Envelope(HEADER, DispatchTable(RemoveRequest("t", Token(9, number))))


@pytest.fixture
def pair():
    posts = GrpcPost(), GrpcPost()
    yield posts
    for post in posts:
        post.close()


def received(post, enough):
    """Wait until a post has received enough; return all of it."""
    found = []

    def has_enough():
        found.extend(post.receive())
        return enough(found)

    eventually(has_enough, wait_s=WAIT_S)
    return found


def test_messages_arrive_in_order(pair):
    here, there = pair
    for n in range(1, 2_001):
        here.send(there.address, "feed", request(n))
    found = received(there, lambda found: len(found) >= 2_000)
    assert found == [("feed", request(n)) for n in range(1, 2_001)]
    there.send(here.address, "other", beat(5))
    assert received(here, bool) == [("other", beat(5))]


def test_of_heartbeats_that_wait_the_newest_is_sent(pair):
    here, there = pair
    for n in range(1, 501):
        here.send(there.address, "feed", beat(n))
        here.send(there.address, "another", beat(n))
    found = received(
        there,
        lambda found: {("feed", beat(500)), ("another", beat(500))} <= set(found),
    )
    assert len(found) < 1_000


def test_a_peer_that_is_away_and_comes_back(pair):
    here, there = pair
    address = there.address
    there.close()
    for n in range(1, 50):
        here.send(address, "feed", request(n))
    again = GrpcPost(address)

    def arrives():
        here.send(address, "feed", beat(1))
        return bool(again.receive())

    eventually(arrives, wait_s=WAIT_S)
    again.close()


def test_a_peer_that_never_answers_costs_bounded_memory_and_no_thread(monkeypatch):
    monkeypatch.setattr(grpc_post, "WAITING_MAX", 100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        post = GrpcPost()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        post.send(address, "feed", request(1))
        threads = threading.active_count()
        for n in range(1, 5_000):
            post.send(address, "feed", request(n))
            post.send(address, "feed", beat(n))
        (peer,) = post._peers.values()
        assert len(peer._waiting) <= 100
        assert threading.active_count() <= threads + 1
        post.close()


def test_no_thread_and_no_connection_remains():
    before = set(threading.enumerate())
    posts = [GrpcPost() for _ in range(3)]
    for post in posts:
        for other in posts:
            post.send(other.address, "feed", beat(1))
    for post in posts:
        received(post, lambda found: len(found) >= 1)
    for post in posts:
        post.close()
        post.send(posts[0].address, "feed", beat(2))
    eventually(lambda: set(threading.enumerate()) <= before, wait_s=WAIT_S)


def test_connections_that_are_not_used_are_closed(pair, monkeypatch):
    here, there = pair
    monkeypatch.setattr(grpc_post, "UNUSED_S", 0.0)
    for n in range(20):
        here.send(f"127.0.0.1:{n + 1}", "feed", beat(1))
    assert len(here._peers) == 1
    here.send(there.address, "feed", beat(7))
    assert received(there, bool) == [("feed", beat(7))]


GOOD = encoding.encode(beat(1))
BAD = {
    "nothing": b"",
    "noise": b"\xc1\xff\x00",
    "another version": msgpack.packb([2, []]),
    "no list": msgpack.packb([1, 5]),
    "no message": msgpack.packb([1, [["feed", b"?"]]]),
    "half of it is good": msgpack.packb([1, [["feed", GOOD], ["feed", b"?"]]]),
    "deep": b"\x91" * 5_000,
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
def test_a_call_that_is_none_is_refused(pair, raw):
    """By a client that nobody here wrote: gRPC's own, with bytes made by hand."""
    here, there = pair
    with grpc.insecure_channel(there.address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        with pytest.raises(grpc.RpcError) as caught:
            call(raw, timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert there.refused == 1
        assert there.receive() == []
        assert call(msgpack.packb([1, [["feed", GOOD]]]), timeout=WAIT_S) == b""
    assert there.receive() == [("feed", beat(1))]
    here.send(there.address, "feed", Envelope(HEADER, Announce("1")))
    assert received(there, bool) == [("feed", Envelope(HEADER, Announce("1")))]


def test_mutual_tls(tmp_path):
    ours = make_certificates(tmp_path / "ours")
    theirs = make_certificates(tmp_path / "theirs")

    def post(known):
        files = (known.ca, known.cert("server"), known.key("server"))
        return GrpcPost(tls=Tls(*map(str, files)))

    here, there, stranger, plain = post(ours), post(ours), post(theirs), GrpcPost()
    stranger.send(there.address, "feed", beat(1))
    plain.send(there.address, "feed", beat(2))
    here.send(there.address, "feed", beat(3))
    assert received(there, bool) == [("feed", beat(3))]
    assert there.receive() == []
    for each in (here, there, stranger, plain):
        each.close()


def test_other_machines_need_tls():
    with pytest.raises(InvalidArgumentError, match="other machines"):
        GrpcPost("0.0.0.0:0")
    post = GrpcPost("0.0.0.0:0", insecure=True, advertise="10.0.0.7:7000")
    assert post.address == "10.0.0.7:7000"
    with pytest.raises(OSError, match="is the port taken"):
        GrpcPost(f"127.0.0.1:{post.port}")
    post.close()


@pytest.mark.parametrize("bad", ["", "host", "host:", ":7", "host:x", "host:70000"])
def test_an_address_is_host_and_port(bad):
    with pytest.raises(InvalidArgumentError, match="HOST:PORT"):
        split_address(bad)
