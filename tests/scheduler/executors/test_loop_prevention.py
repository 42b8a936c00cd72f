"""Changefeeds that point at each other come to rest, and deliver each change once everywhere."""

import random
from contextlib import suppress
from functools import partial

import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.errors import DocumentConflictError
from cdcmeta.scheduler import Token
from cdcmeta.scheduler.executors.database_sinks import DatabaseWriter
from cdcmeta.scheduler.executors.database_source import DatabasesSource
from cdcmeta.scheduler.executors.loop_prevention import ROUTE, place_of
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource
from cdcmeta.scheduler.executors.recorded_sink import recorded_sink
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter
from snapkv import Change, Changes, Commit
from snapkv.model import Meta

from .cutting import NAME, Editing, leaves, living
from .driving import Driven
from .sources import content

TABLE = "t/"
PASSES_MAX = 20
"""The most times that all changefeeds catch up before they have to rest."""


class Linked:
    """Stores, named by letters, and changefeeds between them."""

    def __init__(self, *links, databases=False):
        self.stores = {name: snapkv.open("memory:") for name in sorted(set("".join(links)))}
        self.databases, self.driven = databases, {}
        for store in self.stores.values():
            if databases:
                ChangesDB(store, NAME).create(revs_limit=2)
            store.save("other", b"")
        for link in links:
            self.link(*link)

    def link(self, source, target, sink=None, start=None):
        """Create a changefeed from one store to another, from now or a timestamp on."""
        read, tables = self.stores[source], [NAME] if self.databases else [TABLE]
        kind = DatabaseWriter if self.databases else StoreTableWriter
        if sink is None:
            sink = partial(kind, self.stores[target], source + target, source=place_of(read))
        reads = DatabasesSource(read, tables) if self.databases else read
        driven = Driven(reads, sink, tables)
        driven.start(read.resolved() if start is None else start)
        self.driven[source, target] = driven

    def rest(self):
        """Wait until no changefeed writes any more."""
        for _ in range(PASSES_MAX):
            before = {name: store.resolved() for name, store in self.stores.items()}
            for (source, _), driven in self.driven.items():
                driven.reach(before[source])
            if before == {name: store.resolved() for name, store in self.stores.items()}:
                return
        raise AssertionError(f"they still write after {PASSES_MAX} passes")

    def values(self, key="t/k"):
        return {name: store.load(key) for name, store in self.stores.items()}

    def written(self, key="t/k"):
        """How often a key was written in each store."""
        return {name: len(list(store.history(key))) for name, store in self.stores.items()}

    def close(self):
        for driven in self.driven.values():
            driven.close()
        for store in self.stores.values():
            store.close()


@pytest.fixture
def linked(request):
    linked = Linked(*getattr(request, "param", ("AB", "BA")))
    yield linked
    linked.close()


RING = ("AB", "BC", "CA")
BOTH_WAYS = (*RING, "BA", "CB", "AC")


@pytest.mark.parametrize(
    "linked",
    [("AB", "BA"), RING, BOTH_WAYS, ("AB", "BC"), ("AB", "AC", "BD", "CD", "DA")],
    indirect=True,
    ids=" ".join,
)
def test_a_write_reaches_each_store_and_then_all_rest(linked):
    linked.stores["A"].save("t/k", b"1")
    linked.rest()
    assert set(linked.values().values()) == {b"1"}
    assert linked.written()["A"] == 1, "it was sent back"
    linked.stores["A"].remove("t/k")
    linked.rest()
    assert [dict(store.at().items("t/")) for store in linked.stores.values()] == [{}] * len(
        linked.stores
    )


@pytest.mark.parametrize("linked", [("AB", "BA"), RING], indirect=True, ids=" ".join)
def test_each_store_may_be_written_in_turn(linked):
    for turn in range(3):
        for name, store in linked.stores.items():
            value = f"{name}{turn}".encode()
            store.save("t/k", value)
            linked.rest()
            assert set(linked.values().values()) == {value}
    assert set(linked.written().values()) == {3 * len(linked.stores)}


def test_writes_of_one_key_on_both_sides_at_once_come_to_rest(linked):
    """Each side gets the other's, once: they may differ afterwards, as the documentation says."""
    for turn in range(5):
        for name, store in linked.stores.items():
            store.save("t/k", f"{name}{turn}".encode())
            store.save(f"t/{name}{turn}", b"")
    linked.rest()
    keys = [sorted(store.at().keys("t/")) for store in linked.stores.values()]
    assert keys[0] == keys[1], "other keys are the same"
    assert set(linked.values().values()) <= {b"A4", b"B4"}
    assert max(linked.written().values()) <= 10


@pytest.mark.parametrize("linked", [("AB", "BA"), RING], indirect=True, ids=" ".join)
def test_random_writes_of_own_keys_are_everywhere_at_rest(linked):
    """Where a change comes by one way; by two ways an older one may come last."""
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, wanted = random.Random(seed), {}
    for n in range(120):
        name = rng.choice(sorted(linked.stores))
        key = f"t/{name}{rng.randrange(4)}"
        if wanted.get(key) is not None and rng.random() < 0.3:
            linked.stores[name].remove(key)
            wanted[key] = None
        else:
            wanted[key] = b"%d" % n
            linked.stores[name].save(key, wanted[key])
        if rng.random() < 0.05:
            linked.rest()
    linked.rest()
    living = {key: value for key, value in wanted.items() if value is not None}
    for store in linked.stores.values():
        assert dict(store.at().items("t/")) == living


@pytest.mark.parametrize("linked", [("AB",)], indirect=True, ids=" ".join)
def test_a_state_leaves_out_what_came_from_the_target(linked):
    """Otherwise the way back, created later, would put older values over newer ones."""
    a, b = linked.stores["A"], linked.stores["B"]
    a.save("t/k", b"1")
    b.save("t/own", b"1")
    linked.rest()
    source = PrefixTableSource(b, {TABLE: TABLE})
    at = b.resolved()
    pages = source.state(TABLE, 0, at)
    first = next(pages)
    a.save("t/k", b"2")
    linked.rest()
    writer = partial(StoreTableWriter, a, "BA", source=place_of(b))(TABLE, Token(1, 1))
    assert writer.begin(1) == 1
    for page in (first, *pages):
        writer.write([page], 0)
    writer.write([], at)
    assert content(a) == {"other": b"", "t/k": b"2", "t/own": b"1"}
    assert partial(StoreTableWriter, a, "BA")(TABLE, Token(1, 2)).begin(1) == at


def test_a_recording_that_is_replicated_into_its_source_comes_to_rest(tmp_path):
    linked = Linked("AB")
    a = linked.stores["A"]
    sink = recorded_sink(f"record+lmdb:{tmp_path / 'record'}", "r", "AR", a)
    linked.link("A", "R", sink)
    with snapkv.open(f"lmdb:{tmp_path / 'record'}", name="r:t%2F") as record:
        linked.stores["R"] = record
        a.save("t/k", b"1")
        linked.driven["A", "R"].reach(a.resolved())
        linked.link("R", "A", start=1)
        linked.rest()
        assert linked.written()["A"] == 2, "the recording's once, and no more"
        assert linked.values()["B"] == b"1"
        linked.close()


def test_a_store_that_is_its_own_target_comes_to_rest():
    linked = Linked()
    linked.stores["A"] = snapkv.open("memory:")
    linked.link("A", "A")
    linked.stores["A"].save("t/k", b"1")
    linked.rest()
    assert linked.written() == {"A": 2}
    linked.close()


def test_commits_of_different_routes_are_not_put_into_one():
    """Else what came from a third store would look as if it did not, or the other way round."""
    metas = [None, {ROUTE: "0c"}, {ROUTE: "0c"}, {"ticket": 4}, {ROUTE: "0b 0c"}]
    with snapkv.open("memory:") as target:
        writer = partial(StoreTableWriter, target, "f", source="0a")(TABLE, Token(1, 1))
        writer.begin(1)
        heads = [
            Commit(ts, 0, ts, None, meta=None if meta is None else Meta(meta))
            for ts, meta in enumerate(metas, 2)
        ]
        commits = [
            Changes(head, (Change("t/k", b"%d" % head.ts, head), Change(f"t/{head.ts}", b"", head)))
            for head in heads
        ]
        mixed = Commit(9, 0, 9, "ann")  # with a write of another program, which has no meta
        routed = Commit(9, 0, 9, "ann", meta=Meta({ROUTE: "0c"}))
        parts = (Change("t/raw", b"", mixed), Change("t/routed", b"", routed))
        commits.append(Changes(routed, parts))
        before = target.resolved()
        writer.write(commits, 9)
        found = [
            (each.meta[ROUTE], sorted(change.key for change in changes))
            for each in target.commits(since=before)
            for changes in target.watch(since=each.ts - 1, timeout=0)
            if changes.commit.ts == each.ts
        ]
        assert found == [
            ("0a", ["t/2", "t/k"]),
            ("0c 0a", ["t/3", "t/4", "t/k"]),
            ("0a", ["t/5", "t/k"]),
            ("0b 0c 0a", ["t/6", "t/k"]),
            ("0a", ["t/raw"]),
            ("0c 0a", ["t/routed"]),
        ]
        assert partial(StoreTableWriter, target, "f")(TABLE, Token(1, 2)).begin(1) == 9


@pytest.mark.slow
def test_documents_that_are_edited_on_both_sides_come_to_rest_and_are_the_same():
    """As long as no history is cut: then an old leaf may come back from the other side."""
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, linked = random.Random(seed), Linked("AB", "BA", databases=True)
    sides = [ChangesDB(store, NAME) for store in linked.stores.values()]
    for side in sides:
        side.set_revs_limit(1_000)
    for _ in range(40):
        with suppress(DocumentConflictError):  # the other side's came between
            Editing(rng.choice(sides), rng, cuts=False).edit()
        if rng.random() < 0.2:
            linked.rest()
            assert living(sides[0]) == living(sides[1])
    linked.rest()
    assert leaves(sides[0]) == leaves(sides[1])
    linked.close()
