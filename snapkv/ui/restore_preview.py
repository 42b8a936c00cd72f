"""Restores and reverts from a page: a preview of exactly what changes, then a guarded commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from snapkv.base.arguments import whole_number
from snapkv.base.text import LongerNames
from snapkv.errors import ConflictError, InvalidOptionError, RevertConflictError
from snapkv.model import Commit, Difference, HeadAt
from snapkv.store.restore import ChosenKeys, planned, writes_of
from snapkv.store.revert import revert_plans
from snapkv.store.store import SnapshotKV
from snapkv.times import When
from snapkv.ui.commit_list import steps_on
from snapkv.ui.key_differences import Row, Rows, kind_of
from snapkv.ui.page_source import Budget, Source

ROWS_MAX = 500
TRIES = 8
"""The most ticks that may come between a preview and its commit."""
LOOK_S = 2.0
WAYS = ("theirs", "force")
"""What may happen to keys that changed again after a reverted commit."""
STALE = "another commit was made since the preview; nothing was restored: look again"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to put back: the state of a moment, or what commits changed, of all keys or some.

    `conflicts` is what happens to keys that changed again after the commits: `theirs` leaves them
    alone, `force` puts them back, too; without either, they are only shown.
    """

    when: When | None
    prefix: str = ""
    key: str = ""
    reverts: tuple[When, ...] = ()
    conflicts: str = ""

    @property
    def chosen(self) -> ChosenKeys:
        """The keys that are put back."""
        return ChosenKeys.of(filter(None, [self.key]), filter(None, [self.prefix]))

    def phrase(self, changes: int) -> str:
        """Return what a person types to confirm that so many keys change."""
        verb, keys = "revert" if self.reverts else "restore", "key" if changes == 1 else "keys"
        return f"{verb} {changes} {keys}"


class Plan(NamedTuple):
    """What changes from the state `head` (a revision), and the moment or the commits put back.

    `timestamps` are of the reverted commits, newest first. `timestamp` and `revision` are those of
    the moment, or of the oldest commit.
    """

    timestamps: list[int]
    timestamp: int
    revision: int
    head: int
    changes: list[Difference[str]]
    conflicts: dict[str, Commit]
    note: str


@dataclass(frozen=True, slots=True)
class Preview:
    """What restoring or reverting changes, from the state `head` (a revision).

    It writes or removes `total` keys, of which the first are in `rows`. `longer` says which of them
    are not below the prefix. `phrase` is what a person types to confirm it. `conflicts` are the
    newest commits of keys that changed again after a reverted commit. `timestamps`, `timestamp` and
    `revision` are as in `Plan`.
    """

    wanted: Wanted
    timestamps: list[int]
    timestamp: int
    revision: int
    head: int
    total: int
    counts: Counter[str]
    rows: list[Row]
    longer: str | None
    conflicts: dict[str, Commit]
    note: str
    phrase: str


class Restores:
    """Previews of a store, and the commits that carry them out.

    The server has checked that the form is of a page of its own.
    """

    def __init__(self, source: Source, store: SnapshotKV) -> None:
        self._source, self._store = source, store

    def _planned(self, wanted: Wanted) -> Plan:
        if not wanted.reverts:
            past, head, changes = planned(self._store, wanted.when, wanted.chosen)
            return Plan([], past.timestamp, past.revision, head.revision, changes, {}, "")
        newest = self._store.reader.timeline.head().revision
        ways = wanted.conflicts == "theirs", wanted.conflicts == "force"
        found, writes = next(revert_plans(self._store.raw, wanted.reverts, wanted.chosen, *ways))
        commits = {each.revision: each.timestamp for each in map(self._store.at, wanted.reverts)}
        of = sorted(commits.values(), reverse=True), min(commits.values()), min(commits), newest
        return Plan(*of, list(found.changes), found.conflicts, writes["note"])

    def preview(self, wanted: Wanted, rows_max: int = ROWS_MAX) -> Preview:
        """Return what would change; raises as `SnapshotKV.restore` and `revert`."""
        plan = self._planned(wanted)
        counts = Counter(kind_of(each.before, each.after) for each in plan.changes)
        rows = Rows(self._source)
        for each in plan.changes[:rows_max]:
            rows.add(each.key, each.before, each.after)
        longer = LongerNames(wanted.prefix, (each.key for each in plan.changes))
        total, named = len(plan.changes), str(longer) if longer and not wanted.key else None
        phrase, conflicts = wanted.phrase(total), plan.conflicts
        of = plan.timestamps, plan.timestamp, plan.revision, plan.head, total, counts
        return Preview(wanted, *of, rows, named, conflicts, plan.note, phrase)

    def carry_out(
        self, wanted: Wanted, form: Mapping[str, str], head: int, writer: str | None
    ) -> Commit:
        """Commit what the preview of `head` showed, but unticked keys, and nothing else.

        Raises `InvalidOptionError` without a note or with a wrong confirmation, `ConflictError` if
        the store has changed since the preview; and as `SnapshotKV.commit`.
        """
        note, typed = form.get("note", "").strip(), form.get("confirm", "").strip()
        if not note:
            raise InvalidOptionError("a restore needs a note: say why")
        unticked = unticked_of(form)
        for _ in range(TRIES):
            plan = self._planned(wanted)
            if plan.head != head and self._changed_since(head):
                raise ConflictError([(HeadAt(head), plan.head)], STALE)
            if plan.conflicts and wanted.conflicts not in WAYS:
                raise RevertConflictError(plan.conflicts)
            changes = [each for n, each in enumerate(plan.changes) if n not in unticked]
            phrases = [wanted.phrase(len(each)) for each in (plan.changes, changes)]
            if typed not in phrases:
                raise InvalidOptionError(f"to confirm, type {phrases[1]!r}, not {typed[:80]!r}")
            if not changes:
                raise InvalidOptionError("nothing to restore: no key is chosen, or none differs")
            with suppress(ConflictError):  # a tick, or another commit, which the next try finds
                writes = writes_of(changes, [HeadAt(plan.head)])
                return self._store.commit(**writes, note=note, writer=writer)
        raise ConflictError([(HeadAt(head), plan.head)], STALE)

    def _changed_since(self, head: int) -> bool:
        """Return whether a commit after a revision changed a key: ticks do not count."""
        found = steps_on(
            self._source,
            f"rev:{head}",
            wanted=lambda step: bool(step.counts),
            budget=Budget(LOOK_S),
        )
        return bool(found.steps) or not found.complete


def unticked_of(form: Mapping[str, str]) -> set[int]:
    """Return the numbers of the rows that a person unticked; a form says how many were `shown`."""
    shown = min(whole_number(form.get("shown", "")) or 0, ROWS_MAX)
    return {number for number in range(shown) if f"tick{number}" not in form}
