"""Restores: one commit that makes the present equal a past moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from snapkv.base.arguments import check_text
from snapkv.committer import COMMIT_TIMEOUT_S_MAX
from snapkv.errors import ConflictError, InvalidTimeError, InvalidTypeError, KeyNotFoundError
from snapkv.layout import prefix_end
from snapkv.model import Commit, Difference, HeadAt, Ops
from snapkv.reading.change_replay import changed
from snapkv.reading.deadline import TimeLeft
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.reading.snapshot import Snapshot
from snapkv.reading.view import View
from snapkv.store.store_writer import StoreWriter
from snapkv.times import When, dated, format_time

TRIES = 8
"""The number of conflicts with other writers after which everything is written, without a guard."""


class RestorePlan(NamedTuple):
    """What restoring changes: from the state `head` to the state `past`."""

    past: Snapshot[str]
    head: Snapshot[str]
    changes: list[Difference[str]]

    @property
    def writes(self) -> dict[str, Any]:
        """The arguments of a commit that restores, if no other commit comes first."""
        return {
            "puts": {each.key: each.after for each in self.changes if each.after is not None},
            "deletes": [each.key for each in self.changes if each.after is None],
            "guards": [HeadAt(self.head.revision)],
        }


def planned(
    keys: View[str],
    when: When | None,
    prefix: str = "",
    *,
    before_first: bool = False,
    timeout: float | None = None,
) -> RestorePlan:
    """Return what restoring a moment (None: now) would change; raises as `SnapshotKV.restore`.

    `timeout` is the timeout of each read.
    """
    check_text("prefix", prefix)
    past, head = keys.at(when, timeout=timeout), keys.at(timeout=timeout)
    if not before_first and head.count():
        _check_not_before_first(keys.reader, past)
    return _plan(past, head, prefix)


def restored(
    keys: View[str],
    core: StoreWriter,
    when: When,
    prefix: str,
    said: Ops,
    before_first: bool,
    timeout: float | None,
) -> Commit:
    """Restore a moment, see `SnapshotKV.restore`; `said` has the note, writer and meta."""
    if when is None:
        raise InvalidTypeError("restore takes a time or a revision, not None")
    left = TimeLeft(timeout)
    with left.reads():
        plan = planned(keys, when, prefix, before_first=before_first, timeout=timeout)
    if said.note is None:
        note = f"restore {prefix[:80]!r} to {format_time(plan.past.timestamp)}"
        said = replace(said, note=note)
    for _ in range(TRIES):
        try:
            return _committed(core, replace(said, **plan.writes), left)
        except ConflictError:
            with left.reads():
                plan = _plan(plan.past, keys.at(timeout=timeout), prefix)
    with left.reads():
        puts = dict(plan.past.items(prefix))
    return _committed(core, replace(said, puts=puts, delete_prefixes=[prefix]), left)


def _committed(core: StoreWriter, ops: Ops, left: TimeLeft) -> Commit:
    return core.commit(ops, left.commit_s(COMMIT_TIMEOUT_S_MAX))


def _plan(past: Snapshot[str], head: Snapshot[str], prefix: str) -> RestorePlan:
    changes = list(head.diff(past, prefix))
    if prefix and not changes and not head.count(prefix):
        raise KeyNotFoundError(
            prefix,
            past.timestamp,
            reason=f"no key begins with {prefix!r}, neither now nor at {dated(past.timestamp)}",
        )
    return RestorePlan(past, head, changes)


def _check_not_before_first(reader: Reader, past: Snapshot[str]) -> None:
    """Raise `InvalidTimeError` for a moment before the first commit that saved a text key."""
    creation = reader.timeline.tracker.creation
    if past.revision > creation.revision:
        if past.count() or _had_keys(reader, past):
            return
        raise InvalidTimeError(
            f"at {dated(past.timestamp)} no key had ever been saved: restoring it would remove "
            "every key; pass before_first=True if that is meant",
            past.timestamp,
        )
    first = reader.timeline.following(creation)
    if first is not None:
        raise InvalidTimeError(
            f"{dated(past.timestamp)} is before the first commit of this store, at "
            f"{dated(first.timestamp)}: restoring it would remove every key; "
            "pass before_first=True if that is meant",
            past.timestamp,
        )


def _had_keys(reader: Reader, past: Snapshot[str]) -> bool:
    """Return whether a text key was ever saved up to a moment, or compaction hides it."""
    low, high = bounds(reader, None, past.timestamp)
    if low.ordinal > reader.timeline.tracker.creation.ordinal:
        return True
    start = reader.layout.data.prefix
    return any(each.touched for each in changed(reader, start, prefix_end(start), low, high))
