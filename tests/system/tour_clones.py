"""Real git repositories, made by real git, and what git itself says of them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

GIT_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Ada Lovelace",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Charles Babbage",
    "GIT_COMMITTER_EMAIL": "charles@example.org",
    "GIT_AUTHOR_DATE": "1600000000 +0000",
    "GIT_COMMITTER_DATE": "1600000000 +0000",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "init.defaultBranch",
    "GIT_CONFIG_VALUE_0": "main",
}
START = 1_600_000_000


class Ran(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


class Repo:
    """A repository with a working tree; each commit is a minute after the last, unless told."""

    def __init__(self, path: Path, *init: str) -> None:
        self.path, self.now = path, START
        self.contents: dict[bytes, bytes] = {}
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", *init)

    def git(self, *words: str | bytes, input: bytes | None = None) -> bytes:
        date = f"@{self.now} +0000"
        dates = {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        done = subprocess.run(
            [b"git", *(os.fsencode(word) for word in words)],
            cwd=self.path,
            env={**os.environ, **dates},
            input=input,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def write(self, name: str | bytes, content: bytes) -> None:
        path = os.path.join(os.fsencode(self.path), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)

    def commit(self, subject: str = "change", *, at: int | None = None, all: bool = True) -> str:
        self.now = self.now + 60 if at is None else at
        if all:
            self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--allow-empty-message", "-m", subject)
        return self.head()

    def head(self) -> str:
        return self.git("rev-parse", "HEAD").decode().strip()

    # --- what git says; shares nothing with the tour ---

    def first_parents(self) -> list[tuple[str, int]]:
        """Walk from HEAD by first parents, reading commit objects; oldest first, plain times."""
        found = []
        oid: str | None = self.head()
        while oid is not None:
            lines = self.git("cat-file", "commit", oid).decode(errors="replace").split("\n")
            committer = next(line for line in lines if line.startswith("committer "))
            found.append((oid, int(committer.split()[-2])))
            oid = next((line[7:] for line in lines if line.startswith("parent ")), None)
        return found[::-1]

    def dates(self) -> list[tuple[str, int]]:
        """Return first-parent commits with times that never go back."""
        newest, found = 0, []
        for oid, seconds in self.first_parents():
            newest = max(newest, seconds)
            found.append((oid, newest))
        return found

    def tree(self, commit: str) -> dict[bytes, tuple[bytes, bytes]]:
        """Return {path: (line of ls-tree, content)} of a commit."""
        found = {}
        for row in self.git("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
            line, _, path = row.partition(b"\t")
            _, kind, oid = line.split()
            if oid not in self.contents:
                self.contents[oid] = self.git("cat-file", "blob", oid) if kind == b"blob" else oid
            found[path] = line, self.contents[oid]
        return found


def odd_repo(path: Path, *init: str) -> Repo:
    """Make a repository with everything that is strange in it."""
    repo = Repo(path, *init)
    repo.write("README.md", b"# One\n")
    repo.write("src/a.py", b"a = 1\n")
    repo.write("src/sub/b.py", b"b = 1\n")
    repo.write("empty", b"")
    repo.write("zero bytes", b"\0\1\0\n")
    repo.commit("first")
    repo.write("name with spaces", b"1")
    repo.write("name\nwith\nlines", b"2")
    repo.write('quotes " and \\ and [red]', b"3")
    repo.write("\N{SNOWMAN}/\N{GREEK SMALL LETTER PI}", "\N{SNOWMAN}".encode())
    repo.write("-dash", b"4")
    repo.write(b"latin-\xe9.txt", b"5")
    repo.write("/".join(["deep" * 30] * 5), b"6")
    repo.commit("names")
    repo.git("mv", "src/a.py", "src/renamed.py")
    repo.commit("rename")
    (repo.path / "src/sub/b.py").chmod(0o755)
    repo.commit("mode")
    (repo.path / "link").symlink_to("README.md")
    repo.commit("link")
    repo.commit("nothing at all")
    repo.commit("")
    repo.git("rm", "--quiet", "empty")
    repo.commit("removal")
    repo.git("rm", "--quiet", "src/sub/b.py")
    repo.write("src/sub", b"a file where a folder was")
    repo.commit("folder to file")
    (repo.path / "link").unlink()
    repo.write("link", b"README.md")
    repo.commit("link to file, same content")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{'ab' * 20},module")
    repo.commit("submodule", all=False)
    repo.git("update-index", "--cacheinfo", f"160000,{'cd' * 20},module")
    repo.commit("submodule moves", all=False)
    repo.git("checkout", "--quiet", "-b", "side")
    repo.write("side.txt", b"side")
    repo.commit("on the side", all=False)
    repo.git("add", "side.txt")
    repo.commit("side file", all=False)
    repo.git("checkout", "--quiet", "main")
    repo.write("README.md", b"# Two\n")
    repo.git("add", "README.md")
    repo.commit("meanwhile", all=False)
    repo.now += 60
    repo.git("merge", "--quiet", "--no-ff", "side", "-m", "merge the side")
    before = repo.now
    for number, second in enumerate((before - 5_000, before - 4_000, before, before + 1)):
        repo.write("clock", b"%d" % number)
        repo.git("add", "clock")
        repo.commit(f"clock {number}", at=second, all=False)
    for number in range(5):
        repo.write("burst", b"%d" % number)
        repo.git("add", "burst")
        repo.commit(f"burst {number}", at=before + 60, all=False)
    repo.git("rm", "--quiet", "--cached", "module")
    repo.commit("no submodule", all=False)
    return repo


def simple_repo(path: Path, commits: int = 5) -> Repo:
    """Make a repository of a few plain commits, a minute apart."""
    repo = Repo(path)
    for number in range(commits):
        repo.write("README.md", b"version %d\n" % number)
        repo.write(f"docs/{number}.md", b"text %d\n" % number)
        repo.commit(f"commit {number}")
    return repo
