"""The first pages of docs/scheduler.md are typed into a shell, and do what they say."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from etcd_server import eventually

from tests.project.pages import blocks_of, pages_run_by

pytestmark = pytest.mark.slow

WAIT_S = 60
(PAGE,) = pages_run_by("test_three_captures_in_two_minutes")
BLOCKS = [
    block.code.splitlines()
    for block in blocks_of(PAGE)
    if block.kind == "console" and not block.reason
]


class Shell:
    """Runs commands of the page in a folder; those with & go on until the end."""

    def __init__(self, folder):
        self._folder, self.log = folder, folder / "captures.log"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment = os.environ | {"PATH": path, "COLUMNS": "200", "PYTHONFAULTHANDLER": "1"}
        self.running = []

    def type(self, line):
        command = line.removeprefix("$ ")
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._environment[name] = value
        elif command.endswith("&"):
            with self.log.open("ab") as log:
                self.running.append(
                    subprocess.Popen(
                        ["bash", "-c", "exec " + command.rstrip("& ")],
                        cwd=self._folder,
                        env=self._environment,
                        stderr=log,
                    )
                )
        elif command.startswith("kill -9 %"):
            self.running[int(command[-1]) - 1].kill()
        else:
            return self.answer(command)
        return ""

    def answer(self, command):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def close(self):
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + WAIT_S
        late = [process for process in self.running if not ended(process, until)]
        for process in late:
            process.send_signal(signal.SIGABRT)  # faulthandler prints where its threads are
            process.wait(WAIT_S)
        assert not late, self.log.read_text()[-20_000:]


def ended(process, until):
    """Wait for the end of a process; return whether it has ended."""
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.mark.long
def test_three_captures_in_two_minutes(shell):
    start, look, kill, past = BLOCKS
    for line in start:
        shell.type(line)
    mirror, status = look[1].removeprefix("$ "), look[0].removeprefix("$ ")
    mirrored = mirror + " 2>/dev/null || true"  # there is no store yet
    both = ["orders/1", "users/ann"]  # each is in a table of its own, maybe of two captures
    eventually(lambda: shell.answer(mirrored).split() == both, wait_s=WAIT_S)
    eventually(lambda: re.search(r"orders/ +c\d-", shell.answer(status)), wait_s=WAIT_S)
    for line in kill[:2]:
        shell.type(line)
    eventually(lambda: "orders/2" in shell.answer(mirror), wait_s=WAIT_S)
    eventually(lambda: not re.search(r"/ +c1-", shell.answer(status)), wait_s=WAIT_S)
    assert kill[2].removesuffix(" --watch").removeprefix("$ ") == status
    assert "orders/" in shell.answer(past[0].removeprefix("$ ").replace("14:05", "-0s"))
    assert "placed" in shell.answer(past[1].removeprefix("$ "))
