"""Real threads with bounded waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from protocol_remote import WAIT_S


def until(condition: Callable[[], object], what: str = "a condition") -> None:
    """Wait until a condition of another thread holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.0005)


class Caller(threading.Thread):
    """A thread that runs one function and keeps its outcome."""

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._run, self._value, self._error = run, None, None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._run()
        except BaseException as e:
            self._error = e

    def outcome(self) -> Any:
        """Return the value or the exception."""
        self.join(WAIT_S)
        assert not self.is_alive(), "a caller hangs"
        return self._value if self._error is None else self._error

    def value(self) -> Any:
        """Return the value; raise what the function raised."""
        if isinstance(self.outcome(), BaseException):
            raise self._error
        return self._value

    def error(self) -> BaseException | None:
        """Return what the function raised, None when it returned."""
        self.outcome()
        return self._error
