"""Databases that cut histories, and changefeeds of them whose batches a test decides."""

from contextlib import closing

from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.database_source import DatabasesSource
from snapkv import CompactedError

NAME = "users"


class Copying:
    """A changefeed whose batches a test decides: what was committed since the last one."""

    def __init__(self, source, sink):
        self.source, self.sink, self.owner = source, sink, 0
        self.reached, self.writer = 1, None
        self.restart()

    def restart(self):
        """Let another assignment take the table over, which has seen the source only now."""
        if self.writer is not None:
            self.writer.close()
        self.owner += 1
        self.reads = DatabasesSource(self.source.store, [NAME])
        self.writer = self.sink(NAME, Token(self.owner, 1))
        self.writer.begin(self.reached)

    def batch(self):
        """Return the commits that are not copied, None if the source has compacted some of them."""
        found, now = [], self.source.store.resolved()
        try:
            with closing(self.reads.feed(self.reached if self.reached > 1 else 0)) as feed:
                while feed.timestamp < now:
                    parts = feed.next(0.01)
                    found += [] if parts is None else parts.values()
        except CompactedError:
            return None
        return found

    def run(self, *, is_killed=False):
        """Copy what is not copied, as one batch; a writer that is killed keeps no checkpoint."""
        batch, now = self.batch(), self.source.store.resolved()
        if batch is None:
            for page in self.reads.state(NAME, self.reached, now):
                self.writer.write([page], 0)
            batch = []
        self.writer.write(batch, 0 if is_killed else now)
        if not is_killed:
            self.reached = now


def living(db):
    """The winner of each document, and all leaves that are not deleted."""
    return {
        row.id: (
            None if row.deleted else row.rev,
            sorted(doc["_rev"] for doc in db.open_revs(row.id) if not doc.get("_deleted")),
        )
        for row in db.changes().rows
    }


def leaves(db):
    return {
        row.id: sorted(doc["_rev"] for doc in db.open_revs(row.id)) for row in db.changes().rows
    }


def edits(db, id, count, rev=None):
    """Make edits of a document one after the other; return the last revision."""
    for n in range(count):
        rev = db.put({"_id": id, "n": n}, rev).rev
    return rev


class Editing:
    """Random edits of a few documents: new ones, branches, removals; with `cuts` other limits."""

    def __init__(self, db, rng, *, cuts=True):
        self.db, self.rng, self.cuts = db, rng, cuts

    def edit(self):
        rng, db, id = self.rng, self.db, f"doc{self.rng.randrange(3)}"
        if self.cuts and rng.random() < 0.1:
            db.set_revs_limit(rng.choice([1, 2, 3, 1_000]))
        docs = db.open_revs(id) if db.changes(doc_ids=[id]).rows else []
        alive = [doc["_rev"] for doc in docs if not doc.get("_deleted")]
        if docs and rng.random() < 0.2:
            self.branch(rng.choice(docs))
        elif not alive:
            db.put({"_id": id, "n": rng.random()})
        elif rng.random() < 0.3:
            db.remove(id, rng.choice(alive))
        else:
            edits(db, id, rng.choice([1, 1, 2, 5]), rng.choice(alive))

    def branch(self, doc):
        """Add a branch that leaves another one at any of its known revisions."""
        path = doc["_revisions"]
        at = self.rng.randrange(len(path["ids"]))
        ids = [f"{self.rng.getrandbits(128):032x}", *path["ids"][at:]]
        there = {"start": path["start"] - at + 1, "ids": ids}
        self.db.replicate([{"_id": doc["_id"], "_revisions": there, "n": self.rng.random()}])


def compact(store, rng):
    """Compact to any moment that is left."""
    engine = store.reader.engine
    engine.compact(rng.randint(max(1, engine.compacted_revision()), store.at().revision))


def run_randomly(copying, rng, steps):
    """Make edits, and copy them after pauses, by writers that are killed, and after compactions."""
    editing = Editing(copying.source, rng)
    for _ in range(steps):
        for _ in range(rng.choice([1, 2, 8])):
            editing.edit()
        event = rng.random()
        if event < 0.1:
            compact(copying.source.store, rng)
        elif event < 0.2:
            copying.run(is_killed=True)
            copying.restart()
        elif event < 0.3:
            copying.restart()
        else:
            copying.run()
            yield
