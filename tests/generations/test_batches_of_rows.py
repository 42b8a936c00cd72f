"""Several rows in one commit, what each log row says, and the rows before and after."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cases import cases
from changes.losing import Losing
from store.wrapping import wrap_engines

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations import CdcLog, GenerationLog, Operation, StreamConsumer
from snapkv import CommitTooLargeError, CommitUnknownError

from .live import RING
from .live import clock as clock
from .live import log as log
from .live import member as member
from .tables import rows_of

pytestmark = pytest.mark.slow

PREIMAGE, UPDATE, INSERT, ROW_DELETE, POSTIMAGE = Operation


def consumed(log, rows):
    return rows_of(StreamConsumer(log, rows, "c"))


def test_the_codes_are_scylladbs():
    assert [int(each) for each in Operation] == [0, 1, 2, 3, 9]


def test_several_rows_are_one_commit(store, log, member):
    rows = CdcLog(store, member)
    rows.write(b"first", b"")
    before = store.resolved()
    written = rows.write_batch({b"a": b"1", b"b": b"2", b"first": None}, note="three")
    assert [commit.note for commit in store.commits(since=before)] == ["three"]
    assert [(row.key, row.value, row.operation) for row in written] == [
        (b"a", b"1", UPDATE),
        (b"b", b"2", UPDATE),
        (b"first", None, ROW_DELETE),
    ]
    assert [rows.get(key) for key in (b"a", b"b", b"first")] == [b"1", b"2", None]
    assert len({row.stamp[:2] for row in written}) == 1
    assert consumed(log, rows)[1:] == written


def test_numbers_count_within_a_stream_and_the_last_ends_the_batch(store, log, member):
    rows = CdcLog(store, member, postimage=True)
    written = rows.write_batch([(b"%d" % n, b"v") for n in range(50)])
    streams = {row.stream for row in written}
    assert 1 < len(streams) < 50
    for stream in streams:
        own = [row for row in written if row.stream == stream]
        assert [row.batch_seq_no for row in own] == list(range(len(own)))
        assert [row.end_of_batch for row in own] == [False] * (len(own) - 1) + [True]
        assert rows.read(stream, 0) == own
    assert consumed(log, rows) == written


def test_rows_before_and_after(store, log, member):
    rows = CdcLog(store, member, preimage=True, postimage=True)
    told = []
    for value in (b"1", b"2", None, None, b"3"):
        row = rows.write(b"k", value)
        told.append((row.operation, row.value))
    assert told == [(INSERT, b"1"), (UPDATE, b"2"), *[(ROW_DELETE, None)] * 2, (INSERT, b"3")]
    found = [(row.operation, row.value, row.batch_seq_no) for row in consumed(log, rows)]
    assert found == [
        (INSERT, b"1", 0),
        (POSTIMAGE, b"1", 1),
        (PREIMAGE, b"1", 0),
        (UPDATE, b"2", 1),
        (POSTIMAGE, b"2", 2),
        (PREIMAGE, b"2", 0),
        (ROW_DELETE, None, 1),
        (ROW_DELETE, None, 0),
        (INSERT, b"3", 0),
        (POSTIMAGE, b"3", 1),
    ]


def test_the_row_before_is_exact_whoever_else_writes(store, log, member):
    """Each preimage is the change that was logged before it, with writers in each other's way."""
    tables = [CdcLog(store, member, preimage=True) for _ in range(3)]
    start = threading.Barrier(3)

    def write(n):
        start.wait()
        for i in range(15):
            if i % 4 == 3:
                tables[n].write_batch({b"k": None, b"other": b"%d/%d" % (n, i)}, timeout=60)
            else:
                tables[n].write(b"k", b"%d/%d" % (n, i), timeout=60)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(write, n) for n in range(3)]:
            done.result(120)
    value, changes = None, 0
    for row in consumed(log, tables[0]):
        if row.key != b"k":
            continue
        if row.operation == PREIMAGE:
            assert row.value == value is not None
            seen = True
            continue
        assert (row.operation == INSERT) == (value is None and row.value is not None)
        assert row.operation != UPDATE or seen
        value, seen, changes = row.value, False, changes + 1
    assert changes == 45


@cases(
    "changes",
    [
        {},
        [],
        [(b"k", b"1"), (b"k", b"2")],
        [(b"k", "v")],
        [("k", b"v")],
        [b"kv"],
        [(b"k",)],
        None,
        5,
        b"ab",
    ],
)
def test_changes_that_cannot_be(store, member, changes):
    rows = CdcLog(store, member)
    before = store.resolved()
    with pytest.raises(InvalidArgumentError):
        rows.write_batch(changes)
    assert store.resolved() == before


@pytest.mark.parametrize("fate", ["after, then cut", "before, then cut"])
def test_an_unknown_outcome_of_several_rows(place, fate, monkeypatch):
    engines = wrap_engines(monkeypatch, Losing)
    store = place.open()
    log = GenerationLog(store, propagation_delay=0.0, leeway=0.2)
    log.make(RING)
    with log.member("node") as member:
        rows = CdcLog(store, member, preimage=True)
        rows.write(b"a", b"0")
        engines[-1].plan = [fate]
        with pytest.raises(CommitUnknownError) as caught:
            rows.write_batch({b"a": b"1", b"b": b"2"}, timeout=0.3)
        engines[-1].cut, engines[-1].plan = False, []
        found = rows.resolve_batch(caught.value)
        if fate.startswith("before"):
            assert found is None
            return
        told = [(row.key, row.operation, row.value) for row in found]
        assert told == [(b"a", PREIMAGE, b"0"), (b"a", UPDATE, b"1"), (b"b", INSERT, b"2")]
        assert rows.resolve(caught.value) == found[1]
        assert consumed(log, rows)[1:] == found


def test_a_batch_with_images_has_as_many_rows_as_the_engine_has_guards(store, log, member):
    rows = CdcLog(store, member, preimage=True)
    most = store.guards_max
    if most is None:
        assert len(rows.write_batch({b"%d" % n: b"" for n in range(300)})) == 300
        return
    rows.write_batch({b"%d" % n: b"" for n in range(most - 2)})
    before = store.resolved()
    with pytest.raises(CommitTooLargeError, match="guards"):
        rows.write_batch({b"%d" % n: b"" for n in range(most)})
    assert store.resolved() == before
    assert (
        len(CdcLog(store, member, "plain").write_batch({b"%d" % n: b"" for n in range(300)})) == 300
    )
