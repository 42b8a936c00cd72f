"""Restores: one commit that makes the present equal a past moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple, Self

from snapkv.base.arguments import check_text
from snapkv.base.text import shortened_text
from snapkv.committer import COMMIT_TIMEOUT_S_MAX, listed
from snapkv.errors import ConflictError, InvalidTimeError, InvalidTypeError, KeyNotFoundError
from snapkv.layout import prefix_end
from snapkv.model import Commit, Difference, Guard, HeadAt, Ops
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
NAMES_CHARS_MAX = 80
"""The most characters of the names of chosen keys in the note of a commit."""


class ChosenKeys(NamedTuple):
    """The keys that a restore or a revert puts back: some by name, and all with some prefixes."""

    keys: list[str]
    prefixes: list[str]

    @classmethod
    def of(cls, keys: Iterable[str], prefixes: Iterable[str]) -> Self:
        """Return the given keys and prefixes, all keys if none is given."""
        chosen = cls(listed(keys, "keys"), listed(prefixes, "prefixes"))
        for each in (*chosen.keys, *chosen.prefixes):
            check_text("a key or prefix", each)
        return chosen if any(chosen) else cls([], [""])

    def has(self, key: str) -> bool:
        """Return whether a key is one of them."""
        return key in self.keys or key.startswith(tuple(self.prefixes))

    def __str__(self) -> str:
        return shortened_text(", ".join(map(repr, self.prefixes + self.keys)), NAMES_CHARS_MAX)

    def check_found(
        self, names: Iterable[str], where: str = "", timestamp: int | None = None
    ) -> None:
        """Raise `KeyNotFoundError` for one that is not among some names; `where` is for people."""
        names = set(names)
        for key in self.keys:
            if key not in names:
                raise KeyNotFoundError(key, timestamp, reason=f"no key {key!r}{where}")
        for prefix in filter(None, self.prefixes):
            if not any(name.startswith(prefix) for name in names):
                why = f"no key begins with {prefix!r}{where}"
                raise KeyNotFoundError(prefix, timestamp, reason=why)

    def values(self, moment: Snapshot[str]) -> dict[str, bytes]:
        """Return the keys with a name of these that exist at a moment, with their values."""
        found = zip(self.keys, moment.entries_of(self.keys), strict=True)
        return {key: entry.value for key, entry in found if entry is not None}


def writes_of(changes: Iterable[Difference[str]], guards: list[Guard]) -> dict[str, Any]:
    """Return the arguments of a guarded commit that makes changes."""
    after = {each.key: each.after for each in changes}
    puts = {key: value for key, value in after.items() if value is not None}
    return {"puts": puts, "deletes": [key for key in after if key not in puts], "guards": guards}


class RestorePlan(NamedTuple):
    """What restoring changes: from the state `head` to the state `past`."""

    past: Snapshot[str]
    head: Snapshot[str]
    changes: list[Difference[str]]

    @property
    def writes(self) -> dict[str, Any]:
        """The arguments of a commit that restores, if no other commit comes first."""
        return writes_of(self.changes, [HeadAt(self.head.revision)])


def planned(
    keys: View[str],
    when: When | None,
    chosen: ChosenKeys,
    *,
    before_first: bool = False,
    timeout: float | None = None,
) -> RestorePlan:
    """Return what restoring a moment (None: now) would change; raises as `SnapshotKV.restore`.

    `timeout` is the timeout of each read.
    """
    past, head = keys.at(when, timeout=timeout), keys.at(timeout=timeout)
    if not before_first and head.count():
        _check_not_before_first(keys.reader, past)
    return _plan(past, head, chosen)


def restored(
    keys: View[str],
    core: StoreWriter,
    when: When,
    chosen: ChosenKeys,
    said: Ops,
    before_first: bool,
    timeout: float | None,
) -> Commit:
    """Restore a moment, see `SnapshotKV.restore`; `said` has the note, writer and meta."""
    if when is None:
        raise InvalidTypeError("restore takes a time or a revision, not None")
    left = TimeLeft(timeout)
    with left.reads():
        plan = planned(keys, when, chosen, before_first=before_first, timeout=timeout)
    if said.note is None:
        said = replace(said, note=f"restore {chosen} to {format_time(plan.past.timestamp)}")
    for _ in range(TRIES):
        try:
            return committed(core, replace(said, **plan.writes), left)
        except ConflictError:
            with left.reads():
                plan = _plan(plan.past, keys.at(timeout=timeout), chosen)
    with left.reads():
        puts = chosen.values(plan.past)
        for prefix in chosen.prefixes:
            puts.update(plan.past.items(prefix))
    whole = replace(said, puts=puts, deletes=chosen.keys, delete_prefixes=chosen.prefixes)
    return committed(core, whole, left)


def committed(core: StoreWriter, ops: Ops, left: TimeLeft) -> Commit:
    """Commit within the time that is left."""
    return core.commit(ops, left.commit_s(COMMIT_TIMEOUT_S_MAX))


def _plan(past: Snapshot[str], head: Snapshot[str], chosen: ChosenKeys) -> RestorePlan:
    now, then = chosen.values(head), chosen.values(past)
    found = {key: Difference(key, now.get(key), then.get(key)) for key in now | then}
    names = set(found)
    for prefix in chosen.prefixes:
        below = {each.key: each for each in head.diff(past, prefix)}
        found.update(below)
        names.update(below or head.keys(prefix, limit=1))
    where = f", neither now nor at {dated(past.timestamp)}"
    chosen.check_found(names, where, past.timestamp)
    changes = [found[key] for key in sorted(found) if found[key].before != found[key].after]
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
