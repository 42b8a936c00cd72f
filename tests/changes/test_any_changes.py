"""Any program of edits and replications gives the feed and the trees of a pure model.

The databases have conflicts, histories cut short, requests that are lost, new stores to live in
and new lives. The model is `plain_changes`; what is compared with it, `replica_changes`.
"""

import random
import tempfile

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
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

IDS = st.sampled_from(("a", "b", "c", "_design/d"))
WHICH = st.sampled_from((0, 1))
FATE = st.sampled_from(FATES)
N = st.integers(0, 2)
"""Few bodies: the same edit may be made on both sides, and is the same revision then."""
LIMIT = st.sampled_from((1_000, 1_000, 1, 2, 3))
HOUR_MS = 3_600_000
ROUNDS_MAX = 5


class Program(RuleBasedStateMachine):
    engine = "memory"

    @initialize(seed=st.integers(0, 2**32 - 1), limits=st.tuples(LIMIT, LIMIT))
    def begin(self, seed, limits):
        self.rng, self.revisions = random.Random(seed), Revisions()
        self.folder, self.patch = tempfile.TemporaryDirectory(), pytest.MonkeyPatch()
        engines = wrap_engines(self.patch, Losing)
        self.places = [Place(ENGINES[name], self.folder.name) for name in (self.engine, "memory")]
        own, other = self.places
        self.homes = [
            Home.at(own, engines, "one"),
            Home.at(own, engines, "two", -HOUR_MS),
            Home.at(other, engines, "three", HOUR_MS),
        ]
        self.replicas = [
            Replica(name, self.homes, at, self.revisions)
            for at, name in enumerate(("left", "right"))
        ]
        for replica, limit in zip(self.replicas, limits, strict=True):
            replica.limit(limit)
        self.changed = {0, 1}

    def of(self, which) -> Replica:
        """Return a replica that is about to change."""
        self.changed.add(which)
        passed_ms = self.rng.choice((0, 0, 1, 1_000))
        for home in self.homes:
            home.clock.advance(passed_ms)
        return self.replicas[which]

    # --- edits ---

    @rule(which=WHICH, id=IDS, leaf=st.integers(0, 3), deleted=st.booleans(), n=N, fate=FATE)
    def edit(self, which, id, leaf, deleted, n, fate):
        """Of a leaf, or of none; live or not: the rules say which succeed."""
        replica = self.of(which)
        leaves = replica.plain.leaves(id)
        base = leaves[leaf % len(leaves)] if leaves and leaf < 3 else None
        again = bool(leaves) and base is None and deleted  # no tombstone upon a tombstone
        fits = replica.plain.takes(id, base) and not again
        try:
            replica.put(id, base, deleted, n, fate)
        except DocumentConflictError:
            assert not fits
        else:
            assert fits

    @rule(which=WHICH, ids=st.lists(IDS, max_size=5), n=N, fate=FATE)
    def bulk(self, which, ids, n, fate):
        """Inserts and updates of winners together; the second edit of one is in conflict."""
        replica = self.of(which)
        heads = {id: (replica.plain.leaves(id) or [None])[0] for id in ids}
        docs = [{"_id": id, "n": n, "_rev": heads[id]} for id in ids]
        found = replica.settled(fate, lambda t: replica.db.bulk(docs, timeout=t))
        done = set()
        for id, edited in zip(ids, found, strict=True):
            if id in done or not replica.plain.takes(id, heads[id]):
                assert isinstance(edited.error, DocumentConflictError)
                continue
            done.add(id)
            replica.plain.edit(id, heads[id], edited.rev, False, n)
            replica.handed.append((edited.seq, replica.plain.edits))

    @rule(
        which=WHICH,
        id=IDS,
        cut=st.integers(0, 4),
        grow=st.sampled_from((1, 1, 2, 3)),
        told=st.sampled_from((1, 2, 3, 4, 100, 100)),
        deleted=st.booleans(),
        n=N,
        fate=FATE,
    )
    def branch(self, which, id, cut, grow, told, deleted, n, fate):
        """Replicated from elsewhere: off some known revision or off none, told whole or not."""
        replica = self.of(which)
        leaves = replica.plain.leaves(id)
        path = replica.plain.path(id, self.rng.choice(leaves))[cut:] if leaves else []
        for _ in range(grow):
            position = int(path[0].partition("-")[0]) + 1 if path else 1
            path.insert(0, f"{position}-{self.rng.getrandbits(128):032x}")
        hashes = [rev.partition("-")[2] for rev in path[:told]]
        doc = {"_id": id, "n": n, "_revisions": {"start": position, "ids": hashes}}
        self.revisions.learn(path, deleted, n)
        replica.replicate([doc | ({"_deleted": True} if deleted else {})], fate)

    @rule(
        source=WHICH, stop=st.integers(0, 8), together=st.booleans(), blind=st.booleans(), fate=FATE
    )
    def replicate(self, source, stop, together, blind, fate):
        """As a replicator does, and it may end after any document, before it took notes."""
        target = self.of(1 - source)
        copy(self.replicas[source], target, fate, stop=stop, together=together, blind=blind)

    # --- their lives ---

    @rule(which=WHICH, limit=LIMIT)
    def set_revs_limit(self, which, limit):
        self.of(which).limit(limit)

    @rule(which=WHICH, to=st.sampled_from((None, 0, 1, 2)))
    def relocate(self, which, to):
        self.of(which).relocate(to)

    @rule(which=WHICH, limit=LIMIT, really=st.sampled_from((True, False, False)))
    def delete_and_create(self, which, limit, really):
        if really:
            self.of(which).recreate(limit)

    # --- what they show ---

    @rule(which=WHICH)
    def mark(self, which):
        self.of(which).mark()

    @rule(which=WHICH, id=IDS)
    def read(self, which, id):
        self.replicas[which].check_document(id)

    @rule()
    def check(self):
        for replica in self.replicas:
            replica.check()

    @invariant()
    def every_suffix_from_every_sequence(self):
        for which in getattr(self, "changed", ()):
            self.replicas[which].check_suffixes()
        self.changed = set()

    def teardown(self):
        if not hasattr(self, "replicas"):
            return
        try:
            self.end()
        finally:
            for place in self.places:
                place.__exit__()
            self.patch.undo()
            self.folder.cleanup()

    def end(self):
        """Replicated both ways without faults, both say the same of every document."""
        for replica in self.replicas:
            replica.check()
            replica.check_past()
        left, right = self.replicas
        for _ in range(ROUNDS_MAX):
            if copy(left, right) + copy(right, left) == 0:
                break
        else:
            raise AssertionError("it does not come to rest")
        for replica in self.replicas:
            replica.check()
            replica.check_suffixes()
            assert_database_sound(replica.db)
        one, two = ({id: rest for id, *rest in each.plain.rows()} for each in self.replicas)
        note(f"{len(one)} documents")
        if not any(each.plain.is_cut for each in self.replicas):  # else a leaf may stay a stranger
            assert one == two
        assert one.keys() == two.keys()


@pytest.mark.long_on("etcd")
@pytest.mark.parametrize("engine", ENGINES)
def test_any_edits_and_replications_give_the_answers_of_the_model(engine):
    machine = type(f"Program_{engine}", (Program,), {"engine": engine})
    embedded = settings(EFFORT, max_examples=EFFORT.max_examples // 8)
    server = settings(SERVER_EFFORT, max_examples=SERVER_EFFORT.max_examples // 2)
    run_state_machine_as_test(machine, settings=embedded if ENGINES[engine].url else server)
