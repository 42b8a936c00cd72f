"""A database at one revision: its documents, with trees and bodies, and the rows of the feed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeAlias

from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import ChangeRow, DatabaseRecord, Winner
from cdcmeta.changes.documents import Doc, revisions_member, shown, shown_as_json
from cdcmeta.changes.revisions import Leaf, Revision, Tree
from cdcmeta.changes.sequence import START
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.errors import DatabaseNotFoundError, DocumentNotFoundError, InvalidSequenceError
from snapkv import Snapshot, Space, Version, When
from snapkv.errors import CorruptStoreError, InvalidTimeError, InvalidTypeError
from snapkv.times import pack

Bodies: TypeAlias = dict[tuple[str, Revision], bytes]
Since = Seq | datetime | int | str
"""A place in the feed: a sequence or its text, 0, `"now"`, or a time (exact, not binned)."""
WINDOW_ROWS_MAX = 4_000
"""The most rows that are read at once when the feed is read backwards."""
WINDOW_ROWS_MIN = 100
WINDOW_GROWTH = 16
SECOND = pack(1_000)
_SEQUENCE = re.compile(r"[0-9a-f]{20,}", re.IGNORECASE)


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
class StoredLeaf:
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


class DatabaseState:
    """A database at one moment; all reads of a state see the same revision.

    `bodies_bytes` is the total size of the bodies read, for callers that limit it. `created` is the
    revision of the commit that created the database.
    """

    def __init__(self, snapshot: Snapshot[bytes], name: str) -> None:
        self.snapshot, self._name = snapshot, name
        self.bodies_bytes = 0
        (found,) = snapshot.entries_of([layout.DATABASE])
        if found is None:
            raise DatabaseNotFoundError(f"database {name!r} does not exist")
        self.database = DatabaseRecord.decode(found.value)
        self.created = found.created

    @property
    def end(self) -> Seq:
        """The place after all commits."""
        return Seq.behind(self.snapshot.timestamp, self.database.incarnation)

    def place(self, since: Since, timestamp_of: Callable[[When], int]) -> Seq:
        """Return the sequence of a place; `timestamp_of` converts a time.

        Raises `InvalidSequenceError`.
        """
        if isinstance(since, bool):
            raise InvalidSequenceError("a place must be a sequence, 0, 'now' or a time, not a bool")
        if isinstance(since, Seq):
            found = since
        elif since in (0, "0"):
            return START
        elif since == "now":
            return self.newest()
        elif isinstance(since, str) and _SEQUENCE.fullmatch(since):
            found = Seq.parse(since)
        else:
            try:
                return self.database.sequence_at(timestamp_of(since))
            except (InvalidTimeError, InvalidTypeError) as e:
                raise InvalidSequenceError(
                    f"{since!r} is neither a sequence nor a time: {e}"
                ) from e
        if found.incarnation > self.database.incarnation:
            raise InvalidSequenceError(
                f"sequence {found} has incarnation {found.incarnation}, but the database has only "
                f"{self.database.incarnation}: it belongs to another database or to the future"
            )
        return found

    # --- documents ---

    def winners(self, ids: Iterable[str]) -> list[Winner | None]:
        """Return documents' winners; None for a document that does not exist."""
        entries = self.snapshot.entries_of([layout.winner_key(id) for id in ids])
        return [None if entry is None else layout.winner_of(entry.value) for entry in entries]

    def tree(self, id: str, winner: Winner) -> Tree:
        """Return a document's tree; costs a read if it has several branches."""
        return tree_of(self.snapshot, id, winner)

    def other_leaves(self, ids: Iterable[str]) -> list[list[Leaf]]:
        """Return the leaves of documents other than their winners; one round trip for each 128."""
        found = self.snapshot.items_of([layout.leaves_range(id) for id in ids])
        return [[layout.leaf_of(key, value) for key, value in items] for items in found]

    def bodies(self, wanted: Sequence[tuple[str, Revision]]) -> Bodies:
        """Return the bodies of leaves; revisions without a body are left out."""
        found = bodies_of(self.snapshot, wanted)
        self.bodies_bytes += sum(map(len, found.values()))
        return found

    def document(self, id: str, rev: Revision | None) -> StoredLeaf:
        """Return a document's winner, or one of its leaves. Raises `DocumentNotFoundError`."""
        (winner,) = self.winners([id])
        if winner is None:
            raise DocumentNotFoundError(id)
        tree = self.tree(id, winner)
        leaf = tree.winner if rev is None else tree.leaf(rev)
        if leaf is None:
            raise DocumentNotFoundError(id)
        if rev is None and not leaf.not_deleted:
            raise DocumentNotFoundError(id, "deleted")
        return StoredLeaf(id, tree, leaf, self.bodies([(id, leaf.revision)])[id, leaf.revision])

    def open_revs(self, id: str, revs: Sequence[Revision] | None, latest: bool) -> list[Doc | str]:
        """Return leaves with `_revisions`, and the text of each revision that is not a leaf."""
        (winner,) = self.winners([id])
        leaves = () if winner is None else self.tree(id, winner).leaves
        wanted: list[Leaf | str] = list(leaves)
        if revs is not None:
            wanted = []
            for rev in revs:
                fits = [x for x in leaves if x.revision == rev or (latest and x.knows(rev))]
                wanted += fits or [str(rev)]
        once = list(dict.fromkeys(wanted))
        bodies = self.bodies([(id, leaf.revision) for leaf in once if isinstance(leaf, Leaf)])
        return [
            each
            if isinstance(each, str)
            else shown(id, each, bodies[id, each.revision]) | {"_revisions": revisions_member(each)}
            for each in once
        ]

    def missing_revs(self, wanted: Mapping[str, list[Revision]]) -> dict[str, Missing]:
        """Return the revisions that are missing; documents without any are left out."""
        found: dict[str, Missing] = {}
        for (id, revisions), winner in zip(wanted.items(), self.winners(wanted), strict=True):
            missing = list(dict.fromkeys(revisions))
            ancestors: list[Revision] = []
            if winner is not None:
                missing, ancestors = self.tree(id, winner).missing(missing)
            if missing:
                found[id] = Missing(tuple(map(str, missing)), tuple(map(str, ancestors)))
        return found

    def documents(
        self,
        start: str | None = None,
        end: str | None = None,
        *,
        inclusive: bool = True,
        deleted: bool = True,
    ) -> Iterator[ChangeRow]:
        """Yield the rows of documents by id, from `start` to `end`; deleted ones if `deleted`."""
        found = layout.rows_of_winners(self._by_id(start, end, inclusive))
        return (row for row in found if deleted or row.not_deleted)

    def revs(
        self, start: str | None, end: str | None, *, inclusive: bool
    ) -> Iterator[tuple[str, str]]:
        """Yield ids and revisions of the documents that are not deleted, twice as fast.

        The arguments are the same as for `documents`.
        """
        return layout.revs_of_winners(self._by_id(start, end, inclusive))

    def _by_id(
        self, start: str | None, end: str | None, inclusive: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        first = None if start is None else layout.winner_key(start)
        last = None if end is None else layout.winner_key(end) + inclusive * b"\0"
        return self.snapshot.items(layout.WINNER_PREFIX, start=first, end=last)

    def counts(self) -> tuple[int, int]:
        """Return the number of documents, and the number of deleted ones."""
        deleted = self.snapshot.count(layout.DELETED_PREFIX)
        return self.snapshot.count(layout.ROW_PREFIX) - deleted, deleted

    # --- rows ---

    def rows(self, after: Seq, until: Seq) -> Iterator[ChangeRow]:
        """Yield the rows in (after, until], oldest first; one round trip for each page."""
        return self.rows_between(layout.key_after(after), layout.key_after(until))

    def rows_between(self, start: bytes, end: bytes) -> Iterator[ChangeRow]:
        """Yield the rows whose keys are in [start, end), oldest first; one round trip a page."""
        items = self.snapshot.items(layout.ROW_PREFIX, start=start, end=end)
        return (layout.row_of(key, value) for key, value in items)

    def count_rows(self, after: Seq, until: Seq) -> int:
        """Return how many rows are in (after, until]."""
        start, end = layout.key_after(after), layout.key_after(until)
        return self.snapshot.count(layout.ROW_PREFIX, start=start, end=end)

    def rows_backwards(self, after: Seq, until: Seq) -> Iterator[ChangeRow]:
        """Yield the rows in (after, until], newest first.

        Engines list forwards only, so it reads window by window backwards. A window that has more
        than a few thousand rows is left after these and a shorter one tried, so that no part of the
        feed is read or counted that the caller does not need. One listing for each window.
        """
        width = SECOND
        while after < until:
            start = max(after, _back(until, width))
            most = WINDOW_ROWS_MAX + 1 if width > 1 else None
            first, end = layout.key_after(start), layout.key_after(until)
            found = self.snapshot.items(layout.ROW_PREFIX, start=first, end=end)
            items = list(islice(found, most))  # decoded as they are taken: often one is enough
            if most is not None and len(items) == most:
                width = max(1, width // WINDOW_GROWTH)
                continue
            yield from (layout.row_of(key, value) for key, value in reversed(items))
            if len(items) < WINDOW_ROWS_MIN:
                width *= WINDOW_GROWTH
            until = start

    def newest(self) -> Seq:
        """Return the sequence of the newest row; `START` without any row."""
        row = next(self.rows_backwards(START, self.end), None)
        return START if row is None else row.sequence


def bodies_of(snapshot: Snapshot[bytes], wanted: Sequence[tuple[str, Revision]]) -> Bodies:
    """Return the bodies of leaves at a moment; revisions without a body are left out."""
    entries = snapshot.entries_of([layout.body_key(id, rev) for id, rev in wanted])
    found = zip(wanted, entries, strict=True)
    return {name: entry.value for name, entry in found if entry is not None}


def tree_of(snapshot: Snapshot[bytes] | None, id: str, winner: Winner) -> Tree:
    """Return a document's tree at a moment; `snapshot` may be None for a single branch."""
    if winner.branches == 1:
        return Tree((winner.leaf,))
    assert snapshot is not None
    (items,) = snapshot.items_of([layout.leaves_range(id)])
    others = [layout.leaf_of(key, value) for key, value in items]
    tree = Tree.of([winner.leaf, *others])
    if len(tree.leaves) != winner.branches or tree.winner != winner.leaf:
        raise CorruptStoreError(
            f"document {id!r}: its winner and its {len(others)} other branches do not match"
        )
    return tree


def _back(until: Seq, width: int) -> Seq:
    """Return the place `width` earlier, or the end of the previous incarnation."""
    timestamp = until.stamp.version - width
    if timestamp >= 0:
        return Seq.behind(timestamp, until.incarnation)
    if until.incarnation == 0:
        return START
    return Seq.behind(2**64 - 1, until.incarnation - 1)


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
