"""Campaigns in threads, and what of elections stands in an engine."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from snapkv.engine.contract import Range

WAIT_S = 20
LONG_S = 30.0
LIVE = (b"default/live/", b"default/live0")


def live_keys(engine) -> list[bytes]:
    return [kv.key for kv in engine.read([Range(*LIVE)]).results[0].kvs]


def standing(engine, name: bytes = b"e") -> list[bytes]:
    """The values of an election's candidates, in the order in which they stood."""
    prefix = b"default/live/election/" + name
    kvs = engine.read([Range(prefix + b"/", prefix + b"0")]).results[0].kvs
    return [kv.value for kv in sorted(kvs, key=lambda kv: kv.create_revision)]


class Campaign(threading.Thread):
    """A thread that campaigns; `result` is what came of it."""

    def __init__(self, election, value=b"", timeout=None, then=None) -> None:
        super().__init__(daemon=True)
        self.election, self.value, self.timeout, self.then = election, value, timeout, then
        self.result = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.election.campaign(self.value, self.timeout)
            if self.then is not None:
                self.then(self.election)
        except BaseException as e:
            self.result = e

    def done(self):
        self.join(WAIT_S)
        assert not self.is_alive(), "the campaign goes on"
        return self.result


@contextmanager
def stood(engine, count: int, name: bytes = b"e"):
    """Wait, after the block, until there are so many candidates."""
    prefix = b"default/live/election/" + name
    start = engine.read([]).header.revision + 1
    watcher = engine.watch(prefix + b"/", prefix + b"0", start_revision=start)
    try:
        yield
        while len(standing(engine, name)) != count:
            batch = watcher.next(WAIT_S)
            assert batch is not None, f"waited {WAIT_S} s for {count} candidates"
    finally:
        watcher.close()
