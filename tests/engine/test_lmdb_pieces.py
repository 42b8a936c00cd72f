"""Pieces are cut by records, in short read transactions, between keys only."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from lmdb_words import ALL, FIRST, delete, head, put, run_txn

from snapkv.engine.contract import Put, Range
from snapkv.engine.lmdb import LmdbEngine, reading
from snapkv.engine.lmdb.environment import Environment
from snapkv.errors import CompactedError

Opened = Callable[..., LmdbEngine]


def parts(engine: LmdbEngine, rows: int, key: bytes = FIRST, end: bytes = ALL) -> list[list[bytes]]:
    """Return the keys of each piece at the newest revision; the pieces have no gaps."""
    cut = engine.pieces(key, end, revision=head(engine), rows=rows)
    assert all(one.range_end == next_.key for one, next_ in itertools.pairwise(cut))
    assert (cut[0].key, cut[-1].range_end) == (key, end)
    read = [engine.read([Range(piece.key, piece.range_end)]).results[0] for piece in cut]
    return [[kv.key for kv in found.kvs] for found in read]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (15_000, [15_000, 10_000]),
        (10_000, [10_000, 10_000, 5_000]),
        (12_500, [12_500, 12_500]),
        (25_000, [25_000]),
        (99_999, [25_000]),
    ],
)
@pytest.mark.long_after(2)
def test_pieces_may_be_longer_than_what_one_transaction_walks_over(
    opened: Opened, rows: int, sizes: list[int]
) -> None:
    assert reading.STRIDE_RECORDS < 12_500
    engine = opened(durability="none")
    names = [b"k%06d" % i for i in range(25_000)]
    run_txn(engine, *(Put(name, b"v") for name in names))
    cut = engine.pieces(FIRST, ALL, revision=head(engine), rows=rows)
    assert [piece.rows for piece in cut] == sizes
    assert list(itertools.chain(*parts(engine, rows))) == names
    assert [piece.rows for piece in engine.pieces(b"k000100", b"k000200", revision=2, rows=60)] == [
        60,
        40,
    ]


@pytest.mark.parametrize("stride", [1, 2, 7, 10_000])
@pytest.mark.parametrize("rows", [1, 3, 10, 100])
def test_a_keys_versions_are_in_one_piece(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, stride: int, rows: int
) -> None:
    monkeypatch.setattr(reading, "STRIDE_RECORDS", stride)
    engine = opened(durability="none")
    names = [b"a", b"a\0", b"a\0\0", b"a\0\xff", b"b", b"k" * 501, b"\xff" * 501]
    for i in range(23):
        run_txn(engine, *(Put(name, b"%d" % i) for name in names[i % 2 :]))
    delete(engine, b"b")
    names.remove(b"b")
    assert list(itertools.chain(*parts(engine, rows))) == names
    for name in names:
        assert parts(engine, rows, name, b"") == [[name]]


def test_a_key_of_many_versions_makes_no_more_pieces(opened: Opened) -> None:
    """A scan passes over old versions by a seek; so does cutting."""
    engine = opened(durability="none")
    for i in range(300):
        run_txn(engine, Put(b"often", b"%d" % i))
    run_txn(engine, *(Put(b"z%02d" % i, b"v") for i in range(20)))
    found = engine.pieces(FIRST, ALL, revision=head(engine), rows=10)
    assert [piece.rows for piece in found] == [10, 10, 10]
    assert parts(engine, 10)[0] == [b"often"]


def test_cutting_that_was_overtaken_by_compaction_says_so(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "STRIDE_RECORDS", 100)
    engine = opened(durability="none")
    run_txn(engine, *(Put(b"k%03d" % i, b"v") for i in range(300)))
    past = head(engine)
    newest = put(engine, b"k000")
    transactions = itertools.count(1)

    def env() -> Environment:
        if next(transactions) == 2:
            engine.compact(newest)
        return engine._env

    with pytest.raises(CompactedError) as caught:
        reading.pieces(env, FIRST, ALL, past, 150)
    assert (caught.value.requested, caught.value.earliest) == (past, newest)
