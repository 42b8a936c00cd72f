"""Restores: one commit that makes the present equal a past moment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from snapkv.base.arguments import check_text
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


@dataclass(frozen=True, slots=True)
class ChosenKeys:
    """The keys that a restore or a revert puts back: some by name, and all with some prefixes."""

    keys: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)

    @classmethod
    def of(cls, keys: Iterable[str] = (), prefixes: Iterable[str] = ()) -> Self:
        """Return the given keys and prefixes, without what another prefix includes.

        All keys if none are given. Raises `InvalidTypeError`.

        >>> ChosenKeys.of(["a", "b/1"], ["b/", "b/x/"])
        ChosenKeys(keys=('a',), prefixes=('b/',))
        """
        named, wanted = listed(keys, "keys"), listed(prefixes, "prefixes")
        for each in named:
            check_text("a key", each)
        for each in wanted:
            check_text("a prefix", each)
        if not named and not wanted:
            return cls()
        outer = list[str]()
        for each in sorted(wanted):
            if not outer or not each.startswith(outer[-1]):
                outer.append(each)
        alone = {each for each in named if not each.startswith(tuple(outer))}
        return cls(tuple(sorted(alone)), tuple(outer))

    def __contains__(self, key: str) -> bool:
        return key in self.keys or key.startswith(self.prefixes)

    def __str__(self) -> str:
        names = ", ".join(map(repr, (*self.prefixes, *self.keys)))
        return names if len(names) <= NAMES_CHARS_MAX else f"{names[:NAMES_CHARS_MAX]}..."

    def differences(self, head: Snapshot[str], past: Snapshot[str]) -> list[Difference[str]]:
        """Return how the chosen keys differ from one moment to another, in key order.

        Raises `KeyNotFoundError` if neither has a key of that name, or with that prefix.
        """
        found, at = list[Difference[str]](), f"neither now nor at {dated(past.timestamp)}"
        for prefix in self.prefixes:
            below = list(head.diff(past, prefix))
            if prefix and not below and not head.count(prefix):
                why = f"no key begins with {prefix!r}, {at}"
                raise KeyNotFoundError(prefix, past.timestamp, reason=why)
            found += below
        for key, *ends in zip(self.keys, self._values(head), self._values(past), strict=True):
            if ends == [None, None]:
                raise KeyNotFoundError(key, past.timestamp, reason=f"no key {key!r}, {at}")
            if ends[0] != ends[1]:
                found.append(Difference(key, *ends))
        return sorted(found, key=lambda each: each.key)

    def ops(self, past: Snapshot[str]) -> dict[str, Any]:
        """Return the arguments of a commit that restores a moment, whatever the present is."""
        named = zip(self.keys, self._values(past), strict=True)
        puts = {key: value for key, value in named if value is not None}
        for prefix in self.prefixes:
            puts.update(past.items(prefix))
        return {"puts": puts, "deletes": self.keys, "delete_prefixes": self.prefixes}

    def _values(self, moment: Snapshot[str]) -> list[bytes | None]:
        return [each and each.value for each in moment.entries_of(self.keys)]


EVERYTHING = ChosenKeys()


def writes_of(changes: Iterable[Difference[str]], guards: Sequence[Guard]) -> dict[str, Any]:
    """Return the arguments of a guarded commit that makes changes."""
    after = {each.key: each.after for each in changes}
    return {
        "puts": {key: value for key, value in after.items() if value is not None},
        "deletes": [key for key, value in after.items() if value is None],
        "guards": guards,
    }


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
    chosen: ChosenKeys = EVERYTHING,
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
    return RestorePlan(past, head, chosen.differences(head, past))


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
                head = keys.at(timeout=timeout)
                plan = RestorePlan(plan.past, head, chosen.differences(head, plan.past))
    with left.reads():
        ops = replace(said, **chosen.ops(plan.past))
    return committed(core, ops, left)


def committed(core: StoreWriter, ops: Ops, left: TimeLeft) -> Commit:
    """Commit within the time that is left."""
    return core.commit(ops, left.commit_s(COMMIT_TIMEOUT_S_MAX))


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
