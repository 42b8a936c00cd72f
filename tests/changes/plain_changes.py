"""A plain model of changes databases: revisions with their parents, and how far each is known.

It shares nothing with the library. `Revisions` is what is true everywhere: a revision has one
parent and one body. `Plain` is one database: the leaves of each document, and how many revisions
of the line that leads to each leaf it remembers.
"""

from __future__ import annotations

from itertools import pairwise


class Revisions:
    """All revisions of all databases, by their texts."""

    def __init__(self) -> None:
        self._parents: dict[str, str | None] = {}
        self._facts: dict[str, tuple[bool, int]] = {}

    def learn(self, path: list[str], deleted: bool, n: int) -> None:
        """Take in a revision with the ancestors that somebody tells, newest first."""
        for rev, parent in pairwise(path):
            assert self._parents.get(rev) in (None, parent), "a revision has one parent"
            self._parents[rev] = parent
        assert self._facts.setdefault(path[0], (deleted, n)) == (deleted, n)

    def line(self, rev: str, count: int) -> list[str]:
        """Return a revision and what leads to it, newest first, so many of them."""
        found = [rev]
        while len(found) < count:
            found.append(self._parents[found[-1]])
        return found

    def is_cut(self, path: list[str]) -> bool:
        """Return whether more is known of what leads to a revision than a path tells."""
        return self._parents.get(path[-1]) is not None or not path[-1].startswith("1-")

    def deleted(self, rev: str) -> bool:
        return self._facts[rev][0]

    def n(self, rev: str) -> int:
        """Return the body."""
        return self._facts[rev][1]

    def rank(self, rev: str) -> tuple:
        """Return what sorts the winner first: not deleted, the longest, the largest hash."""
        position, _, hash = rev.partition("-")
        return (self.deleted(rev), -int(position), [-int(digit, 16) for digit in hash])


class Plain:
    """One database: leaves with how far back each is known, and when each document last moved."""

    def __init__(self, revisions: Revisions, limit: int) -> None:
        self.revisions, self.limit = revisions, limit
        self._reach: dict[str, dict[str, int]] = {}
        self._moved: dict[str, int] = {}
        self.edits = 0
        self.is_cut = False  # whether anything was forgotten, or never told

    # --- what is there ---

    def leaves(self, id: str) -> list[str]:
        """Return leaves, the winner first."""
        return sorted(self._reach.get(id, ()), key=self.revisions.rank)

    def path(self, id: str, leaf: str) -> list[str]:
        """Return a leaf and its ancestors as far as they are remembered, newest first."""
        return self.revisions.line(leaf, self._reach[id][leaf])

    def knows(self, id: str, rev: str) -> bool:
        return any(rev in self.path(id, leaf) for leaf in self._reach.get(id, ()))

    def alive(self, id: str) -> bool:
        leaves = self.leaves(id)
        return bool(leaves) and not self.revisions.deleted(leaves[0])

    def takes(self, id: str, base: str | None) -> bool:
        """Return whether an edit of this leaf, or of none, is in no conflict."""
        if base is None:
            return not self.alive(id)
        return base in self._reach.get(id, ()) and not self.revisions.deleted(base)

    def feed(self, after: int = 0) -> list[str]:
        """Return the documents that moved after so many edits, in that order."""
        moved = sorted(self._moved.items(), key=lambda item: item[1])
        return [id for id, number in moved if number > after]

    def edits_before(self, ids: list[str]) -> int:
        """Return after how many edits all of these documents had yet to move."""
        return min((self._moved[id] for id in ids), default=self.edits + 1) - 1

    def rows(self, after: int = 0) -> list[tuple[str, tuple[str, ...], bool, int]]:
        """Return what the feed shows: id, leaves, whether deleted, and the winner's body."""
        found = []
        for id in self.feed(after):
            leaves = self.leaves(id)
            rev = leaves[0]
            found.append((id, tuple(leaves), self.revisions.deleted(rev), self.revisions.n(rev)))
        return found

    # --- edits ---

    def edit(self, id: str, base: str | None, rev: str, deleted: bool, n: int) -> None:
        """Take in an edit made here: of a leaf, of a deleted winner, or the first of all."""
        parent = base or next(iter(self.leaves(id)), None)
        path = [rev, *(self.path(id, parent) if parent else [])]
        self.revisions.learn(path, deleted, n)
        others = self._others(id, path)
        if any(rev in self.path(id, leaf) for leaf in others):
            self._reach[id] = others  # it came here before, from elsewhere
            self._move(id)
        else:
            self._take(id, path, others)

    def replicate(self, id: str, path: list[str], deleted: bool, n: int) -> bool:
        """Take in an edit made elsewhere; return whether it was new."""
        self.revisions.learn(path, deleted, n)
        if self.knows(id, path[0]):
            return False
        known = [self.path(id, leaf) for leaf in self._reach.get(id, ())]
        longer = [line[line.index(path[-1]) + 1 :] for line in known if path[-1] in line]
        path = path + max(longer, key=len, default=[])
        self._take(id, path, self._others(id, path))
        return True

    def _others(self, id: str, path: list[str]) -> dict[str, int]:
        leaves = self._reach.get(id, {})
        return {leaf: reach for leaf, reach in leaves.items() if leaf not in path}

    def _take(self, id: str, path: list[str], others: dict[str, int]) -> None:
        kept = path[: self.limit]
        self._reach[id] = {path[0]: len(kept), **others}
        self.is_cut = self.is_cut or self.revisions.is_cut(kept)
        self._move(id)

    def _move(self, id: str) -> None:
        self.edits += 1
        self._moved[id] = self.edits
