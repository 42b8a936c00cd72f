"""Tables for tests: random histories, and what the plainest model of them says of each table."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from store.plain import Plain

from snapkv import Ops, SpaceOps, to_datetime
from snapkv.reading import arrow, tables
from snapkv.reading.tables import CommitTimes

SPACE = "s"
WAIT_S = 20
FOREVER = 1 << 64


def rows(table) -> list[tuple]:
    return [tuple(row.values()) for row in table.to_pylist()]


def timed(store) -> list:
    """The column of times of a snapshot of now."""
    core, span = store._core, tables.key_range_of(store._space, None)
    mark = core.timeline.head()
    found = tables.snapshot(core.policy.moment(mark), span, CommitTimes(core, mark))
    return arrow.table(found, arrow.SNAPSHOT_TIMED)["mod_timestamp"].to_pylist()


# --- a random history ---


class Writing:
    """Writes to a store at random, and down in the plain model; keys of a space are bytes."""

    def __init__(self, store, clock, rng) -> None:
        self.store, self.clock, self.rng, self.plain = store, clock, rng, Plain()
        self.number = 0

    def steps(self, count: int) -> Plain:
        for _ in range(count):
            self.clock.advance(self.rng.choice((0, 0, 1, 1_000)))
            self.rng.choice((self.write, self.write, self.write, self.tick, self.threads))()
        return self.plain

    def key(self) -> str:
        return f"{self.rng.choice('ab')}/{self.rng.randrange(4)}"

    def value(self) -> bytes:
        self.number += 1
        return self.rng.choice((b"", b"\0\xff", b"%d" % self.number))

    def tick(self) -> None:
        commit = self.store.tick()
        self.plain.add(commit.ts, commit.revision, {}, None, commit.writer)

    def write(self) -> None:
        """Put, remove and remove by prefix, in the data and often in a space, in one commit."""
        puts = {self.key(): self.value() for _ in range(self.rng.randrange(3))}
        deletes = [self.key()] if self.rng.random() < 0.4 else []
        prefixes = self.rng.choice([(), (), (), ("a/",), ("b/1",), ("",)])
        deletes = [key for key in deletes if key not in puts]
        inside = {self.key().encode(): self.value() for _ in range(self.rng.randrange(2))}
        within = self.rng.choice([(), (), (b"a/",)])
        note = self.rng.choice((None, f"note {self.number}"))
        writer, meta = self.rng.choice((None, "bob")), self.rng.choice((None, {"n": self.number}))
        spaces = {SPACE: SpaceOps(inside, (), within)}
        ops = Ops(puts, deletes, prefixes, note=note, spaces=spaces, writer=writer, meta=meta)
        changes = self.plain.effect(puts, deletes, prefixes)
        changes |= self.plain.effect(inside, (), within, space=SPACE)
        commit = self.store.commit(lambda stamp: ops)
        assert writer in (None, commit.writer)
        self.plain.add(commit.ts, commit.revision, changes, note, commit.writer, meta)

    def threads(self) -> None:
        """Several callers at once, each with its own keys, whose commits may share a revision."""
        done: list[tuple] = []
        gate = threading.Barrier(3)

        def write(some: list[tuple[dict, list]]) -> None:
            gate.wait(WAIT_S)
            for puts, deletes in some:
                done.append((self.store.commit(puts=puts, deletes=deletes), puts, deletes))

        callers = []
        for name in "pqr":
            some = [({f"{name}/x": self.value()}, [f"{name}/y"]), ({f"{name}/y": b"1"}, [])]
            callers.append(threading.Thread(target=write, args=(some,)))
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(WAIT_S)
        assert len(done) == 6, "a commit failed or hangs"
        together: dict[int, tuple] = {}
        for commit, puts, deletes in sorted(done, key=lambda each: each[0].ts):
            first, changes = together.setdefault(commit.revision, (commit, {}))
            assert first.ts == commit.ts
            changes.update({("", key): None for key in deletes} | {("", k): puts[k] for k in puts})
        for commit, changes in together.values():
            state = self.plain.state()
            effect = {k: v for k, v in changes.items() if v is not None or k[1] in state}
            self.plain.add(commit.ts, commit.revision, effect, None, commit.writer)


# --- what the tables hold, by walking the model ---


def changes_of(
    plain: Plain, since: int, until: int, prefix="", space: str = "", *, preimages: bool = False
) -> list[tuple]:
    """Rows of the changes in (since, until]."""
    found = []
    for at, row in enumerate(plain.rows):
        if not since < row.ts <= until:
            continue
        before = plain.state_after(at - 1, space)
        keys = sorted(k for where, k in row.changes if where == space and k.startswith(prefix))
        for n, key in enumerate(keys):
            value, old = row.changes[space, key], before.get(key)
            place = (row.revision, n, to_datetime(row.ts))
            if value is None:
                found.append((key, old if preimages else None, "delete", *place))
            elif key not in before:
                found.append((key, value, "insert", *place))
            else:
                if preimages:
                    found.append((key, old, "update_preimage", *place))
                found.append((key, value, "update_postimage", *place))
    return found


def histories_of(plain: Plain, since: int, until: int, prefix="", space: str = "") -> list[tuple]:
    """Rows of the versions that stood at some time in [since, until]."""
    found = []
    low, high = plain.row_at(since), plain.row_at(until)
    for key in {k for row in plain.rows for where, k in row.changes if where == space}:
        versions = [v for v in plain.history(key, space) if v[0] <= until]
        ends = [*versions, None][1:]
        for (ts, revision, value), end in zip(versions, ends, strict=True):
            over = end is not None and plain.row_at(end[0]) <= low
            if value is not None and key.startswith(prefix) and not over and low <= high:
                to = (end[1], to_datetime(end[0])) if end else (None, None)
                found.append((key, value, revision, to[0], to_datetime(ts), to[1]))
    return sorted(found, key=lambda row: (row[0], row[2]))


def commits_of(plain: Plain, since: int, until: int) -> list[tuple]:
    """Rows of the log in (since, until], newest first."""
    found = []
    for row in plain.rows:
        if since < row.ts <= until:
            puts = sum(value is not None for value in row.changes.values())
            metrics = [("numPuts", str(puts)), ("numDeletes", str(len(row.changes) - puts))]
            operation = "WRITE" if row.changes else "TICK"
            meta = None if row.meta is None else json.dumps(row.meta)
            when = to_datetime(row.ts)
            found.append((row.revision, when, row.writer, operation, row.note, metrics, meta))
    return found[::-1]


def replayed(state: dict, changes: list[tuple]) -> dict:
    """The state that changes make of a state."""
    state = dict(state)
    for key, value, kind, *_ in changes:
        if kind == "delete":
            del state[key]
        elif kind != "update_preimage":
            assert (key in state) == (kind == "update_postimage"), (key, kind)
            state[key] = value
    return {key: state[key] for key in sorted(state)}


def moments(plain: Plain, rng) -> Callable[[], int]:
    """Return what draws a moment: before, at, between and after the commits."""
    stamps = [0, *(row.ts + d for row in plain.rows for d in (-1, 0, 1))]
    return lambda: rng.choice(stamps)
