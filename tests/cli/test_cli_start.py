"""What a command imports before it answers, and what the shell completes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import PROCESS_TIMEOUT_S, PROGRAM, Cli
from typer.main import get_command

from snapkv.cli.app import COMMANDS, app
from snapkv.cli.fleet import COMMANDS as FLEET

pytestmark = pytest.mark.slow

HEAVY = {
    "pydantic",
    "rich",
    "yaml",
    "grpc",
    "google",
    "numpy",
    "pyarrow",
    "pandas",
    "logging.handlers",
}
"""Each of them takes a third of the time of a short command, or more."""

LOADED = """
import sys
from snapkv.cli import main
code = main(sys.argv[1:])
print(*sys.modules, sep="\\n", file=sys.stderr)
sys.exit(code)
"""
PROGRAMS = {"snapkv": PROGRAM, "cdcmeta": [sys.executable, "-m", "cdcmeta.cli"]}


def loaded_by(cli: Cli, *words: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        env=cli.variables(),
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines())


@pytest.mark.long_after(2)
@pytest.mark.parametrize("words", [["get", "a"], ["put", "b", "2"], ["log"], ["ls"]])
def test_a_short_command_imports_little(cli: Cli, words: list[str]) -> None:
    cli.ok("put", "a", "1")
    found = loaded_by(cli, *words)
    assert "lmdb" in found, "the store was opened"
    assert not HEAVY & found
    others = {place.module for place in COMMANDS.values()} - {COMMANDS[words[0]].module}
    assert not others & found, "only the module of the command itself"


IMPORTED = """
import sys, snapkv
print(*sys.modules, sep="\\n")
"""


def test_a_command_of_a_store_imports_nothing_of_fleets(cli: Cli) -> None:
    """Nothing beside what the public names are made of."""
    cli.ok("put", "a", "1")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S, env=cli.variables(), check=True,
    )  # fmt: skip
    public = {name for name in done.stdout.split() if name.startswith("snapkv.fleet")}
    found = {name for name in loaded_by(cli, "get", "a") if "fleet" in name}
    assert found <= public


def test_a_command_of_a_fleet_imports_little(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    file = cli.place / "fleet.toml"
    file.write_text(f'[members]\neu = "{cli.url}"\n')
    found = loaded_by(cli, "fleet", "get", "a", "--fleet", str(file))
    assert not HEAVY & found
    others = {place.module for place in FLEET.values()} - {"snapkv.cli.fleet.read_commands"}
    assert not others & found


def test_the_help_of_one_command_imports_no_other(cli: Cli) -> None:
    found = loaded_by(cli, "tick", "--help")
    assert "snapkv.cli.tick_command" in found
    assert not {"snapkv.cli.key_commands", "snapkv.cli.tour", "snapkv.cli.archiving"} & found


def test_every_command_is_where_the_table_says() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert list(commands) == list(COMMANDS)
    for name, command in commands.items():
        assert command.name == name
        assert command.rich_help_panel == COMMANDS[name].panel
        assert command.get_short_help_str(), name


def completed(folder: Path, program: str, line: str) -> set[str]:
    """Return what bash offers for the last word of a line, with the script that is installed."""
    executable = folder / program
    words = " ".join(f"'{word}'" for word in PROGRAMS[program])
    executable.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    executable.chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    script = f"""
    set -e
    source <({program} --show-completion bash)
    COMP_WORDS=({line}) COMP_CWORD=$(({len(line.split(" "))} - 1))
    [[ "$(complete -p {program})" =~ -F\\ ([_a-z]+) ]]
    "${{BASH_REMATCH[1]}}" {program}
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.long_after(4)
@pytest.mark.parametrize(
    ("program", "line", "offers"),
    [
        ("snapkv", "snapkv re", {"record", "resolve", "restore", "revert"}),
        ("snapkv", "snapkv put --if-", {"--if-absent", "--if-revision"}),
        ("snapkv", "snapkv ls -o y", {"yaml"}),
        ("cdcmeta", "cdcmeta generations make --st", {"--store"}),
        ("snapkv", "snapkv archive st", {"status"}),
        ("snapkv", "snapkv fleet ", {"status", "ls", "get", "diff", "log", "watch", "tick"}),
        ("snapkv", "snapkv fleet ls --behind s", {"stale"}),
        ("snapkv", "snapkv diff --as k", {"kubernetes"}),
        ("cdcmeta", "cdcmeta ge", {"generations"}),
    ],
)
def test_bash_completes(tmp_path: Path, program: str, line: str, offers: set[str]) -> None:
    assert completed(tmp_path, program, line) == offers


def test_the_completion_is_installed_where_bash_looks(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "--install-completion", "bash"],
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    assert "_SNAPKV_COMPLETE=complete_bash" in "".join(
        path.read_text() for path in tmp_path.rglob("*.sh")
    )
    assert "source" in (tmp_path / ".bashrc").read_text()
