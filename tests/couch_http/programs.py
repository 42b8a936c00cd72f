"""`cdcmeta serve` as a process of its own, which can be killed."""

import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

from etcd_server.processes import HEARING_CTRL_C

from .served import WAIT_S

PROGRAM = [sys.executable, "-m", "cdcmeta.cli", "serve"]
_READY = re.compile(r"cdcmeta: serving .* at (http://\S+)/\n")


class Program:
    """The command, once it serves; `url` is where."""

    def __init__(self, *words: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*HEARING_CTRL_C, *PROGRAM, *words], stderr=subprocess.PIPE, text=True, env=environment
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.said: list[str] = []
        while True:
            line = self._lines.get(timeout=WAIT_S)
            assert line is not None, f"it ended: {self.said}"
            if found := _READY.fullmatch(line):
                self.url = found[1]
                return
            self.said.append(line)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it as nothing can prevent."""
        self.process.kill()
        self._ended()

    def ends(self) -> tuple[int, str]:
        """Wait for its end; return its code and what it said besides."""
        code = self._ended()
        while (line := self._lines.get()) is not None:
            self.said.append(line)
        return code, "".join(self.said)

    def _ended(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)


def served_store(folder: Path, *words: str) -> Program:
    """Serve a store in a folder."""
    return Program("--store", f"lmdb:{folder}", *(words or ("--port", "0")))
