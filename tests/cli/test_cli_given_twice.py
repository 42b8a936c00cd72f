"""An option that takes one value and is given twice is an error: no value is dropped in silence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from cli_runner import Cli

import cdcmeta.cli.app
import snapkv.cli.app
import snapkv.store.location

PROGRAMS = {"snapkv": snapkv.cli.app, "cdcmeta": cdcmeta.cli.app}
ROOTS = {name: typer.main.get_command(program.app) for name, program in PROGRAMS.items()}


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command and group, with the words that lead to it."""
    yield words, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from commands(sub, (*words, name))


def single_options(command: Any) -> Iterator[Any]:
    """Yield the options of a command that take one value."""
    for param in command.params:
        if param.param_type_name == "option" and not param.is_flag and not param.multiple:
            yield param


def inherited(group: Any, command: Any) -> Iterator[Any]:
    """Yield the options of a command that may also come before it."""
    before = {option.name for option in single_options(group)}
    yield from (option for option in single_options(command) if option.name in before)


def lines_given_twice() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield programs, lines that give an option two values, and its names."""
    for program, root in ROOTS.items():
        for path, command in commands(root):
            for option in single_options(command):
                first, last = option.opts[0], option.opts[-1]
                yield program, [*path, first, "1", last, "2"], option.opts
                yield program, [*path, *joined(last, "1"), *joined(first, "2")], option.opts
            for option in inherited(root, command) if path else ():
                name = option.opts[0]
                yield program, [name, "1", *path, name, "2"], option.opts


def joined(name: str, value: str) -> list[str]:
    """Return an option and its value as one word."""
    return [f"{name}={value}" if name.startswith("--") else f"{name}{value}"]


LINES = list(lines_given_twice())


def test_all_options_of_both_command_lines_are_tried() -> None:
    assert len(LINES) > 600
    for words in ("restore --note", "fleet tick --every", "changefeed create --sink"):
        assert any(" ".join(line).startswith(words) for _, line, _ in LINES), words


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_with_one_value_given_twice_is_an_error(
    cli: Cli, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(url: str, options: object) -> None:
        raise AssertionError(f"{url} was opened")

    monkeypatch.setattr(snapkv.store.location, "check_engine", opened)
    monkeypatch.setattr(PROGRAMS[program], "app", ROOTS[program])  # made once, not for each line
    main = PROGRAMS[program].main
    for of, line, names in LINES:
        if of != program:
            continue
        answer = cli(*line, main=main)
        given = "/".join(names)
        assert (answer.code, answer.out) == (2, ""), line
        assert answer.err.startswith(
            f"{program}: {given} is given twice: '1' and '2'; give it once"
        ), line
    assert list(cli.place.iterdir()) == []


def test_many_times_and_long_values_make_a_short_message(cli: Cli) -> None:
    answer = cli("ls", *["--at", "x" * 5_000] * 30)
    assert "--at is given 30 times: '" in answer.err
    assert len(answer.err) < 400


def test_options_that_take_several_values_and_flags_may_be_repeated(cli: Cli) -> None:
    cli.ok("put", "a", "1", "--meta", "x=1", "--meta", "y=2", "--json", "--json")
    cli.ok("--json", "rm", "a", "--force", "-f", "--json")
    assert cli.ok("log", "--json").json[1]["meta"] == {"x": "1", "y": "2"}


def test_the_environment_does_not_count(cli: Cli, tmp_path: Path) -> None:
    cli.ok("--store", f"lmdb:{tmp_path / 'other'}", "put", "a", "1", "--writer", "bob")
    cli.ok("put", "b", "1", "--store", f"lmdb:{tmp_path / 'other'}")
    assert cli.ok("ls", "--store", f"lmdb:{tmp_path / 'other'}").lines == ["a", "b"]
