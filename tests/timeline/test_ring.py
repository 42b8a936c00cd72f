"""The ring against a flat list, at every size where a circular array can go wrong."""

import itertools
import random
from bisect import bisect_right

import pytest

from snapkv.errors import InvalidOptionError, InvalidTypeError
from snapkv.layout import Mark
from snapkv.timeline import Ring

SLOTS = (1, 2, 3, 7, 1_024)
FILLS = {
    "0": lambda n: 0,
    "1": lambda n: 1,
    "n-1": lambda n: n - 1,
    "n": lambda n: n,
    "n+1": lambda n: n + 1,
    "2n": lambda n: 2 * n,
    "2n+1": lambda n: 2 * n + 1,
    "3n-1": lambda n: 3 * n - 1,
}


def marks(count, first=1, seed=0):
    """A run of marks with uneven gaps in time and revision."""
    rng = random.Random(seed)
    timestamp, revision, run = 10 * first, first + 1, []
    for ordinal in range(first, first + count):
        run.append(Mark(timestamp, revision, ordinal))
        timestamp += rng.choice((1, 1, 2, 50, 1 << 20))
        revision += rng.choice((1, 1, 3, 40))
    return run


def found_in(flat, timestamp):
    """What the ring should answer, from a flat list of the marks it should hold."""
    if not flat or not flat[0].timestamp <= timestamp <= flat[-1].timestamp:
        return None
    return flat[bisect_right([m.timestamp for m in flat], timestamp) - 1]


def assert_finds(ring, flat, timestamp):
    found = found_in(flat, timestamp)
    assert ring.find(timestamp) == found
    assert ring.revision_at(timestamp) == (found.revision if found else 0)


def assert_like(ring, flat):
    ring.check()
    assert len(ring) == len(flat)
    assert ring.oldest == (flat[0] if flat else None)
    assert ring.newest == (flat[-1] if flat else None)
    step = max(1, len(flat) // 200)
    for mark in [*flat[::step], *flat[-3:], *flat[:3]]:
        for timestamp in (mark.timestamp - 1, mark.timestamp, mark.timestamp + 1):
            if timestamp >= 0:
                assert_finds(ring, flat, timestamp)
    for timestamp in (0, 1 << 62):
        assert_finds(ring, flat, timestamp)
    following = dict(itertools.pairwise(flat))
    for mark in [*flat[::step], *flat[-2:]]:
        assert ring.after(mark) == following.get(mark)


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("first", [1, 5_000])
def test_filled_from_empty(slots, fill, first):
    run = marks(FILLS[fill](slots), first)
    ring = Ring(slots)
    for mark in run:
        assert ring.append(mark)
    assert_like(ring, run[-slots:])


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
def test_after_every_single_append(slots):
    run, ring = marks(5 * slots, seed=slots), Ring(slots)
    assert_like(ring, [])
    for at, mark in enumerate(run):
        ring.append(mark)
        assert_like(ring, run[max(0, at + 1 - slots) : at + 1])


@pytest.mark.parametrize("slots", SLOTS)
def test_every_lookup_in_the_window_hits_when_filled_from_empty(slots):
    # the ring this one descends from never answered again once it had filled from empty
    for count in (slots, slots + 1, slots + slots // 2, 5 * slots):
        run, ring = marks(count), Ring(slots)
        for mark in run:
            ring.append(mark)
        window = run[-slots:]
        assert [ring.find(mark.timestamp) for mark in window] == window
        ring.check()


@pytest.mark.parametrize("slots", [1, 2, 7])
@pytest.mark.parametrize("held", [1, 2, 6, 7, 8, 20])
def test_takes_only_the_next_ordinal(slots, held):
    run, ring = marks(held + 3), Ring(slots)
    for mark in run[:held]:
        ring.append(mark)
    flat = run[max(0, held - slots) : held]
    for refused in (*run[:held], run[held + 1], run[held + 2]):
        assert ring.append(refused) is False
        assert_like(ring, flat)
    assert ring.append(run[held]) is True
    assert_like(ring, [*flat, run[held]][-slots:])


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
@pytest.mark.parametrize("held", [0, 1, 7, 9])
def test_restart_holds_exactly_what_it_is_given(slots, held):
    ring = Ring(slots)
    for mark in marks(held):
        ring.append(mark)
    again = marks(2, first=900)
    ring.restart(*again)
    assert_like(ring, again[-slots:])
    more = marks(12, first=900)
    for mark in more[2:]:
        assert ring.append(mark)
    assert_like(ring, more[-slots:])
    ring.restart()
    assert_like(ring, [])


@pytest.mark.parametrize("slots", [1, 2, 7])
def test_cleared_it_takes_any_ordinal(slots):
    ring = Ring(slots)
    for mark in marks(10):
        ring.append(mark)
    ring.clear()
    assert_like(ring, [])
    late = marks(4, first=77)
    for mark in late:
        assert ring.append(mark)
    assert_like(ring, late[-slots:])


def test_after_knows_nothing_outside_its_window():
    run, ring = marks(10), Ring(3)
    for mark in run:
        ring.append(mark)
    assert ring.after(run[9]) is None
    assert ring.after(run[8]) == run[9]
    assert ring.after(run[6]) == run[7]
    assert ring.after(run[5]) is None
    assert ring.after(Mark(0, 0, 50)) is None
    assert Ring(3).after(run[0]) is None
    ring.check()


@pytest.mark.parametrize("slots", [2, 7])
def test_check_finds_a_broken_ring(slots):
    def broken(damage):
        ring = Ring(slots)
        for mark in marks(3 * slots + 1):
            ring.append(mark)
        ring.check()
        damage(ring)
        with pytest.raises(AssertionError):
            ring.check()

    broken(lambda ring: setattr(ring, "min_pos", ring.max_pos))
    broken(lambda ring: ring._timestamps.__setitem__(ring.max_pos, 0))
    broken(lambda ring: ring._revisions.__setitem__(ring.max_pos, 0))


@pytest.mark.parametrize("slots", [0, -1, (1 << 20) + 1])
def test_impossible_sizes(slots):
    with pytest.raises(InvalidOptionError):
        Ring(slots)


@pytest.mark.parametrize("slots", [True, 1.0, "7", None])
def test_sizes_of_another_type(slots):
    with pytest.raises(InvalidTypeError):
        Ring(slots)


class Interrupted(int):
    """A wanted timestamp; while it is searched, something else happens at one of its compares."""

    def __new__(cls, timestamp, compares, action):
        self = super().__new__(cls, timestamp)
        self.left, self.action = compares, action
        return self

    def _compare(self):
        self.left -= 1
        if self.left == 0:
            self.action()

    def __lt__(self, other):
        self._compare()
        return int(self) < other

    def __gt__(self, other):
        self._compare()
        return int(self) > other

    def __ge__(self, other):
        self._compare()
        return int(self) >= other


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("written", [1, 2, "all", "restart", "clear"])
def test_a_search_without_the_lock_is_right_or_gives_up(slots, written):
    """Whatever another thread does to the ring, between any two compares of a search."""
    run = marks(4 * slots, seed=slots)
    gave_up = 0
    for filled in (slots, slots + 1, slots + slots // 2, 2 * slots - 1, 2 * slots):
        for wanted in (run[filled - slots], run[filled - slots // 2 - 1], run[filled - 1]):
            for compares in range(1, 12):
                ring = Ring(slots)
                for mark in run[:filled]:
                    ring.append(mark)
                following = iter(run[filled:])

                def meddle(ring=ring, following=following):
                    if written == "clear":
                        ring.clear()
                    elif written == "restart":
                        ring.restart(next(following))
                    else:
                        count = slots if written == "all" else written
                        for mark in itertools.islice(following, count):
                            ring.append(mark)

                timestamp = Interrupted(wanted.timestamp, compares, meddle)
                found = ring.revision_at(timestamp)
                assert found in (0, wanted.revision)
                gave_up += found == 0
                assert found or timestamp.left <= 0, "nothing happened"
    assert gave_up, "nothing ever happened during a search"


def test_a_change_that_was_cut_short_hides_the_ring_until_the_next():
    """An interrupt may come between any two steps of a change."""
    run, ring = marks(5), Ring(3)
    for mark in run[:3]:
        ring.append(mark)
    ring._changes |= 1  # as the first step of a change leaves it
    assert ring.revision_at(run[1].timestamp) == 0
    ring.append(run[3])
    assert_like(ring, run[1:4])
