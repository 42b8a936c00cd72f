"""A document's revisions as a picture shows them: a row for each branch, a column for each step."""

from __future__ import annotations

from dataclasses import dataclass

from cdcmeta.changes.revisions import Leaf, Revision, Tree

LANES_MAX = 8
COLUMNS_MAX = 24
INNER, WINS, CONFLICT, DELETED = "inner", "wins", "conflict", "deleted"


@dataclass(frozen=True, slots=True)
class Node:
    """A revision: its branch, its column, and what it is; `parent` is the index of another node."""

    rev: str
    lane: int
    column: int
    kind: str
    parent: int | None


@dataclass(frozen=True, slots=True)
class RevisionTree:
    """The newest revisions of the branches that rank first.

    `older` says whether branches go back further, `more` counts those that are left out.
    """

    nodes: list[Node]
    lanes: int
    columns: int
    older: bool
    more: int


def revision_tree(tree: Tree) -> RevisionTree:
    """Return the picture of a tree; O(revisions that it shows).

    >>> leaf = Leaf(True, Revision(2, bytes(16)), (b"a" * 16,))
    >>> [(node.rev[:4], node.column, node.parent) for node in revision_tree(Tree((leaf,))).nodes]
    [('1-61', 0, None), ('2-00', 1, 0)]
    """
    newest = max(leaf.revision.position for leaf in tree.leaves)
    oldest = max(1, newest - COLUMNS_MAX + 1)
    drawn = [leaf for leaf in tree.leaves if leaf.revision.position >= oldest][:LANES_MAX]
    paths = [[each for each in leaf.path if each.position >= oldest] for leaf in drawn]
    first = min(path[-1].position for path in paths)
    nodes: list[Node] = []
    places: dict[Revision, int] = {}
    for lane, (leaf, path) in enumerate(zip(drawn, paths, strict=True)):
        parent: int | None = None
        for revision in reversed(path):
            if revision not in places:
                kind = _kind(tree, leaf) if revision == leaf.revision else INNER
                places[revision] = len(nodes)
                nodes.append(Node(str(revision), lane, revision.position - first, kind, parent))
            parent = places[revision]
    older = any(path[-1].position > 1 for path in paths)
    more = len(tree.leaves) - len(drawn)
    return RevisionTree(nodes, len(drawn), newest - first + 1, older, more)


def _kind(tree: Tree, leaf: Leaf) -> str:
    if leaf is tree.winner:
        return WINS
    return CONFLICT if leaf.not_deleted else DELETED
