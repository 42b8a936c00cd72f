"""Engines that go away and come back, as servers behind a network do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from store.wrapping import Exchangeable, Reopening

import snapkv.store.open
from snapkv.base.waiting import bounded, monotonic
from snapkv.errors import EngineUnavailableError
from snapkv.store.location import open_engine

WAIT_S = 60.0
STEP_S = 0.02


class Servers:
    """The engines that are opened while it is in force, by their URLs."""

    def __init__(self) -> None:
        self.of: dict[str, list[Leaving]] = {}
        self.modes: dict[str, str] = {}
        self.calls: Counter[str] = Counter()
        """Reads of each URL, those that were not answered, too."""
        self._changed = threading.Condition()
        self._own = threading.local()

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Open the engines of a block as they are: those of the test itself."""
        self._own.passed = True
        try:
            yield
        finally:
            self._own.passed = False

    def patch(self, monkeypatch) -> None:
        monkeypatch.setattr(snapkv.store.open, "open_engine", self.opened)

    def opened(self, url, **rest):
        if getattr(self._own, "passed", False):
            return open_engine(url, **rest)
        self.arrive(url)
        engine = Leaving(open_engine(url, **rest), self, url)
        self.of.setdefault(url, []).append(engine)
        return engine

    def set(self, url: str, mode: str) -> None:
        """Let an engine be "here", "away" (it refuses at once) or "hung" (it does not answer)."""
        with self._changed:
            self.modes[url] = mode
            self._changed.notify_all()

    def arrive(self, url: str) -> None:
        """Raise `EngineUnavailableError` if an engine does not answer."""
        self.calls[url] += 1
        if self.modes.get(url) == "away":
            raise EngineUnavailableError("connection refused")
        with self._changed:
            here = self._changed.wait_for(lambda: self.modes.get(url) != "hung", bounded(WAIT_S))
        if not here:
            raise EngineUnavailableError("no answer in time")

    def is_here(self, url: str) -> bool:
        return self.modes.get(url, "here") == "here"

    def wait(self, url: str, seconds: float | None) -> bool:
        """Wait until an engine is there; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.is_here(url), seconds)


class Leaving(Exchangeable):
    """An engine that answers only while its server is there."""

    def __init__(self, inner, servers: Servers, url: str) -> None:
        super().__init__(inner)
        self.servers, self.at = servers, url

    def read(self, ranges, **rest):
        self.servers.arrive(self.at)
        return self.inner.read(ranges, **rest)

    def scan(self, *args, **rest):
        self.servers.arrive(self.at)
        return self.inner.scan(*args, **rest)

    def transact(self, *args, **rest):
        self.servers.arrive(self.at)
        return self.inner.transact(*args, **rest)

    def watch(self, key, range_end, *, start_revision):
        return Waiting(self, key, range_end, start_revision)


class Waiting(Reopening):
    """A watcher that brings nothing while its server is away, as those of etcd do."""

    closed, held = False, None

    def next(self, timeout):
        servers, url = self.engine.servers, self.engine.at
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            left = STEP_S if deadline is None else min(STEP_S, max(0.0, deadline - monotonic()))
            if self.held is None or self.closed:
                self.held = super().next(left)
            if not servers.is_here(url):
                servers.wait(url, left)
            elif self.held is not None:
                found, self.held = self.held, None
                return found
            if deadline is not None and monotonic() >= deadline:
                return None

    def close(self) -> None:
        self.closed = True
        super().close()
