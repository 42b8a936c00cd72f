"""The log of changes: base row and log row in one commit, in the stream of its timestamp."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from changes.losing import Losing
from store.wrapping import wrap_engines

import snapkv
from cdcmeta.errors import (
    InvalidArgumentError,
    LateGenerationWarning,
    MemberLostError,
)
from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    Sharding,
    Topology,
    murmur3_token,
)
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.consumer import rows_between
from cdcmeta.generations.log_member import LogFollower
from cdcmeta.generations.log_rows import SLOTS
from snapkv import CommitUnknownError, ManualClock, SystemClock, pack
from snapkv.base.waiting import pause
from snapkv.errors import EngineUnavailableError

from .refused import is_unavailable

pytestmark = pytest.mark.slow

START_MS = 1_700_000_000_000
RING = {-(1 << 62): Sharding(2), 1 << 62: Sharding(3)}
WIDER = RING | {0: Sharding(2)}


@pytest.fixture
def clock():
    return SystemClock()  # writes wait for what members hear


@pytest.fixture
def log(store):
    return GenerationLog(store, propagation_delay=0.0, leeway=0.2)


@pytest.fixture
def member(log):
    with log.member("node") as member:
        yield member


@pytest.fixture
def rows(store, log, member):
    log.make(RING)
    return CdcLog(store, member)


def all_rows(rows):
    """Return every log row."""
    snapshot = rows.at()
    return rows_between(snapshot, range(SLOTS), 0, snapshot.timestamp, 10**9)[0]


def assert_right_generation(log, row):
    """Assert that a row stands in the stream of the generation of its own time."""
    own = log.operating_at(row.timestamp)
    assert own is not None
    assert log.topology(own).stream_for(murmur3_token(row.key)) == row.stream


def test_a_write_is_one_commit_of_both_rows(rows, store):
    rows.write(b"first", b"")  # the first one also records the log of the table
    before = store.resolved()
    row = rows.write(b"k", b"v1")
    commits = list(store.commits(since=before))
    assert [commit.ts for commit in commits] == [row.timestamp]
    assert rows.get(b"k") == b"v1"
    assert rows.read(row.stream, before) == [row]
    changes = list(store.space("cdc/default").diff(before, row.timestamp))
    assert len(changes) == 2


def test_what_rows_were_and_how_they_came(rows, log):
    first, second, gone = (rows.write(b"k", value) for value in (b"1", b"2", None))
    assert rows.get(b"k") is None
    assert [rows.get(b"k", row.timestamp) for row in (first, second)] == [b"1", b"2"]
    assert [row.value for row in all_rows(rows)] == [b"1", b"2", None]
    assert rows.read(first.stream, first.timestamp, second.timestamp) == [second]
    assert rows.read(first.stream, first.timestamp - 1, gone.timestamp - 1) == [first, second]


@pytest.mark.parametrize("key", [b"", b"\x00", b"\xff" * 9, b"a/b", bytes(40)])
def test_keys_of_any_bytes(rows, key):
    row = rows.write(key, b"\x00v")
    assert rows.get(key) == b"\x00v"
    assert rows.read(row.stream, row.timestamp - 1) == [row]


@pytest.mark.parametrize(("key", "value"), [("k", b"v"), (b"k", "v"), (None, None), (b"k", 5)])
def test_keys_and_values_are_bytes(rows, store, key, value):
    before = store.resolved()
    with pytest.raises(InvalidArgumentError):
        rows.write(key, value)
    assert store.resolved() == before


@pytest.fixture
def losing(place, monkeypatch):
    """Rows on an engine that loses what the test says, and that engine; and those of others."""
    engines = wrap_engines(monkeypatch, Losing)
    store = place.open()
    log = GenerationLog(store, propagation_delay=0.0, leeway=0.2)
    log.make(RING)
    with log.member("node") as member:
        yield CdcLog(store, member), engines[-1]
        engines[-1].cut = False


@pytest.mark.parametrize("value", [b"v", None])
@pytest.mark.parametrize("fate", ["after, then cut", "before, then cut"])
def test_a_write_whose_outcome_is_unknown_is_settled_later(losing, place, fate, value):
    rows, engine = losing
    rows.write(b"warm", b"w")
    error = lost(engine, fate, lambda: rows.write(b"k", value, timeout=0.3))
    with pytest.raises(EngineUnavailableError):
        rows.resolve(error, timeout=0.2)  # it is still away
    engine.cut, engine.plan = False, []
    found = rows.resolve(error)
    elsewhere = CdcLog(place.open(), Generations())  # as from another process
    assert elsewhere.resolve(pickle.loads(pickle.dumps(error))) == found
    if fate.startswith("before"):
        assert (found, rows.get(b"k")) == (None, None)
        return
    assert (found.key, found.value, found.timestamp) == (b"k", value, error.timestamp)
    rows.write(b"k", b"later")
    assert rows.resolve(error) == found
    assert rows.read(found.stream, found.timestamp - 1, found.timestamp) == [found]
    assert rows.get(b"k", found.timestamp) == value


def lost(engine, fate, commit):
    """Return the error of a commit whose outcome nobody knows."""
    engine.plan = [fate]
    with pytest.raises(CommitUnknownError) as caught:
        commit()
    return caught.value


def test_a_commit_of_somebody_else_is_no_write(losing):
    rows, engine = losing
    rows.write(b"k", b"v")
    error = lost(
        engine, "after, then cut", lambda: rows.store.commit(puts={"a": b"1"}, timeout=0.3)
    )
    engine.cut = False
    for _ in "ab":  # as the newest commit, and with a row behind it
        with pytest.raises(InvalidArgumentError, match="nothing to this log"):
            rows.resolve(error, timeout=0.5)
        rows.write(b"k", b"later")


def test_a_write_that_was_overtaken_while_nobody_knew_is_none(losing):
    """Its guard did not hold, whatever became of the group that it rode in."""
    rows, engine = losing
    rows.write(b"warm", b"w")
    space = rows.store.space("generations/default")
    error = lost(engine, "before, then cut", lambda: rows.write(b"k", b"v", timeout=0.3))
    engine.cut = False
    (head,) = space.entries_of([layout.HEAD])
    space.commit(puts={layout.HEAD: head.value})
    assert rows.resolve(error) is None
    assert rows.get(b"k") is None


@pytest.mark.parametrize("error", [None, 5, TimeoutError()])
def test_what_cannot_be_resolved(rows, error):
    with pytest.raises(InvalidArgumentError):
        rows.resolve(error)


def test_rows_are_in_the_store_of_their_member(place, store, member):
    with snapkv.open("memory:") as elsewhere, pytest.raises(InvalidArgumentError, match="store"):
        CdcLog(elsewhere, member)
    with snapkv.open("memory:") as elsewhere:
        assert CdcLog(elsewhere, member.generations)  # one alone has no guards


def test_without_a_generation_nothing_is_written(store, log, member):
    rows = CdcLog(store, member)
    before = store.resolved()
    with is_unavailable("none"):
        rows.write(b"k", b"v", timeout=0.2)
    assert (rows.get(b"k"), store.resolved()) == (None, before)


def test_a_write_waits_for_the_generation_it_needs(store, log, member):
    rows = CdcLog(store, member)
    with ThreadPoolExecutor(1) as pool:
        write = pool.submit(rows.write, b"k", b"v", timeout=20)
        made = log.make(RING)
        row = write.result(20)
    assert row.timestamp >= made.time
    assert_right_generation(log, row)


def test_a_member_that_was_lost_writes_nothing(rows, member):
    member._session.close()
    with pytest.raises(MemberLostError):
        rows.write(b"k", b"v", timeout=0.2)
    assert rows.get(b"k") is None


@pytest.mark.parametrize("timeout", [None, "1", -1, float("nan")])
def test_timeouts_that_are_none(rows, store, timeout):
    before = store.resolved()
    with pytest.raises(InvalidArgumentError):
        rows.write(b"k", b"v", timeout=timeout)
    assert store.resolved() == before


def test_a_write_may_wait_longer_than_a_commit(rows):
    assert rows.write(b"k", b"v", timeout=600)


@pytest.mark.parametrize("what", [b"x" * 16, "x", None])
def test_what_is_no_stream_and_no_key(rows, what):
    with pytest.raises(InvalidArgumentError):
        rows.read(what, 0)
    with pytest.raises(InvalidArgumentError):
        rows.get(5)


def test_rows_of_a_writer_whose_clock_is_ahead_are_read(place):
    """Also by who is behind: without an end, whatever is there is read."""
    here, ahead = ManualClock(START_MS), ManualClock(START_MS + 3_000)
    stores = [place.open(clock=clock) for clock in (here, ahead)]
    made = GenerationLog(stores[0], propagation_delay=0.0).make(RING)
    with GenerationLog(stores[1]).member(generations=Generations(clock=ahead)) as member:
        row = CdcLog(stores[1], member).write(b"k", b"v")
    reader = CdcLog(stores[0], Generations(clock=here))
    assert reader.read(row.stream, made.time - 1) == [row]
    assert reader.read(row.stream, made.time - 1, row.timestamp - 1) == []


def test_a_process_alone_needs_no_log(store):
    generations = Generations()
    rows = CdcLog(store, generations, "alone")
    topology = Topology.make(RING)
    now = pack(SystemClock().now_ms())
    generations.insert(now - pack(60_000), topology)
    row = rows.write(b"k", b"v")
    assert row.stream == topology.stream_for(murmur3_token(b"k"))
    with pytest.warns(LateGenerationWarning):
        generations.prepare(now - pack(1))
    with is_unavailable("not retrieved"):
        rows.write(b"k", b"v", timeout=0.2)


def test_a_writer_that_has_not_heard_of_a_generation_is_stopped_by_the_store(
    store, log, monkeypatch
):
    """The guard holds whatever clocks and watches do: here a member that hears nothing."""
    log.make(RING)
    monkeypatch.setattr(LogFollower, "step", lambda self, timeout: pause(0.05))
    with log.member("deaf") as deaf:
        rows = CdcLog(store, deaf)
        assert rows.write(b"k", b"1", timeout=20)
        space = store.space("generations/default")
        (head,) = space.entries_of([layout.HEAD])
        space.commit(puts={layout.HEAD: head.value})  # as any newer generation does
        with pytest.raises(TimeoutError):
            rows.write(b"k", b"2", timeout=0.5)
        assert rows.get(b"k") == b"1"


def test_writers_while_generations_come(store, log):
    """No row in a stream of the wrong generation, no row lost, with two members that write."""
    rings = [RING, WIDER, RING | {7: Sharding(1)}, RING]
    log.make(rings[0])
    stop, written = threading.Event(), []

    def write(member, n):
        rows, done = CdcLog(store, member), []
        for i in range(10**6):
            if stop.is_set():
                return done
            done.append(rows.write(b"%d/%d" % (n, i % 20), b"%d" % i, timeout=30))

    with log.member("one") as one, log.member("two") as two, ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, member, n) for n, member in enumerate((one, two))]
        try:
            for ring in rings[1:]:
                made = log.make(ring, timeout=60)
                while store.resolved() < made.time + pack(50):
                    assert not any(writer.done() for writer in writers)
        finally:
            stop.set()
        written = sorted(row for writer in writers for row in writer.result(60))
        rows = CdcLog(store, one)
        assert all_rows(rows) == written
    topologies = {each.time: log.topology(each) for each in log.generations()}
    for row in written:
        own = max(time for time in topologies if time <= row.timestamp)
        assert topologies[own].stream_for(murmur3_token(row.key)) == row.stream
    used = {max(time for time in topologies if time <= row.timestamp) for row in written}
    assert used == set(topologies)
