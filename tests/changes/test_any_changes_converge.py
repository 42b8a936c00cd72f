"""Databases in different stores come to the same, however they are replicated, in any order.

What they must come to is told by all edits that were ever made, as a graph: a revision that is
nobody's parent is a leaf, and the winner is the leaf that ranks first.
"""

import random
import tempfile
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store.engines import ENGINES, Place
from store.wrapping import wrap_engines
from system.effort import EFFORT, SERVER_EFFORT

from cdcmeta.errors import DocumentConflictError

from .losing import Losing
from .plain_changes import Revisions
from .replica_changes import FATES, Home, Replica
from .replicator import copy
from .sound import assert_database_sound

pytestmark = pytest.mark.slow

IDS = st.sampled_from(("a", "b", "_design/d"))
WHICH = st.sampled_from((0, 1))
FATE = st.sampled_from(FATES)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("edit"), WHICH, IDS, st.integers(0, 3), st.booleans(), st.integers(0, 2), FATE
        ),
        st.tuples(
            st.just("copy"),
            WHICH,
            st.integers(0, 5) | st.none(),
            st.booleans(),
            st.booleans(),
            FATE,
        ),
    ),
    min_size=3,
    max_size=40,
)
ROUNDS_MAX = 3


class Graph:
    """All edits that were made, and what follows from them alone."""

    def __init__(self) -> None:
        self.docs: list[dict] = []
        self._parents: set[tuple[str, str]] = set()

    def add(self, doc: dict) -> None:
        """Take in an edit, as `open_revs` shows it."""
        self.docs.append(doc)
        start, hashes = doc["_revisions"]["start"], doc["_revisions"]["ids"]
        for back, hash in enumerate(hashes[1:], 1):
            self._parents.add((doc["_id"], f"{start - back}-{hash}"))

    def rows(self) -> dict[str, list[tuple]]:
        """Return each document's leaves with deletion and body, the winner first."""
        found: dict[str, set[tuple]] = {}
        for doc in self.docs:
            if (doc["_id"], doc["_rev"]) not in self._parents:
                leaf = (not doc.get("_deleted", False), *ordered(doc["_rev"]), doc["n"])
                found.setdefault(doc["_id"], set()).add(leaf)
        return {id: sorted(leaves, reverse=True) for id, leaves in found.items()}


def ordered(rev: str) -> tuple[int, str]:
    position, _, hash = rev.partition("-")
    return int(position), hash


def rows_of(db) -> dict[str, list[tuple]]:
    """Return what a database shows, in the words of `Graph.rows`."""
    page = db.changes(style="all_docs")
    found = {}
    for row in page.rows:
        docs = db.open_revs(row.id)
        assert [doc["_rev"] for doc in docs] == list(row.revs)
        assert row.rev == row.revs[0]
        found[row.id] = [
            (not doc.get("_deleted", False), *ordered(doc["_rev"]), doc["n"]) for doc in docs
        ]
        assert row.deleted == (not found[row.id][0][0])
    return found


@contextmanager
def homes_on(*engines):
    """Yield a home on each engine, all in stores of their own."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        wrapped = wrap_engines(patch, Losing)
        places = [stack.enter_context(Place(ENGINES[name], folder)) for name in engines]
        yield [Home.at(place, wrapped, f"s{n}") for n, place in enumerate(places)]


def run(engines, steps, seed) -> None:
    rng, graph, revisions = random.Random(seed), Graph(), Revisions()
    with homes_on(*engines, "memory", "memory") as homes:
        replicas = [Replica(f"db{at}", homes, at, revisions) for at in range(len(homes))]
        pair = replicas[:2]
        for what, which, *rest in steps:
            if what == "edit":
                edit(pair[which], graph, *rest)
            else:
                stop, together, blind, fate = rest
                source, target = pair[which], pair[1 - which]
                copy(source, target, fate, stop=stop, together=together, blind=blind)
        come_to_rest(pair)
        for late in replicas[2:]:
            in_any_order(late, graph, rng)
        expected = graph.rows()
        for replica in replicas:
            assert rows_of(replica.db) == expected
            assert_database_sound(replica.db)


def edit(replica, graph, id, leaf, deleted, n, fate) -> None:
    leaves = replica.plain.leaves(id)
    base = leaves[leaf % len(leaves)] if leaves and leaf < 3 else None
    try:
        rev = replica.put(id, base, deleted, n, fate)
    except DocumentConflictError:
        return
    graph.add(*replica.db.open_revs(id, [rev]))


def come_to_rest(pair) -> None:
    left, right = pair
    for _ in range(ROUNDS_MAX):
        if copy(left, right) + copy(right, left) == 0:
            return
    raise AssertionError("it does not come to rest")


def in_any_order(replica, graph, rng) -> None:
    """Give a new database every edit in a random order, some twice, some together."""
    docs = rng.sample(graph.docs, len(graph.docs)) + rng.sample(graph.docs, len(graph.docs) // 3)
    while docs:
        size = rng.choice((1, 1, 2, 5))
        replica.replicate(docs[:size], rng.choice(FATES[:5]))
        docs = docs[size:]


@settings(EFFORT, max_examples=EFFORT.max_examples // 4)
@given(STEPS, st.integers(0, 2**32 - 1))
def test_two_stores_converge(steps, seed) -> None:
    run(("memory", "lmdb"), steps, seed)


@SERVER_EFFORT
@given(STEPS, st.integers(0, 2**32 - 1))
def test_two_stores_converge_over_etcd(steps, seed) -> None:
    run(("etcd", "lmdb"), steps, seed)
