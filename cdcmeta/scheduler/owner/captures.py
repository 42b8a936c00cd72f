"""Which captures there are, which have told what they hold, and which are about to leave."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple


class CaptureState(Enum):
    """How far an owner has come with a capture; there is no way back but a new registration."""

    UNINITIALIZED = 1
    """It has not told what it holds."""
    INITIALIZED = 2
    STOPPING = 3
    """It leaves: it keeps what it has until that went elsewhere, and gets nothing new."""


class Capture(NamedTuple):
    """What an owner knows of a capture."""

    epoch: int
    state: CaptureState
    asked_at: int | None
    """Since when it has been asked and said nothing; microseconds."""


def is_settled(epochs: Mapping[str, int], heard: Collection[str], revision: int) -> bool:
    """Return whether all captures of the time before an owner have told it what they hold.

    One that registered after the election (`epoch > revision`) knew of the owner when it began,
    and took nothing from an earlier one. O(captures).
    """
    return all(epoch > revision or name in heard for name, epoch in epochs.items())


class CaptureManager:
    """Keeps the owner's view of the captures.

    `revision` is that since which captures can only have tables of this owner; `mute_us` is how
    long a capture that is asked may say nothing, in microseconds, before the others go on without
    it and its registration is to be taken away; `stop_us` passes at least between two captures
    that lose theirs because a table does not stop. Times are of any clock that counts microseconds.
    """

    def __init__(self, revision: int, mute_us: int, stop_us: int) -> None:
        self._revision, self._mute_us, self._stop_us = revision, mute_us, stop_us
        self._broken: tuple[str, int, int] | None = None
        """The last capture on which a table did not stop: its name, its epoch, and when."""
        self.known: dict[str, Capture] = {}
        self.is_initialized = False
        """Whether what is assigned is known well enough to schedule."""

    def update(self, alive: Mapping[str, int], now: int) -> list[str]:
        """Take in who is registered, by epoch; return who has ended or begun anew. O(captures)."""
        lost = [name for name, capture in self.known.items() if alive.get(name) != capture.epoch]
        for name in lost:
            del self.known[name]
        for name, epoch in alive.items():
            if name not in self.known:
                self.known[name] = Capture(epoch, CaptureState.UNINITIALIZED, now)
        return lost

    def heard(self, name: str, *, is_stopping: bool) -> None:
        """Note that a capture that has told what it holds says something."""
        capture = self.known[name]
        state = capture.state
        if is_stopping:
            state = CaptureState.STOPPING
        elif state is CaptureState.UNINITIALIZED:
            state = CaptureState.INITIALIZED
        self.known[name] = Capture(capture.epoch, state, None)

    def asked(self, name: str, now: int) -> None:
        """Note that a capture is asked; the first question that it has not answered counts."""
        capture = self.known[name]
        if capture.asked_at is None:
            self.known[name] = capture._replace(asked_at=now)

    def has_told(self, name: str) -> bool:
        """Return whether a capture has told what it holds."""
        return self.known[name].state is not CaptureState.UNINITIALIZED

    def may_initialize(self, now: int) -> bool:
        """Return whether all have told, or those who have not had their time. O(captures)."""
        told = [name for name in self.known if self.has_told(name)]
        waited = set(told).union(self.mute(now))
        return bool(told) and len(waited) == len(self.known)

    @property
    def is_settled(self) -> bool:
        """Whether nobody can hold a table that the owner does not know of."""
        epochs = {name: capture.epoch for name, capture in self.known.items()}
        return is_settled(epochs, [name for name in epochs if self.has_told(name)], self._revision)

    def mute(self, now: int) -> list[str]:
        """Return who has said nothing for too long. O(captures)."""
        return [
            name
            for name, capture in self.known.items()
            if capture.asked_at is not None and now - capture.asked_at >= self._mute_us
        ]

    def broken(self, hanging: Iterable[str], now: int) -> list[str]:
        """Return the capture to evict because it does not stop a table: one at a time.

        `hanging` are the captures that do not, the longest first. Whatever they have in common,
        the others go on meanwhile. O(hanging).
        """
        names = [name for name in hanging if name in self.known]
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
        """Return who can take tables, by name."""
        return sorted(
            name
            for name, capture in self.known.items()
            if capture.state is CaptureState.INITIALIZED
        )
