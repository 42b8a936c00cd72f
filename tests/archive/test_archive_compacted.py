"""A store that is open with its archive while other processes record and compact."""

from __future__ import annotations

import asyncio
import random
from itertools import chain

import pytest
from sampling import fewer_on_etcd, some

import snapkv
import snapkv.aio
from snapkv import CompactedError
from snapkv.archive import state_rows, writer
from snapkv.engine import memory
from snapkv.engine.etcd import scan
from snapkv.engine.lmdb import walking
from snapkv.reading import history
from snapkv.timeline import moment as moments

from .histories import Writing, answers, recorder

KEPT_MS = 600_000


@pytest.fixture
def folder(tmp_path):
    """Where an archive begins: beside the store's directory, not around it."""
    return str(tmp_path / "archive")


@pytest.fixture(autouse=True)
def short_pages(monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 4)
    monkeypatch.setattr(scan, "PAGE_ROWS_FIRST", 3)
    monkeypatch.setattr(scan, "PAGE_ROWS_MAX", 3)
    monkeypatch.setattr(memory, "SCAN_PAGE_ROWS", 3)
    monkeypatch.setattr(walking, "CHUNK_RECORDS", 3)
    monkeypatch.setattr(walking, "CHUNK_RECORDS_FIRST", 3)
    monkeypatch.setattr(moments, "PAGE_KEYS", 3)
    monkeypatch.setattr(history, "LOG_PAGE_COMMITS", 3)
    monkeypatch.setattr(history, "HISTORY_PAGE_VERSIONS", 3)


def walks(store, commits, rng):
    """Return iterators of all kinds that read page by page, by name."""
    a, b = (rng.choice(commits).ts for _ in "ab")
    low = min(a, b)
    return {
        f"items at {a}": store.at(a).items(),
        f"entries at {a}": store.at(a).entries(),
        f"a page at {a}": iter(store.at(a).items(limit=9)),
        f"commits since {low}": store.commits(since=low),
        f"commits back to {low}": store.commits(since=low, newest_first=True),
        f"history since {low}": store.history("k1", since=low),
        f"history back to {low}": store.history("k1", since=low, newest_first=True),
        f"diff {a} {b}": iter(store.diff(a, b)),
        f"watch since {low}": store.watch(since=low, timeout=0),
    }


@pytest.mark.slow
@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    ("place", "seed"), fewer_on_etcd(some(range(8), one_in=3), one_in=4), indirect=["place"]
)
def test_an_open_store_answers_what_was_true_before_compaction(place, store, clock, tmp_path, seed):
    print("seed", seed)
    rng = random.Random(seed)
    writing = Writing(place, store, clock, rng)
    since = store.save("z", b"the first that is known")
    recording = recorder(store, tmp_path / "archive")
    recording.catch_up()
    with place.open(archive=str(tmp_path / "archive"), clock=clock) as joined:
        for _ in range(3):
            writing.steps(rng.randrange(5, 25))
            recording.catch_up()
            if rng.random() < 0.5:
                recording.writer.tidy()
            recorded = list(store.commits())[-1].ts
            writing.steps(rng.randrange(4))
            clock.advance(KEPT_MS)
            before = answers(joined, since)
            able = [commit for commit in before["commits"] if commit.ts <= recorded]
            seed_of_walks = rng.random()
            wanted = {
                name: list(walk)
                for name, walk in walks(joined, able, random.Random(seed_of_walks)).items()
            }
            begun = walks(joined, able, random.Random(seed_of_walks))
            first = {name: [step] for name, walk in begun.items() for step in [next(walk, None)]}
            store.compact(rng.choice(able).ts, past_recordings=True)
            for name, walk in begun.items():
                found = [] if first[name] == [None] else list(chain(first[name], walk))
                assert found == wanted[name], name
            found = answers(joined, since)
            for what, expected in before.items():
                assert found[what] == expected, what


def test_a_time_that_neither_has_is_an_error_that_says_what_the_archive_has(
    place, store, clock, folder
):
    first = store.save("a", b"1")
    recorder(store, folder).catch_up()
    clock.advance(1_000)
    second, third = store.save("a", b"2"), store.save("a", b"3")
    with place.open(archive=folder, clock=clock) as joined:
        held = joined.at(second)
        clock.advance(KEPT_MS)
        store.compact(third, past_recordings=True)
        for read in (
            lambda: joined.load("a", second),
            lambda: held["a"],
            lambda: dict(held.items()),
        ):
            with pytest.raises(CompactedError, match=f"the archive {folder} ends at ") as e:
                read()
            assert e.value.archive in str(e.value)
        assert joined.load("a", third) == b"3"
        assert joined.load("a", first) == b"1"
    with pytest.raises(CompactedError, match="and no archive= has it"):
        store.load("a", first)


def test_an_archive_alone_says_from_when_to_when_it_has_history(store, clock, folder):
    early, first = store.save("a", b"1"), store.save("a", b"2")
    clock.advance(KEPT_MS)
    store.compact(first)
    recorder(store, folder).catch_up()
    with snapkv.open_archive(folder) as alone:
        for read in (
            lambda: alone.load("a", early),
            lambda: alone.at(early),
            lambda: alone.diff(early),
        ):
            with pytest.raises(CompactedError, match=f"the archive {folder} has only 20.* to 20"):
                list(read())


def test_asynchronous_iterations_go_on_in_the_archive(place, store, clock, folder):
    stamps = []
    for n in range(9):
        clock.advance(1_000)
        stamps.append(store.commit(puts={f"k{m}": b"%d" % n for m in range(9)}).ts)
    recorder(store, folder).catch_up()

    async def main():
        options = {"archive": folder, "clock": clock, **place.kind.options}
        async with snapkv.aio.open(place.url, **options) as opened:
            items = (await opened.at(stamps[0])).items()
            versions, commits = opened.history("k0"), opened.commits(since=stamps[0])
            watch = opened.watch(since=stamps[0], timeout=0)
            walks = items, versions, commits, watch
            first = [await anext(walk) for walk in walks]
            clock.advance(KEPT_MS)
            store.compact(stamps[-1])
            rest = [[step async for step in walk] for walk in walks]
            return [[step, *steps] for step, steps in zip(first, rest, strict=True)]

    items, versions, commits, changed = asyncio.run(main())
    assert items == [(f"k{m}", b"0") for m in range(9)]
    assert [version.ts for version in versions] == stamps
    assert [commit.ts for commit in commits] == stamps[1:]
    assert [changes.commit.ts for changes in changed] == stamps[1:]
