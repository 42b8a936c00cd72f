"""Observed prefixes for tests: a cluster of keys that others write, and the plainest model of it.

The model is a list of what each revision changed and a list of marks; it shares nothing with the
library, and does everything by walking.
"""

from __future__ import annotations

from typing import NamedTuple

from snapkv.base.waiting import monotonic
from snapkv.engine.contract import Delete, Put
from snapkv.store.open import observe

from .engines import write_raw
from .plain import Plain

PREFIX = "/r/"
WAIT_S = 20


class MarkRow(NamedTuple):
    ts: int
    revision: int
    writer: str = "ticker"
    note: str | None = None


class Foreign:
    """What stands below a prefix at each revision, and the marks of the time line beside it."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, dict]] = []  # (revision, {key: value, None for a removal})
        self.marks: list[MarkRow] = []
        self.compacted = 0

    # --- moments ---

    def state(self, revision: int) -> dict:
        state = {}
        for at, changes in self.writes:
            if at <= revision:
                state.update(changes)
        return {key: state[key] for key in sorted(state) if state[key] is not None}

    def mark_at(self, ts: int) -> int:
        """Index of the newest mark at or before a time, -1 before the first."""
        return max((n for n, mark in enumerate(self.marks) if mark.ts <= ts), default=-1)

    def mark_of(self, revision: int) -> int:
        """Index of the mark that a write at a revision carries, -1 when there is none yet."""
        return next((n for n, mark in enumerate(self.marks) if mark.revision >= revision), -1)

    def first(self) -> int | None:
        return self.marks[0].ts if self.marks else None

    def earliest(self) -> int | None:
        """The first mark whose own revision can still be read."""
        return next((m.ts for m in self.marks if m.revision >= self.compacted), None)

    # --- versions and changes ---

    def history(self, key: str) -> list:
        """(ts, revision, value, writer) of each version that is told."""
        versions, before = [], {}
        for revision, changes in self.writes:
            if key in changes and (changes[key] is not None or before.get(key) is not None):
                versions.append((revision, changes[key]))
            before.update(changes)
        told = []
        for n, (revision, value) in enumerate(versions):
            at = self.mark_of(revision)
            if at < 0:
                break
            mark = self.marks[at]
            exact = mark.revision == revision
            ts, writer = mark.ts, mark.writer if exact else None
            if revision < self.compacted:
                following = versions[n + 1][0] if n + 1 < len(versions) else self.compacted + 1
                if following <= self.compacted or value is None:
                    continue
                in_force = max(
                    (i for i, m in enumerate(self.marks) if m.revision <= self.compacted),
                    default=-1,
                )
                if not (at > in_force or (at == in_force and (at == 0 or exact))):
                    ts, writer = None, None
            told.append((ts, revision, value, writer))
        return told

    def since(self, ts: int, prefix: str = "") -> list:
        """(ts, [(revision, key, value, writer)]) of each mark after a time that stamps some."""
        at = self.mark_at(ts)
        low, found = self.marks[at].revision if at >= 0 else 0, []
        for mark in self.marks[at + 1 :]:
            listed = [
                (revision, key, changes[key], mark.writer if revision == mark.revision else None)
                for revision, changes in self.writes
                if low < revision <= mark.revision
                for key in sorted(changes)
                if key.startswith(prefix)
            ]
            low = mark.revision
            if listed and mark.ts > ts:
                found.append((mark.ts, listed))
        return found


def ticked(model: Foreign) -> Plain:
    """The same as commits: each write by itself, at the tick that stamps it, and the ticks."""
    plain, low = Plain(), 0
    for mark in model.marks:
        for revision, changes in model.writes:
            if low < revision <= mark.revision:
                plain.add(mark.ts, revision, {("", key): changes[key] for key in changes})
        low = mark.revision
        plain.add(mark.ts, mark.revision, {}, mark.note, mark.writer)
    return plain


class Cluster:
    """One engine with foreign keys, a ticker, and the model of both."""

    def __init__(self, place, clock, prefix: str = PREFIX, name: str = "default") -> None:
        self.place, self.clock, self.prefix, self.name = place, clock, prefix, name
        self.ticker = place.open(name=name, clock=clock, writer="ticker", max_clock_skew=3_600)
        self.engine = place.engine()
        self.model = Foreign()

    def observe(self, prefix=None, **options):
        """Open what is observed here; it is closed with the test."""
        options = self.place.kind.options | {"clock": self.clock, "name": self.name} | options
        prefix = self.prefix if prefix is None else prefix
        observed = observe(self.place.url, prefix=prefix, **options)
        self.place._opened.append(observed)
        return observed

    def write(self, **values) -> int:
        """Put keys of the prefix, remove those with the value None, as others do."""
        return self.write_keys({self.prefix + name: value for name, value in values.items()})

    def write_keys(self, changes: dict) -> int:
        before = self.model.state(1 << 62)
        ops = [
            Delete(key.encode()) if value is None else Put(key.encode(), value)
            for key, value in changes.items()
        ]
        revision = write_raw(self.engine, *ops)
        effect = {k: v for k, v in changes.items() if v is not None or k in before}
        if effect:
            self.model.writes.append((revision, effect))
        return revision

    def noise(self) -> int:
        """Write something that is not observed."""
        return write_raw(self.engine, Put(b"elsewhere", b"x"))

    def tick(self, advance_ms: int = 1_000):
        self.clock.advance(advance_ms)
        commit = self.ticker.tick()
        self.model.marks.append(MarkRow(commit.ts, commit.revision))
        return commit

    def commit(self, name: str, value: bytes, note: str | None = None):
        """Commit to a text key of the store whose time line it is, which the prefix holds."""
        commit = self.ticker.commit(puts={name: value}, note=note)
        self.model.writes.append((commit.revision, {f"{self.name}/data/{name}": value}))
        self.model.marks.append(MarkRow(commit.ts, commit.revision, note=note))
        return commit

    def newest(self) -> int:
        """The newest tick, 0 before the first."""
        return self.model.marks[-1].ts if self.model.marks else 0

    def compact(self, revision: int) -> None:
        self.engine.compact(revision)
        self.model.compacted = revision


def drained(watch, until: int) -> list:
    """What a watch is told up to a tick: (ts, [(revision, key, value, writer)]) of each one."""
    told, wait, deadline = [], 0, monotonic() + WAIT_S
    while watch.timestamp < until:
        assert monotonic() < deadline, f"nothing after {watch.timestamp}, {told}"
        changes = watch.next(wait)  # what has come already takes no time
        if changes is not None:
            told.append(listed(changes))
        wait = 0.02 if changes is None else 0
    return told


def listed(changes) -> tuple:
    """One `Changes` as (ts, [(revision, key, value, writer)])."""
    ts = changes.commit.ts
    assert {change.commit.ts for change in changes} == {ts}
    return ts, [(c.commit.revision, c.key, c.value, c.commit.writer) for c in changes]


def values(told: list) -> list:
    """What was told, without revisions and writers."""
    return [(ts, [(key, value) for _, key, value, _ in changes]) for ts, changes in told]


def hold(watch, revision):
    """Let a watch fetch the changes up to a revision, which wait for their tick."""
    deadline = monotonic() + WAIT_S
    while watch._taken < revision:
        assert watch.next(0.05) is None
        assert monotonic() < deadline
