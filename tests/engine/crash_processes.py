"""Processes for crash tests: forked, watched, ended with the test; what they did is on file."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 30.0


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition of another process holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.001)


class Child:
    """A forked process that runs `body(say)`; each `say(...)` is one line that outlives it."""

    def __init__(self, log: Path, body: Callable[[Callable[..., None]], None]) -> None:
        self.log = log
        self._read_bytes = 0
        self._heard: list[Any] = []
        self.status: int | None = None
        log.touch()
        self.pid = os.fork()
        if self.pid == 0:
            self._be(body)

    def _be(self, body: Callable[[Callable[..., None]], None]) -> None:
        fd = os.open(self.log, os.O_WRONLY | os.O_APPEND)

        def say(*words: Any) -> None:
            os.write(fd, json.dumps(words).encode() + b"\n")

        code = 1
        try:
            body(say)
            code = 0
        except BaseException:
            say("failed", traceback.format_exc())
        finally:
            os._exit(code)

    def heard(self) -> list[Any]:
        """Return what it said so far; a line cut off by its end does not count."""
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            lines = file.read().split(b"\n")
        self._read_bytes += sum(len(line) + 1 for line in lines[:-1])
        self._heard += [json.loads(line) for line in lines[:-1]]
        return self._heard

    def kill(self) -> None:
        """End it between two instructions."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait(self) -> int:
        """Wait until it has ended; return its exit status."""

        def ended() -> bool:
            if self.status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.status = status if pid else None
            return self.status is not None

        until(ended, f"process {self.pid} to end")
        assert self.status is not None
        return self.status


@contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Start children; none of them survives the block."""
    started: list[Child] = []

    def start(log: Path, body: Callable[[Callable[..., None]], None]) -> Child:
        started.append(Child(log, body))
        return started[-1]

    try:
        yield start
    finally:
        for child in started:
            child.kill()
