"""A changes database beside its model, driven as a client and a replicator drive it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from store.engines import START_MS, Place

from cdcmeta import ChangesDB
from cdcmeta.errors import (
    DatabaseExistsError,
    DatabaseNotFoundError,
    DatabaseRelocatedError,
    DocumentNotFoundError,
    EditUnknownError,
    InvalidSequenceError,
)
from snapkv import CommitTimeoutError, ManualClock, SnapshotKV

from .losing import CUT, SETTLED, Losing
from .plain_changes import Plain, Revisions

FATES = ("fine", "fine", "fine", *SETTLED, *CUT)
GIVE_UP_S = 0.02
"""How long an edit waits that will not learn what became of it."""


@dataclass
class Home:
    """A store that databases live in, with its engine, which loses what it is told to."""

    store: SnapshotKV
    engine: Losing
    clock: ManualClock

    @classmethod
    def at(cls, place: Place, engines: list, name: str, skew_ms: int = 0) -> Home:
        """Open a store; `engines` is the list that `wrap_engines` returned, for `Losing`."""
        clock = ManualClock(START_MS + skew_ms)
        store = place.open(clock=clock, name=name)
        return cls(store, engines[-1], clock)


class Replica:
    """A database with its model; it may move from home to home."""

    def __init__(self, name: str, homes: list[Home], at: int, revisions: Revisions) -> None:
        self.homes, self.at, self.revisions = homes, at, revisions
        self.db = ChangesDB(homes[at].store, name).create(revs_limit=1_000)
        self.plain = Plain(revisions, 1_000)
        self.handed: list = []  # every sequence that was told, with how many edits it stands for
        self.past: list = []  # (handle, timestamp, what the feed showed then)
        self._left: dict[int, str] = {}  # homes it moved away from, and which database that was
        self._looks = 0

    # --- edits ---

    def settled(self, fate: str, edit):
        """Return what `edit(timeout)` came to, for a client that asks and tries again."""
        engine = self.homes[self.at].engine
        engine.plan = [fate]
        try:
            return edit(GIVE_UP_S if fate in CUT else None)
        except EditUnknownError as e:
            engine.cut = False
            found = self.db.resolve(e)
        except CommitTimeoutError:  # nothing was sent in time: also an answer
            found = None
        finally:
            engine.plan, engine.cut = [], False
        return edit(None) if found is None else found

    def put(self, id: str, base: str | None, deleted: bool, n: int, fate: str) -> str:
        """Edit a document; return the revision, or raise `DocumentConflictError`."""
        doc = {"_id": id, "n": n} | ({"_deleted": True} if deleted else {})
        (edited,) = self.settled(fate, lambda t: [self.db.put(doc, rev=base, timeout=t)])
        self.plain.edit(id, base, edited.rev, deleted, n)
        self.handed.append((edited.seq, self.plain.edits))
        return edited.rev

    def replicate(self, docs: list[dict], fate: str) -> None:
        """Take documents in, with their histories."""
        edits = self.settled(fate, lambda t: self.db.replicate(docs, timeout=t))
        told = []
        for doc, edited in zip(docs, edits, strict=True):
            start, hashes = doc["_revisions"]["start"], doc["_revisions"]["ids"]
            path = [f"{start - at}-{hash}" for at, hash in enumerate(hashes)]
            new = self.plain.replicate(doc["_id"], path, doc.get("_deleted", False), doc["n"])
            assert edited.rev == path[0]
            assert (edited.seq is not None) == new
            if new:
                told.append(edited)
        order = self.plain.feed()
        for edited in told:  # of several revisions of one document the last one has the row
            rest = order[order.index(edited.id) + 1 :]
            self.handed.append((edited.seq, self.plain.edits_before(rest)))

    # --- its life ---

    def relocate(self, to: int | None) -> None:
        """Move to another home, or with None to the next incarnation here."""
        before = self.db.info()
        if to is None:
            self.db.relocate()
        elif to == self.at or self._left.get(to, before.uuid) != before.uuid:
            with pytest.raises(DatabaseExistsError):
                self.db.relocate(self.homes[to].store)
            return
        else:
            there = self.db.relocate(self.homes[to].store)
            for edit in (self.db.put, lambda doc: self.db.local.put("l", doc)):
                with pytest.raises(DatabaseRelocatedError):
                    edit({"n": 0})
            self._left[self.at] = before.uuid
            self.db, self.at = there, to
            self._left.pop(to, None)
        after = self.db.info()
        assert after.incarnation == before.incarnation + 1
        assert (after.uuid, after.update_seq) == (before.uuid, before.update_seq)
        self.mark()

    def recreate(self, limit: int) -> None:
        """Delete it and make another of its name: its past stays, its sequences mean nothing."""
        self.db.delete()
        with pytest.raises(DatabaseNotFoundError):
            self.db.changes()
        self.db.create(revs_limit=limit)
        for seq, _ in self.handed[-3:]:
            if seq.incarnation:
                with pytest.raises(InvalidSequenceError):
                    self.db.changes(since=seq)
            else:
                assert self.db.changes(since=seq).rows == ()
        self.plain, self.handed = Plain(self.revisions, limit), []

    def limit(self, limit: int) -> None:
        self.db.set_revs_limit(limit)
        self.plain.limit = limit

    def mark(self) -> None:
        """Hand out the place behind everything, as followers and pages do."""
        self.handed.append((self.db.state().end, self.plain.edits))

    # --- what it shows ---

    def check_suffixes(self) -> None:
        """From every sequence that was handed out the feed has what came after it, no more."""
        feed = self.plain.feed()
        for seq, number in self.handed:
            assert ids(self.db.changes(since=seq)) == self.plain.feed(number)
        if not self.handed:
            return
        self._looks += 1
        seq, number = self.handed[self._looks % len(self.handed)]
        rest, limit = self.plain.feed(number), self._looks % 3
        page = self.db.changes(since=str(seq), limit=limit)
        assert (ids(page), page.pending) == (rest[:limit], max(0, len(rest) - limit))
        assert ids(self.db.changes(since=page.last_seq)) == rest[limit:]
        back = self.db.changes(since=seq, limit=limit, descending=True)
        assert ids(back) == rest[::-1][:limit]
        assert ids(self.db.changes(until=seq)) == feed[: len(feed) - len(rest)]

    def check(self) -> None:
        """Everything of now; and keep it, to be looked at again as the past."""
        page = self.db.changes(style="all_docs", include_docs=True)
        expected = self.plain.rows()
        assert shown(page) == expected
        back = self.db.changes(descending=True).rows
        assert [row.seq for row in back] == [row.seq for row in page.rows][::-1]
        for id, *_ in expected:
            self.check_document(id)
        info = self.db.info()
        assert info.deleted_count == sum(deleted for _, _, deleted, _ in expected)
        assert info.doc_count == len(expected) - info.deleted_count
        assert info.revs_limit == self.plain.limit
        if page.rows:
            assert info.update_seq == page.rows[-1].seq
            self.past.append((self.db, self.db.store.resolved(), expected))

    def check_past(self) -> None:
        for db, timestamp, expected in self.past:
            page = db.changes(as_of=timestamp, style="all_docs", include_docs=True)
            assert shown(page) == expected

    def check_document(self, id: str) -> None:
        leaves = self.plain.leaves(id)
        for doc in self.db.open_revs(id):
            assert doc["n"] == self.revisions.n(doc["_rev"])
            path = self.plain.path(id, doc["_rev"])
            assert doc["_revisions"]["ids"] == [rev.partition("-")[2] for rev in path]
        try:
            doc = self.db.get(id, conflicts=True)
        except DocumentNotFoundError:
            assert not self.plain.alive(id)
            return
        assert doc["_rev"] == leaves[0]
        live = [leaf for leaf in leaves[1:] if not self.revisions.deleted(leaf)]
        assert doc.get("_conflicts", []) == live


def ids(page) -> list[str]:
    return [row.id for row in page.rows]


def shown(page) -> list[tuple[str, tuple[str, ...], bool, int]]:
    """Return a page's rows as `Plain.rows` tells them."""
    return [(row.id, row.revs, row.deleted, row.doc["n"]) for row in page.rows]
