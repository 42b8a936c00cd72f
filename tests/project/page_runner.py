"""Runs a page of the documentation as its reader would."""

from __future__ import annotations

import doctest
import json
import tomllib
from typing import Any

from tests.cli.cli_runner import Cli
from tests.cli.cli_sessions import Samples, Shell, check_block
from tests.project.pages import ROOT, Block


class PageRunner:
    """Runs a page from top to bottom in one folder: its sessions share names and a shell."""

    def __init__(self, cli: Cli) -> None:
        cli.patch.chdir(cli.place)
        for variable in ("SNAPKV_STORE", "SNAPKV_WRITER"):
            cli.patch.delenv(variable, raising=False)
        self._cli, self._shell, self._samples = cli, Shell(cli), Samples()
        self._names: dict[str, Any] = {"__name__": "__page__"}

    def run(self, block: Block) -> None:
        match block.kind:
            case "session":
                self._session(block)
            case "program":
                exec(compile(block.code, str(block), "exec"), self._names)
            case "console":
                check_block(self._shell, self._samples, str(block), block.code)
            case "data":
                (json if block.language == "json" else tomllib).loads(block.code)

    def _session(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(
            block.code, self._names, str(block), str(ROOT / block.page), block.line
        )
        test.globs = self._names  # not a copy: the next block continues
        shown: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=shown.append, clear_globs=False)
        assert runner.failures == 0, "".join(shown)
