"""An owner's view of its cluster: the captures, the tables to replicate, and their checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.limits import INTEGER_MAX
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.watermarks import ReportedProgress
from cdcmeta.scheduler.protocol.messages import NO_BARRIER, Barrier

NO_FLOORS: Mapping[str, int] = MappingProxyType({})
WEIGHT_MAX = 1e100
"""The largest weight: sums of such weights are finite, too."""


class Cluster(NamedTuple):
    """What an owner sees of its cluster at one moment.

    >>> from cdcmeta.scheduler import Cluster
    >>> seen = Cluster(0, {"c1": 3, "c2": 7}, {"orders": 1.0}, checkpoint=100, revision=9)
    >>> seen.barrier.everywhere
    0
    """

    now: int
    """Microseconds; always of the same clock, and never less than before."""
    captures: Mapping[str, int]
    """The registered captures and the revisions of their registrations, new after a restart."""
    tables: Mapping[str, float]
    """The tables to replicate and their weights; the mapping is never changed in place."""
    checkpoint: int
    """The stored checkpoint of the changefeed; microseconds."""
    revision: int
    """The store's revision when `captures` was read.

    Not before the election, nor before the changefeed's last restart, and never less than before.
    """
    barrier: Barrier = NO_BARRIER
    """The timestamp up to which tables may be replicated."""
    floors: Mapping[str, int] = NO_FLOORS
    """The start of each table that has a checkpoint of its own, below the stored checkpoint."""

    def check(self, since: int, owner: str, before: Cluster | None) -> None:
        """Raise `InvalidArgumentError` for invalid values, or for values older than `before`.

        `since` is the revision of the election or, if that is later, of the restart.
        O(captures + barrier), and O(tables) if `tables` or `floors` is another object than before.
        """
        least = Cluster(0, {}, {}, 0, since) if before is None else before
        _check_integer("now", self.now, least.now)
        _check_integer("checkpoint", self.checkpoint, 0)
        _check_integer("the cluster's revision", self.revision, least.revision)
        self._check_captures(owner, least.captures)
        _check_barrier(self.barrier)
        if before is None or self.tables is not before.tables:
            self._check_tables()
        if before is None or self.floors is not before.floors:
            for table, floor in self.floors.items():
                check_name("a table", table)
                _check_integer(f"the floor of {table!r}", floor, 0)

    def _check_captures(self, owner: str, before: Mapping[str, int]) -> None:
        if not isinstance(self.captures, Mapping):
            raise InvalidArgumentError(f"captures are names and epochs, not {self.captures!r}")
        for name, epoch in self.captures.items():
            check_name("a capture", name)
            if name == owner:
                raise InvalidArgumentError(f"{name!r} is both the owner's name and a capture's")
            _check_integer(f"the epoch of {name!r}", epoch, before.get(name, 0))
            if epoch > self.revision:
                raise InvalidArgumentError(
                    f"{name!r} registered at revision {epoch}, after the cluster's revision "
                    f"{self.revision}"
                )

    def _check_tables(self) -> None:
        if not isinstance(self.tables, Mapping):
            raise InvalidArgumentError(f"tables are names and weights, not {self.tables!r}")
        for table, weight in self.tables.items():
            check_name("a table", table)
            if not isinstance(weight, int | float) or not 0 <= weight <= WEIGHT_MAX:
                raise InvalidArgumentError(
                    f"the weight of {table!r} is a number from 0 to 1e100, not {weight!r}"
                )


def check_name(of_what: str, name: object) -> None:
    """Raise `InvalidArgumentError` for a name that is not a non-empty UTF-8 text."""
    with suppress(UnicodeEncodeError):
        if type(name) is str and name.encode():
            return
    raise InvalidArgumentError(f"the name of {of_what} is a non-empty text, not {name!r}")


def check_revision(of_what: str, number: object, least: int) -> None:
    """Raise `InvalidArgumentError` for a number that is not a revision."""
    if type(number) is not int or not least <= number <= INTEGER_MAX:
        raise InvalidArgumentError(f"{of_what} is an integer >= {least}, not {number!r}")


def _check_integer(what: str, number: object, least: int) -> None:
    if type(number) is not int or not 0 <= number <= INTEGER_MAX:
        raise InvalidArgumentError(f"{what} is an integer >= 0, not {number!r}")
    if number < least:
        raise InvalidArgumentError(f"{what} is {number}, less than the known {least}")


def _check_barrier(barrier: object) -> None:
    if barrier is NO_BARRIER:
        return
    if not isinstance(barrier, Barrier) or type(barrier.tables) is not tuple:
        raise InvalidArgumentError(f"a barrier is a Barrier, as of barrier_of(), not {barrier!r}")
    _check_integer("a barrier", barrier.everywhere, 0)
    for pair in barrier.tables:
        if type(pair) is not tuple or len(pair) != 2:
            raise InvalidArgumentError(f"a barrier is a table and a time, not {pair!r}")
        check_name("a table", pair[0])
        _check_integer(f"the barrier of {pair[0]!r}", pair[1], 0)
    if len(dict(barrier.tables)) != len(barrier.tables):
        raise InvalidArgumentError("a barrier names a table twice")


class CaptureState(Enum):
    """The state of a capture for an owner; only a new registration sets it back."""

    UNINITIALIZED = 1
    """It has not synced: reported the tables that it holds."""
    INITIALIZED = 2
    STOPPING = 3
    """It leaves: it keeps its tables until they have moved, and gets no new ones."""


class KnownCapture(NamedTuple):
    """What an owner knows about a capture."""

    epoch: int
    state: CaptureState
    asked_at: int | None
    """The time of the first unanswered question; microseconds."""


def is_settled(epochs: Mapping[str, int], heard: Collection[str], revision: int) -> bool:
    """Return whether all captures that registered before an owner have synced. O(captures).

    A capture that registered after the election (`epoch > revision`) knew the owner when it began,
    so it took no requests of an earlier one.
    """
    return all(epoch > revision or name in heard for name, epoch in epochs.items())


class CaptureManager:
    """Keeps the owner's view of the captures.

    Captures that registered after `revision` can only have tables of this owner. A capture may be
    silent for `mute_us` microseconds: then the owner continues without it and evicts it. Between
    two evictions because of a table that does not stop, at least `stop_us` pass. Times are of any
    clock that counts microseconds.
    """

    def __init__(self, revision: int, mute_us: int, stop_us: int) -> None:
        self._revision, self._mute_us, self._stop_us = revision, mute_us, stop_us
        self._broken: tuple[str, int, int] | None = None
        """The last capture evicted because of a table that did not stop: name, epoch, time."""
        self.known: dict[str, KnownCapture] = {}
        self.is_initialized = False
        """Whether enough captures have synced to schedule."""

    def update(self, alive: Mapping[str, int], now: int) -> list[str]:
        """Apply the registered captures and their epochs; return the ended ones. O(captures).

        A capture that registered again has ended, too.
        """
        lost = [name for name, capture in self.known.items() if alive.get(name) != capture.epoch]
        for name in lost:
            del self.known[name]
        for name, epoch in alive.items():
            if name not in self.known:
                self.known[name] = KnownCapture(epoch, CaptureState.UNINITIALIZED, now)
        return lost

    def heard(self, name: str, *, is_stopping: bool) -> None:
        """Note a message of a capture that has synced."""
        capture = self.known[name]
        state = capture.state
        if is_stopping:
            state = CaptureState.STOPPING
        elif state is CaptureState.UNINITIALIZED:
            state = CaptureState.INITIALIZED
        self.known[name] = KnownCapture(capture.epoch, state, None)

    def asked(self, name: str, now: int) -> None:
        """Note a question to a capture; its first unanswered question counts."""
        capture = self.known[name]
        if capture.asked_at is None:
            self.known[name] = capture._replace(asked_at=now)

    def has_synced(self, name: str) -> bool:
        """Return whether a capture has reported the tables that it holds."""
        return self.known[name].state is not CaptureState.UNINITIALIZED

    def may_initialize(self, now: int) -> bool:
        """Return whether each capture has synced or is mute, and one synced. O(captures)."""
        synced = [name for name in self.known if self.has_synced(name)]
        waited = set(synced).union(self.mute(now))
        return bool(synced) and len(waited) == len(self.known)

    @property
    def is_settled(self) -> bool:
        """Whether no capture can hold a table that the owner does not know."""
        epochs = {name: capture.epoch for name, capture in self.known.items()}
        return is_settled(
            epochs, [name for name in epochs if self.has_synced(name)], self._revision
        )

    def mute(self, now: int) -> list[str]:
        """Return the captures that have been silent for too long. O(captures)."""
        asked = {name: capture.asked_at for name, capture in self.known.items()}
        return [name for name, at in asked.items() if at is not None and now - at >= self._mute_us]

    def broken(self, overdue: Iterable[str], now: int) -> list[str]:
        """Return the capture to evict because it does not stop a table: one at a time.

        `overdue` are the captures that do not stop one, the oldest first. If all hang for a common
        reason, the other captures still continue meanwhile. O(overdue).
        """
        names = [name for name in overdue if name in self.known]
        if self._broken is not None:
            name, epoch, at = self._broken
            if name in names and self.known[name].epoch == epoch:
                return [name]
            if now - at < self._stop_us:
                return []
        if not names:
            return []
        self._broken = names[0], self.known[names[0]].epoch, now
        return names[:1]

    def targets(self) -> list[str]:
        """Return the captures that can take tables, by name."""
        known, initialized = self.known.items(), CaptureState.INITIALIZED
        return sorted(name for name, capture in known if capture.state is initialized)


LEAST_SHARE = 0.1
"""The least weight of a table when captures are compared, as a share of the mean."""


class DesiredTables:
    """Keeps the desired tables, which of them have no set yet, and other tables with a set."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        """The tables to replicate, and what each weighs."""
        self.least = 1.0
        """The least weight of a table."""
        self.new: dict[str, None] = {}
        """Tables without a set: they begin when all reported progress is stored."""
        self.unwanted: dict[str, None] = {}
        """Tables with a set that are not desired and are not being removed."""
        self._passed: Mapping[str, float] | None = None
        """The object that was passed last; `weights` is a copy of it."""
        self._checked: tuple[Mapping[str, float] | None, int] = None, 0

    def check(self, tables: Mapping[str, float]) -> None:
        """Raise `InvalidArgumentError` for a mapping that was changed since it was passed. O(1)."""
        seen, length = self._checked
        if tables is seen and len(tables) != length:
            raise InvalidArgumentError("tables were changed in place: pass another mapping")
        self._checked = tables, len(tables)

    def update(
        self,
        tables: Mapping[str, float],
        replication: ReplicationManager,
        progress: ReportedProgress,
    ) -> None:
        """Apply the desired tables, and begin with new ones once all reported progress is stored.

        O(1) if the mapping is the same object as last time, else O(tables).
        """
        removed = replication.take_removed()
        if tables is not self._passed:
            is_first, self._passed = self._passed is None, tables
            if is_first or tables != self.weights:
                self._change(tables, replication)
        for table in removed:
            if table in self.weights:  # desired again while it was being removed
                self.new[table] = None
        for table in [each for each in self.unwanted if not replication.may_remove(each)]:
            del self.unwanted[table]
        if self.new:
            self._begin(replication, progress)

    def weight(self, table: str) -> float:
        """Return the weight of a table, at least `least`. O(1)."""
        return max(self.weights.get(table, 0.0), self.least)

    def note_held(self, tables: Iterable[str]) -> None:
        """Note tables that captures hold: tables that are not desired are to be removed."""
        for table in tables:
            if table not in self.weights:
                self.unwanted[table] = None

    def _change(self, tables: Mapping[str, float], replication: ReplicationManager) -> None:
        self.weights = dict(tables)
        self.new = {table: None for table in tables if table not in replication.sets}
        self.unwanted = {}
        self.note_held(replication.sets)
        mean = sum(tables.values()) / max(1, len(tables))
        self.least = mean * LEAST_SHARE or 1.0
        replication.set_weight(self.weight)

    def _begin(self, replication: ReplicationManager, progress: ReportedProgress) -> None:
        if not progress.is_stored:
            progress.repeat()
            return
        for table in self.new:
            replication.create_set(table, progress.floor_of(table))
        self.new = {}
