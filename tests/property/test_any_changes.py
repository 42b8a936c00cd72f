"""Any program of edits and replications gives the feed and the trees of a pure model."""

import random

import pytest
from changes.sound import assert_database_sound
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from store.engines import ENGINES, START_MS, Place

from cdcmeta import ChangesDB
from cdcmeta.errors import DocumentConflictError, DocumentNotFoundError
from snapkv import ManualClock

from .effort import EFFORT, SERVER_EFFORT

IDS = ("a", "b", "c", "_design/d")


class Plain:
    """Revision trees as whole trees: each revision with its parent, and what is a leaf of them."""

    def __init__(self) -> None:
        self.docs: dict[str, dict[str, tuple[str | None, bool, int]]] = {}
        self.feed: list[str] = []  # ids, in the order of their last edits
        self.past: list[tuple[int, list]] = []

    def leaves(self, id: str) -> list[str]:
        """Return leaves, the winner first."""
        tree = self.docs.get(id, {})
        parents = {parent for parent, _, _ in tree.values()}
        return sorted((rev for rev in tree if rev not in parents), key=lambda r: self.rank(id, r))

    def rank(self, id: str, rev: str):
        position, _, hash = rev.partition("-")
        return (self.docs[id][rev][1], -int(position), [-int(digit, 16) for digit in hash])

    def path(self, id: str, rev: str | None) -> list[str]:
        """Return a revision and its ancestors, newest first."""
        found = []
        while rev is not None:
            found.append(rev)
            rev = self.docs[id][rev][0]
        return found

    def add(self, id: str, path: list[str], deleted: bool, n: int) -> bool:
        """Take in a revision with its ancestors; return whether it was new."""
        tree = self.docs.setdefault(id, {})
        if path[0] in tree:
            return False
        for rev, parent in zip(path, [*path[1:], None], strict=True):
            tree.setdefault(rev, (parent, True, -1))
        tree[path[0]] = (path[1] if len(path) > 1 else None, deleted, n)
        if id in self.feed:
            self.feed.remove(id)
        self.feed.append(id)
        return True

    def rows(self) -> list[tuple[str, tuple[str, ...], bool, int]]:
        """Return what the feed shows: id, leaves, whether deleted, and the winner's body."""
        found = []
        for id in self.feed:
            leaves = self.leaves(id)
            _, deleted, n = self.docs[id][leaves[0]]
            found.append((id, tuple(leaves), deleted, n))
        return found


class Replica:
    """A database with its model."""

    def __init__(self, db: ChangesDB) -> None:
        self.db, self.plain = db, Plain()
        self.seen: dict[str, object] = {}  # how far it was replicated to others

    def took(self, edited, path: list[str], deleted: bool, n: int) -> None:
        new = self.plain.add(edited.id, path, deleted, n)
        assert (edited.seq is not None) == new

    def check(self) -> None:
        page = self.db.changes(style="all_docs", include_docs=True)
        rows = [(row.id, row.revs, row.deleted, row.doc["n"]) for row in page.rows]
        expected = self.plain.rows()
        assert rows == expected
        back = self.db.changes(descending=True).rows
        assert [row.seq for row in back] == [row.seq for row in page.rows][::-1]
        for at, row in enumerate(page.rows):
            rest = self.db.changes(since=row.seq)
            assert [each.id for each in rest.rows] == [id for id, *_ in expected[at + 1 :]]
        info = self.db.info()
        assert info.deleted_count == sum(deleted for _, _, deleted, _ in expected)
        assert info.doc_count == len(expected) - info.deleted_count
        if page.rows:
            assert info.update_seq == page.rows[-1].seq
            self.plain.past.append((page.rows[-1].seq.timestamp, expected))

    def check_past(self) -> None:
        for timestamp, expected in self.plain.past:
            page = self.db.changes(as_of=timestamp, style="all_docs", include_docs=True)
            rows = [(row.id, row.revs, row.deleted, row.doc["n"]) for row in page.rows]
            assert rows == expected


class Program(RuleBasedStateMachine):
    engine = "memory"

    @initialize(folder=st.just(None), seed=st.integers(0, 2**32 - 1))
    def begin(self, folder, seed):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.place = Place(ENGINES[self.engine], self.folder.name)
        self.clock = ManualClock(START_MS)
        self.rng = random.Random(seed)
        stores = [self.place.open(clock=self.clock, name=name) for name in ("one", "two")]
        self.replicas = [Replica(ChangesDB(store, "db").create()) for store in stores]
        self.number = 0

    def next(self) -> int:
        self.number += 1
        self.clock.advance(self.rng.choice([0, 0, 1, 1_000]))
        return self.number

    @rule(which=st.sampled_from([0, 1]), id=st.sampled_from(IDS), leaf=st.integers(0, 3))
    def edit(self, which, id, leaf):
        """Of a leaf, or of none; live or not: the rules say which succeed."""
        replica, n = self.replicas[which], self.next()
        leaves = replica.plain.leaves(id)
        base = leaves[leaf % len(leaves)] if leaves and leaf < 3 else None
        tree = replica.plain.docs.get(id, {})
        fits = (base is not None and not tree[base][1]) or (
            base is None and (not leaves or tree[leaves[0]][1])
        )
        parent = base or (leaves[0] if leaves else None)
        try:
            edited = replica.db.put({"_id": id, "n": n}, rev=base)
        except DocumentConflictError:
            assert not fits
            return
        assert fits
        replica.took(edited, [edited.rev, *replica.plain.path(id, parent)], False, n)

    @rule(which=st.sampled_from([0, 1]), id=st.sampled_from(IDS), leaf=st.integers(0, 2))
    def remove(self, which, id, leaf):
        replica, n = self.replicas[which], self.next()
        leaves = replica.plain.leaves(id)
        if not leaves:
            return
        base = leaves[leaf % len(leaves)]
        try:
            edited = replica.db.put({"_id": id, "n": n, "_deleted": True}, rev=base)
        except DocumentConflictError:
            assert replica.plain.docs[id][base][1]
            return
        replica.took(edited, [edited.rev, *replica.plain.path(id, base)], True, n)

    @rule(which=st.sampled_from([0, 1]), ids=st.lists(st.sampled_from(IDS), max_size=5))
    def bulk(self, which, ids):
        """Inserts and updates of winners together; the second edit of one is in conflict."""
        replica, n = self.replicas[which], self.next()
        heads = {id: (replica.plain.leaves(id) or [None])[0] for id in ids}
        found = replica.db.bulk([{"_id": id, "n": n, "_rev": heads[id]} for id in ids])
        for id, edited in zip(ids, found, strict=True):
            head = heads[id]
            stale = replica.plain.leaves(id)[:1] != ([head] if head else [])
            if stale or (head and replica.plain.docs[id][head][1]):
                assert isinstance(edited.error, DocumentConflictError)
                continue
            replica.took(edited, [edited.rev, *replica.plain.path(id, head)], False, n)

    @rule(
        which=st.sampled_from([0, 1]),
        id=st.sampled_from(IDS),
        cut=st.integers(0, 4),
        grow=st.integers(1, 3),
        deleted=st.booleans(),
    )
    def replicated_branch(self, which, id, cut, grow, deleted):
        """A branch from elsewhere: off some known revision, or off none."""
        replica, n = self.replicas[which], self.next()
        leaves = replica.plain.leaves(id)
        path = replica.plain.path(id, self.rng.choice(leaves))[cut:] if leaves else []
        for _ in range(grow):
            path.insert(0, f"{len(path) + 1}-{self.rng.getrandbits(128):032x}")
        doc = {
            "_id": id,
            "n": n,
            "_revisions": {"start": len(path), "ids": [rev.partition("-")[2] for rev in path]},
        }
        (edited,) = replica.db.replicate([doc | ({"_deleted": True} if deleted else {})])
        replica.took(edited, path, deleted, n)

    @rule(source=st.sampled_from([0, 1]), stop=st.integers(0, 6))
    def replicate(self, source, stop):
        """As a replicator does, and it may end after any document, before it took notes."""
        self.copy(self.replicas[source], self.replicas[1 - source], stop)

    def copy(self, source, target, stop=None):
        page = source.db.changes(since=source.seen.get("to", 0), style="all_docs")
        wanted = target.db.missing_revs({row.id: row.revs for row in page.rows})
        docs = [
            doc
            for id, missing in wanted.items()
            for doc in source.db.open_revs(id, missing.missing)
        ]
        assert not any(isinstance(doc, str) for doc in docs)
        for number, doc in enumerate(docs):
            if number == stop:
                return
            (edited,) = target.db.replicate([doc])
            ids = doc["_revisions"]["ids"]
            path = [f"{len(ids) - at}-{hash}" for at, hash in enumerate(ids)]
            target.took(edited, path, doc.get("_deleted", False), doc["n"])
        source.seen["to"] = str(page.last_seq)

    @rule(which=st.sampled_from([0, 1]))
    def relocate(self, which):
        self.clock.advance(1)
        self.replicas[which].db.relocate()

    @rule(which=st.sampled_from([0, 1]), id=st.sampled_from(IDS))
    def read(self, which, id):
        replica = self.replicas[which]
        leaves = replica.plain.leaves(id)
        try:
            doc = replica.db.get(id, conflicts=True, revisions=True)
        except DocumentNotFoundError:
            assert not leaves or replica.plain.docs[id][leaves[0]][1]
            return
        assert doc["_rev"] == leaves[0]
        path = replica.plain.path(id, leaves[0])
        assert doc["_revisions"]["ids"] == [rev.partition("-")[2] for rev in path]
        live = [leaf for leaf in leaves[1:] if not replica.plain.docs[id][leaf][1]]
        assert doc.get("_conflicts", []) == live

    @rule()
    def check(self):
        for replica in self.replicas:
            replica.check()

    def teardown(self):
        if not hasattr(self, "place"):
            return
        try:
            self.end()
        finally:
            self.place.__exit__()
            self.folder.cleanup()

    def end(self):
        """Replicated both ways without faults, both say the same of every document."""
        for replica in self.replicas:
            replica.check()
            replica.check_past()
        for _ in range(2):
            self.copy(*self.replicas)
            self.copy(*self.replicas[::-1])
        for replica in self.replicas:
            replica.check()
            assert_database_sound(replica.db)
        one, two = ({id: rest for id, *rest in each.plain.rows()} for each in self.replicas)
        note(f"{len(one)} documents")
        assert one == two


@pytest.mark.parametrize("engine", ENGINES)
def test_any_edits_and_replications_give_the_answers_of_the_model(engine):
    machine = type(f"Program_{engine}", (Program,), {"engine": engine})
    embedded = settings(EFFORT, max_examples=EFFORT.max_examples // 4)
    run_state_machine_as_test(machine, settings=embedded if ENGINES[engine].url else SERVER_EFFORT)
