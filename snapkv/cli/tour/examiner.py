"""Six questions about the past, asked of the store, and git's answer to each.

A tree at a date: every path, content and mode against `git ls-tree`. Then which commit a date falls
on, lists of a folder, single loads (of keys that existed, and that did not), differences between
two dates against `git diff-tree`, and a restore that is undone.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

import snapkv
from snapkv.base.waiting import perf_counter
from snapkv.cli.git_clone import SUBMODULE_MODE, Clone, GitChange, TreeEntry, object_id
from snapkv.cli.git_import import (
    COMMIT_KEY,
    OVERHEAD_BYTES,
    SPACE,
    TREE_PREFIX,
    GitTimeline,
    key_of,
)
from snapkv.times import end_of_ms

DATES_ASKED = 200
LOADS_PER_MOMENT = 50
LISTS_PER_MOMENT = 5
SHOWN_CHARACTERS = 120

ExpectedTree = dict[str, TreeEntry]
T = TypeVar("T")


# --- dates to ask about --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskedDate:
    """A date to ask about; `index` is the git commit it falls on, -1 before the first."""

    label: str
    ms: int
    index: int

    @property
    def ts(self) -> int:
        """The timestamp of the date."""
        return end_of_ms(self.ms)

    @property
    def date(self) -> str:
        """The date, as a store takes it and shows it."""
        return snapkv.format_time(self.ts)


def choose_moments(times_ms: list[int]) -> list[AskedDate]:
    """Return dates in order: before the first commit, at some, between two, and at the newest.

    >>> [(m.label, m.ms, m.index) for m in choose_moments([1000, 1000, 5000])]
    [('before the first', 0, -1), ('the first', 1000, 1), ('between two', 1500, 1), \
('the newest', 5000, 2)]
    """
    last = len(times_ms) - 1
    wanted = {
        "the newest": times_ms[last],
        "the first": times_ms[0],
        "before the first": times_ms[0] - 1_000,
        "a quarter in": times_ms[last // 4],
        "half way": times_ms[last // 2],
        "three quarters": times_ms[last * 3 // 4],
    }
    gaps = [at for at in range(last) if times_ms[at + 1] - times_ms[at] > 500]
    if gaps:  # the one nearest to the middle
        wanted["between two"] = times_ms[min(gaps, key=lambda at: abs(at - last // 2))] + 500
    labels: dict[int, str] = {}
    for label, ms in wanted.items():
        if ms >= 0:
            labels.setdefault(ms, label)
    return [AskedDate(labels[ms], ms, bisect_right(times_ms, ms) - 1) for ms in sorted(labels)]


# --- answers beside git's ------------------------------------------------------------------


class Mismatch(NamedTuple):
    """An answer that differs from git's."""

    question: str
    key: str
    git: str
    store: str


@dataclass(slots=True)
class TourReport:
    """Counts answers, and keeps the answers that differ from git's."""

    answers: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)

    def compare(
        self, question: str, found: Mapping[str, bytes], expected: Mapping[str, bytes]
    ) -> int:
        """Count an answer, and keep its differences from git; return their number."""
        self.answers += 1
        if found == expected:
            return 0
        wrong = sorted(k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k))
        self.mismatches += [
            Mismatch(question, key, _shown(expected.get(key)), _shown(found.get(key)))
            for key in wrong
        ]
        return len(wrong)

    def compare_contents(
        self, question: str, found: Mapping[str, bytes], expected: Mapping[str, TreeEntry]
    ) -> int:
        """Compare contents with git's object ids; return the number of mismatches."""
        named = {key: content_name(content, expected.get(key)) for key, content in found.items()}
        wanted = {key: entry.oid for key, entry in expected.items()}
        return self.compare(question, named, wanted)


def content_name(content: bytes, entry: TreeEntry | None) -> bytes:
    """Return the object id of a content, computed as git does; a submodule's value is one.

    `entry` is what git has there, None for nothing.
    """
    if entry is None:
        return b"%d bytes" % len(content)
    if entry.mode == SUBMODULE_MODE:
        return content
    return object_id(content, like=entry.oid)


def _shown(value: bytes | None) -> str:
    return "absent" if value is None else value.decode(errors="backslashreplace")[:SHOWN_CHARACTERS]


# --- the questions -------------------------------------------------------------------------


class Asked(NamedTuple):
    """A question: how many answers it had, how long each took, and whether all are git's."""

    question: str
    answers: int
    seconds: list[float]
    equal: bool


class Examiner:
    """Asks the store and git the same questions, and keeps the report."""

    def __init__(self, store: snapkv.SnapshotKV, clone: Clone, timeline: GitTimeline) -> None:
        self.store, self.clone, self.timeline = store, clone, timeline
        self.space = store.space(SPACE)
        self.moments = choose_moments(timeline.times_ms)
        self.report = TourReport()
        self.restored: AskedDate | None = None
        self.restore_note = ""
        """Why no restore was tried."""
        self.left_out: set[bytes] = set()
        self._rng = random.Random(0)
        self._trees: dict[int, ExpectedTree] = {}
        self._seconds: list[float] = []

    def ask(self, head_ts: int) -> Iterator[Asked]:
        """Ask the six questions; yield each with its answers. `head_ts` is git's newest commit."""
        questions: dict[str, Callable[[], None]] = {
            "What did the tree look like?": self.ask_trees,
            "Which commit was the newest?": self.ask_dates,
            "What was in a folder?": self.ask_lists,
            "What was in a file?": self.ask_loads,
            "What differs between two dates?": self.ask_diffs,
            "What does a restore bring back?": lambda: self.ask_restore(head_ts),
        }
        for question, ask in questions.items():
            answers, wrong = self.report.answers, len(self.report.mismatches)
            self._seconds = []
            ask()
            equal = len(self.report.mismatches) == wrong
            yield Asked(question, self.report.answers - answers, self._seconds, equal)

    def ask_trees(self) -> None:
        """Ask for the whole tree at each moment."""
        for moment in self.moments:
            expected = self.expected(moment.index)
            found = self._timed(partial(self._contents, moment.date))
            question = f"the tree at {moment.date}"
            self.report.compare_contents(question, found, expected)
            rows = self.space.at(moment.date).items(TREE_PREFIX)
            lines = {key.removeprefix(TREE_PREFIX).decode(): line for key, line in rows}
            wanted = {key: entry.line for key, entry in expected.items()}
            self.report.compare(f"{question}, modes", lines, wanted)

    def ask_dates(self) -> None:
        """Ask which git commit a date falls on, for many dates."""
        times = self.timeline.times_ms
        for ms in self._rng.choices(times, k=DATES_ASKED):
            date = snapkv.format_time(end_of_ms(ms))
            wanted = {"commit": self._oid(bisect_right(times, ms) - 1)}
            found = {"commit": self._timed(partial(self.space.load, COMMIT_KEY, date))}
            self.report.compare(f"the commit at {date}", found, wanted)

    def ask_lists(self) -> None:
        """Ask for everything in a folder, at each moment."""
        for moment in self.moments:
            expected = self.expected(moment.index)
            folders = Counter(key.partition("/")[0] + "/" for key in expected if "/" in key)
            for prefix, _ in folders.most_common(LISTS_PER_MOMENT):
                load = partial(self.store.load_with_prefix, prefix, moment.date)
                found = dict(zip(*self._timed(load), strict=True))
                inside = {key: entry for key, entry in expected.items() if key.startswith(prefix)}
                question = f"the list of {prefix} at {moment.date}"
                self.report.compare_contents(question, found, inside)

    def ask_loads(self) -> None:
        """Ask for single files at each moment: some that existed, some that did not."""
        ever = {key for tree in self._trees.values() for key in tree}
        for moment in self.moments:
            expected = self.expected(moment.index)
            there = self._some(expected, LOADS_PER_MOMENT)
            absent = self._some(ever - expected.keys(), LOADS_PER_MOMENT // 5)
            for key in there + absent:
                try:
                    found = {key: self._timed(partial(self.store.load, key, moment.date))}
                except snapkv.KeyNotFoundError:
                    found = {}
                wanted = {key: expected[key]} if key in expected else {}
                self.report.compare_contents(f"{key} at {moment.date}", found, wanted)

    def ask_diffs(self) -> None:
        """Ask what differs between neighbouring moments, and between the first and the newest."""
        commits = [moment for moment in self.moments if moment.index >= 0]
        pairs = [(commits[0], commits[-1]), *pairwise(commits)]
        for a, b in dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]):
            self._ask_diff(a, b)

    def _ask_diff(self, a: AskedDate, b: AskedDate) -> None:
        question = f"what differs between {a.date} and {b.date}"
        keyed = self.changes(a, b)
        found = self._timed(lambda: list(self.store.diff(a.date, b.date)))
        for side in ("before", "after"):
            values = {d.key: getattr(d, side) for d in found if getattr(d, side) is not None}
            wanted = {k: getattr(c, side) for k, c in keyed if c.of_content and getattr(c, side)}
            self.report.compare_contents(f"{question}, {side}", values, wanted)
        rows = self.space.diff(a.date, b.date, TREE_PREFIX)
        lines = {r.key.removeprefix(TREE_PREFIX).decode(): _pair(r.before, r.after) for r in rows}
        changed = {k: _pair(c.before and c.before.line, c.after and c.after.line) for k, c in keyed}
        self.report.compare(f"{question}, modes", lines, changed)

    def ask_restore(self, head_ts: int) -> None:
        """Restore the present to a past moment, compare, and undo it.

        It restores the moment half way, or the next one for which the restore and its undo each fit
        into one transaction; the last one tried is the date before the newest.
        """
        times = self.timeline.times_ms
        past = [moment for moment in self.moments if 0 <= moment.index < len(times) - 1]
        if not past:
            self.restore_note = "all of this history falls on one date"
            return
        one_back = bisect_left(times, times[-1]) - 1
        for moment in [*past[len(past) // 2 :], AskedDate("one back", times[one_back], one_back)]:
            changes = list(self.store.diff(moment.date, head_ts))
            size = sum(len(d.before or b"") + len(d.after or b"") + OVERHEAD_BYTES for d in changes)
            if size <= self.store.reader.engine.limits.request_bytes:
                break
        else:
            self.restore_note = (
                "the way there does not fit into one transaction (--request-bytes-max allows more)"
            )
            return
        try:
            note = f"tour: restore {moment.date}"
            self._timed(lambda: self.store.restore(moment.date, note=note))
            question = f"the present, restored to {moment.date}"
            self.report.compare_contents(question, self._contents(), self.expected(moment.index))
        finally:
            self.store.restore(head_ts, note="tour: take the restore back")
        newest = self.expected(len(times) - 1)
        self.report.compare_contents("the present again", self._contents(), newest)
        self.restored = moment

    # --- git's side ---

    def _oid(self, index: int) -> bytes:
        return self.timeline.oids[index] if index >= 0 else b""

    def expected(self, index: int) -> ExpectedTree:
        """Return git's tree of the commit at that position, by key; empty before the first."""
        if index not in self._trees:
            tree = self.clone.tree(self._oid(index)) if index >= 0 else {}
            keyed = {key: entry for path, entry in tree.items() if (key := key_of(path))}
            self.left_out |= {path for path in tree if key_of(path) is None}
            self._trees[index] = keyed
        return self._trees[index]

    def changes(self, a: AskedDate, b: AskedDate) -> list[tuple[str, GitChange]]:
        """Return git's differences between two moments, with keys."""
        changes = self.clone.diff(self._oid(a.index), self._oid(b.index))
        return [(key, c) for c in changes if (key := key_of(c.path)) is not None]

    def then_and_now(self) -> tuple[AskedDate, AskedDate]:
        """Return the moment half way that has a commit, and the newest."""
        commits = [moment for moment in self.moments if moment.index >= 0]
        return commits[len(commits) // 2], commits[-1]

    def _contents(self, when: str | None = None) -> dict[str, bytes]:
        return dict(self.store.at(when).items())

    def _timed(self, ask: Callable[[], T]) -> T:
        started = perf_counter()
        try:
            return ask()
        finally:
            self._seconds.append(perf_counter() - started)

    def _some(self, keys: Iterable[str], count: int) -> list[str]:
        pool = sorted(keys)
        return self._rng.sample(pool, min(count, len(pool)))


def _pair(before: bytes | None, after: bytes | None) -> bytes:
    return (before or b"absent") + b" -> " + (after or b"absent")
