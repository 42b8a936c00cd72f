"""`python -m benchmarks.compare` runs two commits in turn, and says what it could not run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TINY = """
import time
from benchmarks.harness import Rival, measure, report
import snapkv

def main():
    rivals = [
        Rival("nothing (floor)", lambda i: time.sleep(0.001)),
        Rival("snapkv waits", lambda i: time.sleep(snapkv.WAIT_S)),
    ]
    report("tiny", "How long is a wait?", {"waits": measure(rivals, rounds=5)})
"""
TIMEOUT_S = 60


def clean() -> dict[str, str]:
    """Return the environment without a hook's repository, and without settings of this user."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "PYTHON"))}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    return {**kept, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", folder, *who, *words],
        capture_output=True,
        text=True,
        env=clean(),
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def put(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small repository: at HEAD~1 snapkv waits for 50 ms, in the working tree for 2."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path_factory.mktemp("clone").resolve()
    git(folder, "init", "--quiet")
    ours = {
        f"benchmarks/{name}.py": (ROOT / f"benchmarks/{name}.py").read_text()
        for name in ("__init__", "harness", "compare")
    }
    put(folder, {**ours, "snapkv/__init__.py": "WAIT_S = 0.05\n", "benchmarks/tiny.py": TINY})
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    broken = TINY.replace("def main():", "def main():\n    raise ValueError('out of order')")
    put(folder, {"benchmarks/newer.py": TINY, "benchmarks/broken.py": broken})
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=second")
    put(folder, {"snapkv/__init__.py": "WAIT_S = 0.002\n"})
    return folder


def compare(clone: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.compare", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=clone, env=clean(), timeout=TIMEOUT_S
    )
    assert len(git(clone, "worktree", "list").splitlines()) == 1, "the worktree was left"
    assert "Traceback" not in done.stderr
    return done


def test_two_commits_are_run_in_turn(clone: Path) -> None:
    before = git(clone, "status", "--porcelain")
    done = compare(clone, "HEAD~1", "tiny", "newer", "--pairs", "2")
    assert done.returncode == 1, "one of them is not at REV"
    assert done.stderr.splitlines()[-1] == "newer: REV has no such benchmark"
    _, _, floor, ours = (line.strip("| ").split(" | ") for line in done.stdout.splitlines())
    assert floor[:2] == ["tiny: waits", "nothing (floor)"]
    assert ours[:2] == ["tiny: waits", "snapkv waits"]
    then_us, now_us, ratio, floor_then, floor_now = (
        float(each.replace(",", "")) for each in ours[2:]
    )
    assert then_us > 50_000
    assert now_us > 2_000
    assert ratio < 0.8
    assert floor_then > floor_now
    assert git(clone, "status", "--porcelain") == before
    assert not (clone / "benchmarks" / "results").exists()


def test_one_that_fails_is_named(clone: Path) -> None:
    done = compare(clone, "HEAD", "broken", "--pairs", "1")
    assert done.returncode == 1
    assert done.stderr == "broken: now: it ended with 1: ValueError: out of order\n"


def test_the_time_is_bounded(clone: Path) -> None:
    done = compare(clone, "HEAD", "tiny", "--minutes", "0.0001")
    assert done.returncode == 1
    assert "(--minutes)" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "tiny"], "compare: 'nowhere' is not a commit of this repository"),
        (["--", "--all", "tiny"], "compare: '--all' is not a commit of this repository"),
        (["HEAD", "nothing", "harness"], "compare: no such benchmark: nothing, harness"),
    ],
)
def test_what_is_not_there_is_said(clone: Path, words: list[str], message: str) -> None:
    done = compare(clone, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == message + "\n"
