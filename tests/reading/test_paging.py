"""Pages of listings and of histories: complete, in order, and nothing is read beyond them."""

import random

import pytest
from cases import cases
from store.engines import write_raw
from store.wrapping import Wrapped, wrap_engines

from snapkv.engine.contract import ALL_KEYS_END, Delete, KeyValue, Put, Range, RangeResult
from snapkv.errors import (
    CompactedError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
)
from snapkv.reading import history as backwards
from snapkv.timeline import paging
from snapkv.timeline.paging import Listings

ON_MEMORY = pytest.mark.parametrize("place", ["memory"], indirect=True)


class Noting(Wrapped):
    """Notes the ranges of reads and the starts of watches."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.ranges, self.watches = [], []

    def read(self, ranges, **options):
        self.ranges += ranges
        return self.inner.read(ranges, **options)

    def watch(self, key, range_end, *, start_revision):
        self.watches.append(start_revision)
        return self.inner.watch(key, range_end, start_revision=start_revision)


def paged(snapshot, prefix, limit, **bounds):
    """Return all pages of a listing, each from the last key of the one before."""
    pages, after = [], None
    while page := list(snapshot.items(prefix, limit=limit, after=after, **bounds)):
        pages.append(page)
        after = page[-1][0]
    return pages


# --- listings ---


def test_pages_are_the_whole_listing(store):
    keys = [f"{n % 3}/{n:03}" for n in range(40)] + ["1", "1/", "10", "é/1"]
    snapshot = store.at(store.commit(puts={key: key.encode() for key in keys}).ts)
    store.commit(delete_prefixes=["1/"])  # pages are of one moment
    for prefix in (None, "", "1/", "é", "x"):
        whole = list(snapshot.items(prefix))
        for limit in (1, 3, 13, 14, 100, 2_000):
            pages = paged(snapshot, prefix, limit)
            assert [pair for page in pages for pair in page] == whole
            assert all(len(page) == limit for page in pages[:-1])
        assert list(snapshot.items(prefix, limit=0)) == []
    assert list(snapshot.keys("1/", after="1/010", limit=2)) == ["1/013", "1/016"]
    found = list(snapshot.entries(start="1/", end="2", after="1/001", limit=1))
    assert found == [("1/004", snapshot.entry("1/004"))]
    assert list(snapshot.items("1/", after="1/00", limit=1)) == [("1/001", b"1/001")]
    assert list(snapshot.items("1/", after="2")) == []
    assert list(snapshot.items("1/", after="0", limit=1)) == [("1/", b"1/")]
    assert list(store.space("s").at().keys(after=b"\xff", limit=1)) == []


@ON_MEMORY
def test_a_token_that_was_removed_goes_on_behind_it(store):
    store.commit(puts={"a": b"", "b": b"", "c": b""})
    store.remove("b")
    assert list(store.at().keys(after="b", limit=5)) == ["c"]


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_nothing_behind_a_page_is_read(place, monkeypatch):
    with monkeypatch.context() as patch:
        (store, engine) = place_noting(place, patch)
    store.commit(puts={f"k/{n:04}": b"v" * 100 for n in range(1_000)})
    snapshot = store.at()
    engine.ranges.clear()
    assert len(list(snapshot.items("k/", limit=300))) == 300
    assert [wanted.limit for wanted in engine.ranges] == [256, 44]
    engine.ranges.clear()
    assert list(snapshot.keys("k/", after="k/0998", limit=10)) == ["k/0999"]
    ((key, end, revision, limit, keys_only, _),) = engine.ranges
    assert (key, end) == (b"default/data/k/0998\0", b"default/data/k0")
    assert (revision, limit, keys_only) == (snapshot.revision, 10, True)
    assert len(list(snapshot.items(limit=1_999))) == 1_000


def place_noting(place, patch):
    engines = wrap_engines(patch, Noting)
    store = place.open()
    return store, engines[0]


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_on_etcd_later_pages_count_no_more_than_they_need(place, monkeypatch):
    monkeypatch.setattr(paging, "COUNTED_KEYS", 200)
    with monkeypatch.context() as patch:
        store, engine = place_noting(place, patch)
    store.commit(puts={f"users/{n:08}/profile": b"" for n in range(1_500)})
    snapshot, pages, costs, after = store.at(), [], [], None
    while True:
        engine.ranges.clear()
        page = list(snapshot.keys("users/", limit=50, after=after))
        costs.append(len(engine.ranges))
        if not page:
            break
        pages.append(page)
        after = page[-1]
    assert [key for page in pages for key in page] == list(snapshot.keys("users/"))
    assert sum(costs) <= 2.5 * len(costs), "one or two round trips a page"
    engine.ranges.clear()
    assert list(snapshot.keys("users/", limit=50)) == pages[0]
    assert list(snapshot.keys("users/", limit=50, after=pages[0][-1])) == pages[1]
    ends = {wanted.range_end for wanted in engine.ranges}
    assert b"default/data/users0" not in ends, "the first page is bounded now, too"


@ON_MEMORY
def test_many_pages_of_any_keys_are_complete(monkeypatch, store):
    """Whatever a listing has learned: a model of a server that counts, keys of all shapes."""
    monkeypatch.setattr(paging, "COUNTED_KEYS", 5)
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(60):
        alphabet = chance.choice([b"ab", b"0123456789", b"\x00\xff", bytes(range(256))])
        length = chance.randrange(1, 12)
        keys = sorted(
            {
                b"p" + bytes(chance.choices(alphabet, k=chance.randrange(1, length + 1)))
                for _ in range(chance.randrange(1, 200))
            }
        )
        listings, reads = Listings(), []
        end = chance.choice([b"q", ALL_KEYS_END])

        def read(wanted, keys=keys, reads=reads):
            reads.append(wanted)
            found = [
                KeyValue(key, b"", 1, 1, 1)
                for key in keys
                if key >= wanted.key
                and (wanted.range_end == ALL_KEYS_END or key < wanted.range_end)
            ]
            return RangeResult(found[: wanted.limit], len(found))

        for _ in range(3):
            limit = chance.choice([1, 2, 5, 50])
            start = chance.choice([b"p", chance.choice(keys)])
            listed, expected = [], [key for key in keys if key >= start]
            while True:
                reads.clear()
                page = listings.page(read, Range(start, end), limit=limit)
                assert len(reads) <= 8, seed
                listed += [kv.key for kv in page]
                if len(page) < limit:
                    break
                start = page[-1].key + b"\0"
            assert listed == expected, seed
    full = Listings()
    for n in range(2 * paging.LISTINGS_MAX):
        full.page(
            lambda _: RangeResult([KeyValue(b"a", b"", 1, 1, 1)], 9),
            Range(b"a", b"%d" % n),
            limit=1,
        )
    assert len(full._depths) <= paging.LISTINGS_MAX


@ON_MEMORY
@cases(
    ("error", "options"),
    [
        (InvalidTypeError, {"limit": "1"}),
        (InvalidTypeError, {"limit": True}),
        (InvalidOptionError, {"limit": -1}),
        (InvalidTypeError, {"after": b"k"}),
        (InvalidKeyError, {"after": ""}),
    ],
)
def test_bad_arguments_of_listings(store, error, options):
    for read in (store.at().items, store.at().keys, store.at().entries):
        with pytest.raises(error):
            list(read("k", **options))


# --- histories ---


def facts(versions):
    return [(version.ts, version.revision, version.value, version.note) for version in versions]


def lived(store, clock, seed):
    """Give a key several lives between commits of other keys; return the timestamps."""
    chance, stamps = random.Random(seed), []
    for n in range(60):
        clock.advance(chance.choice([0, 1, 1_000]))
        act = chance.random()
        if act < 0.5:
            stamps.append(store.save("k", b"%d" % n, note=f"n{n}"))
        elif act < 0.65:
            stamps.append(store.remove("k"))
        else:
            stamps.append(store.save("other", b"%d" % n))
    return stamps


@pytest.mark.parametrize("window", [2, 4_096])
def test_every_span_of_a_history(store, clock, monkeypatch, window):
    monkeypatch.setattr(backwards, "WINDOW_REVISIONS", window)
    monkeypatch.setattr(backwards, "POINT_READS", 3)
    seed = random.randrange(1 << 32)
    stamps, chance = lived(store, clock, seed), random.Random(seed)
    whole = list(store.history("k"))
    assert facts(store.history("k", newest_first=True)) == facts(reversed(whole)), seed
    for _ in range(12):
        since, until = sorted(chance.sample([0, *stamps, stamps[-1] + 5], 2))
        wanted = [version for version in whole if since < version.ts <= until]
        limit = chance.choice([None, 0, 1, 2, 5, 1 << 70])
        for span in ({"since": since, "until": until}, {"until": until}, {"since": since}):
            some = [
                version
                for version in whole
                if span.get("since", -1) < version.ts <= span.get("until", version.ts)
            ]
            found = facts(store.history("k", limit=limit, **span))
            assert found == facts(some[:limit]), (seed, span, limit)
            back = facts(store.history("k", limit=limit, newest_first=True, **span))
            assert back == facts(list(reversed(some))[:limit]), (seed, span, limit)
        assert facts(store.history("k", since=since, until=until)) == facts(wanted)


def test_pages_of_a_history(store, clock):
    stamps = [store.save("k", b"%d" % n) for n in range(7)]
    pages, since = [], None
    while page := list(store.history("k", limit=3, since=since)):
        pages.append([int(version.value) for version in page])
        since = page[-1].ts
    assert pages == [[0, 1, 2], [3, 4, 5], [6]]
    pages, until = [], None
    while page := list(store.history("k", limit=3, until=until, newest_first=True)):
        pages.append([int(version.value) for version in page])
        until = page[-1].ts - 1
    assert pages == [[6, 5, 4], [3, 2, 1], [0]]
    assert [
        v.ts for v in store.history("k", since=f"rev:{store.at(stamps[4]).revision}")
    ] == stamps[5:]


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_after_compaction(store, clock):
    stamps = []
    for n in range(10):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(1_000)
    kept = store.save("other", b"")
    clock.advance(200_000)
    assert store.compact(kept).earliest == kept
    store.save("k", b"new")
    for newest_first, values in ((False, [b"9", b"new"]), (True, [b"new", b"9"])):
        versions = list(store.history("k", newest_first=newest_first))
        assert [version.value for version in versions] == values
        assert {version.ts for version in versions if version.value == b"9"} == {None}
        assert [v.value for v in store.history("k", limit=1, newest_first=newest_first)] == values[
            :1
        ]
        assert [v.value for v in store.history("k", since=kept, newest_first=newest_first)] == [
            b"new"
        ]
        for bound in ({"since": stamps[3]}, {"since": 0}, {"until": stamps[3]}):
            with pytest.raises(CompactedError) as caught:
                list(store.history("k", newest_first=newest_first, **bound))
            assert caught.value.unit == "timestamp"


def test_writes_of_other_programs_are_in_a_history(place):
    store, raw = place.open(), place.engine()
    store.save("k", b"1")
    write_raw(raw, Put(b"default/data/k", b"raw"))
    write_raw(raw, Delete(b"default/data/k"))
    store.save("k", b"2")
    versions = list(store.history("k", newest_first=True))
    assert [version.value for version in versions] == [b"2", None, b"raw", b"1"]
    assert [version.ts is None for version in versions] == [False, True, True, False]
    assert facts(reversed(versions)) == facts(store.history("k"))


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_the_newest_versions_are_found_without_a_watch(place, monkeypatch):
    with monkeypatch.context() as patch:
        store, engine = place_noting(place, patch)
    for n in range(300):
        store.save("k", b"%d" % n)
    engine.watches.clear()
    engine.ranges.clear()
    newest = [version.value for version in store.history("k", limit=5, newest_first=True)]
    assert newest == [b"%d" % n for n in range(299, 294, -1)]
    assert engine.watches == []
    assert len(engine.ranges) <= 8
    last = list(store.history("k", since=f"rev:{store.at().revision - 3}"))
    assert len(last) == 3
    assert [start > 290 for start in engine.watches] == [True]


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_on_etcd_the_newest_versions_cost_a_read_each(place, monkeypatch):
    with monkeypatch.context() as patch:
        store, engine = place_noting(place, patch)
    for n in range(20):
        store.save("k", b"%d" % n)
        store.save("other", b"")
    engine.watches.clear()
    engine.ranges.clear()
    newest = [version.value for version in store.history("k", limit=3, newest_first=True)]
    assert newest == [b"19", b"18", b"17"]
    assert engine.watches == []
    asked = [wanted for wanted in engine.ranges if wanted.key == b"default/data/k"]
    assert len([wanted for wanted in asked if wanted.revision]) == 3


@ON_MEMORY
@cases(
    ("error", "options"),
    [
        (InvalidTypeError, {"limit": "1"}),
        (InvalidOptionError, {"limit": -1}),
        (InvalidTypeError, {"newest_first": 1}),
        (InvalidTimeError, {"since": "yesterday?"}),
        (InvalidTimeError, {"until": 5}),
    ],
)
def test_bad_arguments_of_histories(store, error, options):
    store.save("k", b"1")
    with pytest.raises(error):
        list(store.history("k", **options))
