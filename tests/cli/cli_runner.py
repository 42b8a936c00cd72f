"""Run the command line inside this process, or as a process of its own where that matters."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from snapkv.cli import main

PROGRAM = [sys.executable, "-m", "snapkv.cli"]
PROCESS_TIMEOUT_S = 30


ADVICE = re.compile(r"^snapkv: warning: etcd \d.*\n", re.MULTILINE)
"""What is said of the etcd at hand, when it is an old one: not what the tests are about."""


def without_advice(text: bytes) -> bytes:
    return ADVICE.sub("", text.decode(errors="surrogateescape")).encode(errors="surrogateescape")


@dataclass(frozen=True)
class Answer:
    """How a command ended, and what it wrote."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


class Stream(io.TextIOWrapper):
    """A text stream over bytes that may say it is a terminal."""

    def __init__(self, content: bytes = b"", *, terminal: bool = False) -> None:
        self.bytes = io.BytesIO(content)
        self.terminal = terminal
        super().__init__(self.bytes, encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return self.terminal


@dataclass
class Cli:
    """The command line with a store of its own."""

    place: Path
    patch: pytest.MonkeyPatch
    url: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        return self.url.partition(":")[0]

    def __call__(
        self,
        *words: str,
        stdin: bytes = b"",
        merged: bool = False,
        main: Callable[[Sequence[str]], int] = main,
    ) -> Answer:
        """Run in this process; `merged` puts what went to the error stream among the output."""
        out, err = Stream(), Stream()
        with self.patch.context() as patch:
            patch.setattr(sys, "stdin", Stream(stdin))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", out if merged else err)
            code = main(words)
        return Answer(
            int(code),
            without_advice(out.bytes.getvalue()),
            without_advice(err.bytes.getvalue()).decode(),
        )

    def ok(self, *words: str, stdin: bytes = b"") -> Answer:
        """Run, and insist that it went well."""
        answer = self(*words, stdin=stdin)
        assert answer.code == 0, answer
        return answer

    def process(self, *words: str, stdin: bytes = b"") -> Answer:
        """Run as a process, between pipes."""
        done = subprocess.run(
            [*PROGRAM, *words],
            input=stdin,
            capture_output=True,
            timeout=PROCESS_TIMEOUT_S,
            env=self.variables(),
            check=False,
        )
        return Answer(done.returncode, done.stdout, without_advice(done.stderr).decode())

    def shell(self, line: str) -> Answer:
        """Run a line of bash with the commands of this project; both streams in one."""
        function = "".join(
            f'{name}() {{ "{sys.executable}" -m {name}.cli "$@"; }}\n'
            for name in ("snapkv", "cdcmeta")
        )
        done = subprocess.run(
            ["bash", "-c", function + line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROCESS_TIMEOUT_S,
            env=self.variables(),
            check=False,
        )
        return Answer(done.returncode, without_advice(done.stdout), "")

    def variables(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        return {**os.environ, **self.environment, **more}
