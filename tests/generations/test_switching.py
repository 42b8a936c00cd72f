"""The two-phase switch: what becomes of it when members answer, cannot, or do not."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdcmeta.errors import (
    GenerationNotFoundError,
    InvalidArgumentError,
    MemberLostError,
    SwitchAbortedError,
    SwitchPendingError,
)
from cdcmeta.generations import GenerationLog, Generations, Sharding
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.log_member import LogFollower
from snapkv import ManualClock, pack
from snapkv.base.waiting import monotonic, pause
from tests.generations.conftest import DELAY_S, LEEWAY_S
from tests.generations.refused import is_unavailable

pytestmark = pytest.mark.slow

RING = {-100: Sharding(2), 100: Sharding(3)}
WIDER = RING | {0: Sharding(2)}
DELAY = pack(round((2 * DELAY_S + LEEWAY_S) * 1_000))
TOKEN = 7
WAIT_S = 20


class Slow:
    """A member whose part is done step by step, by the test."""

    def __init__(self, log, clock, name="slow"):
        self.log = log
        self.session = log.store.session(60.0, log._session_prefix + name.encode())
        generations = Generations(clock=clock)
        self.following = LogFollower(log.store, log._space, self.session, generations)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.following.close()
        self.session.close()

    @property
    def generations(self):
        return self.following.generations

    def catch_up(self):
        while self.following.step(0.2):
            pass

    def catch_up_until(self, future):
        deadline = monotonic() + WAIT_S
        while not future.done():
            assert monotonic() < deadline
            self.following.step(0.1)
        self.catch_up()


@pytest.fixture
def slow(log, clock):
    with Slow(log, clock) as member:
        yield member


def in_background(work):
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def until(holds):
    deadline = monotonic() + WAIT_S
    while not holds():
        assert monotonic() < deadline
        pause(0.005)


def until_pending(log, phase=layout.PREPARED):
    with log._space.watch(layout.SWITCH) as watch:
        while (switch := log.pending()) is None or switch.phase != phase:
            assert watch.next(WAIT_S) is not None
    return switch


# --- what is made ---


def test_the_first_generation_operates_at_once(log, store):
    made = log.make(RING)
    assert made.time == made.made == store.resolved()
    assert (made.ranges, made.streams, made.expired) == (2, 5, None)
    assert log.generations() == [made]
    assert log.pending() is None
    assert log.topology(made).shardings() == RING


def test_later_ones_begin_ahead_of_their_commit(log):
    log.make(RING)
    second = log.make(WIDER)
    assert second.time == second.made + DELAY
    third = log.make(RING)
    assert third.time == third.made + DELAY > second.time


def test_times_grow_even_when_the_delay_was_cut(log, store):
    log.make(RING)
    second = log.make(WIDER)
    sooner = GenerationLog(store, propagation_delay=0.0, leeway=0.0)
    assert sooner.make(RING).time == second.time + 1


def test_data_first_and_the_time_last(log, store):
    """Nobody ever sees a generation whose rows are not there."""
    seen = []
    with store.space("generations/default").watch() as watch:
        log.make(RING)
        while (changes := watch.next(1.0)) is not None:
            seen.append(changes)
    notes = [changes.commit.note for changes in seen]
    assert notes == [f"generations: {step}" for step in ("claim", "rows", "prepare", "commit")]
    assert [change.key for change in seen[-1].changes if change.value][:1] == [
        layout.generation_key(log.generations()[0].time)
    ]


@pytest.mark.parametrize("ring", [{}, {"a": Sharding(1)}, {5: Sharding(0)}])
def test_rings_that_cannot_be_write_nothing(log, store, ring):
    before = store.resolved()
    with pytest.raises(InvalidArgumentError):
        log.make(ring)
    assert store.resolved() == before


def test_large_topologies_are_written_in_parts(log, store):
    ring = {n * 1_000: Sharding(9) for n in range(9_000)}
    made = log.make(ring)
    assert (made.ranges, made.streams) == (9_000, 81_000)
    assert log.topology(made).shardings() == ring
    parts = [commit for commit in store.commits() if commit.note == "generations: rows"]
    assert len(parts) > 2


# --- when it is needed ---


def test_regenerate_if_needed(log):
    first = log.regenerate_if_needed(RING)
    assert log.regenerate_if_needed(dict(reversed(RING.items()))) == first
    more = log.regenerate_if_needed(WIDER)
    fewer = log.regenerate_if_needed(RING)  # a node was decommissioned
    shards = log.regenerate_if_needed(RING | {100: Sharding(4)})
    slices = log.regenerate_if_needed(RING | {100: Sharding(4, 11)})
    made = [first, more, fewer, shards, slices]
    assert log.generations() == made
    assert len({each.ring for each in made}) == 4


def test_ten_requests_at_once_make_one_generation(log, place, clock):
    log.make(RING)
    stores = [log.store, place.open(clock=clock)]
    logs = [GenerationLog(store, propagation_delay=DELAY_S, leeway=LEEWAY_S) for store in stores]
    start = threading.Barrier(10)

    def ask(n):
        start.wait(WAIT_S)
        return logs[n % 2].regenerate_if_needed(WIDER, timeout=60)

    with log.member(), ThreadPoolExecutor(10) as pool:
        made = list(pool.map(ask, range(10)))
    assert len(set(made)) == 1
    assert len(log.generations()) == 2


def test_another_request_waits_for_its_turn(log, clock):
    with Slow(log, clock) as slow:
        first = in_background(lambda: log.make(RING, timeout=60))
        until_pending(log)
        second = in_background(lambda: log.make(WIDER, timeout=60))
        slow.catch_up_until(first)
        slow.catch_up_until(second)
    assert log.generations() == [first.result(), second.result()]
    assert log.topology(second.result()).shardings() == WIDER


def test_a_request_that_times_out_leaves_the_switch_to_go_on(log, clock):
    with Slow(log, clock) as slow:
        with pytest.raises(SwitchPendingError) as caught:
            log.make(RING, timeout=0.1)
        joined = in_background(lambda: log.make(RING, timeout=60))
        slow.catch_up_until(joined)
    assert joined.result().id == caught.value.id
    assert log.generations() == [joined.result()]


# --- what members say ---


def test_a_switch_waits_for_every_member(log, slow):
    with log.member("quick"):
        made = in_background(lambda: log.make(RING, timeout=60))
        switch = until_pending(log)
        with pytest.raises(SwitchPendingError):
            log.repair(timeout=0.5)
        assert not made.done()
        slow.catch_up()
        generation = made.result(WAIT_S)
        assert generation.id == switch.id
    slow.catch_up()
    assert slow.generations.times == (generation.time,)
    assert slow.generations.stream(generation.time, TOKEN)


def test_a_member_that_ends_is_waited_for_no_more(log, clock):
    with Slow(log, clock):
        made = in_background(lambda: log.make(RING, timeout=60))
        until_pending(log)
    assert made.result(WAIT_S).ranges == 2


def test_members_of_another_log_have_no_say(log, store, clock):
    other = GenerationLog(store, "other")
    with Slow(other, clock) as stranger:
        assert len(store.sessions()) == 1
        with store.session(60.0, b"somebody else"):
            assert log.make(RING, timeout=5).ranges == 2
        stranger.catch_up()
        assert stranger.generations.times == ()


def test_between_the_phases_new_writes_are_refused_rather_than_guessed(log, clock):
    first = log.make(RING)
    with Slow(log, clock, "one") as one, Slow(log, clock, "two") as two:
        made = in_background(lambda: log.make(WIDER, timeout=60))
        switch = until_pending(log)
        one.catch_up()
        clock.advance(21_000)
        assert one.generations.stream(switch.not_before - 1, TOKEN)
        with is_unavailable("undecided"):
            one.generations.stream(switch.not_before, TOKEN)
        assert two.generations.stream(switch.not_before, TOKEN)  # has not heard, nor answered
        two.catch_up_until(made)
        one.catch_up()
    second = made.result()
    assert second.time > switch.not_before
    old, new = log.topology(first), log.topology(second)
    for member in (one, two):
        clock.set(second.time >> 18)
        assert member.generations.stream(second.time - 1, TOKEN) == old.stream_for(TOKEN)
        clock.advance(1)
        assert member.generations.stream(second.time, TOKEN) == new.stream_for(TOKEN)


def test_the_new_one_begins_behind_every_write_that_a_member_let_through(log, clock):
    """Also where that member's clock is ahead of all that was agreed."""
    log.make(RING)
    with Slow(log, ManualClock(clock.now_ms() + 3_600_000), "ahead") as ahead:
        late = pack(clock.now_ms() + 3_600_000)
        ahead.generations.stream(late, TOKEN)
        made = in_background(lambda: log.make(WIDER, timeout=60))
        ahead.catch_up_until(made)
    assert made.result().time == late + 1


def test_a_member_that_does_not_answer_in_time(log, slow, clock):
    made = in_background(lambda: log.make(RING, timeout=60))
    switch = until_pending(log)
    clock.advance(31_000)
    with pytest.raises(SwitchAbortedError, match="in time: slow") as caught:
        made.result(WAIT_S)
    assert caught.value.id == switch.id
    assert (log.generations(), log.pending()) == ([], None)
    assert list(log._space.at().items(layout.rows_prefix(switch.id))) == []
    slow.catch_up()
    assert slow.generations.times == ()


def test_a_member_that_cannot_read_the_rows_refuses(log, slow, store):
    made = in_background(lambda: log.make(RING, timeout=60))
    switch = until_pending(log)
    space = store.space("generations/default")
    (key, value), *_ = space.at().items(layout.rows_prefix(switch.id))
    space.commit(puts={key: value[:-16]})
    slow.catch_up_until(made)
    with pytest.raises(SwitchAbortedError, match="the rows have"):
        made.result(WAIT_S)
    assert (log.generations(), log.pending()) == ([], None)


def test_after_an_abort_members_go_on_as_before(log, clock):
    first = log.make(RING)
    with Slow(log, clock, "one") as one, Slow(log, clock, "mute"):
        made = in_background(lambda: log.make(WIDER, timeout=60))
        switch = until_pending(log)
        one.catch_up()
        clock.advance(31_000)
        with pytest.raises(SwitchAbortedError, match="mute"):
            made.result(WAIT_S)
        one.catch_up()
        clock.set((switch.not_before >> 18) + 1)
        assert one.generations.stream(switch.not_before, TOKEN)
    assert log.generations() == [first]


# --- members ---


def test_members_follow_by_themselves(log, clock):
    with log.member("node-1", generations=Generations(clock=clock)) as member:
        first = log.make(RING)
        until(lambda: member.generations.times == (first.time,))
        second = log.make(WIDER)
        until(lambda: member.generations.times == (first.time, second.time))
        assert member.stream(first.time, TOKEN) == log.topology(first).stream_for(TOKEN)
        clock.set((second.time >> 18) + 1)
        assert member.stream(second.time, TOKEN) == log.topology(second).stream_for(TOKEN)
        assert member.alive
    assert not member.alive
    with pytest.raises(MemberLostError):
        member.stream(second.time, TOKEN)


def test_one_who_comes_later_knows_all_that_may_be_written_to(log, clock):
    first, second = log.make(RING), log.make(WIDER)
    with log.member(generations=Generations(clock=clock)) as member:
        assert member.generations.times == (first.time, second.time)
        assert member.stream(first.time, TOKEN)


def test_one_who_comes_between_the_phases_sees_the_switch(log, clock):
    log.make(RING)
    with Slow(log, clock, "early") as early:
        made = in_background(lambda: log.make(WIDER, timeout=60))
        switch = until_pending(log)
        with Slow(log, clock, "late") as late:
            clock.advance(21_000)
            with is_unavailable("undecided"):
                late.generations.stream(switch.not_before, TOKEN)
            early.catch_up_until(made)
    assert made.result()


def test_a_member_that_lost_its_session_refuses_writes(log, clock):
    first = log.make(RING)
    with log.member(generations=Generations(clock=clock)) as member:
        assert member.stream(first.time, TOKEN)
        member._session.close()
        with pytest.raises(MemberLostError):
            member.stream(first.time, TOKEN)


# --- reading ---


def test_what_clients_ask(log):
    first, second = log.make(RING), log.make(WIDER)
    assert log.operating_at(first.time - 1) is None
    assert log.operating_at(first.time) == log.operating_at(second.time - 1) == first
    assert log.operating_at(second.time) == second
    assert log.next_after(first.time - 1) == first
    assert log.next_after(first.time) == second
    assert log.next_after(second.time) is None
    assert len(log.streams_of(second)) == 7
    assert [(row.time, row.expired) for row in log.table()] == [
        (second.time, None),
        (first.time, None),
    ]
    assert next(log.table()).streams == log.streams_of(second)
    assert log.generations(as_of=second.made - 1) == [first]


def test_rows_that_are_gone_are_told(log, store):
    made = log.make(RING)
    store.space("generations/default").commit(delete_prefixes=[layout.rows_prefix(made.id)])
    with pytest.raises(GenerationNotFoundError):
        log.topology(made)
