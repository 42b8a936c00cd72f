"""Help, completion and the mistakes of a first hour."""

import os
import re
import subprocess
import sys

import pytest
from cli_runner import PROGRAM, Cli

import cdcmeta.cli
import snapkv
from snapkv.cli import app, terminal
from snapkv.cli.commands import OTHER_WORDS
from snapkv.engine.etcd import cluster_client

pytestmark = pytest.mark.slow

COMMANDS = sorted(app.COMMANDS)
PROGRAMS = {"snapkv": PROGRAM, "cdcmeta": [sys.executable, "-m", "cdcmeta.cli"]}


def run(program: str, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PROGRAMS[program], *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "200", **variables},
    )


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_h_is_help(cli: Cli, command: str) -> None:
    words = command.split()
    assert cli.ok(*words, "-h").out == cli.ok(*words, "--help").out


@pytest.mark.parametrize(
    "words", [["diff", "-1h"], ["restore", "-1h", "-y"], ["log", "--since", "-1h"]]
)
def test_the_h_of_an_hour_is_no_help(cli: Cli, words: list[str]) -> None:
    cli.ok("put", "a", "1")
    assert "Usage" not in cli(*words).out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_no_value_where_none_is_taken(cli: Cli, command: str) -> None:
    shown = cli.ok(*command.split(), "--help").out
    assert "--help" in shown
    assert "bool" not in shown.lower()


def test_help_of_cdcmeta_is_of_the_same_kind(cli: Cli) -> None:
    for words in ([], ["serve"], ["generations"], ["generations", "make"]):
        answer = cli(*words, "-h", main=cdcmeta.cli.main)
        assert answer.code == 0
        assert "bool" not in answer.out.lower()


@pytest.mark.parametrize(("word", "meant"), sorted(OTHER_WORDS.items()))
def test_the_words_of_other_programs_lead_to_ours(cli: Cli, word: str, meant: str) -> None:
    assert meant == "--help" or meant in COMMANDS
    answer = cli(word, "a")
    assert answer.code == 2
    assert answer.err.startswith(f"snapkv: No such command {word!r}. Did you mean {meant!r}?")


def test_a_misspelt_command_is_answered_by_spelling(cli: Cli) -> None:
    assert "Did you mean 'history'?" in cli("hist").err


@pytest.mark.parametrize("package", ["snapkv", "cdcmeta"])
def test_an_interrupt_while_it_starts_is_no_traceback(package: str) -> None:
    """Ctrl-C while Python imports."""
    program = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from {package}.cli import main
sys.exit(main(["--help"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_store_that_does_not_answer_is_waited_for_aloud(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two seconds of twelve; here at once, of one. No server listens at port 1."""
    answer = cli("--store", "etcd://127.0.0.1:1?", "ls")
    assert answer.code == 2  # a bad URL is told at once, and not waited for
    assert "waiting" not in answer.err
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.05)
    monkeypatch.setattr(cluster_client, "READ_TIMEOUT_S", 1.0)
    answer = cli("--store", "etcd://127.0.0.1:1", "ls")
    assert answer.code == 7
    first, last = answer.err.splitlines()
    assert first == "snapkv: waiting for etcd://127.0.0.1:1 ..."
    assert last.startswith("snapkv: ")


def test_a_store_that_answers_is_not(cli: Cli) -> None:
    assert cli.ok("put", "a", "1").err == ""


def test_help_of_put_warns_of_secrets(cli: Cli) -> None:
    shown = re.sub(r"\s+", " ", cli.ok("put", "--help").out)
    assert "a secret given that way is not seen in the list of processes" in shown


def test_python_m_is_the_command_line() -> None:
    for package in ("snapkv", "snapkv.cli", "cdcmeta", "cdcmeta.cli"):
        done = subprocess.run(
            [sys.executable, "-m", package, "--version"], capture_output=True, text=True, timeout=60
        )
        assert done.stdout == f"{package.partition('.')[0]} {snapkv.__version__}\n", done.stderr


def test_a_mistake_names_the_help_to_read(cli: Cli) -> None:
    answer = cli("generations", "foo", main=cdcmeta.cli.main)
    assert (answer.code, answer.err) == (
        2, "cdcmeta: No such command 'foo'. (see cdcmeta generations --help)\n"
    )  # fmt: skip


def test_a_key_with_a_dash_is_told_where_to_stand(cli: Cli) -> None:
    answer = cli("put", "-5", "x")
    assert answer.code == 2
    assert "No such option: -5; put words that begin with a dash after --" in answer.err
    assert cli.ok("put", "--", "-5", "x").code == 0
    assert "after --" not in cli("put", "--fiel", "x").err


def test_a_store_in_memory_is_said_to_go(cli: Cli) -> None:
    answer = cli.ok("put", "a", "1", "--store", "memory:")
    assert "gone when this command ends" in answer.err
    assert answer.err.count("\n") == 1
