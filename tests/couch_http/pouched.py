"""A PouchDB of a test's own, in a process of Node.js, driven over its standard input."""

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from queue import Empty, Queue
from typing import Any

FOLDER = Path(__file__).parent / "pouch"
PACKAGES_S = 300
ANSWER_S = 30
FILES = ("package.json", "package-lock.json")


class PouchError(AssertionError):
    """What PouchDB says went wrong; `status` is that of HTTP."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told)
        self.status, self.name = told.get("status"), told.get("name")


def installed(cache: Path, wanted: Path = FOLDER) -> Path:
    """Return a folder with the packages that a folder's lock file names, installed once.

    Scripts of packages do not run. Processes that come at once wait for the first.
    """
    lock = b"".join((wanted / name).read_bytes() for name in FILES)
    folder = cache / f"{wanted.name}-{hashlib.sha256(lock).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{wanted.name}.lock").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        if not folder.exists():
            made = Path(tempfile.mkdtemp(dir=cache))
            for name in FILES:
                shutil.copy(wanted / name, made)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(
                command, cwd=made, capture_output=True, text=True, timeout=PACKAGES_S, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            made.rename(folder)
    return folder


class Pouch:
    """Calls of driver.js; each waits for its answer, or is `begun` and waited for later."""

    def __init__(self, packages: Path) -> None:
        self._process = subprocess.Popen(
            ["node", str(FOLDER / "driver.js")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(packages / "node_modules")},
        )
        self._numbers = itertools.count()
        self._answers: dict[int, Queue[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def begin(self, what: str, **more: Any) -> int:
        """Ask for something, and return its number."""
        number = next(self._numbers)
        self._answers[number] = Queue()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"call": number, "what": what, **more}) + "\n")
        self._process.stdin.flush()
        return number

    def answer(self, number: int) -> Any:
        """Wait for an answer. Raises `PouchError`."""
        try:
            told = self._answers[number].get(timeout=ANSWER_S)
        except Empty:
            raise AssertionError(f"PouchDB gave no answer in {ANSWER_S} s") from None
        if "error" in told:
            raise PouchError(told["error"])
        return told.get("value")

    def __call__(self, what: str, **more: Any) -> Any:
        return self.answer(self.begin(what, **more))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            self._answers[told["call"]].put(told)
        for answer in self._answers.values():
            answer.put({"error": {"message": "the process ended"}})
