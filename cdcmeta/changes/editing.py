"""Plans edits: computes the operations of the one commit that stores them.

Pure: the caller reads the documents before (`known`), one key each, and the other leaves of those
with several branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from cdcmeta.changes import layout
from cdcmeta.changes.documents import Edit, Edited, edited
from cdcmeta.changes.layout import Database
from cdcmeta.changes.revisions import Revision, Tree
from cdcmeta.changes.sequence import Sequence
from cdcmeta.errors import CDCMetaError, DocumentConflictError
from snapkv import Absent, AtRevision, Commit, SpaceOps, Stamp
from snapkv.model import Guard
from snapkv.tuples import Versionstamp


@dataclass(frozen=True, slots=True)
class Known:
    """A document as it was read; `revision` is that of its winner's key."""

    key: bytes
    tree: Tree | None = None
    sequence: Sequence | None = None
    revision: int = 0

    def guard(self) -> Guard:
        """Return the guard of an edit: the document is unchanged."""
        return AtRevision(self.key, self.revision) if self.revision else Absent(self.key)


class Outcome(NamedTuple):
    """The planned result of an edit: its revision, whether it is written, or its error."""

    id: str
    rev: str | None = None
    written: bool = False
    error: CDCMetaError | None = None


class Beside(NamedTuple):
    """The note of the commit of some edits; and a local document of it, with its guard."""

    note: str
    puts: Mapping[bytes, bytes] = MappingProxyType({})
    guards: tuple[Guard, ...] = ()


@dataclass(slots=True)
class Plan:
    """A planned commit: the documents that change, and the result of each edit.

    `trees` has the documents that change, in the order of their rows; `outcomes` has an entry for
    each edit.
    """

    database: Database
    known: Mapping[str, Known]
    trees: dict[str, Tree] = field(default_factory=dict)
    bodies: dict[str, dict[Revision, bytes]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def guards(self) -> list[Guard]:
        """Return the guards of the documents that change."""
        return [self.known[id].guard() for id in self.trees]

    def ops(self, stamp: Stamp, guards: Iterable[Guard]) -> SpaceOps:
        """Return the operations of the commit with this stamp.

        They add one row to the index for each document, and remove its previous row.
        """
        puts: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        for id, sequence in self._sequences(stamp.ts, stamp.batch).items():
            before, after = self.known[id], self.trees[id]
            old: dict[bytes, bytes | None] = {}
            if before.tree is not None and before.sequence is not None:
                old = layout.keys_before(before.key, id, before.tree, before.sequence)
            more, gone = layout.changed_keys(old, layout.stored(before.key, id, after, sequence))
            puts |= more
            deletes += gone
            for leaf in after.leaves:
                if (body := self.bodies[id].get(leaf.revision)) is not None:
                    puts[layout.body_key(id, leaf.revision)] = body
            deletes += [
                layout.body_key(id, leaf.revision)
                for leaf in (before.tree.leaves if before.tree is not None else ())
                if after.leaf(leaf.revision) is None
            ]
        return SpaceOps(puts, deletes, (), guards)

    def results(self, commit: Commit | None) -> list[Edited]:
        """Return the result of each edit; `commit` is None if nothing was written."""
        return self.results_at(0, 0) if commit is None else self.results_at(commit.ts, commit.batch)

    def results_at(self, ts: int, batch: int) -> list[Edited]:
        """Return the result of each edit in the commit with this timestamp and batch."""
        sequences = self._sequences(ts, batch)
        return [
            Edited(each.id, each.rev, sequences[each.id] if each.written else None, each.error)
            for each in self.outcomes
        ]

    def _sequences(self, ts: int, batch: int) -> dict[str, Sequence]:
        incarnation = self.database.incarnation
        return {
            id: Sequence(incarnation, Versionstamp(ts, batch, user))
            for user, id in enumerate(self.trees)
        }


def planned(edits: Iterable[Edit | Edited], known: Mapping[str, Known], database: Database) -> Plan:
    """Return the plan of some edits; results of edits that failed before keep their places.

    Edits of one document are applied one after the other. Its row has the place of the last one.
    """
    plan = Plan(database, known)
    for edit in edits:
        if isinstance(edit, Edited):
            plan.outcomes.append(Outcome(edit.id, error=edit.error))
            continue
        before = plan.trees.get(edit.id, known[edit.id].tree)
        is_there = before is not None and before.winner.not_deleted
        if edit.replaces and edit.deleted and not is_there:
            plan.outcomes.append(Outcome(edit.id))
            continue
        try:
            after, rev = edited(before, edit, database.revs_limit)
        except DocumentConflictError as e:
            plan.outcomes.append(Outcome(edit.id, error=e))
            continue
        plan.outcomes.append(Outcome(edit.id, str(rev), after is not before))
        if after is not before:
            plan.trees.pop(edit.id, None)
            plan.trees[edit.id] = after
            plan.bodies.setdefault(edit.id, {})[rev] = edit.body
    return plan
