"""A command line with a store of its own, and an environment without surprises."""

from pathlib import Path

import pytest
from cli_runner import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    made = Cli(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SNAPKV_STORE", made.url)
    monkeypatch.setenv("SNAPKV_WRITER", "ann@laptop")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return made
