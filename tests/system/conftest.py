import subprocess
from pathlib import Path

import pytest

from snapkv.cli import main
from system.tour_clones import GIT_ENVIRONMENT, Ran, Repo, Run, odd_repo, simple_repo


@pytest.fixture(autouse=True)
def _git_of_a_clean_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GIT_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "SNAPKV_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `snapkv` with some arguments, in a folder; return its exit code and what it wrote."""

    def run(*words: str | Path, cwd: Path | None = None) -> Ran:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capfd.readouterr()
        code = main([str(word) for word in words])
        captured = capfd.readouterr()
        return Ran(int(code), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def odd_master(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in GIT_ENVIRONMENT.items():
            patch.setenv(name, value)
        return odd_repo(tmp_path_factory.mktemp("odd") / "repo")


@pytest.fixture
def odd(odd_master: Repo, tmp_path: Path) -> Repo:
    """A repository with everything that is strange in it, to do with as one likes."""
    subprocess.run(["cp", "-a", odd_master.path, tmp_path / "odd"], check=True)
    copy = Repo.__new__(Repo)
    copy.path, copy.now, copy.contents = tmp_path / "odd", odd_master.now, odd_master.contents
    return copy


@pytest.fixture
def simple(tmp_path: Path) -> Repo:
    return simple_repo(tmp_path / "clone")
