"""Pieces: a range that is cut for parallel readers holds each of its keys once."""

from __future__ import annotations

import itertools
import random

import pytest
from conformance_driver import ALL, FIRST, Driver

from snapkv.engine.contract import Delete, KeyValue, Put, RangePiece
from snapkv.errors import CompactedError, FutureRevisionError

pytestmark = pytest.mark.slow

DEEP = b"deep/" + b"shared-prefix/" * 20


def fill(db: Driver, keys: set[bytes]) -> int:
    """Put keys, 1,000 in a transaction; return the revision."""
    ordered = sorted(keys)
    for at in range(0, len(ordered), 1_000):
        db.txn(*(Put(key, b"of %r" % key) for key in ordered[at : at + 1_000]))
    return db.head()


def scanned(db: Driver, key: bytes, end: bytes, revision: int) -> list[KeyValue]:
    return [kv for page in db.engine.scan(key, end, revision=revision) for kv in page]


def parts(
    db: Driver, rows: int, revision: int, key: bytes = FIRST, end: bytes = ALL
) -> list[list[KeyValue]]:
    """Cut a range, check what holds for all pieces, and return what stands in each."""
    pieces = db.engine.pieces(key, end, revision=revision, rows=rows)
    whole = scanned(db, key, end, revision)
    if not pieces:
        assert whole == []
        return []
    assert all(isinstance(piece, RangePiece) for piece in pieces)
    assert (pieces[0].key, pieces[-1].range_end) == (key, end)
    assert all(one.range_end == next_.key for one, next_ in itertools.pairwise(pieces))
    found = [scanned(db, piece.key, piece.range_end, revision) for piece in pieces]
    assert [kv for part in found for kv in part] == whole
    return found


SHAPES: dict[str, set[bytes]] = {
    "a counter": {b"%d" % i for i in range(4_000)},
    "padded numbers under directories": {
        b"table/%03d/col/%05d" % (i // 700, i) for i in range(4_000)
    },
    "one long shared prefix": {DEEP + b"%06d" % (i * 7) for i in range(4_000)},
    "unequal directories": {
        b"%s/row/%04d" % (table, i)
        for table, rows in ((b"large", 3_900), (b"mid", 90), (b"small", 10))
        for i in range(rows)
    },
    "prefixes of one another": {b"a" * i for i in range(1, 400)}
    | {b"a" * i + b"b" for i in range(400)},
    "zeros and 0xff": {
        bytes(text) for n in range(1, 7) for text in itertools.product((0, 1, 255), repeat=n)
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_hold_each_key_once_and_about_as_many_as_asked_for(db: Driver, shape: str) -> None:
    keys = SHAPES[shape]
    head = fill(db, keys)
    for rows in (100, 1_000, 10_000):
        found = parts(db, rows, head)
        assert [kv.key for part in found for kv in part] == sorted(keys)
        assert max(map(len, found)) <= 2 * rows
        assert len(found) <= 1 + 4 * len(keys) // rows


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_tell_how_many_keys_they_hold(db: Driver, shape: str) -> None:
    head = fill(db, SHAPES[shape])
    pieces = db.engine.pieces(FIRST, ALL, revision=head, rows=500)
    assert sum(piece.rows for piece in pieces) == len(SHAPES[shape])
    for piece in pieces:
        assert piece.rows == len(scanned(db, piece.key, piece.range_end, head))


@pytest.mark.long_on("asyncio etcd")
@pytest.mark.parametrize("spans", [6, pytest.param(25, marks=pytest.mark.long)])
def test_pieces_of_random_keys(db: Driver, spans: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    alphabets = (b"\0\xff", b"ab/", bytes(range(256)))
    keys = {bytes(rng.choices(rng.choice(alphabets), k=rng.randrange(1, 12))) for _ in range(2_500)}
    head = fill(db, keys)
    ordered = sorted(keys)
    for _ in range(spans):
        key, end = sorted(rng.sample(ordered, 2))
        end = rng.choice((end, end, end + b"\0", ALL))
        parts(db, rng.choice((1, 3, 30, 300)) if rng.random() < 0.2 else 200, head, key, end)


def test_pieces_of_one_key_and_of_nothing(db: Driver) -> None:
    head = fill(db, {b"a", b"a\0", b"b"})
    assert [[kv.key for kv in part] for part in parts(db, 10, head, b"a", b"")] == [[b"a"]]
    assert [[kv.key for kv in part] for part in parts(db, 1, head, b"a", b"")] == [[b"a"]]
    assert [[kv.key for kv in part] for part in parts(db, 1, head, b"b", ALL)] == [[b"b"]]
    for key, end in ((b"c", ALL), (b"x", b""), (b"a\0\0", b"b"), (b"b", b"a")):
        assert not any(parts(db, 10, head, key, end))


def test_pieces_of_a_past_revision(db: Driver) -> None:
    keys = {b"k%04d" % i for i in range(2_000)}
    past = fill(db, keys)
    db.delete(b"k0500", b"k1500")
    fill(db, {b"new%04d" % i for i in range(2_000)})
    assert [kv.key for part in parts(db, 300, past) for kv in part] == sorted(keys)
    assert max(map(len, parts(db, 300, past))) <= 600
    assert sum(map(len, parts(db, 300, db.head()))) == 3_000


def test_versions_of_a_key_stay_together(db: Driver) -> None:
    """Each key is in one piece, though it has more versions than the piece is to hold."""
    for i in range(60):
        db.txn(*(Put(b"k%02d" % key, b"%d" % i) for key in range(8)), Put(b"often", b"%d" % i))
    head = db.head()
    for revision in (head, head - 30):
        for rows in (1, 7, 50):
            found = parts(db, rows, revision)
            assert sum(map(len, found)) == 9
    db.txn(*(Delete(b"k%02d" % key) for key in range(8)))
    assert sum(map(len, parts(db, 7, db.head()))) == 1


def test_pieces_check_their_revision(db: Driver) -> None:
    head = db.put(b"a")
    with pytest.raises(FutureRevisionError):
        db.engine.pieces(FIRST, ALL, revision=head + 1, rows=10)
    newest = db.put(b"a")
    db.engine.compact(newest)
    for end in (ALL, b""):
        with pytest.raises(CompactedError) as caught:
            db.engine.pieces(b"a", end, revision=head, rows=10)
        assert (caught.value.requested, caught.value.earliest) == (head, newest)
    assert sum(map(len, parts(db, 10, newest))) == 1


@pytest.mark.parametrize("rows", [0, -1])
def test_pieces_need_a_size(db: Driver, rows: int) -> None:
    with pytest.raises(ValueError, match="rows"):
        db.engine.pieces(FIRST, ALL, revision=db.head(), rows=rows)
