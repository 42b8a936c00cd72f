"""The versions of an observed key: each with the first tick at or after it."""

import pytest
from store.engines import write_raw
from store.observed import Cluster

import snapkv.reading.history
from snapkv import Version
from snapkv.engine.contract import Delete, Put
from snapkv.errors import InvalidKeyError, InvalidOptionError, NotObservedError


def told(observed, key="/r/a"):
    return [(v.ts, v.revision, v.value, v.writer) for v in observed.history(key)]


@pytest.fixture
def lively(cluster):
    """Six ticks, between which a key is written zero to two times, and removed once."""
    cluster.write(a=b"early")
    for n in range(6):
        for m in range(n % 3):
            cluster.noise()
            cluster.write(a=b"%d.%d" % (n, m), b=b"x")
        if n == 3:
            cluster.write(a=None)
        cluster.tick()
    cluster.write(a=b"unseen")
    cluster.noise()
    return cluster


@pytest.mark.parametrize("slots", [1, 2, 1_024])
def test_each_version_has_the_first_tick_at_or_after_it(lively, slots):
    observed = lively.observe(ring_slots=slots)
    assert told(observed) == lively.model.history("/r/a")
    assert [value for _, _, value, _ in told(observed)] == [
        b"early", b"1.0", b"2.0", b"2.1", None, b"4.0", b"5.0", b"5.1",
    ]  # fmt: skip
    for version in observed.history("/r/a"):
        assert observed.at(version.ts).get("/r/a") is not None or version.value is None
        assert (version.writer, version.note) == (None, None)
    lively.tick()
    assert told(observed) == lively.model.history("/r/a")
    assert told(observed)[-1][2] == b"unseen"


def test_a_write_of_the_stores_own_commit_tells_who_and_why(place, clock):
    cluster = Cluster(place, clock, prefix="default/data/")
    observed = cluster.observe()
    cluster.write(k=b"foreign")
    commit = cluster.commit("k", b"own", note="why")
    cluster.write(k=b"foreign again")
    tick = cluster.tick()
    assert list(observed.history("default/data/k")) == [
        Version(commit.ts, commit.revision - 1, b"foreign", None),
        Version(commit.ts, commit.revision, b"own", "ticker", "why"),
        Version(tick.ts, tick.revision - 1, b"foreign again", None),
    ]


def test_what_stood_before_the_time_line_was_made(place, clock):
    engine = place.engine()
    revision = write_raw(engine, Put(b"/r/a", b"1"))
    cluster = Cluster(place, clock)
    tick = cluster.tick()
    assert list(cluster.observe().history("/r/a")) == [Version(tick.ts, revision, b"1", None)]
    everything = cluster.observe(prefix="")
    first, second = everything.history("default/sys/ts")
    assert (first.ts, first.writer) == (tick.ts, None), "the creation observes nothing"
    assert (second.ts, second.revision, second.writer) == (tick.ts, tick.revision, "ticker")


def test_compaction_at_every_revision(lively):
    rings = (1, 1_024)
    observed = [lively.observe(ring_slots=slots) for slots in rings]
    for revision in range(1, lively.place.revision() + 1):
        lively.compact(revision)
        expected = lively.model.history("/r/a")
        for asked in (*observed, *(lively.observe(ring_slots=slots) for slots in rings)):
            assert told(asked) == expected, revision


def test_a_long_history_takes_pages(cluster, monkeypatch):
    monkeypatch.setattr(snapkv.reading.history, "HISTORY_PAGE_VERSIONS", 4)
    for n in range(21):
        cluster.write(a=b"%d" % n)
        if n % 5 == 0:
            cluster.tick()
    for slots in (1, 7):
        assert told(cluster.observe(ring_slots=slots)) == cluster.model.history("/r/a")


def test_no_key_no_versions(cluster):
    write_raw(cluster.engine, Put(b"/r/gone", b"1"))
    write_raw(cluster.engine, Delete(b"/r/gone"))
    cluster.tick()
    observed = cluster.observe()
    assert list(observed.history("/r/never")) == []
    assert [v.value for v in observed.history("/r/gone")] == [b"1", None]
    with pytest.raises(InvalidKeyError):
        observed.history("/s/a")


@pytest.mark.long_on("etcd")
def test_spans_and_both_orders(lively):
    observed = lively.observe()
    whole = list(observed.history("/r/a"))
    assert list(observed.history("/r/a", newest_first=True)) == whole[::-1]
    times = [0, *(mark.ts for mark in lively.model.marks)]
    for n, since in enumerate(times):
        for until in times[max(1, n) :]:
            some = [version for version in whole if since < version.ts <= until]
            for limit in (None, 0, 1, 3):
                span = {"since": since, "until": until, "limit": limit}
                assert list(observed.history("/r/a", **span)) == some[:limit]
                back = list(observed.history("/r/a", newest_first=True, **span))
                assert back == some[::-1][:limit]
    with pytest.raises(NotObservedError):
        list(observed.history("/r/a", until=times[1] - 1))
    with pytest.raises(InvalidOptionError):
        observed.history("/r/a", limit=-1)
