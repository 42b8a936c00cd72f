"""The captures of an owner: which have synced, which are silent, and which are leaving."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class CaptureState(Enum):
    """The state of a capture for an owner; only a new registration sets it back."""

    UNINITIALIZED = 1
    """It has not synced: reported the tables that it holds."""
    INITIALIZED = 2
    STOPPING = 3
    """It leaves: it keeps its tables until they have moved, and gets no new ones."""


class CaptureStatus(NamedTuple):
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
        self.known: dict[str, CaptureStatus] = {}
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
                self.known[name] = CaptureStatus(epoch, CaptureState.UNINITIALIZED, now)
        return lost

    def heard(self, name: str, *, is_stopping: bool) -> None:
        """Note a message of a capture that has synced."""
        capture = self.known[name]
        state = capture.state
        if is_stopping:
            state = CaptureState.STOPPING
        elif state is CaptureState.UNINITIALIZED:
            state = CaptureState.INITIALIZED
        self.known[name] = CaptureStatus(capture.epoch, state, None)

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
        return [
            name
            for name, capture in self.known.items()
            if capture.asked_at is not None and now - capture.asked_at >= self._mute_us
        ]

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
        return sorted(
            name
            for name, capture in self.known.items()
            if capture.state is CaptureState.INITIALIZED
        )
