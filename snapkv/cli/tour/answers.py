"""Questions about the past, asked of the store, and git's answer to each.

Whole trees come first: every path, content and mode of a moment against `git ls-tree`. Then which
commit a date falls on, lists of a folder, single loads (of keys that existed, and that did
not), differences between two dates against `git diff-tree`, and a restore that is undone.
`archived` asks an archive, and `sparked` Spark.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import snapkv
from snapkv.base.waiting import perf_counter
from snapkv.cli.tour.comparing import Comparison
from snapkv.cli.tour.filling import OVERHEAD_BYTES, TREE_PREFIX, Timeline, key_of
from snapkv.cli.tour.git import Clone, GitChange, TreeEntry
from snapkv.cli.tour.moments import Moment, choose_moments, date_text, one_back
from snapkv.cli.tour.place import COMMIT_KEY, SPACE
from snapkv.times import end_of_ms

DATES_ASKED = 200
LOADS_PER_MOMENT = 50
LISTS_PER_MOMENT = 5


class TreeAnswer(NamedTuple):
    """What the tree looked like at a moment."""

    moment: Moment
    oid: bytes
    keys: int
    content_bytes: int
    equal: bool


class DiffAnswer(NamedTuple):
    """What differs between two moments."""

    a: Moment
    b: Moment
    keys: int
    equal: bool


class ArchiveAnswer(NamedTuple):
    """What the tree looked like at a moment that the store may have compacted."""

    tree: TreeAnswer
    compacted: bool


class SparkAnswer(NamedTuple):
    """Spark's answer, with its rows and seconds."""

    question: str
    rows: int
    seconds: float
    equal: bool


class RestoreAnswer(NamedTuple):
    """The result of a restore that was undone at once."""

    moment: Moment
    keys: int
    equal: bool


@dataclass(slots=True)
class Report(Comparison):
    """All answers, the seconds that they took, and their differences from git."""

    trees: list[TreeAnswer] = field(default_factory=list)
    diffs: list[DiffAnswer] = field(default_factory=list)
    restored: RestoreAnswer | None = None
    restore_note: str = ""
    archived: list[ArchiveAnswer] = field(default_factory=list)
    spark: list[SparkAnswer] = field(default_factory=list)
    lookups_s: list[float] = field(default_factory=list)
    loads_s: list[float] = field(default_factory=list)
    lists_s: list[float] = field(default_factory=list)
    listed_keys: list[int] = field(default_factory=list)
    left_out: set[bytes] = field(default_factory=set)


ExpectedTree = dict[str, TreeEntry]


class Examiner:
    """Asks the store and git the same questions, and keeps the report."""

    def __init__(
        self, store: snapkv.SnapshotKV, clone: Clone, timeline: Timeline, *, seed: int = 0
    ) -> None:
        self.store, self.clone, self.timeline = store, clone, timeline
        self.space = store.space(SPACE)
        self.moments = choose_moments(timeline.times_ms)
        self.report = Report()
        self._rng = random.Random(seed)
        self._trees: dict[int, ExpectedTree] = {}

    def of(self, store: snapkv.SnapshotKV) -> Examiner:
        """Return an examiner of another store of the same history, with a report of its own."""
        other = Examiner(store, self.clone, self.timeline)
        other._trees = self._trees
        return other

    def ask_trees(self) -> Iterable[TreeAnswer]:
        """Ask for whole trees; yield each answer as it comes."""
        for moment in self.moments:
            snapshot, expected = self.store.at(moment.date), self.expected(moment.index)
            found = dict(snapshot.items())
            question = f"the tree at {moment.date}"
            wrong = self.report.compare_contents(question, found, expected)
            rows = self.space.at(moment.date).items(TREE_PREFIX)
            lines = {key.removeprefix(TREE_PREFIX).decode(): line for key, line in rows}
            wanted = {key: entry.line for key, entry in expected.items()}
            wrong += self.report.compare(f"{question}, modes", lines, wanted)
            size = sum(map(len, found.values()))
            oid = self._oid(moment.index)
            answer = TreeAnswer(moment, oid, snapshot.count(), size, not wrong)
            self.report.trees.append(answer)
            yield answer

    def ask_dates(self) -> None:
        """Ask which git commit a date falls on, for many dates."""
        times = self.timeline.times_ms
        for ms in self._rng.choices(times, k=DATES_ASKED):
            when = snapkv.to_datetime(end_of_ms(ms))
            started = perf_counter()
            self.store.at(when)
            self.report.lookups_s.append(perf_counter() - started)
            wanted = {"commit": self._oid(bisect_right(times, ms) - 1)}
            found = {"commit": self.space.load(COMMIT_KEY, when)}
            self.report.compare(f"the commit at {date_text(ms)}", found, wanted)

    def ask_lists(self) -> None:
        """Ask for everything in a folder, at each moment."""
        for moment in self.moments:
            expected = self.expected(moment.index)
            folders = Counter(key.partition("/")[0] + "/" for key in expected if "/" in key)
            for prefix, _ in folders.most_common(LISTS_PER_MOMENT):
                started = perf_counter()
                keys, values = self.store.load_with_prefix(prefix, moment.when)
                self.report.lists_s.append(perf_counter() - started)
                self.report.listed_keys.append(len(keys))
                inside = {key: entry for key, entry in expected.items() if key.startswith(prefix)}
                found = dict(zip(keys, values, strict=True))
                self.report.compare_contents(
                    f"the list of {prefix} at {moment.date}", found, inside
                )

    def ask_loads(self) -> None:
        """Ask for single files at each moment: some that existed, some that did not."""
        ever = {key for tree in self._trees.values() for key in tree}
        for moment in self.moments:
            expected = self.expected(moment.index)
            there = self._some(expected, LOADS_PER_MOMENT)
            absent = self._some(ever - expected.keys(), LOADS_PER_MOMENT // 5)
            for key in there + absent:
                started = perf_counter()
                try:
                    found = {key: self.store.load(key, moment.when)}
                except snapkv.KeyNotFoundError:
                    found = {}
                self.report.loads_s.append(perf_counter() - started)
                wanted = {key: expected[key]} if key in expected else {}
                self.report.compare_contents(f"{key} at {moment.date}", found, wanted)

    def ask_diffs(self) -> None:
        """Ask what differs between neighbouring moments, and between the first and the newest."""
        commits = [moment for moment in self.moments if moment.index >= 0]
        pairs = [(commits[0], commits[-1]), *pairwise(commits)]
        for a, b in dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]):
            self._ask_diff(a, b)

    def _ask_diff(self, a: Moment, b: Moment) -> None:
        question = f"what differs between {a.date} and {b.date}"
        keyed = self.changes(a, b)
        found = list(self.store.diff(a.date, b.date))
        content = [(k, c) for k, c in keyed if c.of_content]
        befores = {key: c.before for key, c in content if c.before}
        afters = {key: c.after for key, c in content if c.after}
        wrong = self.report.compare_contents(
            f"{question}, before", {d.key: d.before for d in found if d.before is not None}, befores
        )
        wrong += self.report.compare_contents(
            f"{question}, after", {d.key: d.after for d in found if d.after is not None}, afters
        )
        rows = self.space.diff(a.date, b.date, TREE_PREFIX)
        lines = {r.key.removeprefix(TREE_PREFIX).decode(): _pair(r.before, r.after) for r in rows}
        wanted = {key: _pair(_line_of(c.before), _line_of(c.after)) for key, c in keyed}
        wrong += self.report.compare(f"{question}, modes", lines, wanted)
        self.report.diffs.append(DiffAnswer(a, b, len(found), not wrong))

    def ask_restore(self, head_ts: int, request_bytes_max: int) -> None:
        """Restore the present to a past moment, compare, and undo it.

        It restores the moment half way, or the next one for which the restore and its undo each fit
        into one transaction; the last one tried is the date before the newest.
        """
        past = [moment for moment in self.moments if 0 <= moment.index < self._last]
        times = self.timeline.times_ms
        for moment in [*past[len(past) // 2 :], *one_back(times)]:
            changes = list(self.store.diff(moment.when, head_ts))
            size = sum(len(d.before or b"") + len(d.after or b"") + OVERHEAD_BYTES for d in changes)
            if size <= request_bytes_max:
                break
        else:
            self.report.restore_note = (
                "the way there does not fit into one transaction (--request-bytes-max allows more)"
                if past
                else "all of this history falls on one date"
            )
            return
        try:
            self.store.restore(moment.date, note=f"tour: restore {moment.date}")
            wrong = self.report.compare_contents(
                f"the present, restored to {moment.date}",
                dict(self.store.at().items()),
                self.expected(moment.index),
            )
        finally:
            self.store.restore(head_ts, note="tour: take the restore back")
        now = dict(self.store.at().items())
        wrong += self.report.compare_contents("the present again", now, self.expected(self._last))
        self.report.restored = RestoreAnswer(moment, len(changes), not wrong)

    # --- git's side ---

    @property
    def _last(self) -> int:
        return len(self.timeline.oids) - 1

    def _oid(self, index: int) -> bytes:
        return self.timeline.oids[index] if index >= 0 else b""

    def expected(self, index: int) -> ExpectedTree:
        """Return git's tree of the commit at that position, by key; empty before the first."""
        if index not in self._trees:
            tree = self.clone.tree(self._oid(index)) if index >= 0 else {}
            keyed = {key: entry for path, entry in tree.items() if (key := key_of(path))}
            self.report.left_out |= {path for path in tree if key_of(path) is None}
            self._trees[index] = keyed
        return self._trees[index]

    def changes(self, a: Moment, b: Moment) -> list[tuple[str, GitChange]]:
        """Return git's differences between two moments, with keys."""
        changes = self.clone.diff(self._oid(a.index), self._oid(b.index))
        return [(key, c) for c in changes if (key := key_of(c.path)) is not None]

    def then_and_now(self) -> tuple[Moment, Moment]:
        """Return the moment half way that has a commit, and the newest."""
        commits = [moment for moment in self.moments if moment.index >= 0]
        return commits[len(commits) // 2], commits[-1]

    def _some(self, keys: Iterable[str], count: int) -> list[str]:
        pool = sorted(keys)
        return self._rng.sample(pool, min(count, len(pool)))


def _line_of(entry: TreeEntry | None) -> bytes | None:
    return entry and entry.line


def _pair(before: bytes | None, after: bytes | None) -> bytes:
    return (before or b"absent") + b" -> " + (after or b"absent")
