"""A network in memory, for captures in threads of one process."""

from __future__ import annotations

import threading
from collections import deque

from cdcmeta.scheduler.protocol.messages import Envelope

WAITING_MAX = 100_000


class LocalNetwork:
    """Connects the posts of one process.

    >>> from cdcmeta.scheduler.transport.local import LocalNetwork
    >>> LocalNetwork().post("c1").receive()
    []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posts: dict[str, LocalPost] = {}

    def post(self, address: str) -> LocalPost:
        """Return the post of an address; an earlier one of the same address gets nothing more."""
        with self._lock:
            self._posts[address] = post = LocalPost(self, address)
        return post

    def deliver(self, address: str, feed: str, envelope: Envelope) -> None:
        """Put a message into a post's mailbox; lost if there is none."""
        with self._lock:
            post = self._posts.get(address)
        if post is not None:
            post.arrived.append((feed, envelope))


class LocalPost:
    """One capture's mailbox in a local network."""

    def __init__(self, network: LocalNetwork, address: str) -> None:
        self._network, self.address = network, address
        self.arrived = deque[tuple[str, Envelope]](maxlen=WAITING_MAX)

    def send(self, address: str, feed: str, envelope: Envelope) -> None:
        """Send a message."""
        self._network.deliver(address, feed, envelope)

    def receive(self) -> list[tuple[str, Envelope]]:
        """Return the messages that have arrived."""
        found = []
        while self.arrived:
            found.append(self.arrived.popleft())
        return found

    def close(self) -> None:
        """Drop what has arrived."""
        self.arrived.clear()
