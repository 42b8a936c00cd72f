"""Reverts: one commit that puts back what earlier commits changed, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from snapkv.committer.group import GroupBuilder
from snapkv.errors import (
    ConflictError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    KeyNotFoundError,
    RevertConflictError,
)
from snapkv.layout import Mark
from snapkv.model import Absent, AtRevision, Commit, Difference, Guard, HeadAt, Ops, Reverted
from snapkv.reading.change_replay import changed
from snapkv.reading.deadline import TimeLeft, bounds
from snapkv.reading.history import commit_of
from snapkv.reading.log import Logged, differences_of, log
from snapkv.reading.view import View
from snapkv.store.restore import EVERYTHING, ChosenKeys, committed, writes_of
from snapkv.store.store_writer import StoreWriter
from snapkv.times import When, dated, format_time, is_number, names_revision, physical_ms

TRIES = 64
"""The most commits that a revert tries while other writers change its keys."""
NAMED_MAX = 10
"""The most commits that the note of a revert names."""
NOTE_CHARS_MAX = 200
"""The most characters of the note of a reverted commit in that of its revert."""


class RevertPlan(NamedTuple):
    """What reverting `commits`, newest first, changes; `conflicts` are as in `Reverted`."""

    commits: list[Commit]
    changes: list[Difference[str]]
    conflicts: dict[str, Commit]
    guards: list[Guard]
    note: str

    @property
    def writes(self) -> dict[str, Any]:
        """The arguments of a commit that reverts, if none of the keys changes before it."""
        return writes_of(self.changes, self.guards)


@dataclass(slots=True)
class _KeyState:
    """A key that reverted commits changed, as far as its history was read.

    `before` is its value before the first of them, `now` the newest one, of `revision` (None: it
    is absent), and `kept` the newest one that none of them wrote: by `later`, if that came later.
    """

    before: bytes | None
    kept: bytes | None
    now: bytes | None
    revision: int | None
    later: Commit | None = None


class Revert:
    """A revert of some commits, planned anew whenever other writers came first.

    For example, of a key with the values 1, 2, 3 and 4, the commit that wrote 4 is reverted to 3;
    the ones that wrote 3 and 4, together, to 2. Only the one that wrote 2 is a conflict with the
    one that wrote 4: `theirs` leaves the key alone, `force` puts 1 back.
    """

    def __init__(
        self,
        keys: View[str],
        whens: Sequence[When],
        chosen: ChosenKeys,
        *,
        theirs: bool = False,
        force: bool = False,
    ) -> None:
        if not whens:
            raise InvalidOptionError("revert takes at least one commit: give its time or revision")
        if theirs and force:
            raise InvalidOptionError("theirs and force exclude each other: give one of them")
        self._keys, self._whens, self._chosen = keys, whens, chosen
        self._theirs, self._force, self.decided = theirs, force, theirs or force
        self._read_timeout = keys._read_timeout
        self._found: dict[int, Logged] = {}
        self._changes: dict[int, list[Difference[str]]] = {}
        self._follows: set[str] = set()
        self._states: dict[bytes, _KeyState] = {}

    @bounds
    def plan(self, *, timeout: float | None = None) -> RevertPlan:
        """Return what to write now: reads the commits, or what came since the last call.

        Costs as `snapkv.reading.log.log` with details for each commit, and two watches over what
        was committed since the first of them.
        """
        timeline = self._keys.reader.timeline
        if not self._found:
            self._begin()
        head = timeline.head()
        if self._follows:
            self._follow(head)
        self._seen = head
        return self._planned(head.revision)

    def _begin(self) -> None:
        """Read the commits, and what each of them changed."""
        found = (_commit_at(self._keys, when) for when in self._whens)
        self._found = {each.mark.revision: each for each in found}
        for revision, logged in self._found.items():
            changes = differences_of(self._keys, logged)
            self._changes[revision] = [each for each in changes if each.key in self._chosen]
        self._follows = {each.key for some in self._changes.values() for each in some}
        self._check_chosen()
        first = min(self._found)
        self._seen = self._found[first].mark
        self._track(first)

    def _check_chosen(self) -> None:
        """Raise `KeyNotFoundError` if the commits changed no key of a chosen name or prefix."""
        what = "the commit" if len(self._found) == 1 else "none of the commits"
        did_not = "did not change" if len(self._found) == 1 else "changed"
        for key in self._chosen.keys:
            if key not in self._follows:
                raise KeyNotFoundError(key, reason=f"{what} {did_not} the key {key!r}")
        for prefix in filter(None, self._chosen.prefixes):
            if not any(key.startswith(prefix) for key in self._follows):
                why = f"{what} {did_not} a key that begins with {prefix!r}"
                raise KeyNotFoundError(prefix, reason=why)

    def _track(self, revision: int) -> None:
        """Follow the keys that a reverted commit changed from there on."""
        encode = self._keys.keyspace.encode
        revisions = {each.key: each.after for each in self._found[revision].moved or ()}
        for each in self._changes[revision]:
            stored = encode(each.key)
            state = _KeyState(each.before, each.before, each.after, revisions[stored])
            self._states.setdefault(stored, state)

    def _follow(self, head: Mark) -> None:
        """Read what later commits, up to the newest one, did to the keys."""
        encode = self._keys.keyspace.encode
        start, end = encode(min(self._follows)), encode(max(self._follows)) + b"\0"
        for mark, stamp, touched in changed(self._keys.reader, start, end, self._seen, head):
            is_reverted = mark.revision in self._found
            if is_reverted:
                self._track(mark.revision)
            for last in (each.last for each in touched):
                if (state := self._states.get(last.kv.key)) is None:
                    continue
                value = None if last.is_delete else last.kv.value
                if value != state.now and not is_reverted:
                    assert stamp is not None, "every commit of a store has one"
                    state.kept, state.later = value, commit_of(mark, stamp)
                state.now = value
                state.revision = None if last.is_delete else last.kv.mod_revision

    def _planned(self, head: int) -> RevertPlan:
        changes, conflicts = list[Difference[str]](), dict[str, Commit]()
        guards = list[Guard]()
        for stored, state in sorted(self._states.items()):
            key = self._keys.keyspace.decode(stored)
            if state.later is not None and state.kept != state.before:
                conflicts[key] = state.later
            after = state.before if self._force else state.kept
            if after != state.now:
                changes.append(Difference(key, state.now, after))
            elif self._theirs:
                continue  # whatever comes there meanwhile, is left alone, too
            guards.append(AtRevision(key, state.revision) if state.revision else Absent(key))
        commits = [self._found[revision].commit for revision in sorted(self._found, reverse=True)]
        core = self._keys.reader
        most = GroupBuilder(core.engine, core.layout, "").guards_max
        fits = most is None or len(guards) <= most
        note = _note(commits, self._chosen)
        return RevertPlan(commits, changes, conflicts, guards if fits else [HeadAt(head)], note)


def _note(commits: Sequence[Commit], chosen: ChosenKeys) -> str:
    """Return the note of a revert: the commits, newest first, and which keys of them."""
    named = [format_time(each.ts) for each in commits[:NAMED_MAX]]
    if (more := len(commits) - NAMED_MAX) > 0:
        named.append(f"{more:,} more")
    only = "" if chosen == EVERYTHING else f"{chosen} of "
    why = commits[0].note if len(commits) == 1 else None
    return f"revert {only}{', '.join(named)}" + ("" if why is None else f": {why[:NOTE_CHARS_MAX]}")


def _commit_at(keys: View[str], when: When) -> Logged:
    """Return the commit of exactly a time or a revision, with the keys that it changed.

    Ticks do not count. Raises `InvalidTimeError` if such a commit does not exist.
    """
    if when is None:
        raise InvalidTypeError("revert takes times or revisions of commits, not None")
    reader = keys.reader
    older = log(keys, until=when, wanted=1, details=True)
    found = next((each for each in older if not each.is_tick), None)
    if found is not None:
        if names_revision(when):
            is_it = reader.revision_of(when) == found.commit.revision
        else:
            asked, ts = reader.resolve(when), found.commit.ts
            is_it = asked == ts or (not is_number(when) and physical_ms(asked) == physical_ms(ts))
        if is_it:
            return found
    newest = "there is none before it"
    if found is not None:
        newest = f"the newest before it is rev:{found.commit.revision}, {dated(found.commit.ts)}"
    raise InvalidTimeError(
        f"no commit has the time {when!r}, {newest}: give the time of a commit as the log shows "
        "it, or rev:N",
        when,
    )


def reverted(
    core: StoreWriter, revert: Revert, said: Ops, *, dry_run: bool, timeout: float | None
) -> Reverted:
    """Carry out a revert, see `SnapshotKV.revert`; `said` has the note, writer and meta."""
    if not dry_run:
        core.check_own()
    left = TimeLeft(timeout)
    for tries_left in reversed(range(TRIES)):
        with left.reads():
            plan = revert.plan(timeout=timeout)
        found = Reverted(None, tuple(plan.changes), plan.conflicts)
        if not dry_run and plan.conflicts and not revert.decided:
            raise RevertConflictError(plan.conflicts)
        if dry_run or not plan.changes:
            return found
        ops = replace(said, **plan.writes, note=plan.note if said.note is None else said.note)
        try:
            return found._replace(commit=committed(core, ops, left))
        except ConflictError:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")
