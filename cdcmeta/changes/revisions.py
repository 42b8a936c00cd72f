"""Revision trees (CouchDB's RFC 001): branches, the winner, and how edits change them.

Pure: nothing here reads or writes. A tree is its leaves, each with the ids of its ancestors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cdcmeta.errors import InvalidRevisionError

HASH_BYTES = 16
POSITION_MAX = 2**63 - 1
_REVISION = re.compile(r"([1-9][0-9]{0,18})-([0-9a-f]{32})")


class Revision(NamedTuple):
    """The name of an edit: its position in the history, and a hash of 16 bytes."""

    position: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.position}-{self.hash.hex()}"

    @classmethod
    def parse(cls, text: object) -> Revision:
        """Return the revision of a text such as `2-7051cbe5c8faecd085a3fa619e6e6337`.

        Raises `InvalidRevisionError`.
        """
        match = _REVISION.fullmatch(text) if isinstance(text, str) else None
        if match is None or int(match[1]) > POSITION_MAX:
            raise InvalidRevisionError(f"invalid rev format: {str(text)[:80]!r}")
        return cls(int(match[1]), bytes.fromhex(match[2]))


def is_revision(text: object) -> bool:
    """Return whether a text is a valid revision."""
    try:
        Revision.parse(text)
    except InvalidRevisionError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Leaf:
    """The newest edit of a branch, with its ancestors' hashes, newest first."""

    not_deleted: bool
    revision: Revision
    ancestors: tuple[bytes, ...] = ()

    @property
    def rank(self) -> tuple[bool, int, bytes]:
        """What orders leaves: not deleted, then the position, then the hash.

        The largest one wins, on every node (RFC 001).
        """
        return (self.not_deleted, *self.revision)

    @property
    def path(self) -> tuple[Revision, ...]:
        """The revisions of the branch as far as they are known, newest first."""
        position, own = self.revision
        hashes = (own, *self.ancestors)
        return tuple(Revision(position - n, each) for n, each in enumerate(hashes))

    def knows(self, revision: Revision) -> bool:
        """Return whether a revision is this leaf or one of its known ancestors."""
        back = self.revision.position - revision.position
        if back == 0:
            return self.revision.hash == revision.hash
        return 0 < back <= len(self.ancestors) and self.ancestors[back - 1] == revision.hash

    def stemmed(self, revs_limit: int) -> Leaf:
        """Return the leaf with at most so many revisions in its path."""
        if len(self.ancestors) < revs_limit:
            return self
        return Leaf(self.not_deleted, self.revision, self.ancestors[: revs_limit - 1])


@dataclass(frozen=True, slots=True)
class Tree:
    """A document's leaves, the winner first, then by rank."""

    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, leaves: Iterable[Leaf]) -> Tree:
        """Return the tree of some leaves."""
        return cls(tuple(sorted(leaves, key=lambda leaf: leaf.rank, reverse=True)))

    @property
    def winner(self) -> Leaf:
        """The leaf that is shown as the document."""
        return self.leaves[0]

    @property
    def conflicts(self) -> tuple[Revision, ...]:
        """The leaves other than the winner that are not deleted."""
        return tuple(leaf.revision for leaf in self.leaves[1:] if leaf.not_deleted)

    def leaf(self, revision: Revision) -> Leaf | None:
        """Return the leaf that is this revision."""
        return next((leaf for leaf in self.leaves if leaf.revision == revision), None)

    def knows(self, revision: Revision) -> bool:
        """Return whether a revision is a leaf or an ancestor of one."""
        return any(leaf.knows(revision) for leaf in self.leaves)

    def extended(self, parent: Leaf, new: Revision, not_deleted: bool, revs_limit: int) -> Tree:
        """Return the tree after an edit of one of its leaves."""
        leaf = Leaf(not_deleted, new, (parent.revision.hash, *parent.ancestors))
        return self._with(leaf, revs_limit)

    def merged(self, new: Leaf, revs_limit: int) -> Tree:
        """Return the tree after a replicated edit; the same tree if it knows the revision.

        The new leaf replaces the leaves that it descends from, or becomes a new branch. It gets the
        older ancestors that only this tree knows.

            before: 3-c (2-b 1-a)    new: 4-d (3-c)    after: 4-d (3-c 2-b 1-a)
            before: 3-c (2-b 1-a)    new: 3-e (2-b)    after: 3-e (2-b 1-a), 3-c (2-b 1-a)
            before: 3-c (2-b 1-a)    new: 2-b (1-a)    after: the same
        """
        if self.knows(new.revision):
            return self
        return self._with(self._joined(new), revs_limit)

    def without(self, superseded: Collection[Revision]) -> Tree:
        """Return the tree without leaves that edits in another database have followed.

        The remaining leaves descend from them, but their histories are cut. The same tree if none
        of the revisions is a leaf, or if no leaf would remain.
        """
        kept = tuple(leaf for leaf in self.leaves if leaf.revision not in superseded)
        return Tree(kept) if kept and len(kept) < len(self.leaves) else self

    def _joined(self, new: Leaf) -> Leaf:
        """Return a leaf with the older ancestors that other branches know."""
        oldest = new.path[-1]
        known = [
            leaf.ancestors[leaf.revision.position - oldest.position :]
            for leaf in self.leaves
            if leaf.knows(oldest)
        ]
        longest = max(known, key=len, default=())  # other branches may be cut shorter
        return Leaf(new.not_deleted, new.revision, new.ancestors + longest)

    def _with(self, new: Leaf, revs_limit: int) -> Tree:
        """Return the tree with a new leaf in place of the leaves that it descends from.

        Several leaves may be replaced if histories were cut short. An edit made here may even have
        the revision of another branch's leaf or ancestor; then that branch remains instead.
        """
        others = [leaf for leaf in self.leaves if not new.knows(leaf.revision)]
        if any(leaf.knows(new.revision) for leaf in others):
            return Tree.of(others)
        kept = new.stemmed(revs_limit)
        return Tree.of([kept, *others]) if others else Tree((kept,))

    def missing(self, wanted: Iterable[Revision]) -> tuple[list[Revision], list[Revision]]:
        """Return which revisions the tree does not know, and leaves they may descend from."""
        missing = [revision for revision in wanted if not self.knows(revision)]
        highest = max((revision.position for revision in missing), default=0)
        leaves = [leaf.revision for leaf in self.leaves]
        return missing, [revision for revision in leaves if revision.position < highest]


def path_of(start: int, hashes: Sequence[bytes], not_deleted: bool) -> Leaf:
    """Return the leaf of a replicated document's `_revisions`: `start` and hashes, newest first.

    Raises `InvalidRevisionError`.
    """
    if not 0 < start <= POSITION_MAX or not 0 < len(hashes) <= start:
        raise InvalidRevisionError(
            f"_revisions has {len(hashes)} ids, which cannot end at position {start}"
        )
    return Leaf(not_deleted, Revision(start, hashes[0]), tuple(hashes[1:]))
