"""Whatever is late, lost or dead: no write in a stream of the wrong generation, no row unread."""

import contextlib

import pytest
from sampling import first_of

from cdcmeta.errors import SwitchPendingError
from cdcmeta.generations import CdcLog, Sharding, StreamConsumer, murmur3_token
from snapkv.errors import CommitUnknownError

from .simulated import Died, Dying, World

pytestmark = pytest.mark.slow

STEPS = 500
SEEDS = range(60)


@pytest.fixture
def world(request):
    world = World(request.param)
    yield world
    world.close()


def assert_right_streams(world):
    generations = world.log.generations()
    topologies = {each.time: world.log.topology(each) for each in generations}
    logged = [(row.timestamp, murmur3_token(row.key), row.stream) for row in world.logged]
    for ts, token, stream in world.writes + logged:
        own = max((time for time in topologies if time <= ts), default=None)
        assert own is not None, f"{ts} is before all generations"
        assert topologies[own].stream_for(token) == stream, (ts, own)


@pytest.mark.long_after(2)
@pytest.mark.parametrize(
    "world", first_of(SEEDS, one_in=3), indirect=True, ids=lambda seed: f"seed-{seed}"
)
def test_no_write_is_logged_under_a_stream_of_the_wrong_generation(world):
    for _ in range(STEPS):
        world.act()
    world.heal()
    assert_right_streams(world)
    rows = [row for window in reader(world) for row in window.rows]
    assert rows == sorted(world.logged)
    assert len({row.stamp for row in rows}) == len(rows)


def reader(world):
    world.store.tick()
    log = CdcLog(world.store, world.peers[0])
    return StreamConsumer(world.log, log, "reader", window=7.0)


def test_the_simulation_saw_all_of_it():
    """The programs above are worth something: everything happened, and often."""
    world = World(1_000)
    for _ in range(4 * STEPS):
        world.act()
    world.heal()
    assert_right_streams(world)
    assert all(count > 3 for count in world.outcomes.values()), world.outcomes
    assert len(world.log.generations()) > 10
    assert min(len(world.writes), len(world.logged)) > 50
    world.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("commits", range(5))
def test_a_step_of_which_nobody_knows(commits, after):
    """Whether it happened or not, it is tried again, and happens once."""
    world = World(7)
    log, ring = world.log, {-50: Sharding(2), 50: Sharding(1)}
    unknown = CommitUnknownError(1, bytes(16), may_still_land=True)
    unsure = Dying(log._space, commits, after=after, error=unknown)
    log._coordinator._space = unsure
    for _ in range(3):
        with contextlib.suppress(SwitchPendingError):
            log.regenerate_if_needed(ring, timeout=0.0)
        for peer in world.peers:
            while peer.following.step(0):
                pass
    assert unsure.used == (commits < 4)
    assert [log.topology(each).shardings() for each in log.generations()[1:]] == [ring]
    assert log.pending() is None
    world.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("commits", range(5))
def test_a_coordinator_that_dies_at_any_step(commits, after):
    """claim, rows, prepare, and what decides: the next one completes it or rolls it back."""
    world = World(7)
    log, ring = world.log, {-50: Sharding(2), 50: Sharding(1)}
    coordinator, space = log._coordinator, log._space
    coordinator._space = Dying(space, commits, after=after)
    try:
        for _ in range(3):
            try:
                log.make(ring, timeout=0.0)
            except SwitchPendingError:
                for peer in world.peers:
                    peer.following.step(0)
    except Died:
        pass
    coordinator._space = space
    decided = log.generations()
    world.heal()
    prepared = commits + after > 2
    assert (len(log.generations()) == 2) == prepared, "an unprepared one is rolled back"
    assert decided == log.generations()[: len(decided)]
    rows = [key for key in space.at() if key.startswith(b"\x02rows\x00")]
    assert len(rows) == (3 if prepared else 1), "nothing is left of what was rolled back"
    if prepared:
        assert log.regenerate_if_needed(ring, timeout=0.0) == log.generations()[-1]
    world.close()
