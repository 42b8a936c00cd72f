"""Keys that others write: all that tells of them tells the same, write by write."""

import random
import subprocess

import pytest
from direct import columns, forget_all, read, refused
from etcd_server import etcd_binary, shared_pool
from reading.tabled import FOREVER, changes_of, histories_of
from sampling import some
from store.observed import PREFIX, Cluster, ticked
from stream_queries import LIMITS, Query

import snapkv
from snapkv import format_time, to_datetime
from snapkv.spark import sessions

pytestmark = pytest.mark.slow

OBSERVED = {"observe": PREFIX}
FEED = {"readChangeFeed": True} | OBSERVED


@pytest.fixture
def cluster(place, clock):
    return Cluster(place, clock)


@pytest.fixture(params=some([1, 2], one_in=2), ids="seed {}".format)
def rng(request):
    return random.Random(request.param)


@pytest.fixture
def written(cluster, rng):
    """Random writing, some of it before the first tick and after the last one."""
    for n in range(40):
        step = rng.choice(("write", "write", "remove", "noise", "tick"))
        if step == "write":
            cluster.write(**{rng.choice("abc"): b"%d" % n, rng.choice("de"): b"%d" % n})
        elif step == "remove":
            cluster.write(**{rng.choice("abcde"): None, rng.choice("abcde"): None})
        elif step == "noise":
            cluster.noise()
        elif n > 3:
            cluster.tick(rng.choice((0, 1, 1_000)))
    cluster.tick()
    cluster.write(a=b"not yet", z=b"not yet")
    return cluster


def between(rows: list[tuple], low: int, high: int) -> list[tuple]:
    return [row for row in rows if low <= row[3] <= high]


@pytest.mark.long_on("etcd")
@pytest.mark.long_after(1)
def test_the_versions_of_a_range_are_those_of_its_rows(written):
    """Also where a range begins and ends between two ticks."""
    url, last = written.place.url, written.place.revision()
    rows = changes_of(ticked(written.model), 0, FOREVER, preimages=True)
    feed = FEED | {"preimages": True}
    for low in range(1, last + 1, 3):
        assert read(url, **feed, startingVersion=low) == between(rows, low, last)
        for high in range(low, last + 1, 4):
            found = read(url, **feed, startingVersion=low, endingVersion=high)
            assert found == between(rows, low, high), (low, high)


def test_histories_between_two_versions(written, rng):
    url, last = written.place.url, written.place.revision()
    expected = histories_of(ticked(written.model), 0, FOREVER)
    history = OBSERVED | {"view": "history"}
    assert in_order(read(url, **history)) == expected
    for _ in range(6):
        low, high = sorted(rng.randrange(1, last + 1) for _ in range(2))
        stood = [
            (*row[:3], *((row[3], row[4], row[5]) if row[3] and row[3] <= high else cut(row)))
            for row in expected
            if row[2] <= high and (row[3] is None or row[3] > low)
        ]
        found = read(url, **history, startingVersion=low, endingVersion=high)
        assert in_order(found) == stood, (low, high)


def in_order(rows: list[tuple]) -> list[tuple]:
    return sorted(rows, key=lambda row: (row[0], row[2]))


def cut(row: tuple) -> tuple:
    """A version that still stands at the end: until when, since when, until when."""
    return None, row[4], None


@pytest.mark.parametrize("limit", LIMITS)
def test_a_stream_may_start_between_two_ticks(written, rng, limit):
    rows = changes_of(ticked(written.model), 0, FOREVER)
    last = written.place.revision()
    for low in rng.sample(range(1, last + 1), 5):
        query = Query(written.place.url, **OBSERVED, **limit, startingVersion=low)
        assert query.drained() == between(rows, low, last), low
        written.tick()  # stamps what nothing had stamped yet
        rows = changes_of(ticked(written.model), 0, FOREVER)
        last = written.place.revision()
        assert query.checkpoint.rows() + query.drained() == between(rows, low, last), low


def test_the_log_names_nobody_for_what_others_wrote(written):
    """Whatever columns are asked for: the rows are the same."""
    expected = []
    for row in reversed(ticked(written.model).rows):
        puts = sum(value is not None for value in row.changes.values())
        metrics = [("numPuts", str(puts)), ("numDeletes", str(len(row.changes) - puts))]
        operation = "WRITE" if row.changes else "TICK"
        when = to_datetime(row.ts)
        expected.append((row.revision, when, row.writer, operation, None, metrics, None))
    log = OBSERVED | {"view": "commits"}
    assert read(written.place.url, **log) == expected
    assert columns(written.place.url, "userName", **log) == [(row[2],) for row in expected]
    assert {row[2] for row in expected if row[3] == "WRITE"} == {None}


def test_what_compaction_leaves(cluster):
    cluster.write(a=b"1", b=b"1")
    cluster.tick()
    cluster.write(a=b"2")
    second = cluster.tick()
    removed = cluster.write(b=None)
    cluster.tick()
    cluster.compact(second.revision)
    url = cluster.place.url
    message = refused("VERSION_COMPACTED", url, **FEED, startingVersion=second.revision)
    assert f"start after {format_time(second.ts)}, version {second.revision}" in message
    found = columns(url, "key", "_commit_version", **FEED, startingVersion=second.revision + 1)
    assert found == [("/r/b", removed)]


# --- with etcd's own client as the writer ---


def etcdctl(server, *words: str, given: str = "") -> None:
    program = etcd_binary().parent / "etcdctl"
    command = [program, f"--endpoints={server.endpoint}", *words]
    subprocess.run(command, input=given, text=True, check=True, timeout=30, capture_output=True)


def transaction(*operations: str) -> str:
    """What `etcdctl txn` reads: no comparison, these operations, nothing else."""
    return "\n" + "".join(f"{each}\n" for each in operations) + "\n\n"


def test_history_watch_tables_and_spark_agree():
    """Two transactions of several keys, removals and a ticker between them; then one by one."""
    pool = shared_pool()
    server = pool.take()
    try:
        _check_agreement(server)
    finally:
        forget_all()
        pool.give_back(server)


def _check_agreement(server) -> None:
    with snapkv.open(server.url, writer="ticker@mon") as ticker:
        ticker.tick()
        etcdctl(server, "txn", given=transaction("put /r/a 1", "put /r/b 1", "put /r/c 1"))
        etcdctl(server, "put", "/r/a", "2")
        etcdctl(server, "txn", given=transaction("del /r/b", "put /r/c 2", "put /r/d 1"))
        first = ticker.tick().ts
        etcdctl(server, "del", "/r/", "--prefix")
        etcdctl(server, "put", "/r/a", "3")
        second = ticker.tick().ts
        etcdctl(server, "put", "/r/a", "not yet")
    with snapkv.observe(server.url, prefix=PREFIX) as observed:
        history = [
            (version.revision, key, version.value, version.ts, version.writer, version.note)
            for key in ("/r/a", "/r/b", "/r/c", "/r/d")
            for version in observed.history(key)
        ]
        with observed.watch(since=0, timeout=1) as watch:
            told = list(watch)
        table = observed.changes_to_arrow(preimages=True)
        resumed = []
        for after in (0, first):
            with observed.watch(since=after, timeout=1) as watch:
                resumed.append(next(watch))
        states = {ts: dict(observed.at(ts).items()) for ts in (first, second)}
    assert {version[4:] for version in history} == {(None, None)}
    assert [changes.commit.ts for changes in told] == [first, second]
    assert resumed == told
    seen = [
        (c.commit.revision, c.key, c.value, c.commit.ts, c.commit.writer, c.commit.note)
        for changes in told
        for c in changes
    ]
    assert seen == sorted(history)
    assert len({row[0] for row in seen}) == 5
    assert {changes.commit.writer for changes in told} == {None}
    _check_tables(server.url, seen, table, states, first)


def _check_tables(url: str, seen: list[tuple], table, states: dict, first: int) -> None:
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert [row for row in rows if row[2] == "update_preimage"] == [
        ("/r/a", b"1", "update_preimage", seen[3][0], 0, to_datetime(first)),
        ("/r/c", b"1", "update_preimage", seen[3][0] + 1, 1, to_datetime(first)),
    ]
    changed = [row for row in rows if row[2] != "update_preimage"]
    assert [(row[3], row[0], row[5]) for row in changed] == [
        (revision, key, to_datetime(ts)) for revision, key, _, ts, _, _ in seen
    ]
    assert [None if row[2] == "delete" else row[1] for row in changed] == [row[2] for row in seen]
    feed = FEED | {"preimages": True}
    assert read(url, **feed, startingVersion=1) == rows
    assert Query(url, **OBSERVED, preimages=True, startingVersion=1).drained() == rows
    state: dict = {}
    for revision, key, value, ts, *_ in seen:
        state = {k: v for k, v in (state | {key: value}).items() if v is not None}
        if (revision, key) == max((row[0], row[1]) for row in seen if row[3] == ts):
            assert state == states[ts]


def test_on_connect_an_end_after_the_newest_tick_is_an_error(cluster, monkeypatch):
    """The next tick could add rows up to it; a moment is whole without one."""
    cluster.write(a=b"1")
    cluster.tick()
    url, ticked_up_to = cluster.place.url, cluster.place.revision()
    cluster.write(a=b"2")
    later = cluster.place.revision()
    monkeypatch.setenv(sessions.ARTIFACTS, "0eee7a21-67fb-4bf1-8c03-8e29dab00054")
    feed = FEED | {"startingVersion": 1}
    message = refused("NOT_PINNED", url, **feed, endingVersion=later)
    assert f"endingVersion {later} is later than the newest tick" in message
    assert len(read(url, **feed, endingVersion=ticked_up_to)) == 1
    assert [row[1] for row in read(url, **OBSERVED, versionAsOf=later)] == [b"2"]
