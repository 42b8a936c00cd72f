"""Reads documents of one state: a leaf, all leaves, missing revisions, and older versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cdcmeta.changes import layout
from cdcmeta.changes.documents import Doc, revisions_member, shown, shown_as_json
from cdcmeta.changes.feed import Change, Form, shaped
from cdcmeta.changes.layout import Row
from cdcmeta.changes.revisions import Leaf, Revision, Tree
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.changes.state import State, bodies_of
from cdcmeta.errors import DocumentNotFoundError
from snapkv import Space, Version


@dataclass(frozen=True, slots=True)
class Missing:
    """Revisions that a database does not have, and its leaves that they may descend from."""

    missing: tuple[str, ...]
    possible_ancestors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DocVersion:
    """A document between two edits; `doc` is None unless it was asked for.

    An edit of a losing branch also makes a version. `ts`, `writer` and `note` are its commit's.
    """

    seq: Seq
    rev: str
    deleted: bool
    ts: int | None
    writer: str | None
    note: str | None
    doc: Doc | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A leaf of a document, with the document's tree."""

    id: str
    tree: Tree
    leaf: Leaf
    body: bytes

    def shown(self, **wanted: bool) -> Doc:
        """Return it as callers see it, with the wanted special members (see `more`)."""
        return shown(self.id, self.leaf, self.body, **self.more(**wanted))

    def as_json(self, **wanted: bool) -> bytes:
        """Return the same as JSON, without parsing the stored part."""
        return shown_as_json(self.id, self.leaf, self.body, **self.more(**wanted))

    def more(
        self,
        *,
        conflicts: bool = False,
        deleted_conflicts: bool = False,
        revisions: bool = False,
        revs_info: bool = False,
    ) -> Doc:
        """Return the wanted special members that are not empty."""
        more: Doc = {"_revisions": revisions_member(self.leaf)} if revisions else {}
        if revs_info:
            own = "available" if self.leaf.not_deleted else "deleted"
            path = [str(each) for each in self.leaf.path]
            states = (own, *["missing"] * (len(path) - 1))
            more["_revs_info"] = [
                {"rev": rev, "status": status} for rev, status in zip(path, states, strict=True)
            ]
        if conflicts and self.tree.conflicts:
            more["_conflicts"] = [str(each) for each in self.tree.conflicts]
        if deleted_conflicts:
            gone = [leaf for leaf in self.tree.leaves if not leaf.not_deleted and leaf != self.leaf]
            if gone:
                more["_deleted_conflicts"] = [str(leaf.revision) for leaf in gone]
        return more


def document(state: State, id: str, rev: Revision | None) -> Found:
    """Return a document's winner, or one of its leaves. Raises `DocumentNotFoundError`."""
    (winner,) = state.winners([id])
    if winner is None:
        raise DocumentNotFoundError(id)
    tree = state.tree(id, winner)
    leaf = tree.winner if rev is None else tree.leaf(rev)
    if leaf is None:
        raise DocumentNotFoundError(id)
    if rev is None and not leaf.not_deleted:
        raise DocumentNotFoundError(id, "deleted")
    return Found(id, tree, leaf, state.bodies([(id, leaf.revision)])[id, leaf.revision])


def open_revs(
    state: State, id: str, revs: Sequence[Revision] | None, latest: bool
) -> list[Doc | str]:
    """Return leaves with their `_revisions`, and the text of each revision that is not a leaf."""
    (winner,) = state.winners([id])
    leaves = () if winner is None else state.tree(id, winner).leaves
    wanted: list[Leaf | str] = list(leaves)
    if revs is not None:
        wanted = []
        for rev in revs:
            fits = [x for x in leaves if x.revision == rev or (latest and x.knows(rev))]
            wanted += fits or [str(rev)]
    once = list(dict.fromkeys(wanted))
    bodies = state.bodies([(id, leaf.revision) for leaf in once if isinstance(leaf, Leaf)])
    return [
        each
        if isinstance(each, str)
        else shown(id, each, bodies[id, each.revision]) | {"_revisions": revisions_member(each)}
        for each in once
    ]


def missing_revs(state: State, wanted: Mapping[str, list[Revision]]) -> dict[str, Missing]:
    """Return the revisions that are missing; documents without any are left out."""
    found: dict[str, Missing] = {}
    for (id, revisions), winner in zip(wanted.items(), state.winners(wanted), strict=True):
        missing = list(dict.fromkeys(revisions))
        ancestors: list[Revision] = []
        if winner is not None:
            missing, ancestors = state.tree(id, winner).missing(missing)
        if missing:
            found[id] = Missing(tuple(map(str, missing)), tuple(map(str, ancestors)))
    return found


def rows_by_id(
    state: State, start: str | None, end: str | None = None, *, inclusive: bool = True
) -> Iterator[Row]:
    """Yield the rows of documents by id, from `start` to `end`, without deleted ones."""
    found = state.documents(start, end, inclusive=inclusive)
    return (row for row in found if row.not_deleted)


def by_id(state: State, form: Form, start: str | None) -> Iterator[Change]:
    """Yield changes by id with the form's options, without deleted documents."""
    changes = shaped(state, form, rows_by_id(state, start))
    return (change for _, change in changes if change is not None)


def versions(space: Space, id: str, include_docs: bool) -> Iterator[DocVersion]:
    """Yield a document after each edit that is not compacted, oldest first."""
    found: list[tuple[Version, bytes]] = []
    for version in space.history(layout.winner_key(id)):
        if version.value is None:
            found.clear()  # these versions belong to a deleted database
        else:
            found.append((version, version.value))
    for version, value in found:
        winner = layout.winner_of(value)
        revision = winner.leaf.revision
        doc = None
        if include_docs:
            snapshot = space.at(revision=version.revision)
            bodies = bodies_of(snapshot, [(id, revision)])
            doc = shown(id, winner.leaf, bodies[id, revision])
        yield DocVersion(
            winner.sequence,
            str(revision),
            not winner.leaf.not_deleted,
            version.ts,
            version.writer,
            version.note,
            doc,
        )
