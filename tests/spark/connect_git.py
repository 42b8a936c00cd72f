"""What a client of Spark Connect asks about a history of git.

A repository with random commits is kept in each store, commit by commit. What Connect shows of a
random moment, and what its feed makes of one moment when it is replayed, must be what git has.
"""

import random
import subprocess
from pathlib import Path
from typing import Any

import snapkv
from snapkv.spark import read_changes, read_snapshot

COMMITS, MOMENTS = 40, 6
GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "gc.auto=0")


class Repository:
    """A working tree of flat files with random commits."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._rng = path, random.Random(seed)
        path.mkdir()
        self.git("init", "--quiet")

    def git(self, *words: str) -> bytes:
        command = [*GIT, "-C", str(self._path), *words]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def commit(self) -> tuple[str, dict[str, bytes], list[str]]:
        """Commit random changes; return the commit, the files written, and the files removed."""
        rng = self._rng
        names = [f"file{n:02}" for n in range(20)]
        present = [name for name in names if (self._path / name).exists()]
        removed = rng.sample(present, min(len(present) // 3, rng.randrange(3)))
        chosen = rng.sample(names, rng.randrange(1, 5))
        written = {name: rng.randbytes(rng.randrange(40)) for name in chosen if name not in removed}
        for name, content in written.items():
            (self._path / name).write_bytes(content)
        for name in removed:
            (self._path / name).unlink()
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "random")
        return self.git("rev-parse", "HEAD").decode().strip(), written, removed

    def tree(self, commit: str) -> dict[str, bytes]:
        """Return the files of a commit, as git itself has them."""
        names = self.git("ls-tree", "-r", "-z", "--name-only", commit).decode().split("\0")
        return {name: self.git("show", f"{commit}:{name}") for name in names if name}


def compare_moments(spark: Any, folder: str, seed: int, urls: list[str]) -> None:
    """Compare what a session shows of each store with git; fail at the first difference."""
    rng, repository = random.Random(seed), Repository(Path(folder) / "git", seed)
    revisions: dict[str, list[int]] = {url: [] for url in urls}
    commits: list[str] = []
    stores = {url: snapkv.open(url) for url in urls}
    for _ in range(COMMITS):
        oid, written, removed = repository.commit()
        commits.append(oid)
        for url, store in stores.items():
            made = store.commit(puts=written, deletes=removed)
            revisions[url].append(made.revision)
    for store in stores.values():
        store.close()
    for url in urls:
        for first, last in [sorted(rng.sample(range(COMMITS), 2)) for _ in range(MOMENTS)]:
            compare(spark, url, revisions[url], repository, commits, first, last)


def compare(
    spark: Any,
    url: str,
    revisions: list[int],
    repository: Repository,
    commits: list[str],
    first: int,
    last: int,
) -> None:
    """Assert that a moment, and the changes from it to a later one, are git's."""
    begin, end = f"rev:{revisions[first]}", f"rev:{revisions[last]}"
    before, after = repository.tree(commits[first]), repository.tree(commits[last])
    assert state(spark, url, begin) == before, (url, first)
    replayed = dict(before)
    rows = read_changes(spark, url, begin, end).orderBy("_commit_version").collect()
    for row in rows:
        if row["_change_type"] == "delete":
            del replayed[row["key"]]
        elif row["_change_type"] != "update_preimage":
            replayed[row["key"]] = bytes(row["value"])
    assert replayed == after, (url, first, last)
    assert state(spark, url, end) == after, (url, last)


def state(spark: Any, url: str, moment: str) -> dict[str, bytes]:
    rows = read_snapshot(spark, url, moment).select("key", "value").collect()
    return {row["key"]: bytes(row["value"]) for row in rows}
