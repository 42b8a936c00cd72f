"""A network in memory, for captures in threads of one process."""

from __future__ import annotations

import threading

from cdcmeta.scheduler.protocol.messages import Envelope
from cdcmeta.scheduler.transport.mailbox import Waiting, is_heartbeat

WAITING_MAX = 100_000
"""The most messages that wait to be received; the oldest heartbeats are lost first."""


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
                post.put(feed, envelope)

    def remove(self, post: LocalPost) -> None:
        """Deliver nothing more to a post."""
        with self._lock:
            if self._posts.get(post.address) is post:
                del self._posts[post.address]


class LocalPost:
    """One capture's mailbox in a local network."""

    def __init__(self, network: LocalNetwork, address: str) -> None:
        self._network, self.address = network, address
        self._lock = threading.Lock()
        self._arrived = Waiting[tuple[str, Envelope]](WAITING_MAX, 0)
        self._closed = False

    def send(self, address: str, feed: str, envelope: Envelope) -> None:
        """Send a message."""
        if not self._closed:
            self._network.deliver(address, feed, envelope)

    def put(self, feed: str, envelope: Envelope) -> None:
        """Keep a message until `receive`."""
        with self._lock:
            self._arrived.put((feed, envelope), 0, is_beat=is_heartbeat(envelope.body))

    def receive(self) -> list[tuple[str, Envelope]]:
        """Return the messages that have arrived."""
        with self._lock:
            return self._arrived.take_all()

    def close(self) -> None:
        """Drop what has arrived; nothing more arrives, and nothing is sent."""
        self._closed = True
        self._network.remove(self)
        with self._lock:
            self._arrived.clear()
