"""The pager of long answers on a terminal, as git has one."""

from __future__ import annotations

import io
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from shutil import which
from subprocess import PIPE, Popen, TimeoutExpired
from typing import TextIO

from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.terminal import report_warning

PAGER_VARIABLES = ("SNAPKV_PAGER", "PAGER")
"""The first that is set decides; an empty one, or cat, means no pager."""
DEFAULTS = {"LESS": "FRX", "LV": "-c"}
"""The variables of pagers, unless they are set: end if all fits on the screen, keep colours."""
READER_CODES = (0, -signal.SIGINT, 128 + signal.SIGINT, -signal.SIGPIPE, 128 + signal.SIGPIPE)
"""The exit codes with which a pager ends because its reader wants that; with any other code it has
failed."""
KEPT_BYTES_MAX = 1 << 20
"""The most bytes of output that are kept, in case the pager fails."""
END_S_MAX = 5.0
"""The longest that a pager that reads no more may take to end, in seconds."""


def pager_of(environment: Mapping[str, str]) -> list[str]:
    """Return the pager and its arguments; empty for none.

    >>> pager_of({"SNAPKV_PAGER": "less -S", "PAGER": "more"}), pager_of({"PAGER": "cat"})
    (['less', '-S'], [])

    Without a variable it is less, if there is one and the terminal can move its cursor. Raises
    `CommandError` if quotes are not closed.
    """
    for variable in PAGER_VARIABLES:
        if (chosen := environment.get(variable)) is not None:
            try:
                words = shlex.split(chosen)
            except ValueError as e:
                raise CommandError(f"{variable} is {chosen!r}, not a command: {e}") from e
            return [] if words == ["cat"] else words
    dumb = environment.get("TERM", "dumb") == "dumb"
    return [] if dumb or which("less") is None else ["less"]


class PagerPipe(io.RawIOBase):
    """A stream into a pager, which the first write starts; it counts as the terminal.

    If the pager does not start, or fails, a warning says so and the terminal gets everything; if a
    pager fails after more than `KEPT_BYTES_MAX` bytes, the output is `lost`, with that reason.
    `ended` is whether the reader has ended the pager before everything was written.
    """

    def __init__(self, command: list[str], terminal: TextIO) -> None:
        super().__init__()
        self.ended, self.lost = False, ""
        self._kept: bytearray | None = bytearray()
        self._command, self._terminal = command, terminal
        self._process: Popen[bytes] | None = None
        self._target: int | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return True: colours are for people, and the pager shows them."""
        return True

    def write(self, data: object) -> int:
        """Write some bytes. Raises `BrokenPipeError` once, when the reader has ended the pager."""
        content = memoryview(data).cast("B")  # type: ignore[arg-type]
        if self._target is None:
            self._target = self._start()
        if self.ended:
            return len(content)
        try:
            written = os.write(self._target, content)
        except BrokenPipeError:
            if self._process is not None and self._fails():
                return self.write(data)
            self.ended = self._process is not None
            raise
        if self._process is not None and self._kept is not None:
            self._kept += content[:written]
            if len(self._kept) > KEPT_BYTES_MAX:
                self._kept = None
        return written

    def _fails(self) -> bool:
        """Return whether the pager, which reads no more, has failed; then write without it."""
        assert self._process is not None
        with suppress(TimeoutExpired):
            self._process.wait(END_S_MAX)
        code = self._process.returncode
        if code is None or code in READER_CODES:
            return False
        ended = f"with code {code}" if code > 0 else f"by signal {-code}"
        why = f"the pager {shlex.join(self._command)} ended {ended}"
        self._process, self._target = None, self._terminal.fileno()
        if self._kept is None:
            self.lost, self.ended = f"{why}: --no-pager prints everything", True
            return True
        report_warning(f"{why}; here is everything without it")
        left = memoryview(self._kept)
        while left:
            left = left[os.write(self._target, left) :]
        return True

    def _start(self) -> int:
        self._terminal.flush()
        try:
            self._process = Popen(self._command, stdin=PIPE, env={**DEFAULTS, **os.environ})  # noqa: S603, the user's own pager
        except OSError as e:
            report_warning(f"the pager {shlex.join(self._command)} does not start: {e.strerror}")
            return self._terminal.fileno()
        assert self._process.stdin is not None
        return self._process.stdin.fileno()

    def finish(self) -> None:
        """Wait until the reader ends the pager, which answers Ctrl-C itself."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        while self._process.poll() is None:
            with suppress(KeyboardInterrupt):
                self._process.wait()
        if not self.ended:
            self._fails()


@contextmanager
def paged(*, wanted: bool = True) -> Iterator[None]:
    """Send the standard output of a block through a pager, if it is a terminal and `wanted`.

    If the reader ends the pager early, the rest of the block is skipped, without an error. In the
    end it waits for the reader. Raises `CommandError` if a pager fails after much output.
    """
    terminal = sys.stdout
    command = pager_of(os.environ) if wanted and terminal.isatty() else []
    if not command:
        yield
        return
    pipe = PagerPipe(command, terminal)
    stream = io.TextIOWrapper(
        io.BufferedWriter(pipe),
        encoding=terminal.encoding,
        errors="backslashreplace",
        line_buffering=True,
    )
    sys.stdout = stream
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        if not pipe.ended:
            raise
    finally:
        sys.stdout = terminal
        with suppress(BrokenPipeError):
            stream.close()
        pipe.finish()
    if pipe.lost:
        raise CommandError(pipe.lost, Exit.OUTPUT)
