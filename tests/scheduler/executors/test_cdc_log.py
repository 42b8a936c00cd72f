"""Ranges of a CDC log as tables: each row once, in order, whatever generations do."""

import json
import random
from functools import partial

import pytest

import snapkv
from cdcmeta.errors import LogTrimmedError
from cdcmeta.generations import CdcLog, GenerationLog, Sharding
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors import cdc_log_source
from cdcmeta.scheduler.executors.cdc_log_source import CdcLogSource, range_of, text_of
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter, file_name
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter
from snapkv.tuples import pack

from .driving import Driven, Noting
from .sources import open_source

pytestmark = pytest.mark.slow

TABLES = [f"users:{n}/3" for n in range(3)]
RING = {-(1 << 62): Sharding(2), 1 << 62: Sharding(3)}


@pytest.fixture(params=["memory", "lmdb"])
def store(request, tmp_path):
    with open_source(request.param, tmp_path / "source") as store:
        yield store


@pytest.fixture
def seed():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return seed


class Writer:
    """Writes rows of a log, whose ring grows when a test wants; knows each row."""

    def __init__(self, store, seed):
        self.log = GenerationLog(store, propagation_delay=0.0, leeway=0.05)
        self.ring, self._rng = dict(RING), random.Random(seed)
        self.log.make(self.ring)
        self.member = self.log.member("writer")
        self.table = CdcLog(store, self.member, "users", preimage=True)
        self.rows, self.content = [], {}

    def write(self, count):
        rng = self._rng
        for _ in range(count):
            keys = rng.sample(range(30), rng.randrange(1, 4))
            changes = {
                b"key%d" % key: None if rng.random() < 0.2 else b"%d" % rng.getrandbits(30)
                for key in keys
            }
            self.rows += self.table.write_batch(changes)
            self.content |= changes

    def switch(self):
        """Begin another generation, with another token; write until it operates."""
        self.ring[self._rng.getrandbits(60)] = Sharding(4)
        made = self.log.make(self.ring)
        while self.rows[-1].timestamp < made.time:
            self.write(1)


@pytest.fixture
def writer(store, seed):
    writer = Writer(store, seed)
    yield writer
    writer.member.close()


def source(store):
    return CdcLogSource(store, "users", TABLES, "f")


def logged(noting, table):
    return [
        change.row
        for name, _, commits, _ in noting.calls
        if name == table
        for commit in commits
        for change in commit
    ]


def wanted(writer, table):
    return [row for row in writer.rows if TABLES[range_of(row.key, 3)] == table]


def assert_all(noting, writer):
    for table in TABLES:
        rows = logged(noting, table)
        assert rows == wanted(writer, table)  # in order, each once
        generations = [writer.log.operating_at(row.timestamp).time for row in rows]
        assert generations == sorted(generations)


def test_each_row_once_over_generations_and_moves(store, writer):
    noting = Noting()
    driven = Driven(source(store), partial(CalledWriter, noting), TABLES)
    writer.write(10)
    driven.start(1)  # all that the log has
    writer.switch()
    writer.write(10)
    driven.reach(store.resolved())
    checkpoints = driven.stop([TABLES[0]])
    writer.switch()
    writer.write(10)
    driven.start(checkpoints[TABLES[0]], owner=2, tables=[TABLES[0]])
    writer.write(5)
    driven.reach(store.resolved())
    assert len({writer.log.operating_at(row.timestamp).time for row in writer.rows}) == 3
    assert_all(noting, writer)
    driven.close()


def test_rows_are_there_after_their_commits_were_compacted(store, writer):
    noting = Noting()
    driven = Driven(source(store), partial(CalledWriter, noting), TABLES)
    writer.write(30)
    writer.switch()
    writer.write(30)
    store.reader.engine.compact(store.at().revision)
    driven.start(1)
    writer.write(5)
    driven.reach(store.resolved())
    assert_all(noting, writer)
    driven.close()


def test_trimmed_rows_end_their_tables(store, writer):
    noting = Noting()
    driven = Driven(source(store), partial(CalledWriter, noting), TABLES)
    writer.write(5)
    start = store.resolved()
    writer.write(20)
    writer.table.trim(store.resolved(), unread=True)
    store.reader.engine.compact(store.at().revision)
    driven.executor.add_table(TABLES[0], start, Token(1, 1), is_prepare=True)
    driven.until(lambda: driven.state(TABLES[0]) is TableState.STOPPED, "its end")
    driven.executor.is_remove_finished(TABLES[0])
    assert "were trimmed" in driven.executor.problems()[TABLES[0]].error
    driven.start(1, owner=2)  # from the beginning of what is there
    before = len(writer.rows)
    writer.write(3)
    driven.reach(store.resolved())
    found = sorted(row for table in TABLES for row in logged(noting, table))
    assert found == sorted(writer.rows[before:])
    driven.close()


def old_row(store, writer, key, value):
    """Write a log row as an older version did."""
    writer.rows += writer.table.write_batch({b"model": b"x"})
    row = writer.rows[-1]
    store.space("cdc/users").commit(
        puts={pack(("log", row.stream.ring_key, row.stamp)): pack((0, key, value))}
    )


def test_rows_of_an_older_version_come_at_their_time(store, writer):
    """The next reader, or a trim, moves them to other keys: that is not a change."""
    noting = Noting()
    old_row(store, writer, b"key1", b"old")
    writer.rows += writer.table.write_batch({b"key1": b"new"})
    driven = Driven(source(store), partial(CalledWriter, noting), TABLES)
    driven.start(1)
    driven.reach(store.resolved())
    table = TABLES[range_of(b"key1", 3)]
    assert [row.value for row in logged(noting, table) if row.key == b"key1"] == [b"old", b"new"]
    old_row(store, writer, b"key1", b"older")
    writer.table.trim(writer.rows[0].timestamp - 1)  # upgrades
    writer.write(3)
    driven.reach(store.resolved())
    assert b"older" not in [row.value for row in logged(noting, table)]
    driven.close()


def test_rows_that_are_trimmed_while_stored_ones_are_read(store, writer, monkeypatch):
    monkeypatch.setattr(cdc_log_source, "ROWS_AT_ONCE", 10)
    writer.write(5)
    start = store.resolved()
    writer.write(60)
    feed = source(store).feed(start)
    assert feed.next(0.0)
    writer.table.trim(store.resolved(), unread=True)
    with pytest.raises(LogTrimmedError, match="create another changefeed"):
        list(iter(lambda: feed.next(0.0), None))
    feed.close()


def test_a_store_gets_the_rows_of_the_table(store, writer):
    writer.write(20)
    with snapkv.open("memory:") as target:
        driven = Driven(source(store), partial(StoreTableWriter, target, "f"), TABLES)
        driven.start(1)
        writer.write(20)
        driven.reach(store.resolved())
        found = {key.encode(): value for key, value in target.at().items()}
        assert found == {key: value for key, value in writer.content.items() if value is not None}
        driven.close()


def test_lines_have_operation_and_stream(store, writer, tmp_path):
    driven = Driven(source(store), partial(JsonLinesWriter, tmp_path / "lines"), TABLES)
    driven.start(1)
    writer.rows += writer.table.write_batch({b"\xff": b"1"})
    driven.reach(store.resolved())
    driven.close()
    (row,) = writer.rows
    name = file_name(TABLES[range_of(b"\xff", 3)])
    lines = map(json.loads, (tmp_path / "lines" / name).read_text().splitlines())
    (change,) = [change for line in lines for change in line.get("changes", ())]
    assert change == {
        "key": "~ff",
        "value": "1",
        "operation": "insert",
        "stream": str(row.stream),
        "batch_seq_no": 0,
        "end_of_batch": True,
    }


@pytest.mark.parametrize("key", [b"a", b"~a", b"\xff", b"~ff", "é".encode()])
def test_no_two_keys_share_a_text(key):
    texts = {text_of(each) for each in (b"a", b"~a", b"\xff", b"~ff", b"~~ff", b"\xfe")}
    assert len(texts) == 6
    assert text_of(key).encode()  # UTF-8 again
