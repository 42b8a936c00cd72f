"""Following: what was there, what comes, checkpoints, and how it ends."""

import threading

import pytest
from cases import cases
from store.engines import EMBEDDED

from cdcmeta import Change, ChangesDB, Checkpoint
from cdcmeta.errors import (
    DatabaseNotFoundError,
    DatabaseRelocatedError,
    InvalidArgumentError,
)

from .forgetting import forget
from .revs import replicated, rev

WAIT_S = 20


class Heard:
    """A follower in a thread; what it tells can be waited for."""

    def __init__(self, db, **options) -> None:
        self.items, self.error = [], None
        self._changed = threading.Condition()
        self._feed = db.follow(**options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for item in self._feed:
                with self._changed:
                    self.items.append(item)
                    self._changed.notify_all()
        except Exception as e:
            self.error = e
        with self._changed:
            self._changed.notify_all()

    def until(self, holds):
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self), WAIT_S), self.items
        return self

    @property
    def ids(self):
        return [item.id for item in self.items if isinstance(item, Change)]

    def ended(self):
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.error


def test_what_is_there_and_what_comes(db):
    first = db.bulk([{"_id": "a"}, {"_id": "b"}])
    heard = Heard(db, since=0, limit=4).until(lambda h: len(h.ids) == 2)
    db.put({"_id": "a", "x": 1}, rev=first[0].rev)
    last = db.put({"_id": "c"})
    assert heard.ended() is None
    assert heard.ids == ["a", "b", "a", "c"]
    changes = [item for item in heard.items if isinstance(item, Change)]
    assert [change.seq for change in changes] == sorted(change.seq for change in changes)
    assert changes[-1].seq == last.seq


def test_from_now_on(db):
    db.put({"_id": "old"})
    heard = Heard(db, limit=1)
    heard.until(lambda h: h.items)
    db.put({"_id": "new"})
    assert heard.ended() is None
    assert heard.ids == ["new"]


def test_every_place_resumes(db):
    for n in range(6):
        db.put({"_id": f"d{n}"})
    items = list(db.follow(since=0, idle_timeout=0))
    assert [item.id for item in items if isinstance(item, Change)] == [f"d{n}" for n in range(6)]
    for at, item in enumerate(items):
        rest = [each.id for each in items[at + 1 :] if isinstance(each, Change)]
        again = db.follow(since=str(item.seq), idle_timeout=0)
        assert [each.id for each in again if isinstance(each, Change)] == rest


def test_a_filter_that_matches_nothing_moves_the_checkpoint(db):
    heard = Heard(db, since=0, doc_ids=["nobody"])
    edited = db.put({"_id": "a"})
    heard.until(lambda h: h.items and h.items[-1].seq >= edited.seq)
    assert heard.ids == []
    (later,) = {type(item) for item in heard.items}
    assert later is Checkpoint
    assert list(db.follow(since=heard.items[-1].seq, idle_timeout=0))[:-1] == []


def test_commits_of_others_move_the_checkpoint(db):
    """Other databases' edits too: the place is one of the store's time."""
    other = ChangesDB(db.store, "other").create()
    heard = Heard(db, since="now", heartbeat=0.05)
    edited = other.put({"_id": "a"})
    db.put({"_id": "b"})
    heard.until(lambda h: h.ids == ["b"])
    heard.until(lambda h: h.items[-1].seq > edited.seq)


def test_heartbeats(db):
    feed = db.follow(heartbeat=0.01)
    assert all(isinstance(next(feed), Checkpoint) for _ in range(5))
    feed.close()


def test_idle_timeout(db):
    assert [type(item) for item in db.follow(idle_timeout=0.05)] == [Checkpoint]
    assert [type(item) for item in db.follow(idle_timeout=0.1, heartbeat=0.02)][:2] == [
        Checkpoint,
        Checkpoint,
    ]


def test_documents_and_leaves(db):
    heard = Heard(
        db, since=0, include_docs=True, conflicts=True, style="all_docs", selector={"n": {"$gt": 0}}
    )
    heard.until(lambda h: h.items)
    db.replicate([replicated("a", "fa", n=1), replicated("a", "ba", n=2)])
    db.replicate([replicated("b", "a", n=0)])
    db.put({"_id": "a", "n": 3}, rev=rev(2, "b"))
    heard.until(lambda h: len(h.ids) == 2)
    first, second = [item for item in heard.items if isinstance(item, Change)]
    assert first.revs == (rev(2, "f"), rev(2, "b"))
    assert (first.doc["n"], first.doc["_conflicts"]) == (1, [rev(2, "b")])
    assert second.doc["n"] == 3
    assert second.revs[1] == rev(2, "f")


def test_rows_of_one_commit_come_in_their_order(db):
    heard = Heard(db, limit=300)
    heard.until(lambda h: h.items)
    names = [f"d{n * 7919 % 300}" for n in range(300)]
    db.bulk([{"_id": name} for name in names])
    assert heard.ended() is None
    assert heard.ids == names


def test_a_database_that_is_deleted(db):
    db.put({"_id": "a"})
    heard = Heard(db, since=0).until(lambda h: h.ids)
    db.delete()
    assert isinstance(heard.ended(), DatabaseNotFoundError)
    with pytest.raises(DatabaseNotFoundError):
        db.follow()


def test_an_empty_database_that_is_deleted_and_recreated(db):
    heard = Heard(db, since=0).until(lambda h: h.items)
    db.delete()
    ChangesDB(db.store, "db").create()
    assert isinstance(heard.ended(), DatabaseNotFoundError)


def test_a_database_that_moves(db, place, clock):
    heard = Heard(db, since=0).until(lambda h: h.items)
    db.relocate(place.open(clock=clock, name="elsewhere"))
    assert isinstance(heard.ended(), DatabaseRelocatedError)


def test_a_place_that_compaction_took(db, clock):
    """Its rows are those of the present: what came between had rows of the same documents."""
    first = db.bulk([{"_id": name} for name in "abc"])
    since = db.changes().last_seq
    db.put({"_id": "a", "x": 1}, rev=first[0].rev)
    forget(db.store, clock)
    items = list(db.follow(since=since, idle_timeout=0))
    assert [item.id for item in items if isinstance(item, Change)] == ["a"]


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
def test_a_follower_that_compaction_overtook(db, clock):
    """It says so, and goes on from the state as it is; events of etcd wait in this process."""
    first = db.bulk([{"_id": name} for name in "abc"])
    follower = db.follower(since=0)
    told = [follower.next_within(WAIT_S) for _ in range(4)]
    assert [type(item) for item in told] == [Change] * 3 + [Checkpoint]
    second = db.put({"_id": "a", "x": 1}, rev=first[0].rev)
    db.put({"_id": "a", "x": 2}, rev=second.rev)
    db.remove("b", first[1].rev)
    forget(db.store, clock)
    rest = []
    while (item := follower.next_within(0.05)) is not None:
        rest.append(item)
    follower.close()
    assert rest[0] == Checkpoint(told[-1].seq, restarted=True)
    assert [(item.id, item.deleted) for item in rest if isinstance(item, Change)] == [
        ("a", False),
        ("b", True),
    ]
    assert not rest[-1].restarted


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
def test_compaction_while_it_catches_up(db, clock):
    """With documents, for which it reads at the revision it began with."""
    names = [f"d{n:03d}" for n in range(300)]
    first = db.bulk([{"_id": name} for name in names])
    follower = db.follower(since=0, include_docs=True)
    told = [follower.next_within(WAIT_S).id for _ in range(10)]
    db.put({"_id": "d200", "x": 1}, rev=first[200].rev)
    forget(db.store, clock)
    rest = []
    while (item := follower.next_within(0.05)) is not None:
        rest.append(item)
    follower.close()
    assert [item.restarted for item in rest if isinstance(item, Checkpoint)][:1] == [True]
    seen = told + [item.id for item in rest if isinstance(item, Change)]
    assert set(seen) == set(names)
    assert seen[-1] == "d200"


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)
def test_another_database_in_its_place_after_compaction(db, clock):
    db.put({"_id": "a"})
    follower = db.follower(since=0)
    assert follower.next_within(WAIT_S).id == "a"
    assert isinstance(follower.next_within(WAIT_S), Checkpoint)
    db.delete()
    ChangesDB(db.store, "db").create().put({"_id": "b"})
    forget(db.store, clock)
    with pytest.raises(DatabaseNotFoundError):
        follower.next_within(WAIT_S)


def test_a_time_to_come_is_now(db):
    """Or a place would be told that loses what happens until then."""
    db.put({"_id": "a"})
    items = []
    feed = db.follow(since="2099-01-01T00:00:00Z", heartbeat=0.01)
    items += [next(feed) for _ in range(2)]
    edited = db.put({"_id": "b"})
    while not isinstance(items[-1], Change):
        items.append(next(feed))
    feed.close()
    assert items[-1].seq == edited.seq
    assert all(item.seq < edited.seq for item in items[:-1])
    assert db.changes(since="2099-01-01T00:00:00Z").last_seq <= db.state().end


def test_heartbeats_while_a_filter_is_slow(db):
    db.bulk([{"_id": f"d{n:03d}"} for n in range(200)])
    reached = []

    def slow(change):
        threading.Event().wait(0.005)
        return False

    feed = db.follow(since=0, heartbeat=0.02, predicate=slow)
    reached = [next(feed).seq for _ in range(5)]
    feed.close()
    assert reached == sorted(set(reached)), "each tells how far it came"
    last = list(db.follow(since=0, idle_timeout=0.1, predicate=slow))[-1]
    assert last.seq > db.changes(limit=1).rows[0].seq, "and so does the last word"


def test_it_ends_with_the_store(db, place, clock):
    from snapkv.errors import StoreClosedError

    own = ChangesDB(place.open(clock=clock), "db")
    heard = Heard(own, since=0).until(lambda h: h.items)
    own.store.close()
    assert isinstance(heard.ended(), StoreClosedError)


@cases(
    "options",
    [
        {"heartbeat": 0},
        {"heartbeat": -1},
        {"idle_timeout": -1},
        {"idle_timeout": "1"},
        {"style": 1},
        {"limit": -1},
        {"limit": "1"},
    ],
)
def test_bad_arguments(db, options):
    with pytest.raises(InvalidArgumentError):
        db.follow(**options)
