"""The contract of a capture's mailbox, and the messages that wait in one.

They are bounded in number and bytes. Beyond the bounds the oldest heartbeats are dropped, and the
oldest requests only when no heartbeat waits. The protocol repeats both, but a request later, when
its loss is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from itertools import count
from typing import Generic, Protocol, TypeVar

from cdcmeta.scheduler.protocol import messages


class Post(Protocol):
    """Sends messages to addresses, and receives messages for its own; each may be lost or late."""

    @property
    def address(self) -> str:
        """Where other captures reach it."""

    def send(self, address: str, feed: str, envelope: messages.Envelope) -> None:
        """Send a message of a changefeed; never blocks.

        It is lost if the address is not valid, or if no post listens there.
        """

    def receive(self) -> list[tuple[str, messages.Envelope]]:
        """Return the messages that have arrived, each with its changefeed; never blocks."""

    def close(self) -> None:
        """End it; no thread of it remains, and later messages are lost. May be repeated."""


T = TypeVar("T")


def is_heartbeat(body: messages.Body) -> bool:
    """Return whether a newer message of the same kind makes this one worthless."""
    return isinstance(body, messages.Announce | messages.Heartbeat | messages.HeartbeatResponse)


class Waiting(Generic[T]):
    """Messages in order. Takes no lock: its user does."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._order = count()
        self._requests = deque[tuple[int, T, int]]()
        self._heartbeats: dict[Hashable, tuple[int, T, int]] = {}
        self.bytes = 0
        """The bytes that wait."""
        self.dropped = 0
        """The number of dropped messages, without the ones that newer messages replaced."""

    def __len__(self) -> int:
        return len(self._requests) + len(self._heartbeats)

    def put(
        self, message: T, size: int, *, is_beat: bool = False, replaces: Hashable = None
    ) -> None:
        """Add a message, which waits until it is taken.

        A heartbeat takes the turn of the one that waits under the same key, if any.
        """
        number = next(self._order)
        if not is_beat:
            self._requests.append((number, message, size))
            self._add(size)
            return
        key = number if replaces is None else replaces
        before = self._heartbeats.get(key)
        self._heartbeats[key] = number, message, size
        self._add(size - before[2] if before is not None else size)

    def take(self, bytes_max: int) -> list[T]:
        """Remove and return the first messages up to a size, at least one; requests come first.

        So a request arrives before the heartbeat that asks about its table.
        """
        taken: list[T] = []
        left = bytes_max
        while self and (self._first()[2] <= left or not taken):
            _, message, size = self._pop(self._requests or None)
            left -= size
            taken.append(message)
        return taken

    def take_all(self) -> list[T]:
        """Remove and return all, in the order in which they were put."""
        every = sorted([*self._requests, *self._heartbeats.values()], key=lambda each: each[0])
        self.clear()
        return [message for _, message, _ in every]

    def clear(self) -> None:
        """Remove all."""
        self._requests.clear()
        self._heartbeats.clear()
        self.bytes = 0

    def _first(self) -> tuple[int, T, int]:
        return self._requests[0] if self._requests else next(iter(self._heartbeats.values()))

    def _pop(self, requests: deque[tuple[int, T, int]] | None) -> tuple[int, T, int]:
        """Remove the oldest of `requests`, or else the oldest heartbeat."""
        if requests is not None:
            each = requests.popleft()
        else:
            each = self._heartbeats.pop(next(iter(self._heartbeats)))
        self.bytes -= each[2]
        return each

    def _add(self, size: int) -> None:
        self.bytes += size
        while len(self) > self._count_max or (self.bytes > self._bytes_max and len(self) > 1):
            self._pop(None if self._heartbeats else self._requests)
            self.dropped += 1
