"""Signals that end a command: Ctrl-C, and SIGTERM where it would leave half-written files."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Notices Ctrl-C while its block runs in the main thread; it raises `KeyboardInterrupt`.

    If that falls into an import inside an extension module, another error takes its place: pandas,
    which pyarrow imports when it first converts a value, reports a circular import. So `came` says
    whether an error is that of an interrupt.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Interrupts:
        self._installed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._installed:
            signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what it began is removed or closed.

    A second one ends the process at once. Where SIGTERM is ignored or has a handler, that stays.
    """

    def hear(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
