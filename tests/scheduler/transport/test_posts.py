"""Messages arrive as they were sent; of those that wait, requests survive and heartbeats pass."""

import random
import threading

import msgpack
import pytest
from etcd_server import eventually

from cdcmeta.scheduler import AddRequest, Progress, RemoveRequest, TableState, TableStatus, Token
from cdcmeta.scheduler.core.states import Rest
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    Barrier,
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Heartbeat,
    HeartbeatResponse,
    Sync,
)
from cdcmeta.scheduler.transport import grpc_post, local
from cdcmeta.scheduler.transport.local import LocalNetwork
from cdcmeta.scheduler.transport.mailbox import Waiting

from .posting import (
    HEADER,
    call_of,
    foreign_client,
    heartbeat,
    numbers,
    received,
    request,
)

STATUS = TableStatus("ä/b", Token(3, 4), TableState.REPLICATING, Progress(5, 6, 7))
BODIES = [
    Announce("1.0"),
    Sync("1.0", (STATUS,), True),
    Heartbeat((("t", Token(1, 2)),), Barrier(9, (("t", 8),)), True, 3, False),
    HeartbeatResponse((STATUS,), False, Rest(Progress(1, 2, 3), 4, 5)),
    DispatchTable(AddRequest("t", Token(1, 2), Progress(1, 2, 3), True)),
    DispatchTable(RemoveRequest("t", Token(1, 2))),
    DispatchTableResponse(STATUS),
]


def test_every_kind_of_message_arrives_equal(post):
    sender, receiver = post(), post()
    sent = [(f"feed-ü-{n}", Envelope(HEADER, body)) for n, body in enumerate(BODIES)]
    for feed, envelope in sent:
        sender.send(receiver.address, feed, envelope)
    arrived = received(receiver, len(sent))
    assert sorted(arrived) == sorted(sent)


def test_a_post_reaches_itself(post):
    one = post()
    one.send(one.address, "feed", request(1))
    assert received(one, 1) == [("feed", request(1))]


def test_requests_of_a_pair_keep_their_order(post):
    receiver, senders = post(), [post(), post(), post()]

    def send(each, feed):
        for n in range(1, 501):
            each.send(receiver.address, feed, request(n))
            each.send(receiver.address, feed, heartbeat(n))

    threads = [
        threading.Thread(target=send, args=(each, f"f{n}")) for n, each in enumerate(senders)
    ]
    for thread in threads:
        thread.start()
    found = []
    eventually(
        lambda: found.extend(receiver.receive()) or len(numbers(found)[0]) == 1500,
        "all requests",
    )
    for thread in threads:
        thread.join()
    for n in range(3):
        requests, heartbeats = numbers([each for each in found if each[0] == f"f{n}"])
        assert requests == list(range(1, 501))
        assert heartbeats == sorted(heartbeats)


def test_a_waiting_heartbeat_is_replaced_and_requests_survive(post, foreign):
    sender = post()
    sender.send(foreign.address, "feed", heartbeat(0))
    eventually(lambda: foreign.calls, "the first call, which gets no answer")
    for n in range(1, 1001):
        sender.send(foreign.address, "feed", heartbeat(n))
        sender.send(foreign.address, "feed", request(n))
    assert len(foreign.calls) == 1
    foreign.let.set()
    eventually(lambda: len(numbers(foreign.arrived())[0]) == 1000, "the requests")
    requests, heartbeats = numbers(foreign.arrived())
    assert requests == list(range(1, 1001))
    assert heartbeats == [0, 1000]
    assert len(foreign.calls) == 2


def test_heartbeats_for_several_feeds_and_receivers_all_arrive(post, foreign):
    sender = post()
    sender.send(foreign.address, "feed", request(1))
    eventually(lambda: foreign.calls, "the first call, which gets no answer")
    for n in (1, 2):
        for feed in ("a", "b"):
            for to in ("c1", "c2"):
                sender.send(foreign.address, feed, heartbeat(n, to))
        sender.send(foreign.address, "a", Envelope(HEADER, Announce(str(n))))
    foreign.let.set()
    eventually(lambda: len(foreign.calls) == 2, "the second call")
    rest = foreign.arrived()[1:]
    announced = Envelope(HEADER, Announce("2"))
    expected = [(feed, heartbeat(2, to)) for feed in "ab" for to in ("c1", "c2")]
    assert rest == [*expected, ("a", announced)]


def test_a_call_is_not_larger_than_its_limit(monkeypatch, post, foreign):
    monkeypatch.setattr(grpc_post, "CALL_BYTES", 10_000)
    sender = post()
    sizes = [10, 9_000, 9_000, 30_000, 10, 10]
    for n, size in enumerate(sizes, 1):
        sender.send(foreign.address, "feed", request(n, "t" * size))
    foreign.let.set()
    eventually(lambda: len(foreign.arrived()) == len(sizes), "all messages")
    assert numbers(foreign.arrived())[0] == [1, 2, 3, 4, 5, 6]
    for raw in foreign.calls:
        assert len(raw) < 10_200 or len(msgpack.unpackb(raw)[1]) == 1


@pytest.mark.slow
def test_the_largest_message_arrives_behind_small_ones(monkeypatch, post, foreign):
    """Together they would be larger than what gRPC is allowed to send."""
    monkeypatch.setattr(grpc_post, "CALL_S", 20.0)
    sender = post()
    sender.send(foreign.address, "feed", request(1))
    eventually(lambda: foreign.calls, "the first call, which gets no answer")
    sender.send(foreign.address, "feed", request(2, "t" * (7 << 20)))
    sender.send(foreign.address, "feed", request(3, "t" * (63 << 20)))
    sender.send(foreign.address, "feed", request(4))
    foreign.let.set()
    eventually(lambda: len(foreign.calls) == 4, "all calls")
    assert numbers(foreign.arrived())[0] == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["grpc", "local"])
def test_of_too_many_arrived_messages_heartbeats_are_lost_first(what, monkeypatch, post):
    monkeypatch.setattr(grpc_post, "WAITING_MAX", 10)
    monkeypatch.setattr(local, "WAITING_MAX", 10)
    network = LocalNetwork()
    receiver = post() if what == "grpc" else network.post("here")

    def deliver(*envelopes):
        if what == "local":
            for each in envelopes:
                network.deliver("here", "feed", each)
            return
        with foreign_client(receiver.address) as call:
            call(call_of(*(("feed", each) for each in envelopes)), timeout=5)

    deliver(*map(request, range(1, 6)), *map(heartbeat, range(1, 6)), *map(request, range(6, 9)))
    assert numbers(receiver.receive()) == ([1, 2, 3, 4, 5, 6, 7, 8], [4, 5])
    deliver(*map(request, range(1, 11)), heartbeat(1))
    assert numbers(receiver.receive()) == (list(range(1, 11)), [])
    deliver(*map(request, range(1, 15)))
    assert numbers(receiver.receive()) == (list(range(5, 15)), [])


def test_arrived_messages_are_returned_in_their_order(post):
    receiver = post()
    sent = [request(1), heartbeat(1), request(2), heartbeat(2), heartbeat(3), request(3)]
    with foreign_client(receiver.address) as call:
        call(call_of(*(("feed", each) for each in sent)), timeout=5)
    assert [envelope for _, envelope in receiver.receive()] == sent


def test_what_waits_is_the_newest_within_the_bounds():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        count_max, bytes_max = rng.randint(1, 8), rng.randint(1, 30)
        waiting, model = Waiting(count_max, bytes_max), []  # of (key or None, number, size)
        for number in range(rng.randint(1, 40)):
            size, key = rng.randint(0, 12), rng.choice([None, None, "a", "b", "c", "d"])
            if key is None:
                waiting.put(number, size)
                model.append((None, number, size))
            else:
                waiting.put(number, size, is_beat=True, replaces=key)
                turn = next((n for n, each in enumerate(model) if each[0] == key), len(model))
                model[turn : turn + 1] = [(key, number, size)]
            while len(model) > count_max or (sum(e[2] for e in model) > bytes_max and model[1:]):
                beats = [each for each in model if each[0] is not None]
                model.remove(beats[0] if beats else model[0])
            assert len(waiting) == len(model)
            assert waiting.bytes == sum(each[2] for each in model)
            if rng.random() < 0.1:
                room = rng.randint(1, 20)
                model.sort(key=lambda each: each[0] is not None)
                taken = [model.pop(0)]
                while model and sum(e[2] for e in taken) + model[0][2] <= room:
                    taken.append(model.pop(0))
                assert waiting.take(room) == [each[1] for each in taken]
        assert sorted(waiting.take_all()) == sorted(each[1] for each in model)
        assert (len(waiting), waiting.bytes) == (0, 0)


def test_a_local_post_that_is_closed_gets_and_sends_nothing():
    network = LocalNetwork()
    one, other = network.post("one"), network.post("other")
    one.send("other", "feed", request(1))
    assert other.receive() == [("feed", request(1))]
    one.send("nowhere", "feed", request(1))
    other.close()
    one.send("other", "feed", request(2))
    other.send("one", "feed", request(3))
    assert other.receive() == one.receive() == []
    newer = network.post("other")
    other.close()  # does not take the address from the newer one
    one.send("other", "feed", request(4))
    assert newer.receive() == [("feed", request(4))]
