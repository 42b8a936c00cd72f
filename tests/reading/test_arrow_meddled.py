"""Tables of a store that others meddle with: writes past it, neighbours, fences, leased keys."""

import random

import pytest
from store.engines import EMBEDDED, write_raw
from store.observed import Cluster
from store.plain import Plain
from store.wrapping import Exchangeable, LosingOnce, backup, wrap_engines

import snapkv
from snapkv import to_datetime
from snapkv.engine.contract import Delete, Put
from snapkv.errors import InvalidKeyError, StoreRestoredError
from snapkv.reading import arrow, tables

from .tabled import FOREVER, changes_of, commits_of, histories_of, rows, timed

DATA = b"default/data/"


def log(store) -> list:
    """What the commits did, oldest first."""
    return [(row[3], dict(row[5])) for row in rows(store.commits_to_arrow())][::-1]


def did(operation: str, puts: int = 0, deletes: int = 0) -> tuple:
    return operation, {"numPuts": str(puts), "numDeletes": str(deletes)}


# --- writes past the store ---


@pytest.fixture
def store(place, clock):
    """One whose check may tell of what bypassed it."""
    return place.open(clock=clock, writer="ann@test")


@pytest.fixture(params=[1, 2], ids="seed {}".format)
def meddled(request, store, place, clock) -> Plain:
    """Commits and writes past them at random; each of these is down with the next commit."""
    rng, engine, plain = random.Random(request.param), place.engine(), Plain()
    state, seen, touched = {}, {}, set()
    for n in range(70):
        clock.advance(rng.choice((0, 1, 1_000)))
        key, value = rng.choice("abcdef"), b"%d" % n
        match rng.choice(("put", "put", "delete", "commit", "remove")):
            case "put":
                write_raw(engine, Put(DATA + key.encode(), value))
                state[key] = value
                touched.add(key)
                continue
            case "delete":
                write_raw(engine, Delete(DATA + key.encode()))
                touched.add(key)
                state.pop(key, None)
                continue
            case "commit":
                commit = store.commit(puts={key: value})
                state[key] = value
            case "remove":
                commit = store.commit(deletes=[key])
                state.pop(key, None)
        touched.add(key)
        changes = {("", k): state.get(k) for k in touched if k in seen or k in state}
        plain.add(commit.ts, commit.revision, changes, None, commit.writer)
        seen, touched = dict(state), set()
    write_raw(engine, Put(DATA + b"unseen", b"1"))
    return plain


def test_writes_past_the_store_belong_to_the_next_commit(store, meddled):
    rng = random.Random(4)
    assert rows(store.commits_to_arrow()) == commits_of(meddled, 0, FOREVER)
    stamps = [0, *sorted(row.ts for row in rng.sample(meddled.rows, 2))]
    for since in stamps:
        found = rows(store.changes_to_arrow(since=since, preimages=True))
        assert found == changes_of(meddled, since, FOREVER, preimages=True), since
        found = rows(store.history_to_arrow(since=since))
        assert found == histories_of(meddled, since, FOREVER), since
    for row in meddled.rows:
        found = rows(store.at(revision=row.revision).to_arrow())
        assert [(key, value) for key, value, *_ in found] == list(meddled.state(row.ts).items())
    assert timed(store) == [row[4] for row in histories_of(meddled, 0, FOREVER) if row[3] is None]


def test_what_stood_before_the_store_was_made(place, clock):
    engine = place.engine()
    revision = write_raw(engine, Put(DATA + b"old", b"0"), Put(DATA + b"older", b"0"))
    store = place.open(clock=clock)
    stood = (("old", b"0", revision, None, None, None), ("older", b"0", revision, None, None, None))
    assert rows(store.history_to_arrow()) == list(stood)
    assert rows(store.changes_to_arrow()) == []
    ts = store.save("old", b"1")
    at, time = store.at().revision, to_datetime(ts)
    assert rows(store.history_to_arrow()) == [
        ("old", b"0", revision, at, None, time),
        ("old", b"1", at, None, time, None),
        stood[1],
    ]
    assert rows(store.changes_to_arrow(preimages=True)) == [
        ("old", b"0", "update_preimage", at, 0, time),
        ("old", b"1", "update_postimage", at, 0, time),
    ]
    assert timed(store) == [time, None]


def test_a_key_that_is_no_text_is_an_error_of_its_own(store, place, clock):
    store.save("a", b"1")
    write_raw(place.engine(), Put(DATA + b"\xff", b"1"))
    store.tick()
    for read in (store.at().to_arrow, store.changes_to_arrow, store.history_to_arrow):
        with pytest.raises(InvalidKeyError, match="not valid UTF-8"):
            read()
    assert len(store.commits_to_arrow()) == 2
    assert len(store.changes_to_arrow("a")) == 1, "other keys are not affected"


# --- observed keys of all kinds ---


def test_observed_keys_that_are_no_text_need_bytes(place, clock):
    cluster = Cluster(place, clock)
    bad = b"/r/\xff\xed\xa0\x80"
    write_raw(cluster.engine, Put(b"/r/\xc3\xa4", b"1"), Put(bad, b"2"))
    tick = cluster.tick()
    text, raw = cluster.observe("/r/"), cluster.observe(b"/r/")
    for read in (text.at().to_arrow, text.changes_to_arrow, text.history_to_arrow):
        with pytest.raises(InvalidKeyError, match="not valid UTF-8") as caught:
            read()
        assert caught.value.key == bad
    assert rows(text.changes_to_arrow("/r/\u00e4"))[0][0] == "/r/\u00e4"
    place_in_time = (tick.revision - 1, to_datetime(tick.ts))
    assert [row[:2] for row in rows(raw.at().to_arrow())] == [(b"/r/\xc3\xa4", b"1"), (bad, b"2")]
    assert rows(raw.changes_to_arrow(bad)) == [
        (bad, b"2", "insert", place_in_time[0], 0, place_in_time[1])
    ]
    assert rows(raw.history_to_arrow(bad)) == [
        (bad, b"2", place_in_time[0], None, place_in_time[1], None)
    ]


def test_observing_everything_shows_the_time_line_too(place, clock):
    cluster = Cluster(place, clock, prefix="")
    cluster.write(x=b"1")
    first, second = cluster.tick(), cluster.tick()
    observed = cluster.observe()
    changes = [(row[0], row[2], row[3]) for row in rows(observed.changes_to_arrow())]
    made, written = first.revision - 2, first.revision - 1
    assert changes == [
        ("default/sys/format", "insert", made),
        ("default/sys/ts", "insert", made),
        ("x", "insert", written),
        ("default/sys/ts", "update_postimage", first.revision),
        ("default/sys/ts", "update_postimage", second.revision),
    ]
    since = [(row[0], *row[2:4]) for row in rows(observed.history_to_arrow(since=first.ts))]
    assert since == [
        ("default/sys/format", made, None),
        ("default/sys/ts", first.revision, second.revision),
        ("default/sys/ts", second.revision, None),
        ("x", written, None),
    ]
    assert rows(observed.history_to_arrow())[0][4] == to_datetime(first.ts)


# --- what commits did ---


def test_only_the_stores_own_keys_are_counted(place, clock):
    """Not those of a store whose name begins with that of this one, nor leased ones."""
    store, inner = place.open(name="a", clock=clock), place.open(name="a/m", clock=clock)
    store.tick()
    inner.save("k", b"1")
    store.tick()
    with store.session(ttl=place.kind.ttl_s) as session:
        leader = store.election("e", session=session).campaign(b"me", timeout=10)
        store.commit(puts={"k": b"1"}, guards=[leader.guard])
    store.space("s").commit(puts={b"\xff": b"1", b"x": b"1"})
    store.commit(deletes=["k", "absent"])
    assert [each for each in log(store) if each != did("TICK")] == [
        did("WRITE", 1),
        did("WRITE", 2),
        did("WRITE", 0, 1),
    ]
    assert log(store)[:2] == [did("TICK"), did("TICK")]
    assert log(inner) == [did("WRITE", 1)]


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
def test_a_fence_is_told_from_a_tick(place, clock, monkeypatch):
    engines = wrap_engines(monkeypatch, LosingOnce)
    store = place.open(clock=clock)
    store.tick()
    engines[0].lose = True
    store.save("k", b"1")
    assert log(store) == [did("TICK"), did("FENCE"), did("WRITE", 1)]
    assert len(store.changes_to_arrow()) == 1


# --- a server that is exchanged in the middle ---


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("what", ["changes", "history", "commits", "log"])
def test_what_comes_of_two_histories_is_not_given(place, clock, monkeypatch, what):
    engines = wrap_engines(monkeypatch, Exchangeable)
    store = place.open(clock=clock)
    stamps = [store.save("k", b"%d" % n) for n in range(200)]
    core, engine = store._core, engines[0]
    low, high = (core.timeline.at(ts).mark for ts in (stamps[0], stamps[-1]))
    span = tables.key_range_of(store._space, None)
    monkeypatch.setattr(arrow, "BATCH_ROWS", 10)
    read = {
        "changes": lambda: tables.changes(core, span, low, high, preimages=False),
        "history": lambda: tables.history(core, span, low, high),
        "commits": lambda: tables.commits(core, span, low, high),
        "log": lambda: tables.commits(core, None, low, high),
    }[what]()
    restored = backup(engine.inner, core.timeline.at(stamps[100]).mark.revision, same_cluster=True)
    clock.advance(1)
    with snapkv.open_on(restored, clock=clock) as other:
        for n in range(150):
            other.save("k", b"other %d" % n)
        if what in ("changes", "history"):  # the others give nothing before all is read
            next(read)
        engine.inner = restored
        with pytest.raises(StoreRestoredError):
            list(read)
