"""What edits and pages cost: the RFC's promises on the index, and round trips."""

import itertools
from collections import Counter

import pytest
from store.wrapping import Counting, Wrapped, wrap_engines

from cdcmeta import ChangesDB
from cdcmeta.changes import database_layout as layout
from snapkv.engine.contract import Delete, Put, Range, Txn
from snapkv.tuples import unpack

from .revs import replicated, rev


class Watching(Wrapped):
    """Tells which keys of a database are read, put and removed, by their kind."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.seen: Counter[tuple[str, str]] = Counter()

    def read(self, ranges, **options):
        for each in ranges:
            self._note("read", each.key)
        return self.inner.read(ranges, **options)

    def scan(self, key, range_end, **options):
        self._note("read", key)
        return self.inner.scan(key, range_end, **options)

    def transact(self, prepare, peek, **options):
        def noted(peeked):
            txn = prepare(peeked)
            self._walk(txn)
            return txn

        return self.inner.transact(noted, peek, **options)

    def _walk(self, txn) -> None:
        for op in (*txn.success, *txn.failure):
            if isinstance(op, Txn):
                self._walk(op)
            elif not isinstance(op, Range):
                self._note("insert" if isinstance(op, Put) else "clear", op.key)
                assert not (isinstance(op, Delete) and op.range_end), "key by key"

    def _note(self, what: str, key: bytes) -> None:
        _, mark, own = key.partition(b"/space/changes%2Fdb/")
        if mark:
            self.seen[what, unpack(own)[0] if own else "all"] += 1


@pytest.fixture
def watched(place, clock, monkeypatch):
    engines = wrap_engines(monkeypatch, Watching)
    db = ChangesDB(place.open(clock=clock), "db").create()
    db.put({"_id": "warm"})  # the first edit reads the database's record, too
    return db, engines[-1]


def during(watched, work):
    db, engine = watched
    engine.seen.clear()
    work(db)
    return dict(engine.seen)


def of_index(seen) -> dict[str, int]:
    return {what: n for (what, kind), n in seen.items() if kind == layout.ROWS}


def test_insert(watched):
    seen = during(watched, lambda db: db.put({"_id": "a"}))
    assert of_index(seen) == {"insert": 1}
    assert seen["read", "revisions"] == 1, "the winner"


def test_update(watched):
    first = watched[0].put({"_id": "a"})
    seen = during(watched, lambda db: db.put({"_id": "a", "x": 1}, rev=first.rev))
    assert of_index(seen) == {"clear": 1, "insert": 1}
    assert seen["read", "revisions"] == 1


def test_delete(watched):
    first = watched[0].put({"_id": "a"})
    seen = during(watched, lambda db: db.remove("a", first.rev))
    assert of_index(seen) == {"clear": 1, "insert": 1}


def test_a_losing_branch_of_two(watched):
    watched[0].replicate([replicated("a", "fa"), replicated("a", "ba")])
    seen = during(watched, lambda db: db.put({"_id": "a"}, rev=rev(2, "b")))
    assert of_index(seen) == {"clear": 1, "insert": 1}


def test_a_bulk_of_inserts_and_updates(watched):
    first = watched[0].bulk([{"_id": f"old{n}"} for n in range(10)])
    docs = [{"_id": each.id, "_rev": each.rev, "x": 1} for each in first]
    docs += [{"_id": f"new{n}"} for n in range(7)]
    seen = during(watched, lambda db: db.bulk(docs))
    assert of_index(seen) == {"clear": 10, "insert": 17}
    assert seen["read", "revisions"] == 17


def test_a_replicated_revision_that_is_known(watched):
    watched[0].replicate([replicated("a", "ba")])
    seen = during(watched, lambda db: db.replicate([replicated("a", "a")]))
    assert of_index(seen) == {}
    assert not any(what != "read" for what, _ in seen)


def test_a_conflict(watched):
    watched[0].put({"_id": "a"})
    seen = during(watched, lambda db: db.bulk([{"_id": "a"}]))
    assert of_index(seen) == {}


def test_all_docs_reads_revisions_of_several_branches_only(watched):
    db, _ = watched
    db.bulk([{"_id": f"d{n}"} for n in range(50)])
    db.replicate([replicated("x", "fa"), replicated("x", "ba"), replicated("y", "fa")])
    page = during(watched, lambda db: db.changes(style="all_docs"))
    assert page["read", "revisions"] == 1
    assert of_index(page) == {"read": 1}
    assert "revisions" not in {kind for _, kind in during(watched, lambda db: db.changes())}


# --- round trips ---


@pytest.fixture
def counted(place, clock, monkeypatch):
    engines = wrap_engines(monkeypatch, Counting)
    db = ChangesDB(place.open(clock=clock), "db").create()
    db.put({"_id": "warm"})  # the first edit reads the database's record, too
    return db, engines[-1]


def test_an_edit_is_one_read_and_one_transaction(counted):
    db, engine = counted
    fresh = itertools.count()
    first = engine.cheapest(lambda: db.put({"_id": f"b{next(fresh)}"}))
    assert first == {"read": 1, "transact": 1}
    revs = [db.put({"_id": "a"}).rev]
    again = engine.cheapest(lambda: revs.append(db.put({"_id": "a"}, rev=revs[-1]).rev))
    assert again == {"read": 1, "transact": 1}


def test_a_page_is_one_scan(counted):
    db, engine = counted
    db.bulk([{"_id": f"d{n}"} for n in range(100)])
    calls = engine.cheapest(lambda: db.changes())
    assert calls["scan"] == 1
    assert calls["read"] <= 2
    with_docs = engine.cheapest(lambda: db.changes(include_docs=True))
    assert with_docs["read"] == calls["read"] + 1


def test_a_bulk_is_one_transaction(counted):
    db, engine = counted
    fresh = itertools.count()
    calls = engine.cheapest(lambda: db.bulk([{"_id": f"d{next(fresh)}"} for _ in range(80)]))
    assert calls == {"read": 1, "transact": 1}
    calls = engine.cheapest(lambda: db.bulk([{"_id": f"e{next(fresh)}"} for _ in range(500)]))
    assert calls["transact"] == 1
    assert calls["read"] <= 6
