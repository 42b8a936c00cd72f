"""What must hold although something else happens: forks, failed dumps, forgotten watches."""

import gc
import os

import pytest

from snapkv.errors import CompactedError, InvalidTimeError

pytestmark = pytest.mark.slow


def test_a_dump_that_fails_leaves_the_older_one(store, clock, tmp_path):
    ts = store.save("k", b"1")
    path = tmp_path / "backup"
    store.dump(path)
    before = path.read_bytes()
    clock.advance(1_000)
    store.save("k", b"2")
    clock.advance(500_000)
    store.tick()
    store.compact("-0s")
    for at, error in (("yesterday", InvalidTimeError), (ts, CompactedError)):
        with pytest.raises(error):
            store.dump(path, at=at)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir() if "backup" in found.name] == ["backup"]


@pytest.mark.long_on("memory")
@pytest.mark.forks
def test_a_child_does_not_wait_for_locks_of_its_parent(store):
    ts = store.save("k", b"1")
    tracker, clock = store._core.timeline.tracker, store._core.clock
    with tracker._lock, tracker._feed_lock, tracker.lookup._lock, clock._shared.lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if store.load("k", ts) == b"1" and store.load("k", ts + 1) == b"1" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.long_on("memory")
def test_watches_that_nobody_closed_are_forgotten(store):
    for _ in range(50):
        store.watch(timeout=0)
    gc.collect()
    assert len(store._core.followers) == 0


def test_a_neighbours_write_between_does_not_end_a_log(place, clock):
    a, b = place.open(name="a", clock=clock), place.open(name="b", clock=clock)
    one = a.save("k", b"1")
    b.save("x", b"1")
    clock.advance(1_000)
    two = a.commit(puts={"k": b"2"})
    clock.advance(500_000)
    a._core.engine.compact(two.revision)
    assert [commit.ts for commit in a.commits(since=one)] == [two.ts]
    with a.watch(since=one, timeout=0) as watch:
        assert [found.commit.ts for found in watch] == [two.ts]


def test_the_version_at_the_compaction_point_tells_who_wrote_it(place, clock):
    a, b = place.open(name="a", clock=clock), place.open(name="b", clock=clock)
    commit = a.commit(puts={"k": b"1"}, note="why")
    for _ in range(3):
        b.save("x", b"1")
    a._core.engine.compact(b.at().revision)
    (version,) = a.history("k")
    assert (version.ts, version.note) == (commit.ts, "why")
