"""Tables of what others write: below an observed prefix, and past a store into its own keys."""

import random

import pytest
from store.engines import write_raw
from store.observed import Cluster, Foreign, drained, ticked

import snapkv.timeline.timeline
from snapkv import CompactedError, NotObservedError, to_datetime
from snapkv.engine.contract import Put
from snapkv.reading.change_replay import first_after

from .tabled import FOREVER, changes_of, histories_of, moments, replayed, rows


@pytest.fixture(params=[2], ids="seed {}".format)
def written(request, place, clock, monkeypatch):
    """Random writing, noise and ticking, some of it before there were times; and as commits."""
    monkeypatch.setattr(snapkv.timeline.timeline, "READS_MAX", 16)
    rng, early = random.Random(request.param), {"/r/a": b"early", "/r/z": b"early"}
    revision = write_raw(place.engine(), *(Put(key.encode(), early[key]) for key in early))
    cluster = Cluster(place, clock)
    cluster.model.writes.append((revision, early))
    cluster.write(b=b"early")
    cluster.write(b=None, c=b"early")
    for n in range(80):
        step = rng.choice(("write", "write", "noise", "tick", "remove"))
        if step == "write":
            cluster.write(**{rng.choice("abc"): b"%d" % n, rng.choice("de"): b"%d" % n})
        elif step == "remove":
            cluster.write(**{rng.choice("abcde"): None})
        elif step == "noise":
            cluster.noise()
        else:
            cluster.tick(rng.choice((0, 1, 1_000)))
    cluster.tick()
    cluster.write(a=b"unseen", f=b"unseen")
    return cluster, ticked(cluster.model)


# --- which tick, which type ---


def test_changes_are_of_the_first_tick_at_or_after_them(cluster):
    written = cluster.write(old=b"0", gone=b"0", again=b"0")
    first = cluster.tick()
    one = cluster.write(old=b"1", fleeting=b"1", gone=None, again=None)
    cluster.noise()
    two = cluster.write(old=b"2", fleeting=None, again=b"2")
    three = cluster.write(gone=b"1")
    second = cluster.tick()
    cluster.write(old=b"unseen")
    observed = cluster.observe()
    at = to_datetime(second.ts)
    expected = [
        ("/r/again", b"0", "delete", one, 0, at),
        ("/r/fleeting", b"1", "insert", one, 1, at),
        ("/r/gone", b"0", "delete", one, 2, at),
        ("/r/old", b"0", "update_preimage", one, 3, at),
        ("/r/old", b"1", "update_postimage", one, 3, at),
        ("/r/again", b"2", "insert", two, 0, at),
        ("/r/fleeting", b"1", "delete", two, 1, at),
        ("/r/old", b"1", "update_preimage", two, 2, at),
        ("/r/old", b"2", "update_postimage", two, 2, at),
        ("/r/gone", b"1", "insert", three, 0, at),
    ]
    assert rows(observed.changes_to_arrow(since=first.ts, preimages=True)) == expected
    inserted = [(f"/r/{n}", b"0", "insert") for n in ("again", "gone", "old")]
    at_first = written, to_datetime(first.ts)
    everything = [(*row, at_first[0], n, at_first[1]) for n, row in enumerate(inserted)] + expected
    for since in (None, 0, first.ts - 1):
        assert rows(observed.changes_to_arrow(since=since, preimages=True)) == everything


def test_changes_between_any_two_moments(written):
    cluster, plain = written
    observed, rng = cluster.observe(ring_slots=8), random.Random(5)
    draw = moments(plain, rng)
    for prefix in ("/r/", "/r/a", "/r/zz"):
        for since, until in [(None, None), (0, draw()), sorted((draw(), draw()))]:
            found = rows(observed.changes_to_arrow(prefix, since, until, preimages=True))
            low, high = since or 0, FOREVER if until is None else until
            assert found == changes_of(plain, low, high, prefix, preimages=True), (since, until)
            if low >= plain.rows[0].ts:
                before, after = (dict(observed.at(ts).items(prefix)) for ts in (since, until))
                assert replayed(before, found) == after
    with observed.watch(since=0) as watch:
        told = [
            (key, value, revision, to_datetime(ts))
            for ts, changes in drained(watch, cluster.newest())
            for revision, key, value, _ in changes
        ]
    found = [(row[0], row[1], row[3], row[5]) for row in rows(observed.changes_to_arrow())]
    assert told == found


def test_histories_between_any_two_moments(written):
    cluster, plain = written
    observed, rng = cluster.observe(ring_slots=8), random.Random(6)
    draw = moments(plain, rng)
    for prefix in ("/r/", "/r/a", "/r/zz"):
        for since, until in [
            (None, None),
            (0, None),
            *(sorted((draw(), draw())) for _ in range(3)),
        ]:
            if until is not None and until < plain.rows[0].ts:
                with pytest.raises(NotObservedError):
                    observed.history_to_arrow(prefix, since, until)
                continue
            found = rows(observed.history_to_arrow(prefix, since, until))
            high = FOREVER if until is None else until
            assert found == histories_of(plain, since or 0, high, prefix), (since, until)
    for key, value, version, *_ in rows(observed.history_to_arrow()):
        assert observed.at(revision=version)[key] == value


def test_a_moment(written):
    cluster, plain = written
    observed = cluster.observe()
    for ts in [None, *(row.ts for row in plain.rows[:10])]:
        snap = observed.at(ts)
        assert rows(snap.to_arrow()) == [
            (key, entry.value, entry.created, entry.revision, entry.version)
            for key, entry in snap.entries()
        ]
        assert snap.to_arrow()["key"].to_pylist() == list(plain.state(ts))


# --- before the first tick, after compaction ---


def test_before_the_first_tick_there_are_no_changes_and_histories_are_unknown(cluster):
    written = cluster.write(a=b"1")
    observed = cluster.observe()
    assert rows(observed.changes_to_arrow()) == rows(observed.changes_to_arrow(since=0)) == []
    for bounds in ({}, {"since": 0}, {"until": 5}):
        with pytest.raises(NotObservedError):
            observed.history_to_arrow(**bounds)
    tick = cluster.tick()
    with pytest.raises(NotObservedError):
        observed.history_to_arrow(until=tick.ts - 1)
    expected = ("/r/a", b"1", written, None, to_datetime(tick.ts), None)
    assert rows(observed.history_to_arrow()) == [expected]


def test_compaction_at_any_revision(cluster):
    cluster.write(a=b"0", b=b"0")
    for n in range(4):
        cluster.noise()
        cluster.write(a=b"%d" % n, **{f"new{n}": b"x"})
        cluster.tick()
        cluster.write(a=b"%d+" % n)
    plain, early = ticked(cluster.model), cluster.observe()
    step = 4 if early._core.engine.remote else 1
    for revision in range(2, cluster.place.revision() + 1, step):
        cluster.compact(revision)
        earliest = cluster.model.earliest()
        for observed in (early, cluster.observe(ring_slots=1)):
            if earliest is None:  # what is readable next is still to come
                assert rows(observed.changes_to_arrow()) == []
                with pytest.raises(CompactedError) as caught:
                    observed.history_to_arrow()
                assert caught.value.earliest is None
                continue
            found = rows(observed.changes_to_arrow(preimages=True))
            assert found == changes_of(plain, earliest, FOREVER, preimages=True), revision
            expected = histories_of(plain, earliest, FOREVER)
            expected = [known(cluster.model, row) for row in expected]
            assert rows(observed.history_to_arrow()) == expected, revision
            assert_gone(observed, plain.rows[0].ts - 1, earliest)


def assert_gone(observed, since: int, earliest: int) -> None:
    core = observed._core
    for read in (
        lambda: observed.changes_to_arrow(since=since),
        lambda: observed.history_to_arrow(since=since),
        lambda: first_after(core, core.timeline.tracker.creation),
    ):
        with pytest.raises(CompactedError) as caught:
            read()
        assert (caught.value.unit, caught.value.earliest) == ("timestamp", earliest)


def known(model: Foreign, row: tuple) -> tuple:
    """A version, of which only the write is on record once the tick that saw it first is not."""
    revisions = [mark.revision for mark in model.marks]
    in_force = max((n for n, at in enumerate(revisions) if at <= model.compacted), default=0)
    if in_force == 0 or model.mark_of(row[2]) > in_force:
        return row
    return (*row[:4], None, row[5])
