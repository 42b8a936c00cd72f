"""Every block of code on every page runs, or says why it does not."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import cdcmeta.cli.app
import snapkv.cli.app
from tests.cli.cli_runner import Cli
from tests.project.page_runner import PageRunner
from tests.project.pages import PAGES, ROOT, RUN_BY, Block, blocks_of, is_run_elsewhere

PROMPT = re.compile(r"^(\$|>>>) ", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_or_says_why_not(page: str) -> None:
    for block in blocks_of(page):
        if block.reason:
            assert block.kind != "text", f"{block}: text does not run anyway: remove the mark"
            for named in re.findall(r"tests/[\w/]+(?:\.py)?", block.reason):
                assert (ROOT / named).exists(), f"{block}: {named} does not exist"
            continue
        assert block.kind != "other", (
            f"{block}: nothing runs {block.language or 'an indented block'!r}: make it a session "
            "(```console, ```python), or write <!-- not run: WHY --> on the line above it"
        )
        hidden = PROMPT.search(block.code) if block.kind == "text" else None
        assert not hidden, f"{block}: a session is not ```text"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_gives_what_it_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = PageRunner(Cli(tmp_path, monkeypatch, "lmdb:"))
    for block in blocks_of(page):
        if not block.reason and not is_run_elsewhere(block):
            runner.run(block)


def test_the_incidents_have_one_form() -> None:
    index = (ROOT / "docs/incidents/index.md").read_text()
    pages = [page for page in PAGES if page.startswith("docs/incidents/")]
    assert len(pages) == 1 + 10
    for page in pages:
        if not page.endswith("index.md"):
            parts = dict.fromkeys(block.part for block in blocks_of(page))
            assert list(parts) == ["", "Find", "Understand", "Undo", "Prove"], page
            title = (ROOT / page).read_text().splitlines()[0].removeprefix("# ")
            assert f"[{title}]({Path(page).name})" in index


def test_what_runs_blocks_elsewhere_exists() -> None:
    for name, kinds in RUN_BY.items():
        file, _, test = name.partition("::")
        text = (ROOT / file).read_text()
        assert f"def {test}(" in text, name
        assert f'pages_run_by("{test}")' in text, f"{name} has a list of pages of its own"
        for kind, pages in kinds.items():
            for page in pages:
                run = [block for block in blocks_of(page) if block.kind == kind]
                assert any(not block.reason for block in run), f"{page} has no {kind} for {name}"


APPS = {
    "snapkv": typer.main.get_command(snapkv.cli.app.app),
    "cdcmeta": typer.main.get_command(cdcmeta.cli.app.app),
}


def commands_of(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command of ours in a block of shell that does not run."""
    for line in block.code.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words and words[0] in APPS:
            yield words


def check_command(words: list[str]) -> None:
    """Check that a command and its options exist."""
    command, known = APPS[words[0]], {"-h", "--help", "--version"}
    for word in words[1:]:
        known |= {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        if word in getattr(command, "commands", {}):
            command = command.commands[word]
        elif word.startswith("--"):
            assert word.partition("=")[0] in known, f"{' '.join(words)}: no option {word}"
    assert not hasattr(command, "commands"), f"{' '.join(words)}: no such command"


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_do_not_run_exist(page: str) -> None:
    for block in blocks_of(page):
        if block.reason and block.language in ("sh", "console"):
            for words in commands_of(block):
                check_command(words)
        elif block.reason and block.kind == "program":
            compile(block.code, str(block), "exec")


def test_the_check_finds_a_wrong_command() -> None:
    check_command(["snapkv", "--name", "x", "archive", "verify", "./archive"])
    for wrong in ("snapkv archive verfy x", "snapkv get a --att now", "cdcmeta"):
        with pytest.raises(AssertionError):
            check_command(wrong.split())
