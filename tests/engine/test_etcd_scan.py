"""Scans of many keys in awkward shapes equal the memory engine's; their pages stay small."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from etcd_engines import head, opened, transact
from etcd_server import EtcdServer
from sampling import some

from snapkv.engine.contract import ALL_KEYS_END, Put, Range, Txn
from snapkv.engine.etcd.engine import EtcdEngine
from snapkv.engine.etcd.scan import PAGE_BYTES, PAGE_ROWS_MAX, PIECE_PAGES
from snapkv.engine.memory import MemoryEngine

pytestmark = pytest.mark.slow

BATCH = 120
MIB = 1 << 20
SMALL_PAGE_BYTES = 64 << 10
"""Pages so small that ranges are cut which would be read as they are otherwise."""
LONG = b"deep/" + b"shared-prefix/" * 20  # longer than what one question used to look at


def shapes(rng: random.Random) -> dict[bytes, bytes]:
    """60,000 keys: every kind of trouble for who cuts ranges where keys part."""
    keys = {LONG + b"%06d" % rng.randrange(10**6) for _ in range(25_000)}
    keys |= {b"bin/" + rng.randbytes(rng.randrange(1, 12)) for _ in range(20_000)}
    keys |= {b"bin/" + bytes(rng.choices((0, 255), k=rng.randrange(1, 30))) for _ in range(3_000)}
    keys |= {b"chain/" + b"a" * i for i in range(600)}
    keys |= {b"\xff" * i for i in range(1, 40)} | {b"\0" * i for i in range(1, 40)}
    keys |= {LONG[:i] for i in range(1, len(LONG))}
    while len(keys) < 60_000:
        keys.add(b"rest/" + b"%d" % rng.randrange(10**9))
    return {key: rng.randbytes(rng.randrange(20)) for key in keys}


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EtcdEngine, MemoryEngine]]:
    """An etcd and a memory engine with the same keys."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    pairs = list(shapes(random.Random(seed)).items())
    memory = MemoryEngine()
    with EtcdServer(tmp_path_factory.mktemp("scan")) as server, opened(server.url) as engine:
        for at in range(0, len(pairs), BATCH):
            txn = Txn(success=tuple(Put(key, value) for key, value in pairs[at : at + BATCH]))
            assert transact(engine, txn).header.revision == transact(memory, txn).header.revision
        yield engine, memory
    memory.close()


class Counting:
    """Sees the ranges that an engine asks for."""

    def __init__(self, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Range] = []
        self.rows: list[int] = []
        self.round_trips = 0
        plain, page = engine.read, engine._page

        def read_page(wanted: Range) -> object:
            self.round_trips += 1
            self.asked.append(wanted)
            answer = page(wanted)
            self.rows.append(len(answer.kvs))
            return answer

        def read(ranges: Sequence[Range], **options: object) -> object:
            self.round_trips += 1
            self.asked += ranges
            answer = plain(ranges, **options)  # type: ignore[arg-type]
            self.rows += [len(result.kvs) for result in answer.results]
            return answer

        monkeypatch.setattr(engine, "read", read)
        monkeypatch.setattr(engine, "_page", read_page)


RANGES = [
    (b"\0", ALL_KEYS_END),
    (b"deep/", b"deep0"),
    (LONG, LONG[:-1] + b"0"),
    (LONG + b"3", LONG + b"77"),
    (b"bin/", b"bin0"),
    (b"bin/\0", b"bin/\xff\xff"),
    (b"chain/aaaa", b"chain0"),
    (b"\xff", ALL_KEYS_END),
    (b"\0", b"\0\0\0\0"),
    (b"rest/5", b"rest/6"),
    (b"nothing/", b"nothing0"),
    (b"z", b"a"),
]


@pytest.mark.long_after(6)
@pytest.mark.parametrize(
    ("wanted", "keys_only", "page_bytes"),
    some(itertools.product(RANGES, [False, True], [PAGE_BYTES, SMALL_PAGE_BYTES]), one_in=3),
)
def test_a_scan_is_the_memory_engines(
    wanted: tuple[bytes, bytes],
    keys_only: bool,
    page_bytes: int,
    pair: tuple[EtcdEngine, MemoryEngine],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (key, end), (engine, memory) = wanted, pair
    monkeypatch.setattr(engine._page_size, "page_bytes", page_bytes)
    at = head(memory) - 3
    pages = [list(e.scan(key, end, revision=at, keys_only=keys_only)) for e in (engine, memory)]
    ours, theirs = ([kv for page in found for kv in page] for found in pages)
    assert ours == theirs
    assert all(len(page) <= PAGE_ROWS_MAX for page in pages[0])
    assert all(pages[0])  # none is empty


@pytest.mark.long_after(3)
@pytest.mark.parametrize(
    ("wanted", "rows"), some(itertools.product(RANGES, [100, 5_000]), one_in=3)
)
def test_pieces_hold_the_memory_engines_keys(
    wanted: tuple[bytes, bytes], rows: int, pair: tuple[EtcdEngine, MemoryEngine]
) -> None:
    (key, end), (engine, memory) = wanted, pair
    at = head(memory)
    pieces = engine.pieces(key, end, revision=at, rows=rows)
    whole = memory.read([Range(key, end, at, keys_only=True)]).results[0].kvs
    assert sum(piece.rows for piece in pieces) == len(whole)
    if not pieces:
        return
    assert (pieces[0].key, pieces[-1].range_end) == (key, end)
    found = []
    for piece in pieces:
        part = memory.read([Range(piece.key, piece.range_end, at, keys_only=True)]).results[0].kvs
        assert len(part) == piece.rows <= 2 * rows
        found += part
    assert found == whole


def test_a_large_scan_asks_for_bounded_ranges(
    pair: tuple[EtcdEngine, MemoryEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd counts the rest of a range for each page: few pages may be of large ranges."""
    engine, memory = pair
    monkeypatch.setattr(engine._page_size, "page_bytes", SMALL_PAGE_BYTES)
    counting = Counting(engine, monkeypatch)
    rows = sum(map(len, engine.scan(b"\0", ALL_KEYS_END, revision=head(memory))))
    assert rows == 60_000
    pages = [wanted for wanted in counting.asked if wanted.limit and not wanted.keys_only]
    ranges = [page._replace(limit=0, count_only=True) for page in pages]
    counts = [memory.read([wanted]).results[0].count for wanted in ranges]
    largest = 2 * PIECE_PAGES * SMALL_PAGE_BYTES // 32  # a row counts as 32 bytes at least
    assert sum(count > largest for count in counts) < 10
    assert counting.round_trips < 1_000


def test_a_scan_of_few_pages_is_not_cut(
    pair: tuple[EtcdEngine, MemoryEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting where keys part would cost more than the pages do by counting the rest."""
    engine, memory = pair
    at = head(memory)
    list(engine.scan(b"bin/", b"bin/0", revision=at))
    counting = Counting(engine, monkeypatch)
    found = sum(map(len, engine.scan(b"bin/", b"bin0", revision=at)))
    assert found > 20_000
    assert counting.round_trips == len(counting.asked) <= 4
    assert not any(wanted.count_only for wanted in counting.asked)


def test_what_a_small_scan_costs(
    pair: tuple[EtcdEngine, MemoryEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round trip, once the engine has seen how large the values are."""
    engine, memory = pair
    at = head(memory)
    list(engine.scan(b"chain/", b"chain0", revision=at))
    counting = Counting(engine, monkeypatch)
    pages = engine.scan(b"chain/", b"chain/" + b"a" * 200, revision=at)
    found = [kv for page in pages for kv in page]
    assert len(found) == 200
    assert counting.round_trips == 1


def test_large_values_make_small_pages(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(etcd.url) as engine:
        for i in range(30):
            transact(engine, Txn(success=(Put(b"big/%02d" % i, b"x" * MIB),)))
        for _ in range(2):  # the second knows what to expect
            pages = list(engine.scan(b"big/", b"big0", revision=head(engine)))
            assert [kv.key for page in pages for kv in page] == [b"big/%02d" % i for i in range(30)]
            assert max(sum(len(kv.value) for kv in page) for page in pages) <= PAGE_BYTES
        for i in range(500):
            transact(engine, Txn(success=(Put(b"small/%03d" % i, b"x"),)))
        counting = Counting(engine, monkeypatch)
        assert sum(map(len, engine.scan(b"small/", b"small0", revision=head(engine)))) == 500
        assert counting.rows[-1] > 100  # it grows back


def test_long_keys_are_cut_by_requests_that_the_server_takes(etcd: EtcdServer) -> None:
    """128 ranges with both ends would be 5 MB."""
    keys = [b"k" * 20_000 + b"%02d" % i for i in range(40)]
    with opened(etcd.url) as engine:
        for key in keys:
            transact(engine, Txn(success=(Put(key, b"v"),)))
        pieces = engine.pieces(b"k", b"l", revision=head(engine), rows=5)
        assert sum(piece.rows for piece in pieces) == len(keys)
        assert max(piece.rows for piece in pieces) <= 10


def test_a_scan_stays_at_its_revision(etcd: EtcdServer) -> None:
    with opened(etcd.url) as engine:
        for i in range(0, 600, 100):
            ops = tuple(Put(b"k%03d" % n, b"old") for n in range(i, i + 100))
            transact(engine, Txn(success=ops))
        at = head(engine)
        pages = engine.scan(b"k", b"l", revision=at)
        found = next(pages)
        for i in range(600):
            etcd.gateway.put(b"k%03d" % i, b"new") if i % 50 == 0 else None
        found += [kv for page in pages for kv in page]
        assert [kv.key for kv in found] == [b"k%03d" % i for i in range(600)]
        assert {kv.value for kv in found} == {b"old"}
