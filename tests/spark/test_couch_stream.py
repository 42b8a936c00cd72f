"""A stream of a feed brings each document's last change, and no change twice."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from feeds import DATABASE, Editing, FeedQuery, rows_of
from store.engines import ENGINES, Place, write_raw
from stream_queries import Checkpoint, needs_limits, refused_by

from cdcmeta import ChangesDB
from cdcmeta.changes import Sequence
from cdcmeta.spark import feed_tasks
from snapkv import to_datetime
from snapkv.engine.contract import Delete
from snapkv.spark.errors import SourceError
from snapkv.spark.micro_batches import LIMITS_KNOWN

pytestmark = pytest.mark.slow

STEPS = 50


@pytest.fixture
def db(store):
    return ChangesDB(store, DATABASE).create()


def ids(rows) -> list[str]:
    return [row[1] for row in rows]


def refused(code: str, call) -> str:
    with pytest.raises(SourceError) as caught:
        call()
    assert caught.value.code == code, caught.value
    return str(caught.value)


# --- random lives ---


class Life:
    """A query whose drivers die at random, beside a writer, and compaction of what is behind."""

    def __init__(self, place, store, clock, seed: int, passes_start: bool) -> None:
        self.rng = random.Random(seed)
        self.place, self.passes_start = place, passes_start
        self.editing = Editing(store, clock, self.rng)
        self.checkpoint = Checkpoint()
        self.prefix = self.rng.choice(("", "", "a"))
        self.limit: int | None = None
        self.editing.steps(5)
        self.live()

    def live(self) -> None:
        """Let a driver die, and another one begin, with another limit."""
        limited = self.passes_start and LIMITS_KNOWN
        self.limit = self.rng.choice((None, 1, 3)) if limited else None
        limit = {} if self.limit is None else {"maxRowsPerTrigger": self.limit}
        form = {"style": "all_docs", "prefix": self.prefix, **limit}
        self.query = FeedQuery(
            self.place.url, self.checkpoint, passes_start=self.passes_start, **form
        )

    def go_on(self) -> None:
        """Do what comes next in a driver's life."""
        done = self.checkpoint
        if len(done.offsets) == done.done:
            self.query.log()
        elif len(done.batches) == done.done or self.rng.random() < 0.3:
            rows = [row for task in self.query.run() for row in task]
            if self.limit is not None and len(done.batches) == 1 + done.done:
                assert len(rows) <= self.limit or len({_commit(row) for row in rows}) == 1
        else:
            self.query.commit()

    def relocate(self) -> None:
        self.editing.db.relocate()

    def compact(self) -> None:
        """Forget all but the present, unless a batch is under way."""
        engine = self.place.engine()
        head = self.editing.store.at().revision
        idle = len(self.checkpoint.offsets) == self.checkpoint.done
        if idle and head > engine.compacted_revision():
            engine.compact(head)


def _commit(row: tuple) -> tuple[int, int]:
    seq = Sequence.parse(row[0])
    return seq.incarnation, seq.timestamp


@pytest.mark.long_on("etcd")
@pytest.mark.long_after(2)
@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
@pytest.mark.parametrize("seed", range(3))
def test_every_change_once(place, store, clock, monkeypatch, seed, passes_start):
    monkeypatch.setattr(feed_tasks, "PIECE_ROWS", 1)
    life = Life(place, store, clock, seed, passes_start)
    for _ in range(STEPS):
        life.rng.choices(
            (life.go_on, life.editing.step, life.live, life.compact, life.relocate),
            (12, 5, 2, 1, 1),
        )[0]()
    life.live()
    life.query.drained()
    rows = life.checkpoint.rows()
    seqs = [row[0] for row in rows]
    assert all(one < other for one, other in pairwise(seqs)), "in order, and none twice"
    assert all(row in life.editing.told for row in rows), "each as it stood at some time"
    newest = {row[1]: row for row in rows}
    feed = life.editing.db.changes(style="all_docs", include_docs=True, prefix=life.prefix).rows
    assert sorted(newest.values()) == rows_of(feed), "the last of each document is the feed"
    told = [{_commit(row) for task in batch for row in task} for batch in life.checkpoint.batches]
    commits = [commit for batch in told for commit in batch]
    assert len(commits) == len(set(commits)), "a commit comes in one batch"


def test_one_that_keeps_pace_brings_every_edit(place, store, clock):
    editing = Editing(store, clock, random.Random(1))
    query = FeedQuery(place.url, style="all_docs")
    for _ in range(30):
        editing.step()
        query.drained()
    assert query.checkpoint.rows() == editing.told


# --- batches ---


def test_a_document_that_changed_twice_comes_once(place, db):
    query = FeedQuery(place.url)
    assert query.drained() == []
    rev = db.put({"_id": "a"}).rev
    db.put({"_id": "b"})
    last = db.put({"_id": "a", "n": 2}, rev=rev)
    assert [(row[1], row[2]) for row in query.drained()][1:] == [("a", last.rev)]
    db.remove("a", last.rev)
    (row,) = query.drained()
    assert (row[1], row[4]) == ("a", True)


def test_a_batch_is_read_again_as_it_was(place, db):
    query = FeedQuery(place.url)
    assert query.drained() == []
    rev = db.put({"_id": "a"}).rev
    query.log()
    rows = query.run()
    db.put({"_id": "a", "n": 2}, rev=rev)
    db.put({"_id": "b"})
    again = FeedQuery(place.url, query.checkpoint)
    assert again.run() == rows
    again.commit()
    assert ids(again.drained()) == ["a", "b"]


def test_commits_elsewhere_bring_no_batch(place, store, db):
    query = FeedQuery(place.url)
    db.put({"_id": "a"})
    assert ids(query.drained()) == ["a"]
    store.tick()
    store.save("k", b"1")
    ChangesDB(store, "other").create().put({"_id": "x"})
    db.local.put("checkpoint", {"n": 1})
    assert query.log() is False
    place.engine().compact(store.at().revision)
    assert FeedQuery(place.url, query.checkpoint).log() is False


@needs_limits
def test_limits_split_no_commit(place, db):
    for size in (2, 1, 1, 5, 1):
        db.bulk([{} for _ in range(size)])
    query = FeedQuery(place.url, maxRowsPerTrigger=3)
    sizes = [sum(map(len, batch)) for batch in query.batches()]
    assert sizes == [0, 3, 1, 5, 1]
    assert [row[0] for row in query.checkpoint.rows()] == [str(c.seq) for c in db.changes().rows]


@needs_limits
def test_limits_count_what_is_shown(place, db):
    for n in range(6):
        db.bulk([{"_id": f"a{n}"}, {"_id": f"b{n}"}])
    query = FeedQuery(place.url, maxRowsPerTrigger=2, prefix="a")
    assert [ids(row for task in batch for row in task) for batch in query.batches()] == [
        [],
        ["a0", "a1"],
        ["a2", "a3"],
        ["a4", "a5"],
    ]


@needs_limits
def test_available_now_ends_with_what_was_there(place, db):
    revs = {id: db.put({"_id": id}).rev for id in "abc"}
    query = FeedQuery(place.url, maxRowsPerTrigger=1)
    query.reader.prepareForTriggerAvailableNow()
    brought = []
    for batch in query.batches():
        brought += ids(row for task in batch for row in task)
        if brought == ["a"]:
            db.put({"_id": "b", "n": 2}, rev=revs["b"])
            db.put({"_id": "d"})
    assert brought == ["a", "b", "c"]
    assert ids(FeedQuery(place.url, query.checkpoint).available_now()) == ["b", "d"]


# --- where it starts ---


def test_starts(place, clock, db):
    seqs = []
    for n in range(4):
        seqs.append(db.put({"_id": str(n)}).seq)
        clock.advance(1_000)
    for since, expected in (
        (None, "0123"),
        ("0", "0123"),
        (str(seqs[0]), "123"),
        (to_datetime(seqs[1].timestamp).isoformat(), "23"),
        (seqs[2].timestamp, "3"),
        ("now", ""),
        ("latest", ""),
    ):
        given = {} if since is None else {"since": since}
        assert "".join(ids(FeedQuery(place.url, **given).drained())) == expected, since


def test_the_start_is_in_the_log_before_anything_else(place, db):
    db.put({"_id": "before"})
    query = FeedQuery(place.url, since="now")
    first = query.initial()
    db.put({"_id": "after"})
    assert query.initial() == first, "Spark asks twice"
    assert query.log()
    died = FeedQuery(place.url, query.checkpoint, since="now")
    assert died.run() == []
    died.commit()
    assert ids(died.drained()) == ["after"]


def test_starts_that_are_to_come(place, db):
    ahead = Sequence.behind(1 << 62, 0)
    for since in (str(ahead), "2100-01-01T00:00:00Z"):
        query = FeedQuery(place.url, since=since)
        assert "in the future" in refused("CDCMETA_INVALID_SEQUENCE", query.initial)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("name", ["until", "timestampAsOf", "versionAsOf"])
def test_options_of_batches(place, db, name):
    value = {"until": "now", "timestampAsOf": "-0s", "versionAsOf": 3}[name]
    assert name in refused_by("INVALID_OPTION", lambda: FeedQuery(place.url, **{name: value}))


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_checkpoints_that_are_none(place, db):
    good = json.loads(FeedQuery(place.url).initial())
    snapkvs = {name: value for name, value in good.items() if name not in ("database", "seq")}
    bad = [{}, {"v": 2}, snapkvs | {"snapshot": False, "after": None}]
    bad += [good | change for change in ({"seq": "14"}, {"seq": 1}, {"database": "x"}, {"ts": -1})]
    reader = FeedQuery(place.url).reader
    for offset in bad:
        refused("SNAPKV_CHECKPOINT_INVALID", lambda o=offset: reader.latestOffset(o))
        refused("SNAPKV_CHECKPOINT_INVALID", lambda o=offset: reader.partitions(o, good))


# --- what may happen to a database ---


def test_compaction_takes_nothing_from_what_is_to_come(place, store, db):
    query = FeedQuery(place.url)
    rev = db.put({"_id": "a"}).rev
    assert ids(query.drained()) == ["a"]
    db.put({"_id": "a", "n": 2}, rev=rev)
    db.put({"_id": "b"})
    store.tick()
    place.engine().compact(store.at().revision)
    assert ids(FeedQuery(place.url, query.checkpoint).drained()) == ["a", "b"]


def test_compaction_of_a_batch_that_was_begun(place, store, db):
    query = FeedQuery(place.url)
    query.drained()
    rev = db.put({"_id": "a"}).rev
    db.put({"_id": "b"})
    query.log()
    last = db.put({"_id": "a", "n": 2}, rev=rev).rev
    place.engine().compact(store.at().revision)
    again = FeedQuery(place.url, query.checkpoint)
    assert "failOnDataLoss=false" in refused("SNAPKV_VERSION_COMPACTED", again.run)
    again = FeedQuery(place.url, query.checkpoint, failOnDataLoss=False)
    assert [ids(task) for task in again.run()] == [["b"]]
    again.commit()
    assert [(row[1], row[2]) for row in again.drained()] == [("a", last)]


@pytest.mark.parametrize("logged", [False, True])
def test_a_database_that_is_deleted_and_recreated(place, store, db, logged):
    query = FeedQuery(place.url)
    db.put({"_id": "a"})
    query.drained()
    db.put({"_id": "b"})
    if logged:
        query.log()
    db.delete()
    if logged:  # the batch shows what was there
        assert [ids(task) for task in query.run()] == [["b"]]
        query.commit()
    refused("CDCMETA_DATABASE_NOT_FOUND", query.log)
    refused("CDCMETA_DATABASE_NOT_FOUND", lambda: FeedQuery(place.url, query.checkpoint))
    ChangesDB(store, DATABASE).create().put({"_id": "c"})
    for each in (query, FeedQuery(place.url, query.checkpoint)):
        assert "new checkpoint" in refused("CDCMETA_DATABASE_MISMATCH", each.log)
    before_4_2 = FeedQuery(place.url, query.checkpoint, passes_start=False)
    assert before_4_2.log()
    refused("CDCMETA_DATABASE_MISMATCH", before_4_2.run)
    assert ids(FeedQuery(place.url).drained()) == ["c"]


def test_a_database_that_is_moved(place, store, clock, db, tmp_path):
    query = FeedQuery(place.url)
    db.put({"_id": "a"})
    last = db.put({"_id": "b"}).seq
    assert ids(query.drained()) == ["a", "b"]
    with Place(replace(ENGINES["lmdb"], options={}), tmp_path) as other:
        moved = db.relocate(other.open(clock=clock))
        moved.put({"_id": "c"})
        refused("CDCMETA_DATABASE_RELOCATED", query.log)
        refused("SNAPKV_STORE_MISMATCH", FeedQuery(other.url, query.checkpoint).log)
        assert ids(FeedQuery(other.url, since=str(last)).drained()) == ["c"]


def test_a_new_incarnation_goes_on(place, db):
    query = FeedQuery(place.url)
    rev = db.put({"_id": "a"}).rev
    assert ids(query.drained()) == ["a"]
    db.relocate()
    assert query.log() is False
    db.put({"_id": "b"})
    db.put({"_id": "a"}, rev=rev)
    assert ids(FeedQuery(place.url, query.checkpoint).drained()) == ["b", "a"]


def test_another_store(place, store, clock, db):
    query = FeedQuery(place.url)
    db.put({"_id": "a"})
    query.drained()
    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    again = ChangesDB(place.open(clock=clock), DATABASE).create()
    again.put({"_id": "b"})
    for each in (query, FeedQuery(place.url, query.checkpoint)):
        refused("SNAPKV_STORE_MISMATCH", each.log)
