"""What ends a command: Ctrl-C, also where another error takes its place, and SIGTERM."""

from __future__ import annotations

import os
import signal
from typing import Any, BinaryIO

import pytest
from cli_runner import Cli

from snapkv.base import files
from snapkv.cli import app
from snapkv.cli.exits import sigterm_as_interrupt


def test_an_error_in_place_of_an_interrupt_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import inside pyarrow does, which an interrupt leaves half done."""

    def command(words: Any, **options: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            raise AttributeError("partially initialized module") from None

    monkeypatch.setattr(app, "app", command)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark installs its own
    try:
        assert app.main(["ls"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_without_an_interrupt_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(words: Any, **options: Any) -> None:
        raise AttributeError("a bug")

    monkeypatch.setattr(app, "app", command)
    with pytest.raises(AttributeError, match="a bug"):
        app.main(["ls"])


def test_sigterm_in_a_dump_leaves_no_file(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.ok("put", "a", "1")
    into = cli.place / "into"
    into.mkdir()
    begun, write_all = list[str](), files.write_all

    def write(file: BinaryIO, packed: bytes) -> None:
        write_all(file, packed)
        begun.extend(path.name for path in into.iterdir())
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(files, "write_all", write)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert app.main(["dump", str(into / "d")]) == 130
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(begun) == 1, "a file was begun"
    assert not list(into.iterdir())


def test_sigterm_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with sigterm_as_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
