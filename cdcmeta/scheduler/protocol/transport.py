"""Carries messages between owners and agents in one process; can be as unreliable as a network."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Protocol

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.protocol.messages import Envelope


class Transport(Protocol):
    """Carries envelopes; each may be late, lost, duplicated or overtaken."""

    def send(self, envelopes: Iterable[Envelope], now: int) -> None:
        """Send envelopes to the receivers in their headers; never blocks."""
        ...

    def receive(self, name: str, now: int) -> list[Envelope]:
        """Return the messages that have arrived for a receiver; never blocks."""
        ...


class InProcessTransport:
    """A transport in memory, with time as an argument (microseconds).

    `delay_us(rng)` returns how long a message takes: with different delays messages overtake each
    other. `loss` and `doubling` are probabilities; `is_cut(sender, to)` returns whether a sender
    cannot reach a receiver. At most `waiting_max` messages wait for each receiver, more are lost.

    >>> from cdcmeta.scheduler import InProcessTransport
    >>> InProcessTransport().receive("c1", now=0)
    []
    """

    def __init__(
        self,
        *,
        rng: random.Random | None = None,
        delay_us: Callable[[random.Random], int] = lambda rng: 0,
        loss: float = 0.0,
        doubling: float = 0.0,
        waiting_max: int = 1_000_000,
    ) -> None:
        for chance in (loss, doubling):
            if not 0 <= chance <= 1:
                raise InvalidArgumentError(
                    f"loss and doubling are probabilities from 0 to 1, not {chance!r}"
                )
        self._rng = rng or random.Random()
        self._delay_us, self.loss, self.doubling = delay_us, loss, doubling
        self._waiting_max = waiting_max
        self.is_cut: Callable[[str, str], bool] = lambda sender, to: False
        self._waiting: dict[str, list[tuple[int, int, Envelope]]] = {}
        self._order = count()
        self.lost = 0
        """How many messages did not arrive."""

    def send(self, envelopes: Iterable[Envelope], now: int) -> None:
        """Send envelopes; O(log waiting) each."""
        for envelope in envelopes:
            header = envelope.header
            if self.is_cut(header.sender, header.to) or self._happens(self.loss):
                self.lost += 1
                continue
            self._put(envelope, now)
            if self._happens(self.doubling):
                self._put(envelope, now)

    def receive(self, name: str, now: int) -> list[Envelope]:
        """Return the messages that have arrived, in order; O(messages x log waiting)."""
        waiting = self._waiting.get(name, [])
        arrived = []
        while waiting and waiting[0][0] <= now:
            arrived.append(heapq.heappop(waiting)[2])
        return arrived

    def forget(self, name: str) -> None:
        """Drop the messages for a receiver whose process has ended."""
        self._waiting.pop(name, None)

    def waiting(self) -> int:
        """Return how many messages are under way."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def _put(self, envelope: Envelope, now: int) -> None:
        waiting = self._waiting.setdefault(envelope.header.to, [])
        if len(waiting) >= self._waiting_max:
            self.lost += 1
            return
        at = now + self._delay_us(self._rng)
        heapq.heappush(waiting, (at, next(self._order), envelope))

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance
