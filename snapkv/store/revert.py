"""Reverts: one commit that puts back what earlier commits changed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from snapkv.base.text import shortened_text
from snapkv.committer.group import GroupBuilder
from snapkv.engine.bulk_reads import KeptWatch
from snapkv.errors import (
    NAMED_MAX,
    ConflictError,
    InvalidOptionError,
    InvalidTimeError,
    RevertConflictError,
)
from snapkv.model import Absent, AtRevision, Commit, Difference, Guard, HeadAt, Ops, Reverted
from snapkv.reading.change_replay import CommitChanges, changed, first_after
from snapkv.reading.deadline import TimeLeft, bounds
from snapkv.reading.history import commit_of
from snapkv.reading.log import Logged, differences_of, log
from snapkv.reading.view import View
from snapkv.store.restore import ChosenKeys, committed, writes_of
from snapkv.store.store_writer import StoreWriter
from snapkv.times import When, dated, format_time, is_number, physical_ms

TRIES = 64
"""The most commits that a revert tries while other writers change its keys."""
NOTE_CHARS_MAX = 400
"""The most characters of the note of a revert that gets none."""

Plan = tuple[Reverted, dict[str, Any]]
"""What a revert changes, and the arguments of the guarded commit that does it."""


@dataclass(slots=True)
class _KeyState:
    """A key that reverted commits changed: its value before the first of them, and the newest one.

    `kept` is the newest value of another commit: of `later`, if that came after the first of them.
    """

    before: bytes | None
    kept: bytes | None
    now: bytes | None
    revision: int = 0
    later: Commit | None = None


@bounds
def revert_plans(
    keys: View[str], whens: Sequence[When], chosen: ChosenKeys, theirs: bool, force: bool
) -> Iterator[Plan]:
    """Yield what a revert writes now; each further plan reads only what was committed since.

    For example, of a key with the values 1, 2, 3 and 4, the commit that wrote 4 is reverted to 3;
    the two that wrote 3 and 4, together, to 2. The one that wrote 2 is a conflict with the one that
    wrote 4: `force` puts 1 back, and otherwise 4 stays.
    """
    if not whens or (theirs and force):
        raise InvalidOptionError("revert takes at least one commit, and theirs or force, not both")
    reader, encode = keys.reader, keys.keyspace.encode
    found = {each.mark.revision: each for each in (_commit_at(keys, when) for when in whens)}
    undone = {
        revision: [each for each in differences_of(keys, logged) if chosen.has(each.key)]
        for revision, logged in found.items()
    }
    names = {each.key for some in undone.values() for each in some}
    chosen.check_found(names, " in what the commits changed")
    commits = [found[revision].commit for revision in sorted(found, reverse=True)]
    note = "revert " if "" in chosen.prefixes else f"revert {chosen} of "
    note += ", ".join(format_time(each.ts) for each in commits)
    note += f": {commits[0].note}" if commits[0].note and len(commits) == 1 else ""
    guards_max = GroupBuilder(reader.engine, reader.layout, "").guards_max
    if not names:
        yield Reverted(None, (), {}), {}
        return
    states: dict[bytes, _KeyState] = {}
    seen = reader.timeline.by_ordinal(found[min(found)].mark.ordinal - 1)
    start, end, first = encode(min(names)), encode(max(names)) + b"\0", first_after(reader, seen)
    with closing(reader.engine.watch(start, end, start_revision=first)) as watcher:
        kept_watch = KeptWatch(watcher)
        while True:
            head = reader.timeline.head()
            for each in changed(reader, start, end, seen, head, kept_watch):
                for lost in undone.pop(each.mark.revision, ()):
                    state = _KeyState(lost.before, lost.before, lost.before)
                    states.setdefault(encode(lost.key), state)
                _follow(states, each, is_reverted=each.mark.revision in found)
            seen = head
            plan, guards = _planned(keys, states, theirs, force)
            # that a key is absent does not prove that it was not saved and removed meanwhile
            is_made = any(each.before is None for each in plan.changes)
            if is_made or len(guards) > (guards_max or len(guards)):
                guards = [HeadAt(head.revision)]
            writes = writes_of(plan.changes, guards)
            yield plan, {**writes, "note": shortened_text(note, NOTE_CHARS_MAX)}


def _follow(states: Mapping[bytes, _KeyState], commit: CommitChanges, *, is_reverted: bool) -> None:
    """Note what a commit did to the keys, as the newest value of each."""
    for event in (each.last for each in commit.touched if each.last.kv.key in states):
        state, value = states[event.kv.key], None if event.is_delete else event.kv.value
        if value != state.now and commit.stamp and not is_reverted:
            state.kept, state.later = value, commit_of(commit.mark, commit.stamp)
        state.now, state.revision = value, event.kv.mod_revision


def _planned(
    keys: View[str], states: Mapping[bytes, _KeyState], theirs: bool, force: bool
) -> tuple[Reverted, list[Guard]]:
    """Return what to write, and a guard for each key on which that depends."""
    changes, conflicts = list[Difference[str]](), dict[str, Commit]()
    guards = list[Guard]()
    for stored, state in sorted(states.items()):
        key, after = keys.keyspace.decode(stored), state.before if force else state.kept
        if state.later is not None and state.kept != state.before:
            conflicts[key] = state.later
        if after != state.now:
            changes.append(Difference(key, state.now, after))
        if after != state.now or not theirs:  # what comes to other keys, theirs leaves alone, too
            exists = state.now is not None
            guards.append(AtRevision(key, state.revision) if exists else Absent(key))
    return Reverted(None, tuple(changes), conflicts), guards


def _commit_at(keys: View[str], when: When) -> Logged:
    """Return the commit of exactly a time or a revision, with what it changed; ticks do not count.

    Raises `InvalidTimeError` if such a commit does not exist, or several have the millisecond.
    """
    reader, asked, same = keys.reader, keys.reader.resolve(when), list[Logged]()
    name = repr(when) if isinstance(when, str) else dated(asked)
    for found in log(keys, until=when, wanted=1, details=True):
        ts, revision = found.commit.ts, found.commit.revision
        in_its_ms = not is_number(when) and physical_ms(asked) == physical_ms(ts)
        if (asked != ts and not in_its_ms) or reader.revision_of(when) not in (None, revision):
            break
        if not found.is_tick:
            same.append(found)
            if ts == asked or reader.revision_of(when) is not None or len(same) == NAMED_MAX:
                break
    if len(same) == 1 or (same and same[0].commit.ts == asked):
        return same[0]
    if same:
        named = ", ".join(f"rev:{each.commit.revision}" for each in same)
        raise InvalidTimeError(f"several commits have the time {name}: name one as {named}", when)
    advice = "give the time of a commit, or rev:N, as the log shows them"
    raise InvalidTimeError(f"no commit has the time {name}: {advice}", when)


def reverted(
    core: StoreWriter, plans: Iterator[Plan], said: Ops, decided: bool, timeout: float | None
) -> Reverted:
    """Carry out a revert, see `SnapshotKV.revert`; unless `decided`, conflicts raise."""
    core.check_own()
    left, lost = TimeLeft(timeout), ConflictError(())
    for _ in range(TRIES):
        with left.reads():
            plan, writes = next(plans)
        if plan.conflicts and not decided:
            raise RevertConflictError(plan.conflicts)
        if not plan.changes:
            return plan
        ops = replace(said, **writes | ({"note": said.note} if said.note else {}))
        try:
            return plan._replace(commit=committed(core, ops, left))
        except ConflictError as e:
            lost = e
    why = f"other writers committed first in each of {TRIES} tries; try again later"
    raise ConflictError(lost.failed, why, tries=TRIES) from lost
