"""Members that cannot read what they heard of: they refuse, try again, and answer late."""

import threading

import numpy as np
import pytest

from cdcmeta.errors import CorruptTopologyError, MemberLostError
from cdcmeta.generations import (
    CdcLog,
    Generations,
    StreamId,
    log_member,
)
from cdcmeta.generations import (
    generation_layout as layout,
)
from snapkv import pack
from snapkv.base.waiting import monotonic
from snapkv.errors import CompactedError, EngineUnavailableError, StoreRestoredError

from .refused import is_unavailable
from .test_switching import RING, TOKEN, WAIT_S, Slow, in_background, until, until_pending

pytestmark = pytest.mark.slow


class Unreadable:
    """Topologies that cannot be read until `readable` is True."""

    def __init__(self, error):
        self.error, self.readable, self.asked = error, False, 0
        self.read = log_member.layout.topology_at

    def __call__(self, *args):
        self.asked += 1
        if not self.readable:
            raise self.error
        return self.read(*args)


@pytest.fixture
def unreadable(monkeypatch, request):
    found = Unreadable(getattr(request, "param", EngineUnavailableError("cut off")))
    monkeypatch.setattr(log_member.layout, "topology_at", found)
    return found


def test_data_that_are_not_readable_yet_are_tried_again(log, clock, unreadable):
    made = log.make(RING)
    with Slow(log, clock) as slow:
        clock.set((made.time >> 18) + 1)
        with is_unavailable("not retrieved"):
            slow.generations.stream(made.time, TOKEN)
        slow.following.step(0)
        assert unreadable.asked == 2
        unreadable.readable = True
        slow.following.step(0)
        assert slow.generations.stream(made.time, TOKEN) == log.topology(made).stream_for(TOKEN)


@pytest.mark.parametrize("unreadable", [CorruptTopologyError("half of it")], indirect=True)
def test_a_topology_that_is_not_sound_is_read_again_after_pauses(log, clock, unreadable):
    """Each try reads all of it, which may be many MB."""
    made = log.make(RING)
    clock.set((made.time >> 18) + 1)
    began = monotonic()
    with Slow(log, clock) as slow:
        for _ in range(50):
            slow.following.step(0)
        slow.following.begin()  # as after an outage: that does not begin anew
        assert unreadable.asked <= 2 + (monotonic() - began) / log_member.CORRUPT_S_MIN
        unreadable.readable = True
        until(lambda: slow.following.step(0) or not slow.following._missing)
        assert slow.generations.stream(made.time, TOKEN) == log.topology(made).stream_for(TOKEN)


def test_an_answer_waits_until_the_rows_can_be_read(log, clock, unreadable):
    with Slow(log, clock) as slow:
        made = in_background(lambda: log.make(RING, timeout=60))
        until_pending(log)
        slow.catch_up()
        assert not made.done()
        unreadable.readable = True
        slow.catch_up_until(made)
    assert made.result().ranges == 2


def test_a_watch_that_was_overtaken_begins_again(log, clock, monkeypatch):
    with Slow(log, clock) as slow:
        watch = slow.following._watch

        def overtaken(timeout):
            raise CompactedError(1, 2)

        monkeypatch.setattr(watch, "next", overtaken)
        made = in_background(lambda: log.make(RING, timeout=60))
        slow.catch_up_until(made)
        assert slow.generations.times == (made.result().time,)


def test_a_member_outlives_an_outage(log, clock, monkeypatch):
    """Its thread begins again until it can."""
    step, begin = log_member.LogFollower.step, log_member.LogFollower.begin
    down = [True] * 3

    def failing(self, *args):
        if down and down.pop():
            raise EngineUnavailableError("down")
        return begin(self, *args) if not args else step(self, *args)

    with log.member("node", generations=Generations(clock=clock)) as node:
        monkeypatch.setattr(log_member.LogFollower, "step", failing)
        monkeypatch.setattr(log_member.LogFollower, "begin", failing)
        made = log.make(RING, timeout=60)
        while node.generations.times != (made.time,):
            node.catch_up(0.05)
        assert down == []
        assert node.stream(made.time, TOKEN)


def test_a_step_begins_again_where_that_failed(log, clock, monkeypatch):
    """A watch was overtaken, and just then the engine was away."""
    with Slow(log, clock) as slow:
        monkeypatch.setattr(slow.following._watch, "next", overtaken)
        monkeypatch.setattr(log_member.layout, "read_state", away)
        with pytest.raises(EngineUnavailableError):
            slow.following.step(0)
        with pytest.raises(EngineUnavailableError):
            slow.following.step(0)
        monkeypatch.undo()
        made = in_background(lambda: log.make(RING, timeout=60))
        slow.catch_up_until(made)
        assert slow.generations.times == (made.result().time,)


def overtaken(timeout):
    raise CompactedError(1, 2)


def away(space):
    raise EngineUnavailableError("down")


# --- members whose thread or session ended ---


def test_a_member_that_knows_a_generation_which_never_was_counts_no_more(log, clock):
    """The store was restored from before it: its streams are nobody's, and nobody reads them."""
    first = log.make(RING)
    snapshot = log.at()
    with log.member("node", generations=Generations(clock=clock)) as node:
        second = log.make(RING)
        until(lambda: node.generations.times == (first.time, second.time))
        key = layout.generation_key(second.time)
        log._space.commit(puts={layout.HEAD: snapshot[layout.HEAD]}, deletes=[key])
        node._following.close()  # as when the engine was away meanwhile
        until(lambda: not node.alive)
        with pytest.raises(MemberLostError):
            node.stream(first.time, TOKEN)
        with pytest.raises(StoreRestoredError):
            log.member("again", generations=node.generations)
    with log.member("anew", generations=Generations(clock=clock)) as anew:
        assert anew.stream(first.time, TOKEN) == log.topology(first).stream_for(TOKEN)


def test_generations_that_were_removed_are_no_other_history(log, clock, store):
    log.make(RING)
    with Slow(log, clock) as slow:
        made = in_background(lambda: log.make(RING, timeout=60))
        slow.catch_up_until(made)
        held = slow.generations.times
        clock.set((made.result().time >> 18) + 10_000)
        assert len(log.expire(0).removed) == 1
        slow.following.begin()
        assert slow.generations.times == held


def test_a_member_whose_thread_fails_counts_no_more(log, clock, monkeypatch):
    """It is told, writes are refused, and switches do not wait for it."""
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    first = log.make(RING)
    with log.member("node", generations=Generations(clock=clock)) as node:
        assert node.stream(first.time, TOKEN)

        def failing(self, timeout):
            raise ZeroDivisionError

        monkeypatch.setattr(log_member.LogFollower, "step", failing)
        until(lambda: told)
        assert told == [ZeroDivisionError]
        with pytest.raises(MemberLostError):
            node.stream(first.time, TOKEN)
        assert log.store.sessions() == []
        assert log.make(RING, timeout=5)


def test_a_member_that_is_closed_while_it_begins_leaves_no_watch(log, clock, monkeypatch):
    began, closed = threading.Event(), threading.Event()
    begin = log_member.LogFollower.begin

    def late(self, timeout):
        began.set()
        closed.wait(WAIT_S)
        begin(self)

    monkeypatch.setattr(log_member.LogFollower, "step", late)
    node = log.member("node", generations=Generations(clock=clock))
    assert began.wait(WAIT_S)
    monkeypatch.setattr(node._thread, "join", lambda timeout: None)
    node.close()
    closed.set()
    threading.Thread.join(node._thread, WAIT_S)
    assert node._following._watch is None


def test_who_lost_its_session_does_not_wait_for_a_generation(log, clock):
    """Nothing will come: that is told at once, not at the end of the timeout."""
    with log.member("node", generations=Generations(clock=clock)) as node:
        node._session.close()
        with pytest.raises(MemberLostError):
            node.stream(pack(clock.now_ms()), TOKEN)
        with pytest.raises(MemberLostError):
            CdcLog(log.store, node).write(b"k", b"v", timeout=30)


def test_streams_of_many_writes(log, clock):
    made = log.make(RING)
    stamps, tokens = np.full(3, made.time, np.uint64), np.array([-200, 5, 200])
    with log.member("node", generations=Generations(clock=clock)) as node:
        found = node.streams(stamps, tokens)
        assert [StreamId(bytes(each)) for each in found] == [
            node.stream(made.time, token) for token in tokens.tolist()
        ]
        node._session.close()
        with pytest.raises(MemberLostError):
            node.streams(stamps, tokens)
