"""H11: with foreign writes between commits, neighbouring revisions differ.

Each test names the simpler rule and shows that it would answer wrong on this very history.
"""

import pytest
from store.engines import ENGINES, START_MS, Place
from store.observed import Cluster

from snapkv import CompactedError, ManualClock
from snapkv.errors import NotObservedError


@pytest.fixture(params=ENGINES)
def cluster(request, tmp_path):
    with Place(ENGINES[request.param], tmp_path) as place:
        yield Cluster(place, ManualClock(START_MS))


def test_h11_the_revision_before_the_next_commit_shows_something_else(cluster: Cluster) -> None:
    cluster.write(k=b"1")
    first = cluster.tick()
    cluster.write(k=b"foreign")
    second = cluster.tick()
    observed = cluster.observe()
    assert observed.load("/r/k", second.ts - 1) == b"1"
    assert observed.at(revision=second.revision - 1)["/r/k"] == b"foreign", "next - 1 differs"
    # so when the tick's own revision is compacted, the state is gone: it is at no other revision
    snap = observed.at(first.ts)
    cluster.compact(second.revision - 1)
    for reading in (observed, cluster.observe()):
        with pytest.raises(CompactedError) as caught:
            reading.load("/r/k", first.ts)
        assert caught.value.earliest == second.ts
    with pytest.raises(CompactedError):
        snap["/r/k"]


def test_h11_a_store_reads_there_and_is_right(cluster: Cluster) -> None:
    """The same history, asked of the store: nobody else writes its keys, so next - 1 will do."""
    first = cluster.ticker.save("k", b"1")
    cluster.noise()
    cluster.ticker.save("k", b"2")
    cluster.compact(cluster.place.revision() - 1)
    assert cluster.ticker.load("k", first) == b"1"


def test_h11_at_the_newest_timestamp_the_head_is_not_final(cluster: Cluster) -> None:
    cluster.write(k=b"1")
    tick = cluster.tick()
    cluster.write(k=b"not ticked yet")
    observed = cluster.observe()
    for _ in range(2):
        assert observed.at(tick.ts).final
        assert observed.load("/r/k", tick.ts) == observed.load("/r/k") == b"1"
        assert observed.load_with_prefix("/r/", tick.ts) == (["/r/k"], [b"1"])
    cluster.tick()
    assert observed.load("/r/k", tick.ts) == b"1", "what was final stays"
    assert observed.load("/r/k") == b"not ticked yet"


def test_h11_before_the_first_tick_nothing_was_observed(cluster: Cluster) -> None:
    """Which is not "empty": the keys may have been there for years."""
    cluster.write(k=b"1")
    observed = cluster.observe()
    with pytest.raises(NotObservedError) as caught:
        observed.load("/r/k")
    assert caught.value.first is None
    tick = cluster.tick()
    with pytest.raises(NotObservedError) as caught:
        observed.load("/r/k", tick.ts - 1)
    assert (caught.value.requested, caught.value.first) == (tick.ts - 1, tick.ts)
    assert observed.load("/r/k", tick.ts) == b"1"


def test_h11_the_first_tick_at_or_after_a_write_is_its_time(cluster: Cluster) -> None:
    """Not the tick before it, which the time line has in force at its revision."""
    before = cluster.tick()
    revision = cluster.write(k=b"1")
    after = cluster.tick()
    observed = cluster.observe()
    (version,) = observed.history("/r/k")
    assert (version.revision, version.ts) == (revision, after.ts)
    assert "/r/k" not in observed.at(before.ts)
    assert observed.at(version.ts)["/r/k"] == b"1"
