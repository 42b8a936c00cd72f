"""What do a moment and the differences of an hour cost over 1,000 archives, beside duckdb?"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import duckdb

import snapkv
from benchmarks.harness import Rival, measure, report, seeded, show
from snapkv.times import pack

MEMBERS, KEYS, HOURS, ROUNDS = 1_000, 500, 3, 7
BEGAN_MS = 1_790_000_000_000
HOUR = pack(3_600_000)
REVISIONS = """
    SELECT string_split(filename, '/')[-3] AS member, max(revision) AS newest
    FROM read_parquet($1, filename = true) WHERE timestamp <= $2 GROUP BY ALL
"""
STATE = f"""
    WITH revisions AS ({REVISIONS}),
    versions AS (SELECT string_split(filename, '/')[-3] AS member, *
                 FROM read_parquet($3, union_by_name = true, filename = true))
    SELECT member, {{columns}} FROM versions JOIN revisions USING (member)
    WHERE revision <= newest AND space = ''
    QUALIFY row_number() OVER (PARTITION BY member, key ORDER BY revision DESC) = 1
        AND deleted IS NOT true
"""
TWO, FIVE = "key, value", "key, value, created, revision, version"
DIFFERENCES = """
    SELECT coalesce(a.member, b.member) AS member, coalesce(a.key, b.key) AS key,
        a.value AS before, b.value AS after
    FROM a FULL JOIN b ON a.member = b.member AND a.key = b.key
    WHERE a.value IS DISTINCT FROM b.value
"""


def main() -> None:
    """Record the archives, then ask for a moment and for an hour's differences."""
    rng = seeded("fleet_archives")
    with tempfile.TemporaryDirectory() as folder:
        end = _made(folder, rng)
        moments = [end - pack(rng.randrange(3_600_000)) for _ in range(ROUNDS + 2)]
        files = _Files(folder)

        def at(i: int) -> Any:
            with snapkv.fleet.open({"archives": [folder]}) as fleet:
                return fleet.at(moments[i % len(moments)]).to_arrow()

        def diff(i: int) -> Any:
            ts = moments[i % len(moments)]
            with snapkv.fleet.open({"archives": [folder]}) as fleet:
                return list(fleet.diff(ts - HOUR, ts))

        def resolved(_: int) -> int:
            with snapkv.fleet.open({"archives": [folder]}) as fleet:
                return fleet.resolved()

        assert resolved(0) >= max(moments)
        _check(at(0), files.state(moments[0], FIVE), diff(0), files.differences(moments[0]))
        states = [
            Rival("duckdb (floor)", lambda i: files.state(moments[i % len(moments)], TWO)),
            Rival(
                "duckdb, the columns of to_arrow, sorted",
                lambda i: files.state(moments[i % len(moments)], FIVE, " ORDER BY member, key"),
            ),
            Rival("fleet.at(T).to_arrow()", at),
            Rival('fleet.resolved("all")', resolved),
        ]
        changes = [
            Rival("duckdb (floor)", lambda i: files.differences(moments[i % len(moments)])),
            Rival("list(fleet.diff(T - 1 h, T))", diff),
        ]
        tables = {
            f"the state of {MEMBERS:,} members": measure(states, rounds=ROUNDS, warmup=1),
            "the differences of an hour": measure(changes, rounds=ROUNDS, warmup=1),
        }
    notes = (
        f"{MEMBERS:,} archives in one folder, each of a store with {KEYS} keys of 100 bytes, 20 "
        f"commits an hour for {HOURS} hours, recorded each hour. Each operation opens the fleet "
        "anew. duckdb reads the manifests, finds the revision of each member in the logs, and "
        "reads bases and deltas, with two threads; its differences join the two states."
    )
    report("fleet_archives", "What does a moment of 1,000 archives cost?", tables, notes)


def _made(folder: str, rng: random.Random) -> int:
    """Record the members' histories; return a time that all of them reach."""
    keys = [f"/registry/pods/ns{n % 20}/pod{n:04}" for n in range(KEYS)]
    for member in range(MEMBERS):
        show(member, MEMBERS)
        clock, url = snapkv.ManualClock(BEGAN_MS), f"memory:fleet_archives/{member}"
        into = f"{folder}/cluster{member:04}"
        with snapkv.open(url, clock=clock) as store:
            store.commit(puts={key: rng.randbytes(100) for key in keys})
            for hour in range(HOURS):
                for _ in range(20):
                    clock.advance(rng.randrange(1, 180_000))
                    some = rng.sample(keys, 11)
                    store.commit(
                        puts={key: rng.randbytes(100) for key in some[1:]}, deletes=some[:1]
                    )
                clock.set(BEGAN_MS + (hour + 1) * 3_600_000)
                store.tick()
                snapkv.record(url, into=into, clock=clock).catch_up()
    return pack(BEGAN_MS + HOURS * 3_600_000)


class _Files:
    """The archives' files, read without snapkv."""

    def __init__(self, folder: str) -> None:
        self._folder, self._sql = Path(folder), duckdb.connect()
        self._sql.execute("SET threads = 2")

    def state(self, ts: int, columns: str, order: str = "") -> Any:
        """Return the state of all members at a moment."""
        logs, rows = self._paths()
        query = STATE.format(columns=columns) + order
        return self._sql.sql(query, params=[logs, ts, rows]).to_arrow_table()

    def differences(self, ts: int) -> list[tuple[Any, ...]]:
        """Return what differs from an hour before."""
        a, b = self.state(ts - HOUR, TWO), self.state(ts, TWO)
        assert a is not None
        assert b is not None
        return self._sql.sql(DIFFERENCES).fetchall()

    def _paths(self) -> tuple[list[str], list[str]]:
        logs, rows = [], []
        for member in sorted(self._folder.iterdir()):
            newest = max((member / "_manifest").glob("*.json"))
            for file in json.loads(newest.read_text())["files"]:
                (logs if file["kind"] == "log" else rows).append(f"{member}/{file['path']}")
        return logs, rows


def _check(ours: Any, state: Any, changes: list[Any], differences: list[tuple[Any, ...]]) -> None:
    names = zip(ours["member"].to_pylist(), ours["key"].to_pylist(), strict=True)
    found = dict(zip(names, ours["value"].to_pylist(), strict=True))
    keys = (key.decode() for key in state["key"].to_pylist())
    names = zip(state["member"].to_pylist(), keys, strict=True)
    assert found == dict(zip(names, state["value"].to_pylist(), strict=True))
    expected = {((member, key.decode()), a, b) for member, key, a, b in differences}
    assert {(each.key, each.before, each.after) for each in changes} == expected


if __name__ == "__main__":
    main()
