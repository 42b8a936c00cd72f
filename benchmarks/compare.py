"""Compare two commits: `python -m benchmarks.compare REV [names...]`.

A git worktree of REV is made in a temporary directory, and removed in the end. Each benchmark runs
in processes of its own, with the code and the benchmark as they are in the working tree ("now") and
as they were at REV ("then"), in turn: now, then, then, now, ... A ratio is the median, over these
pairs, of now by then: below 1 the working tree is faster. The floors are the same code in both, so
their ratios show how much the machine wandered meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import show

ROOT = Path(__file__).parents[1]
QUICK = ("ring_lookup", "load_as_of", "load_now", "durable_save", "list_as_of", "feed")
"""What is compared when nothing is named: no server, at most half a minute each."""
PAIRS, MINUTES = 4, 20.0
GIT_S = 120.0
STOP_S = 10.0

_RUN = """
import importlib, sys
from pathlib import Path
tree, results, name = sys.argv[1:]
import snapkv
assert Path(snapkv.__file__).is_relative_to(tree), snapkv.__file__
from benchmarks import harness
assert Path(harness.__file__).is_relative_to(tree), harness.__file__
harness.RESULTS = Path(results)
importlib.import_module(f"benchmarks.{name}").main()
"""

Question = tuple[str, str]
"""The title of a table, and a rival in it."""


class CompareError(Exception):
    """What was asked for cannot be compared."""


class RunFailed(CompareError):
    """A benchmark ended with an error, or did not end in time."""


@dataclass
class Compared:
    """What the runs of one benchmark came to: microseconds and ratios to the floor, by question."""

    now: list[dict[Question, tuple[float, float]]] = field(default_factory=list)
    then: list[dict[Question, tuple[float, float]]] = field(default_factory=list)
    problem: str = ""

    def lines(self, name: str) -> Iterator[str]:
        """Yield lines of a Markdown table."""
        pairs = list(zip(self.now, self.then, strict=False))
        for question in pairs[0][0] if pairs else ():
            title, rival = question
            both = [(a[question], b[question]) for a, b in pairs if question in a and question in b]
            if not both:
                yield f"| {name}: {title} | {rival} | not at REV | | | | |"
                continue
            now_us, then_us = (statistics.median(pair[at][0] for pair in both) for at in (0, 1))
            now_x, then_x = (statistics.median(pair[at][1] for pair in both) for at in (0, 1))
            ratio = statistics.median(now[0] / then[0] for now, then in both)
            cells = (f"{name}: {title}", rival, f"{then_us:,.3f}", f"{now_us:,.3f}")
            ratios = (f"{ratio:.2f}", f"{then_x:.2f}", f"{now_x:.2f}")
            yield f"| {' | '.join((*cells, *ratios))} |"


def main(words: list[str] | None = None) -> int:
    """Compare; return 0, or 1 when something could not be compared."""
    given = _arguments(words)
    try:
        found = compare(given.rev, given.names or QUICK, given.pairs, given.minutes)
    except CompareError as e:
        print(f"compare: {e}", file=sys.stderr)
        return 1
    print(table(found))
    problems = [f"{name}: {each.problem}" for name, each in found.items() if each.problem]
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="Run benchmarks with the code of two commits in turn, and print ratios.",
    )
    parser.add_argument("rev", metavar="REV", help="the commit to compare the working tree with")
    parser.add_argument("names", nargs="*", help=f"benchmarks; without any: {' '.join(QUICK)}")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"runs of each ({PAIRS})")
    help = f"begin no run after this time, and end one that lasts longer ({MINUTES:g})"
    parser.add_argument("--minutes", type=float, default=MINUTES, help=help)
    given = parser.parse_args(words)
    if given.pairs < 1 or not given.minutes > 0:
        parser.error("--pairs and --minutes are larger than 0")
    return given


def compare(
    rev: str, names: list[str] | tuple[str, ...], pairs: int, minutes: float
) -> dict[str, Compared]:
    """Run benchmarks with both trees in turn.

    Raises `CompareError` for a commit that there is not, or a name that is no benchmark.
    """
    unknown = [name for name in names if not _has(ROOT, name)]
    if unknown:
        raise CompareError(f"no such benchmark: {', '.join(unknown)}")
    until = time.monotonic() + minutes * 60
    with worktree(ROOT, rev) as then:
        return {name: _compared(name, then, pairs, until) for name in dict.fromkeys(names)}


@contextmanager
def worktree(root: Path, rev: str) -> Iterator[Path]:
    """Make a worktree of a commit; remove it in the end."""
    commit = git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}")
    if commit is None:
        raise CompareError(f"{rev!r} is not a commit of this repository")
    with tempfile.TemporaryDirectory(prefix="snapkv-compare-") as folder:
        tree = Path(folder).resolve() / "then"
        try:
            if git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit) is None:
                raise CompareError(f"git could not make a worktree of {rev!r}")
            yield tree
        finally:
            git(root, "worktree", "remove", "--force", str(tree))
            git(root, "worktree", "prune")


def git(root: Path, *words: str) -> str | None:
    """Return what git prints; None when it fails. A hook's repository is not ours."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S, env=env)
    except FileNotFoundError as e:
        raise CompareError("git is not installed") from e
    except subprocess.TimeoutExpired as e:
        raise CompareError(f"git {words[0]} took longer than {GIT_S:g} s") from e
    return done.stdout.strip() if done.returncode == 0 else None


def _compared(name: str, then: Path, pairs: int, until: float) -> Compared:
    found = Compared()
    if not _has(then, name):
        found.problem = "REV has no such benchmark"
        return found
    for pair in range(pairs):
        order = [(ROOT, found.now), (then, found.then)]
        for at, (tree, runs) in enumerate(order if pair % 2 == 0 else reversed(order)):
            show(2 * pair + at, 2 * pairs)
            left_s = until - time.monotonic()
            if left_s <= 0:
                found.problem = f"the time is over: {pair} of {pairs} pairs ran (--minutes)"
                return found
            try:
                runs.append(run(tree, name, left_s))
            except RunFailed as e:
                found.problem = f"{'now' if tree == ROOT else 'at REV'}: {e}"
                return found
    return found


def run(tree: Path, name: str, seconds: float) -> dict[Question, tuple[float, float]]:
    """Run a benchmark with the code of a tree; return its medians and its ratios to the floor.

    Raises `RunFailed` when it fails, or takes longer than some seconds.
    """
    with tempfile.TemporaryDirectory() as results:
        found_by_spark = Path(results, "found_by_spark")  # an installed copy is of one tree alone
        found_by_spark.mkdir()
        for module in tree.glob("*/spark/pyspark_*.py"):
            shutil.copy(module, found_by_spark)
        path = f"{tree}{os.pathsep}{found_by_spark}"
        paths = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", _RUN, str(tree), results, name]
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=paths,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as e:
            raise RunFailed("it did not end before the time was over (--minutes)") from e
        finally:
            _end(process)
        if process.returncode:
            last = (errors.strip() or "no message").splitlines()[-1]
            raise RunFailed(f"it ended with {process.returncode}: {last}")
        return medians(Path(results) / f"{name}.json")


def _end(process: subprocess.Popen[str]) -> None:
    """End a process so that it can end its servers; kill it when it does not."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def medians(path: Path) -> dict[Question, tuple[float, float]]:
    """Read the results of a benchmark: microseconds and ratio to the floor, by question."""
    try:
        tables = json.loads(path.read_text())["tables"]
        return {
            (title, row["rival"]): (row["median_us"], row["ratio"])
            for title, rows in tables.items()
            for row in rows
        }
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise RunFailed(f"its results have no medians that can be compared ({e!r})") from e


def table(found: dict[str, Compared]) -> str:
    """Return what was found as a Markdown table."""
    head = "| question | rival | then us | now us | now / then | x floor then | x floor now |"
    lines = [line for name, each in found.items() for line in each.lines(name)]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *lines])


def _has(tree: Path, name: str) -> bool:
    """Return whether a tree has a benchmark: a module that can be run by its `main`."""
    file = tree / "benchmarks" / f"{name}.py"
    return name.isidentifier() and file.exists() and "\ndef main(" in file.read_text()


if __name__ == "__main__":
    sys.exit(main())
