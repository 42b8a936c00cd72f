"""Consumers: every row once, generation after generation; and the expiry of what they passed."""

from itertools import pairwise

import pytest
from cases import cases
from changes.losing import Losing
from store.wrapping import wrap_engines

import snapkv
from cdcmeta.errors import (
    ConsumerTakenError,
    GenerationNotFoundError,
    InvalidArgumentError,
)
from cdcmeta.generations import (
    CdcLog,
    ConsumerId,
    GenerationLog,
    Sharding,
    StreamConsumer,
)
from snapkv import CommitUnknownError, pack
from snapkv.errors import EngineUnavailableError

from .refused import is_unavailable
from .tables import Site, rows_of

pytestmark = pytest.mark.slow

RING = {-100: Sharding(2), 100: Sharding(3)}
WIDER = RING | {0: Sharding(2)}


@pytest.fixture
def log(store):
    return GenerationLog(store, propagation_delay=0.0, leeway=5.0)


@pytest.fixture
def site(log, store, clock):
    return Site(log, store, clock, window=3.0)


@pytest.fixture
def long_site(site):
    """Three generations, each with rows, and idle time."""
    for ring in (RING, WIDER, RING):
        site.switch(ring)
        site.write(12)
        site.clock.advance(600_000)
    site.store.tick()
    return site


def test_every_row_comes_once_and_in_order(long_site):
    consumer = long_site.consumer()
    assert rows_of(consumer) == long_site.written
    assert rows_of(consumer) == []
    long_site.write(3)
    assert rows_of(consumer) == long_site.written[-3:]


def test_a_generation_is_finished_before_the_next_begins(long_site):
    windows = list(long_site.consumer())
    times = [each.time for each in long_site.log.generations()]
    assert [window.generation.time for window in windows if window.rows] == sorted(
        window.generation.time for window in windows if window.rows
    )
    for before, after in pairwise(windows):
        assert before.end == after.begin
    ends = {window.generation.time: window.end for window in windows}
    assert [ends[time] for time in times[:-1]] == [time - 1 for time in times[1:]]
    assert [window.is_last for window in windows].count(True) == 2
    for window in windows:
        assert all(window.begin < row.timestamp <= window.end for row in window.rows)


def test_windows_are_as_long_as_told_and_idle_time_is_passed_quickly(site):
    site.switch(RING)
    site.write(9, 1_000)
    site.clock.advance(30 * 86_400_000)
    site.write(1)
    consumer = site.consumer(window=2.0)
    windows = list(consumer)
    assert all(window.end - window.begin <= pack(2_000) for window in windows[:3])
    assert len(windows) < 40  # of 1,296,000 windows of 2 s
    site.write(9, 1_000)  # after rows they are short again
    assert all(window.end - window.begin <= pack(2_000) for window in consumer)


def test_a_crash_repeats_at_most_one_window(long_site):
    got, windows = [], iter(long_site.consumer())
    window = next(windows)
    while len(window.rows) == 0 or len(got) < 8:
        got += window.rows
        window = next(windows)
    del windows  # with the last one in hand, not saved
    again = long_site.consumer()
    assert got + rows_of(again) == long_site.written


def test_two_under_one_name_are_told(long_site):
    one, two = long_site.consumer(), long_site.consumer()
    first = next(window for window in iter(one.next, None) if window.rows)
    one.save(first)
    for _ in "ab":  # it does not go on as if it were saved
        with pytest.raises(ConsumerTakenError):
            rows_of(two)
    assert two.progress.position < first.end


@pytest.fixture
def losing(place, clock, monkeypatch):
    """A site whose engine loses what the test says, and that engine."""
    engines = wrap_engines(monkeypatch, Losing)
    store = place.open(clock=clock)
    log = GenerationLog(store, propagation_delay=0.0, leeway=5.0)
    site = Site(log, store, clock, window=3.0)
    site.switch(RING)
    site.write(9)
    yield site, engines[-1]
    engines[-1].cut = False


@pytest.mark.parametrize("fate", ["after, then cut", "before, then cut"])
@pytest.mark.parametrize("same", [True, False])
def test_a_save_whose_outcome_is_unknown_is_settled_by_the_next(losing, fate, same, monkeypatch):
    site, engine = losing
    consumer = site.consumer()
    window = consumer.next()
    assert window.rows
    commit = type(site.log._space).commit
    monkeypatch.setattr(
        type(site.log._space),
        "commit",
        lambda self, *args, **more: commit(self, *args, **more | {"timeout": 0.2}),
    )
    engine.plan = [fate]
    with pytest.raises(CommitUnknownError):
        consumer.save(window)
    with pytest.raises(EngineUnavailableError):
        consumer.save(window)  # it is still away
    engine.cut = False
    monkeypatch.undo()
    if not same:
        window = consumer.next(until=window.end + pack(1_000)) or window
    consumer.save(window)
    saved = site.log.consumers()[ConsumerId("default", "c")]
    assert saved.position == window.end == consumer.progress.position
    assert list(window.rows) + rows_of(consumer) == site.written
    assert rows_of(site.consumer()) == []


def test_a_save_that_somebody_else_was_before(losing, monkeypatch):
    """What is settled is this one's own commit: the same bytes of another do not count."""
    site, engine = losing
    one, two = site.consumer(), site.consumer()
    window = one.next()
    commit, log = type(site.log._space).commit, site.log

    def lost(self, *args, **more):
        engine.plan = ["before, then cut"]
        return commit(self, *args, **more | {"timeout": 0.2})

    monkeypatch.setattr(type(log._space), "commit", lost)
    with pytest.raises(CommitUnknownError):
        one.save(window)
    monkeypatch.undo()
    engine.cut, engine.plan = False, []
    two.save(two.next())
    with pytest.raises(ConsumerTakenError):
        one.save(window)


def test_where_a_consumer_begins(long_site):
    times = [each.time for each in long_site.log.generations()]
    middle = long_site.written[17].timestamp
    assert rows_of(long_site.consumer("a", since=middle)) == long_site.written[18:]
    behind = [row for row in long_site.written if row.timestamp >= times[1]]
    assert rows_of(long_site.consumer("b", since=times[1] - 1)) == behind
    assert rows_of(long_site.consumer("c", since=0)) == long_site.written
    assert rows_of(long_site.consumer("d", since="+0s")) == []


def test_rows_of_the_confidence_interval_wait(site):
    site.switch(RING)
    site.write(10, 1_000)
    consumer = site.consumer(confidence=4.0)
    assert rows_of(consumer) == site.written[:-4]
    site.clock.advance(4_000)
    site.store.tick()
    assert rows_of(consumer) == site.written[-4:]


def test_empty_generations_are_passed_over(site):
    site.switch(RING)
    site.write(2)
    for ring in (WIDER, RING, WIDER):
        site.clock.advance(10_000)
        site.switch(ring)
    site.clock.advance(10_000)
    site.write(2)
    assert rows_of(site.consumer()) == site.written


def test_before_there_is_a_generation(site):
    with is_unavailable("none"):
        site.consumer()
    assert site.log.consumers() == {}


def test_generations_and_rows_are_of_one_store(long_site, clock):
    with snapkv.open("memory:", clock=clock) as other:
        elsewhere = CdcLog(other, long_site.generations)
        with pytest.raises(InvalidArgumentError, match="the same store"):
            StreamConsumer(long_site.log, elsewhere, "c")
    assert long_site.log.consumers() == {}


@cases("name", ["", None, 5, b"c", True, float("nan"), ("c",)])
def test_names_that_cannot_be(long_site, name):
    with pytest.raises(InvalidArgumentError, match="name"):
        long_site.consumer(name)
    with pytest.raises(InvalidArgumentError, match="name"):
        long_site.log.forget(name)
    assert long_site.log.consumers() == {}


def test_asking_often_does_not_make_windows_long(site):
    """A window that ends at the newest commit was not passed quickly: it was cut off."""
    site.switch(RING)
    consumer = site.consumer(window=3.0)
    for _ in range(40):  # each finds 100 ms
        site.clock.advance(100)
        site.store.tick()
        assert rows_of(consumer) == []
    site.write(30, 60_000)
    windows = [window for window in consumer if window.rows]
    assert max(len(window.rows) for window in windows) <= 2
    assert [row for window in windows for row in window.rows] == site.written


def test_a_window_stays_the_next_one_until_it_is_saved(long_site):
    consumer = long_site.consumer()
    window = consumer.next()
    assert consumer.next() == window
    middle = (window.begin + window.end) // 2
    cut = consumer.next(until=middle)
    assert (cut.begin, cut.end) == (window.begin, middle)
    assert consumer.next(until=window.begin) is None
    consumer.save(window)
    assert consumer.next().begin == window.end


def test_windows_without_rows_are_yielded_too(site):
    """scylla-cdc-go: TestConsumerCallsEmptyCallback."""
    site.switch(RING)
    site.clock.advance(60_000)
    site.store.tick()
    windows = list(site.consumer(window=3.0))
    assert len(windows) > 2
    assert all(window.rows == () for window in windows)
    assert [each.begin for each in windows[1:]] == [each.end for each in windows[:-1]]


@pytest.mark.parametrize(
    "more",
    [{"window": -1}, {"window": "x"}, {"window": float("inf")}, {"confidence": None}],
)
def test_windows_that_cannot_be(long_site, more):
    with pytest.raises(InvalidArgumentError):
        long_site.consumer(**more)


# --- expiry ---


def test_superseded_generations_are_marked_then_removed(long_site):
    log, clock = long_site.log, long_site.clock
    first, second, third = log.generations()
    now = long_site.store.timestamp_of("-0s") - pack(5_000)  # less the leeway
    expired = log.expire(10**9)
    assert [each.time for each in expired.marked] == [first.time, second.time]
    assert [each.expired for each in log.generations()] == [now, now, None]
    assert [row.expired for row in log.table()] == [None, now, now]
    assert log.expire(10**9) == type(expired)((), ())
    age_of_second = (now - third.time) // pack(1_000)
    assert log.expire(age_of_second + 1).removed[0].time == first.time
    assert [each.time for each in log.generations()] == [second.time, third.time]
    clock.advance(10_000)
    long_site.store.tick()
    assert [each.time for each in log.expire(0).removed] == [second.time]
    assert log.generations() == [third]
    for gone in (first, second):
        with pytest.raises(GenerationNotFoundError):
            log.topology(gone)
    assert log.topology(third).shardings() == RING


def test_the_one_that_operates_and_those_to_come_stay(site):
    first = site.switch(RING)
    second = site.switch(WIDER)  # five seconds ahead
    assert site.log.expire(0) == type(site.log.expire(0))((), ())
    site.clock.set((second.time >> 18) + 4_999)  # the old one may be written to until then
    assert site.log.expire(0).removed == ()
    site.clock.advance(2)
    assert [each.time for each in site.log.expire(0).removed] == [first.time]
    assert site.log.expire(0).removed == ()


def test_what_a_consumer_has_not_passed_is_kept(long_site):
    log = long_site.log
    consumer = long_site.consumer()
    first, second, third = log.generations()
    assert log.expire(0).removed == ()
    windows = iter(consumer)
    while not next(windows).is_last:
        assert log.expire(0).removed == ()
    assert log.expire(0).removed == ()  # read, not saved
    next(windows)
    assert [each.time for each in log.expire(0).removed] == [first.time]
    for _ in windows:
        pass
    assert [each.time for each in log.expire(0).removed] == [second.time]
    assert log.consumers()[ConsumerId("default", "c")].generation == third.time


def test_an_idle_consumer_passes_generations_without_rows(site):
    """Its progress is saved at the end of one, and at the beginning of the next."""
    first = site.switch(RING)
    consumer = site.consumer()
    site.clock.advance(60_000)
    second = site.switch(WIDER)
    site.clock.advance(60_000)
    site.store.tick()
    window = consumer.next()
    while not window.is_last:
        consumer.save(window)
        window = consumer.next()
    assert window.rows == ()
    assert site.log.expire(0).removed == ()
    consumer.save(window)
    assert [each.time for each in site.log.expire(0).removed] == [first.time]
    assert site.log.consumers()[ConsumerId("default", "c")].generation == first.time
    consumer.save(consumer.next())
    assert site.log.consumers()[ConsumerId("default", "c")].generation == second.time


def test_a_consumer_that_was_forgotten_keeps_nothing(long_site):
    log = long_site.log
    consumer = long_site.consumer()
    assert log.forget("c")
    assert not log.forget("c")
    assert len(log.expire(0).removed) == 2
    with pytest.raises(GenerationNotFoundError):
        consumer.next()


def test_a_consumer_that_comes_while_something_is_removed(long_site, monkeypatch):
    """Whoever registers between the look and the removal is seen by its guard."""
    log, late = long_site.log, []
    space = log._space
    commit = type(space).commit

    def first_register(self, *args, **more):
        if not late and self is space:
            late.append(True)
            late.append(long_site.consumer("late"))
        return commit(self, *args, **more)

    monkeypatch.setattr(type(space), "commit", first_register)
    assert log.expire(0).removed == ()
    monkeypatch.undo()
    assert rows_of(late[1]) == long_site.written
