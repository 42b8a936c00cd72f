"""What does the whole state at a moment cost, from an archive of a million changes?"""

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import snapkv
from benchmarks.harness import Rival, measure, report, seeded

KEYS, CHANGES, COMMIT, RECORDED_EACH = 100_000, 1_000_000, 1_000, 50_000
VALUE_BYTES = 64
MOMENTS = 20
FAST = {"durability": "none"}
STATE = """
    SELECT {columns} FROM (
        SELECT * FROM read_parquet($1, union_by_name = true) WHERE revision <= $2
        UNION ALL BY NAME SELECT NULL::BOOLEAN AS deleted WHERE false)
    QUALIFY row_number() OVER (PARTITION BY space, key ORDER BY revision DESC) = 1
        AND deleted IS NOT true
"""
TWO = "key, value"
FIVE = "key, value, created, revision, version"


def main() -> None:
    """Write and record the changes, then ask for the state at random moments."""
    rng = seeded("archive_as_of")
    with tempfile.TemporaryDirectory() as folder:
        archive, stamps = _made(folder, rng)
        moments = [rng.choice(stamps) for _ in range(MOMENTS)]
        sql = duckdb.connect()
        sql.execute("SET threads = 2")
        files = _Files(archive, sql)
        with snapkv.open_archive(archive) as alone:

            def to_arrow(i: int) -> Any:
                return alone.at(moments[i % MOMENTS]).to_arrow()

            def two(i: int) -> Any:
                return files.state(moments[i % MOMENTS], TWO)

            def five(i: int) -> Any:
                return files.state(moments[i % MOMENTS], FIVE, " ORDER BY key")

            def replay(i: int) -> Any:
                return files.replay(moments[i % MOMENTS])

            rivals = [
                Rival("duckdb, the documented query (floor)", two),
                Rival("duckdb, the columns of to_arrow, sorted", five),
                Rival("to_arrow", to_arrow),
                Rival("replay of all changes before it", replay),
            ]
            for i in range(3):
                _check(to_arrow(i), two(i), five(i), replay(i))
            rows = measure(rivals, rounds=MOMENTS, warmup=2)
    notes = (
        f"{CHANGES:,} changes of {KEYS:,} keys with values of {VALUE_BYTES} bytes, in commits of "
        f"{COMMIT:,}, a tenth removals, recorded each {RECORDED_EACH:,}: {files.bases} bases and "
        f"{files.deltas} deltas. One operation gives the state at one of {MOMENTS} random moments "
        "as an Arrow table. duckdb reads the manifest, finds the revision in the logs, and reads "
        "the base and the deltas after it, with two threads. The replay reads every change "
        "recorded since the beginning with pyarrow, in order of revisions, into a dict."
    )
    table = f"the state of {KEYS:,} keys"
    report("archive_as_of", "What does the state at a moment cost?", {table: rows}, notes)


def _made(folder: str, rng: random.Random) -> tuple[str, list[int]]:
    """Write the history, record it now and then; return the archive and the times in it."""
    url, archive, stamps = f"lmdb:{folder}/meta", f"{folder}/archive", []
    keys = [f"table/{n // 1_000:06}/col/{n:08}" for n in range(KEYS)]
    with snapkv.open(url, durability="none") as store:
        for done in range(0, CHANGES, COMMIT):
            some = rng.sample(keys, COMMIT) if done >= KEYS else keys[done : done + COMMIT]
            removed = some[: COMMIT // 10] if done >= KEYS else []
            puts = {key: rng.randbytes(VALUE_BYTES) for key in some[len(removed) :]}
            store.commit(puts=puts, deletes=removed)
            if done >= KEYS:
                stamps.append(store.resolved())
            if done % RECORDED_EACH == 0:
                snapkv.record(url, into=archive, options=FAST).catch_up()
        snapkv.record(url, into=archive, options=FAST).catch_up()
    return archive, stamps


class _Files:
    """An archive's files, read without snapkv."""

    def __init__(self, archive: str, sql: duckdb.DuckDBPyConnection) -> None:
        self._archive, self._sql = archive, sql
        kinds = [file["kind"] for file in self._manifest()]
        self.bases, self.deltas = kinds.count("base"), kinds.count("delta")

    def state(self, ts: int, columns: str, order: str = "") -> Any:
        """Return the state at a moment, by the query of docs/archive.md."""
        manifest = self._manifest()
        revision = self._revision(manifest, ts)
        base = max(f["high"] for f in manifest if f["kind"] == "base" and f["high"] <= revision)
        parts = self._paths(manifest, "base", base, base)
        parts += self._paths(manifest, "delta", base + 1, revision)
        query = STATE.format(columns=columns) + order
        return self._sql.execute(query, [parts, revision]).to_arrow_table()

    def replay(self, ts: int) -> dict[bytes, bytes]:
        """Return the state at a moment from all changes before it."""
        manifest = self._manifest()
        revision = self._revision(manifest, ts)
        first = min(f["high"] for f in manifest if f["kind"] == "base")
        columns = ["key", "value", "revision"]
        base = pa.concat_tables(
            pq.read_table(path, columns=columns)
            for path in self._paths(manifest, "base", first, first)
        )
        state = dict(zip(base["key"].to_pylist(), base["value"].to_pylist(), strict=True))
        changes = pa.concat_tables(
            pq.read_table(path, columns=[*columns, "deleted"])
            for path in self._paths(manifest, "delta", first + 1, revision)
        )
        changes = changes.filter(pc.less_equal(changes["revision"], revision))
        changes = changes.sort_by("revision")
        values = (changes[name].to_pylist() for name in ("key", "value", "deleted"))
        for key, value, deleted in zip(*values, strict=True):
            if deleted:
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def _manifest(self) -> list[dict[str, Any]]:
        newest = max(Path(self._archive, "_manifest").glob("*.json"))
        files: list[dict[str, Any]] = json.loads(newest.read_text())["files"]
        return files

    def _paths(self, manifest: list[dict[str, Any]], kind: str, low: int, high: int) -> list[str]:
        return [
            f"{self._archive}/{file['path']}"
            for file in manifest
            if file["kind"] == kind and low <= file["high"] and file["low"] <= high
        ]

    def _revision(self, manifest: list[dict[str, Any]], ts: int) -> int:
        query = "SELECT max(revision) FROM read_parquet($1) WHERE timestamp <= $2"
        (found,) = self._sql.execute(
            query, [self._paths(manifest, "log", 0, 1 << 62), ts]
        ).fetchall()
        return int(found[0])


def _check(ours: Any, two: Any, five: Any, replayed: dict[bytes, bytes]) -> None:
    keys = [key.encode() for key in ours["key"].to_pylist()]
    state = dict(zip(keys, ours["value"].to_pylist(), strict=True))
    assert state == replayed
    assert state == dict(zip(two["key"].to_pylist(), two["value"].to_pylist(), strict=True))
    assert five["key"].to_pylist() == keys
    assert five["revision"].to_pylist() == ours["mod_version"].to_pylist()


if __name__ == "__main__":
    main()
