"""One moment, asked everywhere: model, live store, archive, duckdb and Spark say the same."""

import json
from pathlib import Path

import duckdb
import pytest
from archives import Archived
from direct import read
from reading.tabled import SPACE
from sampling import some
from store.engines import write_raw

import snapkv
from snapkv.archive import state_rows, writer
from snapkv.engine.contract import Delete, Put
from snapkv.spark import read_snapshot

pytestmark = pytest.mark.long

RAW = b"default/data/a/0"
STATE = """
    SELECT space, key, value FROM (
        SELECT * FROM read_parquet($1, union_by_name = true) WHERE revision <= $2
        UNION ALL BY NAME SELECT NULL::BOOLEAN AS deleted WHERE false)
    QUALIFY row_number() OVER (PARTITION BY space, key ORDER BY revision DESC) = 1
        AND deleted IS NOT true
"""
"""The query of docs/archive.md."""


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 9)


def intrude(archived: Archived) -> None:
    """Write past the store; what it changes belongs to the commit after it."""
    removes = archived.rng.random() < 0.3
    write_raw(archived.place.engine(), Delete(RAW) if removes else Put(RAW, b"raw"))
    write_raw(archived.place.engine(), Put(b"elsewhere", b"nobody's"))
    commit = archived.store.commit(puts={"b/0": b"after"})
    was_there = "a/0" in archived.writing.plain.state()
    changes = {("", "b/0"): b"after"}
    if was_there or not removes:
        changes["", "a/0"] = None if removes else b"raw"
    archived.writing.plain.add(commit.ts, commit.revision, changes, None, commit.writer)


def of_store(store, ts: int) -> dict:
    own = {("", key): value for key, value in store.at(ts).items()}
    return own | {(SPACE, key.decode()): v for key, v in store.space(SPACE).at(ts).items()}


def of_model(archived: Archived, ts: int) -> dict:
    plain = archived.writing.plain
    own = {("", key): value for key, value in plain.state(ts).items()}
    return own | {(SPACE, as_text(key)): value for key, value in plain.state(ts, SPACE).items()}


def as_text(key) -> str:
    return key.decode() if isinstance(key, bytes) else key


def of_duckdb(folder: str, ts: int) -> dict:
    newest = max(Path(folder, "_manifest").glob("*.json"))
    files = json.loads(newest.read_text())["files"]

    def paths(kind: str, low: int, high: int) -> list[str]:
        return [
            f"{folder}/{file['path']}"
            for file in files
            if file["kind"] == kind and low <= file["high"] and file["low"] <= high
        ]

    with duckdb.connect() as sql:
        query = "SELECT max(revision) FROM read_parquet($1) WHERE timestamp <= $2"
        ((revision,),) = sql.execute(query, [paths("log", 0, 1 << 62), ts]).fetchall()
        base = max(f["high"] for f in files if f["kind"] == "base" and f["high"] <= revision)
        parts = paths("base", base, base) + paths("delta", base + 1, revision)
        found = sql.execute(STATE, [parts, revision]).fetchall()
    return {(space, key.decode()): value for space, key, value in found}


def of_spark(spark, url: str, ts: int, **options) -> dict:
    found = {}
    for space in ("", SPACE):
        named = {"space": space} if space else {}
        rows = read_snapshot(spark, url, ts, **named, **options).select("key", "value").collect()
        found |= {(space, as_text(key)): bytes(value) for key, value in rows}
    return found


def of_the_format(url: str, ts: int, **options) -> dict:
    found = {}
    for space in ("", SPACE):
        named = {"space": space} if space else {}
        rows = read(url, timestampAsOf=ts, columns="key,value", **named, **options)
        found |= {(space, as_text(key)): value for key, value in rows}
    return found


@pytest.mark.parametrize("seed", some(range(8), one_in=8))
def test_a_moment_is_the_same_everywhere(place, store, clock, tmp_path, spark, seed):
    print("seed", seed)
    archived = Archived(place, store, clock, tmp_path, seed)
    for _ in range(4):
        archived.grow(1)
        intrude(archived)
    archived.reach()
    rng, marks = archived.rng, archived.marks()
    compacted = marks[len(marks) // 2]
    moments = [archived.since, compacted.ts - 1, compacted.ts, compacted.ts + 1, marks[-1].ts]
    moments += [mark.ts + rng.choice((0, 1)) for mark in rng.sample(marks, 4)]
    expected = {ts: of_model(archived, ts) for ts in moments}
    for ts in moments:
        assert of_store(store, ts) == expected[ts], ts
        assert of_duckdb(archived.folder, ts) == expected[ts], ts
    for ts in moments[:6]:
        assert of_spark(spark, archived.alone, ts, native=True) == expected[ts], ts
    for revision in (compacted.revision, archived.reached):
        archived.compact(revision)
        with (
            snapkv.open_archive(archived.folder) as alone,
            place.open(archive=archived.folder, clock=clock) as joined,
        ):
            for ts in moments:
                assert of_store(alone, ts) == of_store(joined, ts) == expected[ts], ts
                found = of_the_format(place.url, ts, **archived.options)
                assert found == expected[ts], (revision, ts)
