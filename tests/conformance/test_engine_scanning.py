"""Scans: pages at one revision, whatever happens meanwhile."""

from __future__ import annotations

import pytest
from conformance_driver import ALL, FIRST, Background, Driver

from snapkv.engine.contract import Delete, KeyValue, Put
from snapkv.errors import CompactedError, FutureRevisionError

pytestmark = pytest.mark.slow

ROWS = 12_000


def filled(db: Driver) -> int:
    for base in range(0, ROWS, 3_000):
        db.txn(*(Put(b"k%06d" % i, b"%d" % i) for i in range(base, base + 3_000)))
    return db.head()


def rows(pages: list[list[KeyValue]]) -> list[KeyValue]:
    assert all(pages), "a page is never empty"
    return [kv for page in pages for kv in page]


def test_a_scan_gives_everything_once_in_order(db: Driver) -> None:
    head = filled(db)
    db.delete(b"k000005", b"k005000")
    found = rows(list(db.engine.scan(FIRST, ALL, revision=head)))
    assert [kv.key for kv in found] == [b"k%06d" % i for i in range(ROWS)]
    assert [kv.value for kv in found] == [b"%d" % i for i in range(ROWS)]
    now = rows(list(db.engine.scan(FIRST, ALL, revision=db.head())))
    assert [kv.key for kv in now] == [b"k%06d" % i for i in range(ROWS) if not 5 <= i < 5_000]
    assert now == db.range(FIRST, ALL).kvs


def test_a_scan_of_a_part_and_of_nothing(db: Driver) -> None:
    head = filled(db)
    part = rows(list(db.engine.scan(b"k000100", b"k006100", revision=head)))
    assert [kv.key for kv in part] == [b"k%06d" % i for i in range(100, 6_100)]
    assert list(db.engine.scan(b"x", ALL, revision=head)) == []
    assert [kv.key for kv in rows(list(db.engine.scan(b"k000007", b"", revision=head)))] == [
        b"k000007"
    ]


def test_a_scan_of_keys_only(db: Driver) -> None:
    head = filled(db)
    found = rows(list(db.engine.scan(FIRST, ALL, revision=head, keys_only=True)))
    assert len(found) == ROWS
    assert {kv.value for kv in found} == {b""}
    assert {kv.version for kv in found} == {1}


@pytest.mark.parametrize("key", [b"a", b"a\0", b"a\xff"])
def test_a_page_that_ends_between_awkward_keys(db: Driver, key: bytes) -> None:
    names = sorted({key + bytes([i, j]) for i in (0, 1, 255) for j in range(256)} | {key})
    for _ in range(3):
        db.txn(*(Put(name, b"v") for name in names))
    found = rows(list(db.engine.scan(FIRST, ALL, revision=db.head())))
    assert [kv.key for kv in found] == names


def test_a_scan_stands_still_while_others_write(db: Driver) -> None:
    head = filled(db)

    def write() -> None:
        for i in range(40):
            db.txn(Delete(b"k%06d" % (i * 100)), Put(b"k%06d" % (i * 100 + 1), b"new"))
            db.put(b"k%06d!" % (i * 300), b"new")

    writer = Background(write)
    while writer.running:
        found = rows(list(db.engine.scan(FIRST, ALL, revision=head)))
        assert len(found) == ROWS
        assert all(kv.value == b"%d" % i for i, kv in enumerate(found))
    writer.result()


def test_a_scan_goes_on_when_compaction_comes_up_to_it(db: Driver) -> None:
    filled(db)
    db.delete(b"k000100", b"k000200")
    head = db.txn(*(Put(b"k%06d" % i, b"again") for i in range(6_000, 9_000))).header.revision
    pages = db.engine.scan(FIRST, ALL, revision=head)
    first = next(pages)
    db.put(b"k011999", b"newer")
    db.engine.compact(head)
    found = rows([first, *pages])
    assert len(found) == ROWS - 100
    assert found[-1].value == b"11999"


def test_a_scan_that_was_overtaken_by_compaction_says_so(db: Driver) -> None:
    head = filled(db)
    pages = db.engine.scan(FIRST, ALL, revision=head)
    next(pages)
    newest = db.put(b"k000000", b"newer")
    db.engine.compact(newest)
    with pytest.raises(CompactedError) as caught:
        list(pages)
    assert (caught.value.requested, caught.value.earliest) == (head, newest)


def test_scans_check_their_revision(db: Driver) -> None:
    head = db.put(b"a")
    with pytest.raises(FutureRevisionError):
        list(db.engine.scan(FIRST, ALL, revision=head + 1))
    newest = db.put(b"a")
    db.engine.compact(newest)
    with pytest.raises(CompactedError):
        list(db.engine.scan(FIRST, ALL, revision=head))
