"""Calls that no capture makes are refused and counted; the next good one arrives."""

import random
import threading

import grpc
import msgpack
import pytest
from etcd_server import eventually

from cdcmeta.scheduler.protocol import encoding
from cdcmeta.scheduler.transport import grpc_post

from .posting import (
    METHOD,
    WAIT_S,
    call_of,
    foreign_client,
    heartbeat,
    received,
    request,
)

GOOD = encoding.encode(request(1))
BAD = {
    "empty": b"",
    "text": b"GET / HTTP/1.1",
    "cut": call_of(("feed", request(1)))[:-1],
    "one byte more": call_of(("feed", request(1))) + b"\x00",
    "a number": msgpack.packb(1),
    "a map": msgpack.packb({1: []}),
    "older version": call_of(("feed", request(1)), version=0),
    "newer version": call_of(("feed", request(1)), version=2),
    "version as float": msgpack.packb([1.0, []]),
    "version as bool": msgpack.packb([True, []]),
    "version of 2**64-1": msgpack.packb([(1 << 64) - 1, []]),
    "three members": msgpack.packb([1, [], []]),
    "messages as text": msgpack.packb([1, "ab"]),
    "messages as map": msgpack.packb([1, {"feed": GOOD}]),
    "message of one": msgpack.packb([1, [["feed"]]]),
    "feed as bytes": msgpack.packb([1, [[b"feed", GOOD]]]),
    "feed as number": msgpack.packb([1, [[7, GOOD]]]),
    "feed as none": msgpack.packb([1, [[None, GOOD]]]),
    "message as text": msgpack.packb([1, [["feed", "x"]]]),
    "message as array": msgpack.packb([1, [["feed", msgpack.unpackb(GOOD)]]]),
    "message of nothing": msgpack.packb([1, [["feed", b""]]]),
    "text that is not UTF-8": b"\x92\x01\x91\x92\xa1\xff" + msgpack.packb(GOOD),
    "deeply nested": b"\x91" * 100_000,
    "array of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a bad message after a good one": msgpack.packb([1, [["feed", GOOD], ["feed", b"x"]]]),
}


def refused(call, raw):
    """Call, and return the status that is the answer."""
    with pytest.raises(grpc.RpcError) as caught:
        call(raw, timeout=WAIT_S)
    return caught.value


@pytest.mark.parametrize("what", BAD)
def test_a_malformed_call_is_refused_as_a_whole(what, post):
    receiver = post()
    with foreign_client(receiver.address) as call:
        error = refused(call, BAD[what])
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details().startswith("not a call: ")
        assert receiver.refused == 1
        assert receiver.receive() == []
        assert call(call_of(("feed", request(2))), timeout=WAIT_S) == b""
    assert receiver.receive() == [("feed", request(2))]


def test_a_message_of_a_newer_version_does_not_keep_back_the_rest(post):
    """While captures are upgraded, older ones get messages that they do not know."""
    receiver = post()
    kind = msgpack.packb([1, 99, ["a", "b", 1, 1, 1], []])
    version = msgpack.packb([2, "anything"])
    raw = msgpack.packb([1, [["f", kind], ["f", GOOD], ["f", version]]])
    with foreign_client(receiver.address) as call:
        error = refused(call, raw)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "unknown kind" in error.details()
    assert receiver.refused == 2
    assert receiver.receive() == [("f", request(1))]


def test_random_bytes_do_not_stop_the_server(post):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, receiver = random.Random(seed), post()
    good = call_of(("feed", request(1)), ("feed", heartbeat(2)))
    codes = []
    with foreign_client(receiver.address) as call:
        for _ in range(300):
            raw = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            try:
                call(bytes(raw) if rng.random() < 0.7 else rng.randbytes(40), timeout=WAIT_S)
            except grpc.RpcError as e:
                codes.append(e.code())
        assert set(codes) == {grpc.StatusCode.INVALID_ARGUMENT}
        assert receiver.refused >= len(codes)
        receiver.receive()
        call(good, timeout=WAIT_S)
    assert len(receiver.receive()) == 2


def test_a_call_that_is_too_large_is_refused(post):
    receiver = post()
    with foreign_client(receiver.address) as call:
        error = refused(call, bytes(grpc_post._BYTES_MAX + 1))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call(call_of(("feed", request(1))), timeout=WAIT_S)
    assert len(receiver.receive()) == 1


def test_a_call_that_is_too_large_unpacked_is_refused(post):
    """80 MB of zeros are 80 kB when they are compressed."""
    receiver = post()
    with grpc.insecure_channel(receiver.address, compression=grpc.Compression.Gzip) as channel:
        error = refused(channel.unary_unary(METHOD), bytes(80 << 20))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    with foreign_client(receiver.address) as call:
        call(call_of(("feed", request(1))), timeout=WAIT_S)
    assert len(receiver.receive()) == 1


def test_another_method_does_not_exist(post):
    receiver = post()
    with grpc.insecure_channel(receiver.address) as channel:
        error = refused(channel.unary_unary("/cdcmeta.scheduler.v1.Post/Stop"), b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_very_many_calls_at_once_do_not_add_threads(monkeypatch, post):
    """Those beyond the limit are rejected; the rest arrives, and so does a later one."""
    monkeypatch.setattr(grpc_post, "CALLS_MAX", 8)
    receiver, sender = post(), post()
    with foreign_client(receiver.address) as call:
        before = threading.active_count()  # those of the client, and of earlier tests
        with receiver._lock:  # as if each took long
            calls = [call.future(call_of(("feed", request(n))), timeout=WAIT_S) for n in range(300)]
            eventually(lambda: sum(each.done() for each in calls) >= 292, "those beyond the limit")
            threads = threading.active_count()
        codes = [each.code().name for each in calls]
        assert set(codes) <= {"OK", "RESOURCE_EXHAUSTED"}
        assert threads < before + 32  # of 300
    assert len(received(receiver, codes.count("OK"))) == codes.count("OK") > 0
    sender.send(receiver.address, "feed", request(1))
    assert len(received(receiver, 1)) == 1
