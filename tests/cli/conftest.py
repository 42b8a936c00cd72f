"""A command line with a store of its own, and an environment without surprises."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runner import Cli
from etcd_server import EtcdServer


@pytest.fixture
def make_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Cli]:
    """Make a command line for the store at a URL."""

    def make(url: str) -> Cli:
        made = Cli(tmp_path, monkeypatch, url)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SNAPKV_STORE", url)
        monkeypatch.setenv("SNAPKV_WRITER", "ann@laptop")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", "xterm")
        return made

    return make


@pytest.fixture
def cli(make_cli: Callable[[str], Cli], tmp_path: Path) -> Cli:
    return make_cli(f"lmdb:{tmp_path / 'meta'}")


@pytest.fixture
def etcd_cli(make_cli: Callable[[str], Cli], etcd: EtcdServer) -> Cli:
    """One whose store is in an etcd of its own."""
    return make_cli(etcd.url)


@pytest.fixture(params=["lmdb", "etcd"])
def any_cli(request: pytest.FixtureRequest, make_cli: Callable[[str], Cli], tmp_path: Path) -> Cli:
    """One on each engine."""
    if request.param == "etcd":
        return make_cli(request.getfixturevalue("etcd").url)
    return make_cli(f"lmdb:{tmp_path / 'meta'}")
