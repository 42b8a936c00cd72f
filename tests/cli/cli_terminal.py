"""Run the command line on a terminal, or into a pipe that is read while it goes on."""

import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from cli_runner import PROCESS_TIMEOUT_S, PROGRAM, Cli
from etcd_server.processes import HEARING_CTRL_C


@dataclass
class Terminal:
    """A command on a terminal: what it shows, and the keys pressed."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: bytes = b""
    grown: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(self.descriptor, 4096):
                with self.grown:
                    self.shown += chunk
                    self.grown.notify_all()

    def interrupt(self) -> None:
        """Press Ctrl-C until it ends, as people do.

        One that comes between the question and the waiting for an answer is seen only when there is
        one: the signal interrupts no reading that has not begun.
        """
        for _ in range(PROCESS_TIMEOUT_S):
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
                return

    def wait_for(self, text: str) -> None:
        with self.grown:
            arrived = self.grown.wait_for(lambda: text.encode() in self.shown, PROCESS_TIMEOUT_S)
        assert arrived, f"{text!r} was not shown, but {self.shown!r}"

    def press(self, keys: bytes) -> None:
        os.write(self.descriptor, keys)


@contextmanager
def following(
    cli: Cli, *words: str, program: Sequence[str] = PROGRAM
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Run a command that goes on into a pipe; it has ended when the block ends."""
    with subprocess.Popen(
        [*HEARING_CTRL_C, *program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cli.variables(),
    ) as process:
        deadline = threading.Timer(PROCESS_TIMEOUT_S, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            yield process, process.stdout
        finally:
            deadline.cancel()
            process.kill()


@contextmanager
def terminal(cli: Cli, *words: str) -> Iterator[Terminal]:
    """Run a command on a terminal; it has ended when the block ends."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*HEARING_CTRL_C, *PROGRAM, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=cli.variables({"COLUMNS": "80"}),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        shown = Terminal(process, ours)
        reader = threading.Thread(target=shown.read)
        reader.start()
        try:
            yield shown
            process.wait(PROCESS_TIMEOUT_S)
        finally:
            process.kill()
            reader.join()
            os.close(ours)
