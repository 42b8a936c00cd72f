"""Server-sent events: what followers of the hub are sent, and how they wait."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import anyio.to_thread

from snapkv.errors import SnapKVError
from snapkv.ui.live import Event, Hub, as_fields

FOLLOWERS_MAX = 200
BEAT_S = 15.0
"""After so long without an event, a comment is sent: it finds connections that ended."""
RETRY_MS = 2_000


class Feeds:
    """The feeds of one server, one for each hub, in one event loop."""

    def __init__(self) -> None:
        self._feeds: dict[Hub, Feed] = {}

    def of(self, hub: Hub) -> Feed:
        """Return the feed of a hub."""
        return self._feeds.setdefault(hub, Feed(hub))

    @property
    def full(self) -> bool:
        """Whether no more followers are taken."""
        return sum(each.followers for each in self._feeds.values()) >= FOLLOWERS_MAX

    def close(self) -> None:
        """End all followers; called in the event loop."""
        for each in self._feeds.values():
            each.close()


class Feed:
    """The followers of one hub, in one event loop."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._woken: set[asyncio.Event] = set()
        self._closed = False

    @property
    def followers(self) -> int:
        """How many there are."""
        return len(self._woken)

    async def events(self, since: int | None, prefix: str) -> AsyncIterator[bytes]:
        """Yield what a follower of commits after `since` (None: now) is sent, until it leaves."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        self._woken.add(woken)
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            try:
                number, gap = await anyio.to_thread.run_sync(self.hub.join, wake, since)
            except SnapKVError as e:
                yield _sent("gap", {"reason": str(e)})
                return
            if gap is not None:
                yield _sent("gap", {"reason": gap})
            trouble: str | None = None
            while not self._closed:
                woken.clear()
                if self.hub.trouble != trouble:
                    trouble = self.hub.trouble
                    yield _sent("trouble", {"reason": trouble})
                events, number, lost = self.hub.after(number)
                if lost:
                    yield _sent("gap", {"reason": "this page was too slow for all commits"})
                for event in events:
                    if (part := _event(event, since, prefix)) is not None:
                        yield part
                if not events and not await _waited(woken):
                    yield b": \n\n"
        finally:
            self._woken.discard(woken)
            self.hub.leave(wake)

    def close(self) -> None:
        """End all followers; called in the event loop."""
        self._closed = True
        for woken in self._woken:
            woken.set()


async def _waited(woken: asyncio.Event) -> bool:
    """Wait until something happens; return False if nothing does for a while."""
    try:
        await asyncio.wait_for(woken.wait(), BEAT_S)
    except TimeoutError:
        return False
    return True


def _event(event: Event, since: int | None, prefix: str) -> bytes | None:
    """Return what a follower is sent of an event, None for nothing."""
    if event.gap is not None:
        return _sent("gap", {"reason": event.gap}, event.timestamp)
    if since is not None and event.timestamp <= since:
        return None
    found = event.of(prefix)
    return None if found is None else _sent("commit", as_fields(found), found.timestamp)


def _sent(kind: str, fields: dict[str, object], number: int | None = None) -> bytes:
    """Return an event; its data is JSON in ASCII on one line."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {kind}\ndata: {json.dumps(fields)}\n\n".encode()
