"""Trimming: log rows go with their generation, or by age; who loses some by it is told."""

import pickle

import pytest

from cdcmeta.errors import ExpiryIncompleteError, InvalidArgumentError, LogTrimmedError
from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    Sharding,
    StreamConsumer,
    generation_log,
    log_rows,
)
from cdcmeta.generations.consumer import rows_between
from cdcmeta.generations.log_rows import OLD_PREFIX, SLOTS
from snapkv import ConflictError, pack
from snapkv.errors import CorruptStoreError, EngineUnavailableError

from .tables import rows_of

RING = {(n << 58) + 1: Sharding(2) for n in range(-32, 32)}
WIDER = RING | {7: Sharding(2)}


@pytest.fixture
def log(store):
    return GenerationLog(store, propagation_delay=0.0, leeway=5.0)


@pytest.fixture
def site(store, log, clock):
    """A table whose log of generations it is recorded to be of."""
    generations = Generations(clock=clock)

    def switch(ring):
        made = log.make(ring)
        generations.insert(made.time, log.topology(made))
        clock.set(max(clock.now_ms(), (made.time >> 18) + 1))
        return made

    rows = CdcLog(store, generations)
    rows.switch = switch
    rows.bind(log.space)
    return rows


def write(rows, clock, count, step_ms=1_000):
    found = []
    for n in range(count):
        clock.advance(step_ms)
        found.append(rows.write(b"%d" % n, b"v"))
    return found


def left(rows):
    snapshot = rows.at()
    return rows_between(snapshot, range(SLOTS), 0, snapshot.timestamp, 10**9)[0]


def test_log_rows_go_with_their_generation(site, log, clock):
    site.switch(RING)
    old = write(site, clock, 20)
    site.switch(WIDER)
    new = write(site, clock, 20)
    clock.advance(60_000)
    assert log.expire(10**6).rows == 0  # superseded, and not removed
    assert left(site) == old + new
    done = log.expire(0)
    assert (len(done.removed), done.rows) == (1, 20)
    assert left(site) == new
    assert site.get(b"3") == b"v"  # the table itself stays
    assert log.expire(0).rows == 0
    assert rows_of(StreamConsumer(log, site, "late")) == new


def test_rows_of_an_expiry_that_was_cut_off_go_with_the_next(site, log, clock, monkeypatch):
    site.switch(RING)
    write(site, clock, 20)
    site.switch(WIDER)
    clock.advance(60_000)
    monkeypatch.setattr(generation_log, "trim", lambda *args, **more: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        log.expire(0)
    monkeypatch.undo()
    assert (len(log.generations()), len(left(site))) == (1, 20)
    assert log.expire(0).rows == 20
    assert left(site) == []


def test_what_a_consumer_has_not_passed_stays(site, log, clock):
    site.switch(RING)
    written = write(site, clock, 30)
    consumer = StreamConsumer(log, site, "c", max_rows=10)
    window = consumer.next()
    consumer.save(window)
    passed, count = consumer.progress.position, len(window.rows)
    assert 0 < count <= 10
    assert site.trim("-0s") == count
    assert [row for row in written if row.timestamp > passed] == left(site)
    assert rows_of(consumer) == written[count:]
    assert site.trim("-0s") == 30 - count
    assert site.trim("-0s") == 0
    assert rows_of(StreamConsumer(log, site, "c")) == []


def test_all_tables_are_trimmed_and_the_other_tables_consumers_keep_nothing(site, log, clock):
    site.switch(RING)
    other = CdcLog(site.store, site._streams, "other")
    other.bind(log.space)
    StreamConsumer(log, other, "idle")
    write(site, clock, 5)
    theirs = write(other, clock, 5)
    assert site.trim("-0s") == 5
    assert left(other) == theirs
    assert other.trim("-0s") == 0


def test_rows_that_are_too_old_go_and_who_has_not_read_them_is_told(site, log, clock):
    site.switch(RING)
    consumer, done = (StreamConsumer(log, site, name) for name in ("slow", "done"))
    written = write(site, clock, 10)
    assert rows_of(done) == written
    clock.advance(86_400_000)
    fresh = write(site, clock, 3)
    assert log.expire(10**6, ttl=86_400.0).rows == 10
    assert left(site) == fresh
    with pytest.raises(LogTrimmedError, match=f"since={written[-1].timestamp}") as caught:
        consumer.next()
    assert caught.value.until == written[-1].timestamp
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert rows_of(done) == fresh  # it has lost nothing, though it was idle for longer
    with pytest.raises(LogTrimmedError):
        StreamConsumer(log, site, "new", since=written[3].timestamp)
    assert rows_of(StreamConsumer(log, site, "new")) == fresh
    log.forget("slow")
    assert rows_of(StreamConsumer(log, site, "slow", since=caught.value.until)) == fresh


def test_nobody_is_told_of_a_loss_where_nothing_was(site, log, clock):
    """Its saved progress stays where the last row was, however long nothing comes."""
    site.switch(RING)
    consumer = StreamConsumer(log, site, "c")
    write(site, clock, 5)
    assert len(rows_of(consumer)) == 5
    for _ in range(3):
        clock.advance(86_400_000)
        site.store.tick()
        log.expire(10**6, ttl=3_600.0)
        assert rows_of(StreamConsumer(log, site, "c")) == []


def test_a_worker_loses_only_what_was_in_its_share(site, log, clock):
    site.switch(RING)
    workers = [StreamConsumer(log, site, "c", part=part, parts=2) for part in range(2)]
    clock.advance(1_000)
    row = site.write(b"k", b"v")
    owner = int(StreamConsumer(log, site, "x", parts=2, part=1).next().rows == (row,))
    site.trim("-0s", unread=True)
    with pytest.raises(LogTrimmedError):
        workers[owner].next()
    assert workers[1 - owner].next().rows == ()


def test_many_rows_go_in_commits_of_a_bounded_size(site, log, clock):
    site.switch(RING)
    clock.advance(1_000)
    for n in range(5):
        site.write_batch({b"%d/%d" % (n, i): b"v" for i in range(500)})
    before = site.store.resolved()
    assert site.trim("-0s") == 2_500
    assert len(list(site.store.commits(since=before))) == 3
    assert left(site) == []


def test_one_that_is_cut_off_is_gone_on_with(site, log, clock, monkeypatch):
    site.switch(RING)
    clock.advance(1_000)
    site.write_batch({b"%d" % i: b"v" for i in range(100)})  # one time, cut in the middle
    monkeypatch.setattr(log_rows, "ROWS_AT_ONCE", 7)
    commit, done = type(site.store).commit, []

    def dying(self, *args, **more):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(True)
        return commit(self, *args, **more)

    monkeypatch.setattr(type(site.store), "commit", dying)
    with pytest.raises(KeyboardInterrupt):
        site.trim("-0s")
    done.append(True)
    assert len(left(site)) == 65
    with pytest.raises(LogTrimmedError):
        StreamConsumer(log, site, "c", since=left(site)[0].timestamp - 1)
    assert site.trim("-0s") == 65
    assert left(site) == []


def test_a_consumer_that_comes_while_rows_go_loses_none(site, log, clock, monkeypatch):
    site.switch(RING)
    written = write(site, clock, 10)
    commit, late = type(site.store).commit, []

    def first_register(self, *args, **more):
        if not late:
            late.append(True)
            late.append(StreamConsumer(log, site, "late"))
        return commit(self, *args, **more)

    monkeypatch.setattr(type(site.store), "commit", first_register)
    assert site.trim("-0s") == 0
    assert rows_of(late[1]) == written


def test_two_that_trim_at_once(site, log, clock, monkeypatch):
    """What is recorded to be gone never goes back."""
    site.switch(RING)
    write(site, clock, 10)
    commit, second = type(site.store).commit, []

    def both(self, *args, **more):
        if not second:
            second.append(True)
            second.append(site.trim("-0s"))
        return commit(self, *args, **more)

    monkeypatch.setattr(type(site.store), "commit", both)
    assert (site.trim("-4s"), second[1]) == (0, 10)
    monkeypatch.undo()
    assert sorted(log_rows.trimmed_at(site.at()).values())[-1] > site.store.timestamp_of("-2s")


def test_while_the_commit_conflicts_it_is_bounded(site, log, clock, monkeypatch):
    site.switch(RING)
    write(site, clock, 2)

    def failing(self, *args, **more):
        raise ConflictError([])

    monkeypatch.setattr(type(site.store), "commit", failing)
    with pytest.raises(ConflictError):
        site.trim("-0s")


@pytest.mark.parametrize("ttl", [-1, "1d", float("nan"), True])
def test_ages_that_cannot_be(log, ttl):
    with pytest.raises(InvalidArgumentError, match="ttl"):
        log.expire(0, ttl=ttl)


def test_rows_to_come_are_not_trimmed(site, log, clock):
    site.switch(RING)
    write(site, clock, 3)
    assert site.trim("+1h") == 3
    fresh = write(site, clock, 3)
    assert left(site) == fresh
    assert rows_of(StreamConsumer(log, site, "c")) == fresh
    assert pack(clock.now_ms()) >= fresh[-1].timestamp


def broken_table(site, log, name):
    """A table with a row that nobody can read."""
    table = CdcLog(site.store, site._streams, name)
    table.bind(log.space)
    table.store.space(f"cdc/{name}").commit(puts={OLD_PREFIX + b"none": b"none"})
    return table


def test_a_table_that_fails_does_not_keep_the_others(site, log, clock):
    site.switch(RING)
    for name in ("a", "zz"):
        broken_table(site, log, name)
    old = write(site, clock, 20)
    site.switch(WIDER)
    new = write(site, clock, 20)
    clock.advance(60_000)
    with pytest.raises(ExpiryIncompleteError) as caught:
        log.expire(0)
    error = caught.value
    assert set(error.failed) == {"a", "zz"}
    assert all(isinstance(each, CorruptStoreError) for each in error.failed.values())
    assert str(error).startswith("could not remove log rows of 'a' (")
    assert ", 'zz' (" in str(error)
    assert (len(error.done.removed), error.done.rows, len(old)) == (1, 20, 20)
    assert left(site) == new
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.done) == (str(error), error.done)
    with pytest.raises(ExpiryIncompleteError) as caught:
        log.expire(0, ttl=30.0)
    assert (caught.value.done.removed, caught.value.done.rows) == ((), 20)


def test_a_store_that_cannot_be_reached_is_not_asked_for_each_table(site, log, clock, monkeypatch):
    site.switch(RING)
    for name in ("a", "b", "zz"):
        CdcLog(site.store, site._streams, name).bind(log.space)
    asked = []

    def unreachable(self, *args, **more):
        asked.append(self)
        raise EngineUnavailableError("away")

    monkeypatch.setattr(generation_log, "trim", unreachable)
    with pytest.raises(ExpiryIncompleteError) as caught:
        log.expire(0)
    assert (set(caught.value.failed), len(asked)) == ({"a", "b", "default", "zz"}, 1)
