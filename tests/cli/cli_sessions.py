"""Sessions of a document: commands with the output that it shows for them, run one by one."""

import re
import shlex
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import cdcmeta.cli
import snapkv.cli
from snapkv.clock import _machine_floor
from snapkv.times import physical_ms
from tests.cli.cli_runner import Cli
from tests.etcd_server.processes import eventually
from tests.project.pages import blocks_in

SAMPLE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b\d{18}\b")
SHELL = re.compile(r"[|><]|^(?!(?:snapkv|cdcmeta) )")
MAINS = {"snapkv": snapkv.cli.main, "cdcmeta": cdcmeta.cli.main}
NOTHING = "1970-01-01T00:00:00.000Z"


def steps(document: str) -> Iterator[tuple[str, str]]:
    """Yield each command of the blocks that run with the output that the document shows for it."""
    for block in blocks_in(document):
        if block.kind == "console" and not block.reason:
            yield from steps_of(block.code)


def steps_of(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of one block with its output."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        yield command, expected


def has_passed_all_commits() -> bool:
    """Return whether the next commit gets a millisecond in which this process made none.

    Stores of earlier tests may have issued times that are a few seconds ahead.
    """
    now_ms = time.time_ns() // 1_000_000
    newest_ms = map(physical_ms, _machine_floor.of_skew.values())
    return not any(now_ms <= each < now_ms + 10_000 for each in newest_ms)


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
            program, *words = shlex.split(command)
            answer = self.cli(*words, merged=True, main=MAINS[program])
        self.code = answer.code
        eventually(has_passed_all_commits, "a time of its own for each commit")
        return answer.out


def check_sessions(cli: Cli, name: str, document: str) -> Samples:
    """Run every session of a document, and hold it to what it shows."""
    shell, samples = Shell(cli), Samples()
    cli.patch.delenv("SNAPKV_STORE")
    cli.patch.delenv("SNAPKV_WRITER")
    check(shell, samples, name, steps(document))
    return samples


def check_block(shell: Shell, samples: Samples, name: str, block: str) -> None:
    """Run the session of one block in a shell that has run those before it."""
    check(shell, samples, name, steps_of(block))


def check(shell: Shell, samples: Samples, name: str, commands: Iterable[tuple[str, str]]) -> None:
    for command, expected in commands:
        output = shell.run(samples.filled_in(command))
        if not output.endswith("\n") and expected:
            output += "\n"  # the next prompt would stand there
        assert samples.match(expected, output), (
            f"{name} shows for: {command}\n{samples.filled_in(expected)}\nbut it is:\n{output}"
        )
