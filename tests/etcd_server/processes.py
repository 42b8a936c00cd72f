"""Children that never outlive the tests, ports for them, and bounded waiting."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

WAIT_S = 20.0
"""No wait of the harness is longer, unless the caller says so."""

T = TypeVar("T")

HEARING_CTRL_C = [
    *(sys.executable, "-ISc"),
    "import os, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])",
]
"""Undoes what a test run in the background of a shell hands down: a Ctrl-C that is ignored.

A program and no `preexec_fn`, which makes the child a fork of this process and of its gRPC.
"""


def eventually(
    condition: Callable[[], T | None], what: str = "a condition", *, wait_s: float = WAIT_S
) -> T:
    """Return the first true answer of `condition`; AssertionError after `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {wait_s:.0f} s for {what}"
        time.sleep(0.003)
    return answer


_given_ports: set[int] = set()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, and that this process never gave out.

    It lies below the kernel's ports for outgoing connections: none of those can take it while
    its server is down, nor connect to itself there.
    """
    for _ in range(1000):
        port = random.SystemRandom().randrange(10_000, 32_000)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given_ports.add(port)
        return port
    raise AssertionError("no free port")


# Reads "+pid" and "-pid"; kills what is left when our end of the pipe closes, so also when we
# were killed. A death signal set in the child (PR_SET_PDEATHSIG) would not do: it comes when the
# *thread* that started the child ends, and a preexec function is unsafe among threads.
_GUARD = """
import os, signal, sys
left = set()
for line in sys.stdin:
    (left.add if line[0] == "+" else left.discard)(int(line[1:]))
for pid in left:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


_ENVIRONMENT = dict(os.environ)
"""As it was: a test that changes the real one, in another thread, would pull it from under exec."""


class Keeper:
    """Starts children and sees to their end: at exit, and after a crash by a guard process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._children: set[subprocess.Popen[bytes]] = set()
        self._guard: subprocess.Popen[str] | None = None

    def start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a child in a session of its own, so that no Ctrl-C reaches it before us."""
        with self._lock, log.open("ab") as output:
            if self._guard is None:
                self._start_guard()
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_ENVIRONMENT,
                start_new_session=True,
            )
            self._children.add(child)
            self._tell(f"+{child.pid}")
        return child

    def end(self, child: subprocess.Popen[bytes], *, grace_s: float) -> None:
        """End a child: ask it first when `grace_s` is not 0, then kill it; it is reaped."""
        if child.poll() is None and grace_s:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace_s)
        if child.poll() is None:
            child.kill()
        child.wait(WAIT_S)
        with self._lock:
            if child in self._children:
                self._children.remove(child)
                self._tell(f"-{child.pid}")

    def end_all(self) -> None:
        """Kill every child, then let the guard go."""
        if os.getpid() != self._owner:
            return  # a fork of the tests' process: not its children
        for child in list(self._children):
            self.end(child, grace_s=0)
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait(WAIT_S)
            self._guard = None

    def _start_guard(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self.end_all)

    def _tell(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.write(line + "\n")
            self._guard.stdin.flush()


keeper = Keeper()
