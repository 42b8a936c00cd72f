"""What cutting costs: round trips and keys counted, for keys of many makes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from snapkv.engine.contract import Put, Range, RangeResult, Txn
from snapkv.engine.etcd.scan import RangeSplitter
from snapkv.engine.memory import MemoryEngine

pytestmark = pytest.mark.slow

OPS = 128
ROWS = 30_000
START, END = b"x/", b"x0"


class Counted:
    """Answers like a server that takes 128 ranges a request, and counts what it was asked."""

    def __init__(self, keys: set[bytes]) -> None:
        self._engine = MemoryEngine()
        puts = Txn(success=tuple(Put(START + key, b"v") for key in keys))
        answer = self._engine.transact(lambda _: puts, b"-", timeout=10)
        self.revision = answer.header.revision
        self.requests = self.counted = 0

    def __call__(self, ranges: Sequence[Range]) -> list[RangeResult]:
        self.requests += -(-len(ranges) // OPS)
        found = self._engine.read(ranges).results
        self.counted += sum(result.count for result in found)
        return found


def directories(*sizes: tuple[bytes, int]) -> set[bytes]:
    return {name % i for name, size in sizes for i in range(size)}


def random_keys(alphabet: bytes, length: int) -> set[bytes]:
    rng = random.Random(alphabet)
    return {bytes(rng.choices(alphabet, k=length)) for _ in range(ROWS)}


def names() -> set[bytes]:
    rng = random.Random("names")
    letters = b"abcdefghijklmnopqrstuvwxyz"
    words = [bytes(rng.choices(letters, k=rng.randrange(3, 9))) for _ in range(400)]
    return {b"/".join(rng.choices(words, k=3)) for _ in range(ROWS)}


DIRECTORY = b"catalog/warehouse/schema-%s/tables/orders/partitions/year=2024/"


def uuids() -> set[bytes]:
    return random_keys(b"0123456789abcdef", 32)


SHAPES: dict[str, tuple[Callable[[], set[bytes]], int, float]] = {
    # what: its keys, round trips at most, times that each key is counted at most
    "counter": (lambda: {b"%d" % i for i in range(ROWS)}, 10, 2.5),
    "tables": (lambda: {b"table/%06d/col/%08d" % (i // 100, i) for i in range(ROWS)}, 15, 3),
    "uuids": (uuids, 5, 2.1),
    "UUIDS": (lambda: {key.upper() for key in uuids()}, 5, 2.1),
    "bytes": (lambda: random_keys(bytes(range(256)), 12), 5, 2.1),
    "names": (names, 10, 2.5),
    "one long prefix": (
        lambda: {b"shared-prefix/" * 20 + b"%06d" % i for i in range(ROWS)},
        25,
        4.5,
    ),
    "few long directories": (
        lambda: directories(
            (DIRECTORY.replace(b"%s", b"sales") + b"part-%08d.parquet", 15_000),
            (DIRECTORY.replace(b"%s", b"salesforce") + b"part-%08d.parquet", 10_000),
            (DIRECTORY.replace(b"%s", b"marketing") + b"part-%08d.parquet", 5_000),
        ),
        60,
        7,
    ),
    "unequal tables": (
        lambda: directories(
            (b"a/row/%05d", 100), (b"large/row/%05d", 28_000), (b"z/row/%05d", 1_900)
        ),
        20,
        5,
    ),
}


@pytest.mark.long_after(3)
@pytest.mark.parametrize("shape", SHAPES)
def test_cutting_costs_few_round_trips_and_little_counting(shape: str) -> None:
    make_keys, requests_max, counted_max = SHAPES[shape]
    keys = make_keys()
    ask = Counted(keys)
    rows = len(keys) // 20
    pieces = RangeSplitter(ask, ask.revision, rows).pieces(START, END)
    assert sum(piece.rows for piece in pieces) == len(keys)
    assert max(piece.rows for piece in pieces) <= 2 * rows
    assert 10 <= len(pieces) <= 40
    assert ask.requests <= requests_max
    assert ask.counted <= counted_max * len(keys)


def test_a_small_range_costs_one_round_trip() -> None:
    ask = Counted({b"%03d" % i for i in range(200)})
    for key, end, pieces in ((START, END, 1), (START + b"007", b"", 1), (b"y", b"z", 0)):
        ask.requests = 0
        assert len(RangeSplitter(ask, ask.revision, 100).pieces(key, end)) == pieces
        assert ask.requests == 1


def test_keys_of_thousands_of_bytes_take_no_thousands_of_round_trips() -> None:
    keys = {b"p" * 8_000 + b"%02d" % i for i in range(60)}
    ask = Counted(keys)
    pieces = RangeSplitter(ask, ask.revision, 10).pieces(START, END)
    assert sum(piece.rows for piece in pieces) == len(keys)
    assert 3 <= len(pieces) <= 12
    assert ask.requests < 60
