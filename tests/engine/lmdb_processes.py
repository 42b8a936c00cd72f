"""Other processes for the tests: scripts that run to their end, and children one talks with.

A script sees `path` (the directory of the store), `args`, the words of `PRELUDE`, and nothing
of pytest, so that forks and limits stay in a process of their own. Every wait is bounded.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from snapkv.base.waiting import monotonic

SECONDS_MAX = 40.0

PRELUDE = """
import gc, os, signal, sys, threading, warnings
from snapkv.base.waiting import monotonic, pause
from snapkv.engine.contract import *
from snapkv.engine.lmdb import LmdbEngine
from snapkv.engine.contract import OutcomeUnknown, Refused
from snapkv.errors import *

path, args = sys.argv[1], sys.argv[2:]

def put(engine, key, value=b"v", timeout=20.0):
    txn = Txn(success=(Put(key, value),))
    return engine.transact(lambda _: txn, key, timeout=timeout).header.revision

def get(engine, key, revision=0):
    found = engine.read([Range(key, b"", revision)]).results[0].kvs
    return found[0].value if found else None

def count(engine):
    return engine.read([Range(b"\\0", b"\\0", count_only=True)]).results[0].count

def increment(engine, key, timeout=20.0):
    def prepare(found):
        number = int(found.value) if found else 0
        return Txn(success=(Put(key, b"%d" % (number + 1)),))
    return engine.transact(prepare, key, timeout=timeout).header.revision

def raises(kind, work):
    try:
        work()
    except kind as e:
        return e
    raise AssertionError(f"no {kind}")

def until(holds, seconds=20.0):
    deadline = monotonic() + seconds
    while not holds():
        assert monotonic() < deadline, "waited too long"
        pause(0.001)

def say(text):
    print(text, flush=True)

def heard():
    return sys.stdin.readline().strip()

def child(work):
    "Run `work` in a forked child; return its process id."
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(30)
        work()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

def reap(*pids):
    for pid in pids:
        status = os.waitpid(pid, 0)[1]
        assert status == 0, f"child ended with {status}"

signal.alarm(60)
"""


def command(code: str, path: Path | str, args: Sequence[object]) -> list[str]:
    script = PRELUDE + textwrap.dedent(code)
    return [sys.executable, "-c", script, str(path), *map(str, args)]


def run(code: str, path: Path | str, *args: object, wrapper: Sequence[str] = ()) -> str:
    """Run a script to its end, which must be a good one; return what it printed."""
    done = subprocess.run(
        [*wrapper, *command(code, path, args)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


class Child:
    """A script that runs beside the test and talks line by line."""

    def __init__(self, code: str, path: Path | str, *args: object) -> None:
        self._process = subprocess.Popen(
            command(code, path, args), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._read = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(SECONDS_MAX)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def line(self, seconds: float = SECONDS_MAX) -> str:
        """Return the next line it prints."""
        assert self._process.stdout is not None
        fd, deadline = self._process.stdout.fileno(), monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - monotonic()))
            assert ready, "the child says nothing"
            more = os.read(fd, 65_536)
            assert more, "the child ended"
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def expect(self, text: str) -> None:
        assert self.line() == text

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        self._process.kill()
        self._process.wait(SECONDS_MAX)

    def end(self) -> None:
        """Wait for its good end."""
        assert self._process.wait(SECONDS_MAX) == 0


def may_unshare() -> bool:
    """Return whether this machine lets us have mounts of our own."""
    try:
        done = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def on_mount(setup: str, mount_point: Path | str) -> list[str]:
    """Return what to put before a command so that it runs with a mount of its own.

    `setup` is a shell command in which $0 is the mount point.
    """
    return ["unshare", "-rm", "sh", "-c", f'{setup} && exec "$@"', str(mount_point)]
