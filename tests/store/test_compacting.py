"""Forgetting: exactly what is before a moment, never what open outcomes may need."""

from itertools import islice

import pytest
from sampling import fewer_on_etcd

from snapkv import CompactedError, KeyNotFoundError, pack
from snapkv.committer import COMMIT_TIMEOUT_S_MAX
from snapkv.errors import InvalidTimeError, InvalidTypeError

from .engines import assert_sound

WAIT_S = 20.0
KEEP_MS = 70_000
"""The longest deadline of a commit, and twice the clock skew of 5 seconds."""


@pytest.fixture
def stamps(store, clock):
    """Ten values of one key a second apart, long ago."""
    stamps = []
    for n in range(10):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(1_000)
    clock.advance(500_000)
    return stamps


def assert_readable(asked, stamps, earliest):
    """Everything from `earliest` on answers, everything before says what is left."""
    for n, ts in enumerate(stamps):
        for when in (ts - 1, ts, ts + 1):
            at = n - 1 if when < ts else n
            if at < earliest:
                for read in (
                    lambda when=when: asked.load("k", when),
                    lambda when=when: asked.at(when)["k"],
                    lambda when=when: list(asked.at(when).items()),
                    lambda when=when: asked.load_with_prefix("", when),
                    lambda when=when: asked.at(when).count(),
                ):
                    with pytest.raises(CompactedError) as caught:
                        read()
                    error = caught.value
                    assert (error.unit, error.requested) == ("timestamp", when)
                    assert error.earliest == stamps[earliest]
            else:
                assert asked.load("k", when) == b"%d" % at
                assert list(asked.at(when).items()) == [("k", b"%d" % at)]
                assert asked.at(when).count() == 1


@pytest.mark.long_on("etcd")
@pytest.mark.long_after(3)
@pytest.mark.parametrize(
    ("place", "at", "offset"),
    fewer_on_etcd([0, 1, 4, 9], [0, 1], one_in=3),
    indirect=["place"],
)
def test_the_state_at_that_moment_stays_readable(
    store, place, clock, stamps, at, offset, subtests: pytest.Subtests
):
    rings = (1, 3, 1_024)
    readers = {slots: place.open(clock=clock, ring_slots=slots) for slots in rings}
    for reader in readers.values():
        assert reader.load("k", stamps[2]) == b"2", "the reader knows the past already"
    done = store.compact(stamps[at] + offset)
    assert done.earliest == stamps[at]
    assert done.revision == store.at(stamps[at]).revision
    assert store.info()["earliest_timestamp"] == stamps[at]
    assert_readable(store, stamps, at)
    assert store.load("k") == b"9"
    for slots in rings:
        for asked in (readers[slots], place.open(clock=clock, ring_slots=slots)):
            with subtests.test(slots=slots):
                assert_readable(asked, stamps, at)
                assert asked.load("k") == b"9"
    with pytest.raises(CompactedError):
        store.at(0).count()


def test_one_before_a_commit_leaves_the_commit_before_it(store, stamps):
    assert store.compact(stamps[4] - 1).earliest == stamps[3]
    assert_readable(store, stamps, 3)


def test_step_by_step_and_never_back(store, stamps):
    for at in (2, 2, 5, 3, 0, 5, 6):
        assert store.compact(stamps[at]).earliest == stamps[{3: 5, 0: 5}.get(at, at)]
    assert_readable(store, stamps, 6)


def test_before_everything_there_is_nothing_to_forget(store, place, stamps):
    before = place.engine().compacted_revision()
    for when in (0, stamps[0] - 1, "-30d"):
        assert store.compact(when).earliest == 0
    assert place.engine().compacted_revision() == before
    assert store.at(0).count() == 0


def test_it_is_no_commit(store, place, stamps):
    before = place.revision(), store.resolved()
    store.compact(stamps[5])
    assert (place.revision(), store.resolved()) == before


def test_what_open_outcomes_may_need_is_kept(store, clock):
    assert KEEP_MS == COMMIT_TIMEOUT_S_MAX * 1_000 + 2 * 5_000
    old = store.save("k", b"old")
    clock.advance(1)
    young = store.save("k", b"young")
    clock.advance(KEEP_MS - 2)
    # nothing is old enough
    assert store.compact("-0s").earliest == 0
    assert store.at(old - 1).count() == 0
    clock.advance(1)
    # now the old one is: what was before it goes
    assert store.compact("-0s").earliest == old
    assert store.load("k", old) == b"old"
    clock.advance(1)
    assert store.compact("+1d").earliest == young
    assert store.load("k", young) == b"young"
    with pytest.raises(CompactedError):
        store.load("k", old)


def test_a_larger_skew_keeps_longer(place, clock):
    store = place.open(clock=clock, max_clock_skew=50)
    store.save("k", b"1")
    clock.advance(1)
    store.save("k", b"2")
    clock.advance(160_000 - 2)
    assert store.compact("-0s").earliest == 0
    clock.advance(3)
    assert store.compact("-0s").earliest == store.resolved()


def test_a_snapshot_whose_moment_goes_says_so_in_the_middle(store, clock):
    ts = store.multi_save({f"k{n:05}": b"" for n in range(12_000)})
    rows = store.at(ts).items()
    next(rows)
    clock.advance(200_000)
    store.save("k", b"")
    clock.advance(200_000)
    store.compact("-0s")
    with pytest.raises(CompactedError) as caught:
        list(rows)
    assert caught.value.requested == ts


# --- two stores in one engine: the other one's compaction reaches further ---


@pytest.fixture
def neighbours(place, clock):
    """Commits of a, with three of b after each: and all of them long ago."""
    a, b = place.open(name="a", clock=clock), place.open(name="b", clock=clock)
    of_a, of_b = [], []
    for n in range(6):
        of_a.append(a.save("k", b"%d" % n))
        clock.advance(1_000)
        for m in range(3):
            of_b.append(b.save("k", b"%d.%d" % (n, m)))
            clock.advance(1_000)
    clock.advance(500_000)
    yield a, b, of_a, of_b
    assert_sound(a)
    assert_sound(b)


@pytest.mark.long_after(3)
@pytest.mark.parametrize(("place", "other"), fewer_on_etcd(range(9), one_in=4), indirect=["place"])
def test_a_state_stays_readable_until_its_next_commit_is_passed(place, clock, neighbours, other):
    a, b, of_a, of_b = neighbours
    rings = (1, 1_024)
    warm = [place.open(name="a", clock=clock, ring_slots=slots) for slots in rings]
    early = [(n, reader.at(ts)) for reader in warm for n, ts in enumerate(of_a)]
    b.compact(of_b[other])
    left = other // 3  # the commit of a that was newest at that commit of b
    cold = [place.open(name="a", clock=clock, ring_slots=slots) for slots in rings]
    for asked in (a, *warm, *cold):
        assert_readable(asked, of_a, left)
        assert asked.info()["earliest_timestamp"] == of_a[left]
        with asked.watch(since=of_a[left], timeout=WAIT_S) as watch:
            following = of_a[left + 1 :]
            assert [c.commit.ts for c in islice(watch, len(following))] == following
            assert watch.next(0) is None
        assert [c.ts for c in asked.commits()] == of_a[left:]
        assert [c.ts for c in asked.commits(newest_first=True)] == of_a[left:][::-1]
        assert [v.value for v in asked.history("k")] == [b"%d" % n for n in range(left, 6)]
    for n, snap in early:
        if n < left:
            with pytest.raises(CompactedError):
                snap["k"]
        else:
            assert snap["k"] == b"%d" % n
            assert dict(snap.items()) == {"k": b"%d" % n}
            assert len(snap) == 1


def test_pages_go_on_when_a_neighbour_compacts_in_between(place, clock):
    a, b = place.open(name="a", clock=clock), place.open(name="b", clock=clock)
    keys = {f"k{n:05}": b"%d" % n for n in range(12_000)}
    ts = a.multi_save(keys)
    rows = a.at(ts).items()
    seen = dict([next(rows)])
    clock.advance(1_000)
    far = b.save("x", b"1")
    clock.advance(200_000)
    a.multi_save_and_remove_with_prefix({}, [""])
    b.compact(far)
    seen.update(rows)
    assert seen == keys


def test_the_newest_state_of_a_quiet_store_stays_readable(neighbours, clock):
    a, b, of_a, _ = neighbours
    for _ in range(3):
        b.save("k", b"more")
        clock.advance(200_000)
        b.compact("-0s")
        assert a.load("k", of_a[-1]) == b"5"
        assert a.at(of_a[-1] + 1)["k"] == b"5"
        assert dict(a.at().items()) == {"k": b"5"}
        with pytest.raises(CompactedError) as caught:
            a.load("k", of_a[-2])
        assert caught.value.earliest == of_a[-1]


def test_a_store_that_never_committed_is_empty_at_all_times(place, clock, neighbours):
    _, b, _, of_b = neighbours
    late = place.open(name="late", clock=clock)
    b.compact(of_b[-1])
    assert late.at().count() == 0
    assert late.at(0).count() == 0
    with pytest.raises(KeyNotFoundError):
        late.load("k", 5)


# --- retain ---


def test_retain_forgets_with_the_commits(place, clock):
    store = place.open(clock=clock, retain="1h")
    stamps = []
    for n in range(20):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(600_000)
    now = clock.now_ms()
    for n, ts in enumerate(stamps):
        if ts >= pack(now - 3_600_000):
            assert store.load("k", ts) == b"%d" % n, "what is younger than retain= stays"
    store.save("k", b"now")
    with pytest.raises(CompactedError):
        store.load("k", stamps[5])
    assert store.load("k", "-60m") == b"14"
    assert store.info()["retain_ms"] == 3_600_000
    assert store.info()["retain_error"] is None
    assert_sound(store)


def test_without_retain_nothing_is_forgotten(store, clock):
    ts = store.save("k", b"1")
    for _ in range(20):
        clock.advance(86_400_000)
        store.save("k", b"2")
    assert store.load("k", ts) == b"1"
    assert store.load("k", ts) == b"1"


def test_retain_of_less_than_what_outcomes_need(place, clock):
    store = place.open(clock=clock, retain="1s")
    stamps = []
    for n in range(100):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(1_000)
    assert store.load("k", "-70s") == b"30"
    assert store.load("k", stamps[30]) == b"30"
    with pytest.raises(CompactedError):
        store.load("k", stamps[10])


def test_what_is_no_moment_to_compact_to(store, stamps):
    for wrong, error in [
        (None, InvalidTypeError),
        ("soon", InvalidTimeError),
        (True, InvalidTypeError),
    ]:
        with pytest.raises(error):
            store.compact(wrong)
    assert store.load("k", stamps[0]) == b"0"
