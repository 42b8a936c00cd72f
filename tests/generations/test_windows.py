"""Windows: bounded in rows and in time, by a cost that follows the rows."""

import random
from collections import Counter
from itertools import pairwise

import msgpack
import pytest
from cases import cases
from sampling import fewer_on_etcd, some

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    Sharding,
    StreamConsumer,
    StreamId,
    log_rows,
)
from cdcmeta.generations.log_rows import OLD_PREFIX, LogRow, Operation, encoded, row_of, slot_of
from snapkv import pack
from snapkv.errors import CorruptStoreError
from snapkv.timeline import Moment
from snapkv.tuples import Versionstamp
from snapkv.tuples import pack as pack_tuple

pytestmark = pytest.mark.slow

RING = {(n << 58) + 1: Sharding(2) for n in range(-32, 32)}
DAY_MS = 86_400_000


@pytest.fixture
def log(store):
    return GenerationLog(store, propagation_delay=0.0, leeway=5.0)


@pytest.fixture
def generations(log, clock):
    made = log.make(RING)
    found = Generations(clock=clock)
    found.insert(made.time, log.topology(made))
    return found


@pytest.fixture
def rows(store, generations):
    return CdcLog(store, generations)


def write_many(rows, clock, seconds, each=1):
    """Write so many rows in each of some seconds; return all of them, in order."""
    found = []
    for n in range(seconds):
        clock.advance(1_000)
        for key in range(each):
            found.append(rows.write(b"%d/%d" % (n, key), b"v"))
    return found


def test_a_burst_after_a_day_of_silence_comes_in_short_windows(rows, log, clock):
    """One window held 18 hours of rows in one tuple."""
    consumer = StreamConsumer(log, rows, "c", window=30.0)
    clock.advance(DAY_MS)
    written = write_many(rows, clock, 200)
    windows = list(consumer)
    assert [row for window in windows for row in window.rows] == written
    full = [window for window in windows if window.rows]
    assert all(window.end - window.begin <= pack(30_000) for window in full)
    assert max(len(window.rows) for window in full) <= 31
    assert len(windows) - len(full) < 20  # the day itself
    silence = [window for window in windows if window.end < written[0].timestamp]
    assert silence[-1].end == written[0].timestamp - 1


@pytest.mark.long_after(1)
@pytest.mark.parametrize("max_rows", [1, 2, 7, 50, 10_000])
def test_a_window_has_no_more_rows_than_asked_for(rows, log, clock, max_rows):
    written = write_many(rows, clock, 5, each=23)
    consumer = StreamConsumer(log, rows, "c", max_rows=max_rows)
    windows = list(consumer)
    assert [row for window in windows for row in window.rows] == written
    assert max(len(window.rows) for window in windows) <= max_rows
    for before, after in pairwise(windows):
        assert before.end == after.begin


def test_a_commit_is_never_divided(rows, log, clock):
    clock.advance(1_000)
    written = rows.write_batch({b"%d" % n: b"v" for n in range(40)})
    written += [rows.write(b"k", b"v")]
    windows = [each for each in StreamConsumer(log, rows, "c", max_rows=3) if each.rows]
    assert [len(window.rows) for window in windows] == [40, 1]
    assert [row for window in windows for row in window.rows] == written


def test_a_crash_in_a_window_that_rows_cut_off_repeats_just_that(rows, log, clock):
    written = write_many(rows, clock, 3, each=10)
    got, windows = [], iter(StreamConsumer(log, rows, "c", max_rows=4))
    while len(got) < 10:
        got += next(windows).rows
    del windows
    again = [row for window in StreamConsumer(log, rows, "c", max_rows=4) for row in window.rows]
    assert set(got) | set(again) == set(written)
    assert len(got) + len(again) - len(written) <= 4
    assert again == sorted(again)


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("place", "seed"), fewer_on_etcd(some(range(8), one_in=2), one_in=4), indirect=["place"]
)
def test_windows_of_any_rows(store, log, clock, generations, seed):
    """Rows of few streams or many, alone or in crowds, in commits of any size: each once."""
    print("seed", seed)
    rng = random.Random(seed)
    rows = CdcLog(store, generations)
    keys = [b"%d" % n for n in range(rng.choice([1, 3, 500]))]
    written = []
    for _ in range(60):
        clock.advance(rng.choice([0, 1, 700, 40_000]))
        chosen = rng.sample(keys, min(len(keys), rng.choice([1, 1, 5, 90])))
        written += rows.write_batch(dict.fromkeys(chosen, b"v"))
    largest = max(Counter(row.timestamp for row in written).values())
    for max_rows in (1, 5, 64, 1_000):
        windows = list(StreamConsumer(log, rows, f"by-{max_rows}", max_rows=max_rows))
        assert [row for window in windows for row in window.rows] == written
        assert max(len(window.rows) for window in windows) <= max(max_rows, largest)


@pytest.mark.parametrize(
    "max_rows", [64, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 10, 200))]
)
def test_a_window_of_fewer_rows_is_not_the_end(rows, log, clock, max_rows):
    """Rows of one stream crowd in one slot, among commits that do not fit behind another."""
    written = []
    for n in range(6):
        clock.advance(1_000)
        written += rows.write_batch({b"%d/%d" % (n, key): b"v" for key in range(45)})
        written += [rows.write(b"one", b"v") for _ in range(90)]
    consumer = StreamConsumer(log, rows, f"by-{max_rows}", max_rows=max_rows)
    found, sizes = [], []
    while (window := consumer.next()) is not None:
        assert window.rows or window.end == log.store.resolved(), "each one gets on"
        found += window.rows
        sizes.append(len(window.rows))
        consumer.save(window)
    assert found == written
    assert max_rows == 1 or any(0 < size < max_rows for size in sizes[:-1])


def test_the_cost_of_a_window_does_not_follow_the_streams(store, clock, monkeypatch):
    """As many ranges are read of 4,096 streams as of 128."""
    asked = []
    ranges = Moment.ranges

    def counting(self, wanted, limit=0):
        asked.append(len(wanted))
        return ranges(self, wanted, limit)

    monkeypatch.setattr(Moment, "ranges", counting)
    told = []
    for name, count in (("few", 2), ("many", 64)):
        log = GenerationLog(store, name, propagation_delay=0.0, leeway=5.0)
        made = log.make(dict.fromkeys(RING, Sharding(count)))
        generations = Generations(clock=clock)
        generations.insert(made.time, log.topology(made))
        rows = CdcLog(store, generations, name)
        written = write_many(rows, clock, 3)
        consumer = StreamConsumer(log, rows, "c")
        asked.clear()
        assert list(consumer.next().rows) == written
        told.append(list(asked))
    assert told[0] == told[1] == [64]


@cases("max_rows", [0, -1, None, 1.5, True, "10"])
def test_bounds_that_cannot_be(rows, log, max_rows):
    with pytest.raises(InvalidArgumentError, match="max_rows"):
        StreamConsumer(log, rows, "c", max_rows=max_rows)
    assert log.consumers() == {}


# --- rows of the layout before ---


def old_form(rows, written):
    """Put rows back to where an older version wrote them."""
    keys = list(encoded(written))
    puts = {
        pack_tuple(("log", row.stream.ring_key, row.stamp)): pack_tuple(
            (0, row.key, row.value) if row.value is not None else (0, row.key)
        )
        for row in written
    }
    rows.store.space("cdc/default").commit(puts=puts, deletes=keys)


def test_rows_of_an_older_version_are_read(rows, log, clock):
    written = write_many(rows, clock, 150)
    written.append(rows.write(b"0/0", None))
    old_form(rows, written)
    fresh = rows.write(b"new", b"v")
    first = written[0]
    assert rows.read(first.stream, 0, first.timestamp) == [first]
    found = [row for window in StreamConsumer(log, rows, "c") for row in window.rows]
    assert found == [*written, fresh]
    assert rows.upgrade() == 0
    assert rows.read(first.stream, 0, first.timestamp) == [first]


def test_two_that_move_old_rows_at_once_lose_none(rows, log, clock, monkeypatch):
    written = write_many(rows, clock, 150)
    old_form(rows, written)
    space = type(store_space(rows))
    commit, second = space.commit, []

    def both(self, *args, **more):
        if not second:
            second.append(True)
            second.append(rows.upgrade())
        return commit(self, *args, **more)

    monkeypatch.setattr(space, "commit", both)
    assert rows.upgrade() == 0
    assert second[1] == 150
    monkeypatch.undo()
    assert [row for window in StreamConsumer(log, rows, "c") for row in window.rows] == written


def test_large_old_rows_are_moved_in_small_commits(rows, log, clock, monkeypatch):
    monkeypatch.setattr(log_rows, "OLD_BYTES_AT_ONCE", 2_000)
    written = [rows.write(b"%d" % n, b"v" * 900) for n in range(20)]
    old_form(rows, written)
    before = rows.store.at().revision
    assert rows.upgrade() == 20
    assert rows.store.at().revision - before == 7  # with three rows each, the last with two
    assert [row for window in StreamConsumer(log, rows, "c") for row in window.rows] == written


def test_who_loses_each_race_to_one_that_goes_on_is_not_given_up(rows, log, clock, monkeypatch):
    written = write_many(rows, clock, 150)
    old_form(rows, written)
    monkeypatch.setattr(log_rows, "OLD_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(log_rows, "TRIES", 3)
    space = type(store_space(rows))
    commit, busy = space.commit, []

    def after_another(self, *args, **more):
        if not busy and len(list(store_space(rows).at().keys(OLD_PREFIX))) > 1:
            busy.append(True)
            entries = store_space(rows).at().entries(OLD_PREFIX)
            key, entry = next(entries)
            commit(self, puts=encoded([row_of(key, entry.value)]), deletes=[key])
            busy.clear()
        return commit(self, *args, **more)

    monkeypatch.setattr(space, "commit", after_another)
    assert rows.upgrade() == 1, "the last one"
    monkeypatch.undo()
    assert [row for window in StreamConsumer(log, rows, "c") for row in window.rows] == written


def store_space(rows):
    return rows.store.space("cdc/default")


def test_a_log_row_in_a_wrong_slot_is_refused(rows, log, clock):
    (row,) = write_many(rows, clock, 1)
    (raw,) = encoded([row]).values()
    elsewhere = pack_tuple(("row", (slot_of(row.stream) + 1) % 64, row.stamp))
    rows.store.space("cdc/default").commit(puts={elsewhere: raw})
    with pytest.raises(CorruptStoreError, match="is not of this slot"):
        list(StreamConsumer(log, rows, "c"))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        msgpack.packb(5),
        msgpack.packb([1, 2]),
        msgpack.packb([1, b"x", 1, 0, True, b"k", b"v"]),
        msgpack.packb([1, "text", 1, 0, True, b"k", b"v"]),
    ],
)
def test_a_log_row_that_cannot_be_read_is_refused(rows, log, clock, raw):
    (row,) = write_many(rows, clock, 1)
    rows.store.space("cdc/default").commit(puts=dict.fromkeys(encoded([row]), raw))
    with pytest.raises(CorruptStoreError, match="is not valid"):
        list(StreamConsumer(log, rows, "c"))


@pytest.mark.parametrize(
    ("at", "wrong"), [(1, bytes(15)), (2, 4), (2, "1"), (2, [1]), (5, "k"), (6, 5)]
)
def test_a_log_row_with_a_field_that_cannot_be(rows, log, clock, at, wrong):
    (row,) = write_many(rows, clock, 1)
    ((key, raw),) = encoded([row]).items()
    fields = msgpack.unpackb(raw)
    fields[at] = wrong
    rows.store.space("cdc/default").commit(puts={key: msgpack.packb(fields)})
    with pytest.raises(CorruptStoreError, match="is not valid"):
        list(StreamConsumer(log, rows, "c"))


def test_the_bytes_of_a_log_row():
    """As the table of rows.py says, for whoever reads them without this."""
    stream = StreamId.fromhex("7ffe0c687fcce86e0783343730000001")
    stamp = Versionstamp(0x00060A24181E4000, 3, 7)
    row = LogRow(stamp, stream, b"k", None, Operation.ROW_DELETE, 2, False)
    ((key, raw),) = encoded([row]).items()
    assert key == pack_tuple(("row", 63, stamp))
    assert msgpack.unpackb(raw) == [1, stream.ring_key, 3, 2, False, b"k", None]
    assert key.hex() == "02726f7700153f3300060a24181e400000030007"


def test_a_row_says_what_it_is(rows, clock):
    (row,) = write_many(rows, clock, 1)
    assert row == LogRow(row.stamp, row.stream, b"0/0", b"v", Operation.UPDATE, 0, True)
    assert rows.write(b"0/0", None).operation == Operation.ROW_DELETE == 3
