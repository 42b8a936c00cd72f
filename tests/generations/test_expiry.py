"""Which generations go: at the edges computed for ScyllaDB, and when two expire at once."""

import pytest
from cases import cases

from cdcmeta.errors import GenerationNotFoundError, InvalidArgumentError
from cdcmeta.generations import GenerationLog, Sharding
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.generation_layout import ConsumerId, Generation, Progress
from cdcmeta.generations.generation_log import expire
from snapkv import ManualClock, pack, to_datetime

LEEWAY_S, RING_DELAY_S = 5, 30
TIMES = (100, 200, 300)


def at(seconds):
    return pack(seconds * 1_000)


@pytest.fixture
def space(store):
    """A log whose generations begin at exactly 100, 200 and 300 s, each with a row."""
    space = store.space(layout.space_of("default"))
    puts = {layout.HEAD: layout.number(at(TIMES[-1]))}
    for seconds in TIMES:
        id = b"%016d" % seconds
        made = Generation(at(seconds), id, b"ring", 1, 1, made=at(seconds))
        puts[layout.generation_key(made.time)] = layout.encode(made)
        puts[layout.row_key(layout.rows_prefix(id), bytes(8))] = b"row"
    space.commit(puts=puts)
    return space


def left(space):
    """Return the generations that are listed, and those that have rows."""
    listed = [key for key, _ in space.at().items(layout.GENERATION_PREFIX)]
    times = [seconds for seconds in TIMES if layout.generation_key(at(seconds)) in listed]
    rows = [
        seconds
        for seconds in TIMES
        if list(space.at().items(layout.rows_prefix(b"%016d" % seconds)))
    ]
    return times, rows


@pytest.mark.parametrize(
    ("now", "needed_by", "kept"),
    [
        (340, None, [300]),
        (335, None, [300]),
        (334, None, [200, 300]),
        (330, 200, [200, 300]),
        (330, 100, [100, 200, 300]),
        (340, 200, [200, 300]),  # whoever needs one keeps it, however old it is
        (10**6, 100, [100, 200, 300]),
        (235, None, [200, 300]),
        (234, None, [100, 200, 300]),
        (100, None, [100, 200, 300]),
    ],
)
def test_garbage_collection(space, log, now, needed_by, kept):
    """facts 3.8: the newest one that began before `now` less leeway and ring delay stays."""
    if needed_by is not None:
        log.register([ConsumerId("t", "c")], Progress(at(needed_by), at(needed_by) - 1))
    expire(space, at(now - LEEWAY_S), at(RING_DELAY_S))
    assert left(space) == (kept, kept)


@pytest.mark.parametrize(("early", "kept"), [(0, [300]), (1, [200, 300])])
def test_the_edge_is_as_fine_as_timestamps_are(space, early, kept):
    expire(space, at(330) - early, at(RING_DELAY_S))
    assert left(space) == (kept, kept)


@pytest.mark.parametrize(("early", "marked"), [(0, [at(100)]), (1, [])])
def test_one_is_marked_when_its_successor_operates(space, log, early, marked):
    expired = expire(space, at(200) - early, at(10**6))
    assert [each.time for each in expired.marked] == marked
    listed = {each.time: each.expired for each in log.generations()}
    assert listed == {at(each): None for each in TIMES} | dict.fromkeys(marked, at(200) - early)


@pytest.mark.parametrize(("missing", "kept"), [(0, [300]), (1, [200, 300])])
def test_a_consumer_has_passed_a_generation_at_its_last_timestamp(space, log, missing, kept):
    log.register([ConsumerId("t", "c")], Progress(at(200), at(300) - 1 - missing))
    expire(space, at(1_000), 0)
    assert left(space) == (kept, kept)


def test_the_slowest_consumer_counts(space, log):
    log.register([ConsumerId("t", "fast")], Progress(at(300), at(300)))
    log.register([ConsumerId("t", "slow")], Progress(at(100), at(150)))
    expire(space, at(1_000), 0)
    assert left(space)[0] == [100, 200, 300]
    log.forget("slow", "t")
    expire(space, at(1_000), 0)
    assert left(space)[0] == [300]


def test_two_that_expire_at_once_leave_no_gap(space, log, monkeypatch):
    """Another one marks the first generation, so it cannot be removed: nor may the second be."""
    other = []
    before_the_first_commit(
        space, monkeypatch, lambda: other.append(expire(space, at(210), at(10**6)))
    )
    expired = expire(space, at(1_000), 0)
    assert [each.time for each in other[0].marked] == [at(100)]
    assert expired.removed == ()
    assert log.operating_at(to_datetime(at(250))).time == at(200)
    assert [each.time for each in expire(space, at(1_000), 0).removed] == [at(100), at(200)]


def before_the_first_commit(space, monkeypatch, do):
    """Do something just before the next commit in the space, as another process might."""
    commit, done = type(space).commit, []

    def second(self, *args, **more):
        if not done:
            done.append(True)
            do()
        return commit(self, *args, **more)

    monkeypatch.setattr(type(space), "commit", second)


def test_a_generation_that_is_removed_while_a_consumer_registers(space, log, monkeypatch):
    before_the_first_commit(space, monkeypatch, lambda: expire(space, at(1_000), 0))
    with pytest.raises(GenerationNotFoundError):
        log.register([ConsumerId("t", "c")], Progress(at(100), at(100) - 1))
    assert log.consumers() == {}


def test_two_that_register_one_name_at_once(space, log, monkeypatch):
    other, own = Progress(at(200), at(200)), Progress(at(100), at(100) - 1)
    before_the_first_commit(space, monkeypatch, lambda: log.register([ConsumerId("t", "c")], other))
    with pytest.raises(InvalidArgumentError, match="registered already"):
        log.register([ConsumerId("t", "c")], own)
    assert log.consumers() == {ConsumerId("t", "c"): other}


@pytest.mark.parametrize(("delay", "leeway"), [(30.0, 5.0), (5.0, 30.0), (120.0, 5.0)])
def test_a_clock_that_is_ahead_by_what_is_allowed_removes_nothing_in_use(
    place, clock, delay, leeway
):
    """A generation operates until the last member's clock has passed its successor's time."""
    seconds = max(delay, leeway)
    ahead = ManualClock(clock.now_ms())
    stores = [place.open(clock=each) for each in (clock, ahead)]
    here, there = (GenerationLog(each, propagation_delay=delay, leeway=leeway) for each in stores)
    first = here.make({5: Sharding(1)})
    second = here.make({7: Sharding(1)})
    clock.set((second.time >> 18) - 1)
    ahead.set(clock.now_ms() + round(seconds * 1_000))
    assert there.expire(0).removed == ()
    assert here.operating_at("-0s") == first
    ahead.advance(2)
    assert there.expire(0).removed == (first,)


@cases("retention", [-1, "7d", None, True, float("nan"), float("inf")])
def test_retentions_that_cannot_be(log, retention):
    with pytest.raises(InvalidArgumentError):
        log.expire(retention)
