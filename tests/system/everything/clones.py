"""The clones of a tour, and git's answers about all of them together.

A key of the store is `<clone>/<path>`. The steps of a tour are the commits of all clones, in the
order of time; each clone keeps the order of its first-parent history.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from snapkv.cli.exits import AdvisedError
from snapkv.cli.git_clone import Clone, GitChange, TreeEntry, _split, _text
from snapkv.cli.git_import import GitTimeline
from snapkv.cli.tour.examiner import AskedDate, choose_moments
from snapkv.layout import WRITER_BYTES_MAX

PATH_BYTES_MAX = 200
"""A path is a part of keys and of a document's id, which has at most 256 bytes."""
NAME_CHARACTERS_MAX = 40
UNKNOWN_AUTHOR = "unknown"


class Step(NamedTuple):
    """One commit of one clone: the clone's place, the commit's position in it, and its time."""

    clone: int
    position: int
    ms: int


@dataclass(frozen=True, slots=True)
class Toured:
    """A clone with the name that it has in the store."""

    name: str
    clone: Clone
    timeline: GitTimeline

    @property
    def prefix(self) -> str:
        """What the keys of the clone begin with."""
        return f"{self.name}/"

    def key_of(self, path: bytes) -> str | None:
        """Return the key of a path; None for one that cannot be a key and a document's id."""
        try:
            text = path.decode()
        except UnicodeDecodeError:
            return None
        return self.prefix + text if len(path) <= PATH_BYTES_MAX else None

    def changing(self) -> Iterator[tuple[bytes, list[str]]]:
        """Yield the commits that changed keys, oldest first, and these keys."""
        for commit in self.clone.history(None):
            keys = [self.key_of(change.path) for change in commit.changes]
            if found := [key for key in keys if key is not None]:
                yield commit.oid, found

    def oid_at(self, ms: int) -> bytes | None:
        """Return the commit that a time falls on, None before the first."""
        at = bisect_right(self.timeline.times_ms, ms) - 1
        return self.timeline.oids[at] if at >= 0 else None


class History:
    """The commits of all clones in the order of time, and what git says of them."""

    def __init__(self, clones: Sequence[Toured]) -> None:
        self.clones = tuple(clones)
        self.steps = sorted(
            (
                Step(number, position, ms)
                for number, each in enumerate(self.clones)
                for position, ms in enumerate(each.timeline.times_ms)
            ),
            key=lambda step: (step.ms, step.clone, step.position),
        )
        self.moments = choose_moments([step.ms for step in self.steps])
        self.left_out: set[bytes] = set()
        self._trees: dict[int, dict[str, TreeEntry]] = {}

    @property
    def prefixes(self) -> list[str]:
        """What the keys of each clone begin with."""
        return [each.prefix for each in self.clones]

    def pairs(self) -> list[tuple[AskedDate, AskedDate]]:
        """Return neighbouring moments, and the first with the newest."""
        known = [moment for moment in self.moments if moment.index >= 0]
        found = [*pairwise(known), (known[0], known[-1])]
        return [pair for pair in dict.fromkeys(found) if pair[0] != pair[1]]

    # --- what git says ---

    def tree(self, ms: int) -> dict[str, TreeEntry]:
        """Return `git ls-tree` of all clones at a time, by key."""
        if ms not in self._trees:
            found = self._trees[ms] = {}
            for each in self.clones:
                oid = each.oid_at(ms)
                for path, entry in (each.clone.tree(oid) if oid else {}).items():
                    key = each.key_of(path)
                    if key is None:
                        self.left_out.add(path)
                    else:
                        found[key] = entry
        return self._trees[ms]

    def changes(self, a: int, b: int) -> dict[str, GitChange]:
        """Return the contents that `git diff-tree` says differ between two times, by key."""
        found: dict[str, GitChange] = {}
        for each in self.clones:
            before, after = each.oid_at(a), each.oid_at(b)
            if after is None or before == after:
                continue
            for change in each.clone.diff(before or self._empty_tree(each), after):
                key = each.key_of(change.path)
                if key is not None and change.of_content:
                    found[key] = change
        return found

    def authors(self, a: int, b: int) -> dict[str, str]:
        """Return the author of the newest change of each key after a time up to another."""
        found: dict[str, str] = {}
        for each in self.clones:
            before, after = each.oid_at(a), each.oid_at(b)
            if after is None or before == after:
                continue
            for path, author in authors(each.clone, before, after).items():
                if (key := each.key_of(path)) is not None:
                    found[key] = writer_of(author)
        return found

    def change_count(self) -> int:
        """Return how many changes of keys the commits have."""
        return sum(len(keys) for each in self.clones for _, keys in each.changing())

    @staticmethod
    def _empty_tree(toured: Toured) -> bytes:
        """Return the id that git gives to a tree without entries."""
        return EMPTY_TREES[len(toured.clone.head)]


EMPTY_TREES = {
    40: b"4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: b"6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
"""By the number of digits of the repository's ids; git has them without storing them."""


def authors(clone: Clone, a: bytes | None, b: bytes) -> dict[bytes, str]:
    """Return the author of the newest change of each path after commit `a`, up to `b`.

    Both are of the first-parent history; None: all of it, up to `b`.
    """
    asked = ["-c", "log.showRoot=true", "-c", "log.diffMerges=first-parent", "log"]
    asked += ["--first-parent", "-m", "--name-only", "-z", "--no-renames", "--encoding=UTF-8"]
    asked += ["--ignore-submodules=none", "--no-show-signature", "--no-color", "--no-relative"]
    asked += ["--format=%x01%an <%ae>", b.decode(), *([f"^{a.decode()}"] if a else [])]
    found: dict[bytes, str] = {}
    author, is_first = "", False
    with clone.streaming(*asked) as process:
        assert process.stdout is not None
        for field in _split(process.stdout):
            if field.lstrip(b"\n").startswith(b"\x01"):
                author, is_first = _text(field.lstrip(b"\n")[1:]), True
            elif field:  # a line end is before the first path of a commit
                found.setdefault(field.removeprefix(b"\n") if is_first else field, author)
                is_first = False
    return found


def clones_of(paths: Sequence[str], now_ms: int) -> list[Toured]:
    """Return the clones at some paths, each with a name of its own.

    Commits that are dated after `now_ms` move there: captures run on the machine's clock. Raises
    `AdvisedError`.
    """
    found: dict[str, Toured] = {}
    for path in paths:
        clone = Clone(path)
        if clone.git_dir in {each.clone.git_dir for each in found.values()}:
            raise AdvisedError(f"{path} is given twice", "Name each clone once.")
        name = _free_name(os.path.basename(clone.root.rstrip("/")), found)
        timeline = GitTimeline.of(clone)
        times = [min(ms, now_ms) for ms in timeline.times_ms]
        found[name] = Toured(name, clone, GitTimeline(timeline.oids, times, timeline.moved))
    return list(found.values())


def writer_of(author: str) -> str:
    """Return an author as a store keeps a writer.

    >>> writer_of("Ada"), writer_of(" ")
    ('Ada', 'unknown')
    """
    cut = author.strip().encode()[:WRITER_BYTES_MAX].decode(errors="ignore")
    return cut or UNKNOWN_AUTHOR


def _free_name(given: str, taken: dict[str, Toured]) -> str:
    """Return a name that is valid for a database, and no other clone's.

    >>> _free_name("My Project.git", {})
    'my-project'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", given.lower().removesuffix(".git")).strip("-")
    name = plain[:NAME_CHARACTERS_MAX] if plain[:1].isalpha() else f"clone-{plain}"[:40].strip("-")
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free
