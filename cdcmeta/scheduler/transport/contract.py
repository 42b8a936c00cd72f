"""The contract of a capture's mailbox."""

from __future__ import annotations

from typing import Protocol

from cdcmeta.scheduler.protocol.messages import Envelope


class Post(Protocol):
    """Sends messages to addresses, and receives those for its own; each may be lost or late."""

    @property
    def address(self) -> str:
        """Where other captures reach it."""
        ...

    def send(self, address: str, feed: str, envelope: Envelope) -> None:
        """Send a message of a changefeed; never blocks.

        It is lost if the address is not valid, or if no post listens there.
        """
        ...

    def receive(self) -> list[tuple[str, Envelope]]:
        """Return the messages that have arrived, each with its changefeed; never blocks."""
        ...

    def close(self) -> None:
        """End it; no thread of it remains, and later messages are lost. May be repeated."""
        ...
