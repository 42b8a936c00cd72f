"""docs/cli.md is what happens: every session runs, and the tables are the code's."""

import os
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cli_runner import Cli

from snapkv.cli.app import app
from snapkv.cli.exits import MEANINGS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAMPLE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d{18}\b")
SHELL = re.compile(r"[|><]|^(?!snapkv )")
NOTHING = "1970-01-01T00:00:00.000Z"


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command with the output that the document shows for it."""
    for block in BLOCK.findall(DOCUMENT):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = step.partition("\n")
            yield command, expected


@dataclass
class Samples:
    """What the times of the document were in this run: a sample means the same everywhere."""

    actual: dict[str, str] = field(default_factory=lambda: {NOTHING: NOTHING})

    def filled_in(self, text: str) -> str:
        return SAMPLE.sub(lambda found: self.actual.get(found[0], found[0]), text)

    def match(self, expected: str, output: str) -> bool:
        """Compare; `...` is anything, a new sample is whatever stands there from now on."""
        new: dict[str, str] = {}
        pattern = ""
        for piece in re.split(rf"(\.\.\.|{SAMPLE.pattern})", expected):
            if piece == "...":
                pattern += ".*?"
            elif not SAMPLE.fullmatch(piece) or piece in self.actual:
                pattern += re.escape(self.actual.get(piece, piece))
            elif piece in new:
                pattern += f"(?P={new[piece]})"
            else:
                new[piece] = f"sample{len(new)}"
                pattern += f"(?P<{new[piece]}>{SAMPLE.pattern})"
        found = re.fullmatch(pattern, output, re.DOTALL)
        if found is not None:
            self.actual |= {sample: found[group] for sample, group in new.items()}
        return found is not None


class Shell:
    """Runs commands one after the other, as the reader of the document would."""

    def __init__(self, cli: Cli) -> None:
        self.cli, self.code = cli, 0

    def run(self, command: str) -> str:
        if command == "echo $?":
            return f"{self.code}\n"
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.cli.patch.setenv(name, value)
            return ""
        if SHELL.search(command):
            answer = self.cli.shell(command)
        else:
            answer = self.cli(*shlex.split(command)[1:], merged=True)
        self.code = answer.code
        time.sleep(0.002)  # each commit gets a millisecond of its own
        return answer.out


def test_every_session_gives_what_it_shows(cli: Cli) -> None:
    shell, samples = Shell(cli), Samples()
    cli.patch.delenv("SNAPKV_STORE")
    cli.patch.delenv("SNAPKV_WRITER")
    for command, expected in steps():
        output = shell.run(samples.filled_in(command))
        if not output.endswith("\n") and expected:
            output += "\n"  # the next prompt would stand there
        assert samples.match(expected, output), (
            f"docs/cli.md shows for: {command}\n{samples.filled_in(expected)}\nbut it is:\n{output}"
        )
    assert len(set(samples.actual.values())) == len(samples.actual)


def test_every_command_has_a_section_and_a_session() -> None:
    shown = {shlex.split(line)[0] for c, _ in steps() for line in c.split("snapkv ")[1:]}
    for command in app.registered_commands:
        assert re.search(rf"^## .*\b{command.name}\b", DOCUMENT, re.MULTILINE), command.name
        assert command.name in shown | {"tour"}, f"{command.name} has no session"


def test_the_table_of_exit_codes_is_that_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", DOCUMENT, re.MULTILINE))
    assert rows == {str(int(code)): meaning for code, meaning in MEANINGS.items()}


def test_help_shows_every_exit_code(cli: Cli) -> None:
    cli.patch.setenv("COLUMNS", "200")
    shown = " ".join(cli.ok("--help").out.split())
    for code, meaning in MEANINGS.items():
        assert f"{int(code)} = {meaning}" in shown


def test_a_sample_means_one_moment() -> None:
    samples, a, b = Samples(), "2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.002Z"
    assert samples.match("2000-01-01T00:00:00Z is x\n", f"{a} is x\n")
    assert not samples.match("2000-01-01T00:00:00Z\n", f"{b}\n")
    assert samples.match("... 2000-01-01T00:00:00Z\n", f"any\nthing {a}\n")
    assert not samples.match("x\n", "y\n")


@pytest.mark.skipif(not os.path.exists("/bin/bash"), reason="the sessions need bash")
def test_the_document_has_sessions() -> None:
    assert len(list(steps())) > 50
