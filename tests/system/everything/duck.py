"""The same questions for duckdb, which reads the files of archives and of captures, and no store.

Archives are Parquet files and a manifest (docs/archive.md has the query), the captures' rows of the
CDC log are JSON lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from snapkv.cli.formats import counted
from snapkv.cli.tour.examiner import AskedDate
from system.everything.clones import History, Toured
from system.everything.place import Place
from system.everything.replicas import SCHEDULER_SPACE, captures_of, compare_places
from system.everything.replication import Story
from system.everything.report import REPLICAS, Report, changes_of

WAY = "duckdb"
STATE = """
    SELECT key, value FROM (
        SELECT * FROM read_parquet($files, union_by_name = true)
        WHERE revision <= $revision AND space = $space
        UNION ALL BY NAME SELECT NULL::BOOLEAN AS deleted WHERE false)
    QUALIFY row_number() OVER (PARTITION BY key ORDER BY revision DESC) = 1
        AND deleted IS NOT true
"""
WRITERS = """
    SELECT key, arg_max(writer, revision) FROM read_parquet($deltas) AS changes
    JOIN read_parquet($log, union_by_name = true) AS log USING (revision)
    WHERE revision > $since AND revision <= $until AND space = ''
    GROUP BY key
"""
LINES = """
    CREATE TEMP TABLE lines AS
    SELECT ts, unnest(changes, recursive := true)
    FROM read_json($files, format = 'newline_delimited',
        columns = {ts: 'UBIGINT', changes: 'STRUCT(key VARCHAR, value VARCHAR)[]'})
"""
ROWS = """
    SELECT key, value FROM lines WHERE ts <= $ts
    QUALIFY row_number() OVER (PARTITION BY key ORDER BY ts DESC) = 1 AND value IS NOT NULL
"""


class NoDuckdb(Exception):
    """duckdb cannot be asked on this machine; the message says why."""


class Archive:
    """The files of an archive, as its newest manifest names them."""

    def __init__(self, sql: Any, folder: Path) -> None:
        self._sql = sql
        manifest = json.loads(max((folder / "_manifest").glob("*.json")).read_text())
        self._files = [(each, str(folder / each["path"])) for each in manifest["files"]]

    def state(self, timestamp: int, space: str = "") -> dict[bytes, bytes]:
        """Return the keys of a space at a time; empty before the archive begins."""
        revision = self._revision(timestamp)
        if revision is None:
            return {}
        base = max(
            f["high"] for f, _ in self._files if f["kind"] == "base" and f["high"] <= revision
        )
        files = [*self._named("base", base, base), *self._named("delta", base + 1, revision)]
        more = {"files": files, "revision": revision, "space": space}
        return dict(self._sql.execute(STATE, more).fetchall())

    def writers(self, a: int, b: int) -> dict[bytes, str]:
        """Return the writer of each key's newest change after a time, up to another."""
        since, until = self._revision(a), self._revision(b)
        deltas = self._named("delta")
        if until is None or not deltas:
            return {}
        more = {"deltas": deltas, "log": self._named("log"), "since": since or 0, "until": until}
        return dict(self._sql.execute(WRITERS, more).fetchall())

    def _revision(self, timestamp: int) -> int | None:
        query = "SELECT max(revision) FROM read_parquet($log) WHERE timestamp <= $ts"
        found = self._sql.execute(query, {"log": self._named("log"), "ts": timestamp}).fetchone()
        return found[0] if found else None

    def _named(self, kind: str, low: int = 0, high: int = 1 << 62) -> list[str]:
        return [
            path
            for file, path in self._files
            if file["kind"] == kind and low <= file["high"] and file["low"] <= high
        ]


def ask_duckdb(report: Report, history: History, place: Place, story: Story) -> None:
    """Ask duckdb everything. Raises `NoDuckdb`."""
    try:
        import duckdb
    except ModuleNotFoundError as e:
        raise NoDuckdb("duckdb is not installed (pip install duckdb)") from e
    with duckdb.connect() as sql:
        archives = [(each, Archive(sql, place.replica(each.prefix))) for each in history.clones]
        states = {moment: _state(archives, moment) for moment in history.moments}
        for moment, state in states.items():
            report.state(history, moment, WAY, state)
        for a, b in history.pairs():
            authors = _authors(archives, a, b)
            report.changed(history, a, b, WAY, changes_of(states[a], states[b], authors))
        captures = Archive(sql, place.recorded_captures)
        for seen in story.sightings:
            records = captures.state(seen.ts, SCHEDULER_SPACE)
            compare_places(report, seen, WAY, captures_of(records))
        _ask_rows(sql, report, history, place)


def _state(archives: list[tuple[Toured, Archive]], moment: AskedDate) -> dict[str, bytes]:
    return {
        key.decode(): value
        for _, archive in archives
        for key, value in archive.state(moment.ts).items()
    }


def _authors(archives: list[tuple[Toured, Archive]], a: AskedDate, b: AskedDate) -> dict[str, str]:
    return {
        key.decode(): writer
        for _, archive in archives
        for key, writer in archive.writers(a.ts, b.ts).items()
    }


def _ask_rows(sql: Any, report: Report, history: History, place: Place) -> None:
    """Ask for the state at each moment in the JSON lines, and whether each change is in one."""
    files = [str(path) for path in sorted(place.rows.glob("*.jsonl"))]
    sql.execute(LINES, {"files": files})
    for moment in history.moments:
        found = sql.execute(ROWS, {"ts": moment.ts}).fetchall()
        lines = {key: value.encode() for key, value in found}
        report.lines(history, moment, "captures' JSON lines", lines)
    rows = sql.execute("SELECT count(*) FROM lines").fetchone()[0]
    wanted = {"rows": b"%d" % history.change_count()}
    wrong = report.compare("the rows in JSON lines", {"rows": b"%d" % rows}, wanted)
    report.add(REPLICAS, f"{counted(rows, 'row')} of the CDC log in JSON lines", "git", wrong)
