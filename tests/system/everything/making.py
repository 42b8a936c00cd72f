"""Three small clones with a history of merges, renames and removals, made by real git."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

from snapkv.cli.git_clone import GitError, environment

START_S = 1_704_067_200
"""2024-01-01T00:00:00Z."""
COMMITS = 36
"""Commits of each clone on its main branch."""
GIT_TIMEOUT_S = 60.0
AUTHORS = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Mary Shaw", "Zoë Çelik")
TOPICS = ("users", "orders", "items", "prices", "stock", "carts", "routes", "mail")
KINDS: dict[str, Callable[[str, int], bytes]] = {
    "catalogue": lambda topic, n: (
        json.dumps({"table": topic, "version": n, "columns": ["id", "email", "age"][: n % 3 + 1]})
        + "\n"
    ).encode(),
    "placements": lambda topic, n: (
        f"service: {topic}\nreplicas: {n % 5 + 1}\nnode: node-{n % 7}\n".encode()
    ),
    "handbook": lambda topic, n: f"# {topic}\n\nParagraph {n} about {topic}.\n".encode() * 2,
}
"""Each clone, and the content of its files."""
SUFFIXES = {"catalogue": ".json", "placements": ".yaml", "handbook": ".md"}


def make_clones(folder: Path, *, commits: int = COMMITS, seed: int = 0) -> list[str]:
    """Make the clones in a folder; return their paths. The same seed makes the same commits.

    Raises `GitError` if git is missing or fails.
    """
    made = []
    for number, name in enumerate(KINDS):
        path = folder / name
        path.mkdir(parents=True)
        _git(path, "init", "--quiet", "--initial-branch=main")
        stream = _Stream(name, random.Random(f"{seed} {name}"), START_S + number * 1_200)
        _git(path, "fast-import", "--quiet", input=stream.history(commits))
        _git(path, "reset", "--quiet", "--hard", "main")
        made.append(str(path))
    return made


class _Stream:
    """The history of one clone, as `git fast-import` reads it."""

    def __init__(self, name: str, rng: random.Random, start_s: int) -> None:
        self._name, self._rng, self._now_s = name, rng, start_s
        self._parts: list[bytes] = []
        self._marks = 0
        self._files: dict[str, tuple[str, int]] = {}
        self._versions = 0

    def history(self, commits: int) -> bytes:
        """Return a main branch of so many commits, with side branches that are merged."""
        tip = self._commit("main", "Begin", [self._written(topic) for topic in TOPICS[:3]])
        done = 1
        while done < commits:
            if self._rng.random() < 0.15:
                tip = self._merged(tip)
            else:
                subject, changes = self._step()
                tip = self._commit("main", subject, changes, tip)
            done += 1
        return b"".join(self._parts)

    def _merged(self, tip: int) -> int:
        """Commit twice on a side branch, and merge it; return the merge."""
        topic = self._rng.choice(TOPICS)
        first = self._written(topic, "side")
        self._commit("side", f"Try {topic}", [first], tip)
        second = self._written(topic, "side")
        side = self._commit("side", f"Finish {topic}", [second])
        return self._commit("main", f"Merge {topic}", [second], tip, side)

    def _step(self) -> tuple[str, list[bytes]]:
        """Return the subject and the changes of a commit that follows the last one."""
        rng, there = self._rng, sorted(self._files)
        kind = rng.choices(["write", "remove", "rename", "mode", "empty"], [12, 2, 2, 1, 1])[0]
        if kind == "empty":
            return "Release", []
        if kind == "write" or len(there) < 3:
            topics = rng.sample(TOPICS, rng.randint(1, 3))
            return f"Change {', '.join(topics)}", [self._written(each) for each in topics]
        path = rng.choice(there)
        if kind == "remove":
            del self._files[path]
            return f"Remove {path}", [f"D {path}\n".encode()]
        topic, version = self._files[path]
        if kind == "mode":
            return f"Make {path} executable", [self._file(path, topic, version, "100755")]
        new = f"old/{self._marks}-{Path(path).name}"
        self._files[new] = self._files.pop(path)
        return f"Rename {path}", [f"R {path} {new}\n".encode()]

    def _written(self, topic: str, folder: str = "main") -> bytes:
        path = f"{folder}/{topic}{SUFFIXES[self._name]}"
        self._versions += 1
        self._files[path] = topic, self._versions
        return self._file(path, topic, self._versions)

    def _file(self, path: str, topic: str, version: int, mode: str = "100644") -> bytes:
        content = KINDS[self._name](topic, version)
        return f"M {mode} inline {path}\ndata {len(content)}\n".encode() + content + b"\n"

    def _commit(
        self, branch: str, subject: str, changes: list[bytes], parent: int = 0, merged: int = 0
    ) -> int:
        """Add a commit some hours after the last one; return its mark."""
        self._now_s += self._rng.randint(600, 36_000)
        self._marks += 1
        author = f"{self._rng.choice(AUTHORS)} <dev@example.org> {self._now_s} +0000"
        message = subject.encode()
        lines = [f"commit refs/heads/{branch}", f"mark :{self._marks}", f"author {author}"]
        lines += [f"committer {author}", f"data {len(message)}", ""]
        head = "\n".join(lines).encode() + message + b"\n"
        head += f"from :{parent}\n".encode() if parent else b""
        head += f"merge :{merged}\n".encode() if merged else b""
        self._parts += [head, *changes, b"\n"]
        return self._marks


def _git(path: Path, *words: str, input: bytes | None = None) -> None:
    command = ["git", "-C", str(path), *words]
    try:
        done = subprocess.run(
            command,
            input=input,
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT_S,
            env=environment(),
        )
    except FileNotFoundError as e:
        raise GitError(words, 127, b"git is not installed, or not on the PATH") from e
    if done.returncode:
        raise GitError(words, done.returncode, done.stderr)
