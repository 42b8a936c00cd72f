"""Documents whose histories the source cut: the target has the same leaves, and no old ones."""

import random
from functools import partial

import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.scheduler.executors.database_sinks import DatabaseWriter

from .cutting import NAME, Copying, edits, leaves, living, run_randomly


@pytest.fixture
def seed():
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    return seed


@pytest.fixture
def source():
    with snapkv.open("memory:") as store:
        yield ChangesDB(store, NAME).create(revs_limit=3)


@pytest.fixture
def target():
    with snapkv.open("memory:") as store:
        yield ChangesDB(store, NAME)


@pytest.mark.parametrize(("limit", "count"), [(3, 20), (1, 1)])
def test_a_document_that_was_removed_after_a_pause_is_removed(source, target, limit, count):
    source.set_revs_limit(limit)
    copying = Copying(source, partial(DatabaseWriter, target.store, "f"))
    rev = edits(source, "a", 1)
    copying.run()
    rev = edits(source, "a", count, rev)
    source.remove("a", rev)
    copying.run()
    assert leaves(target) == leaves(source)
    assert living(target) == living(source) == {"a": (None, [])}


def test_a_document_that_was_only_edited_has_no_conflict(source, target):
    copying = Copying(source, partial(DatabaseWriter, target.store, "f"))
    rev = edits(source, "a", 1)
    copying.run()
    edits(source, "a", 20, rev)
    copying.run()
    assert living(target) == living(source)
    assert "_conflicts" not in target.get("a", conflicts=True)


def test_edits_that_were_made_in_the_target_remain(source, target):
    """The other branch descends from a revision that the source has followed, too."""
    copying = Copying(source, partial(DatabaseWriter, target.store, "f", source="5e"))
    rev = edits(source, "a", 1)
    edits(source, "b", 1)
    copying.run()
    own = target.put({"_id": "a", "own": True}, rev).rev
    rev = edits(source, "a", 20, rev)
    copying.run()
    assert leaves(target) == {"a": sorted([own, rev]), "b": leaves(source)["b"]}
    source.store.reader.engine.compact(source.store.at().revision)
    source.remove("a", rev)
    source.store.save("plain", b"")
    source.store.reader.engine.compact(source.store.at().revision)
    copying.run()  # by its state
    assert living(target)["a"] == (own, [own])


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_state_into_a_database_of_an_earlier_time_ends_what_was_followed(
    source, target, is_compacted
):
    copying = Copying(source, partial(DatabaseWriter, target.store, "f", source="5e"))
    rev = edits(source, "a", 2)
    copying.run()
    source.remove("a", edits(source, "a", 20, rev))
    for store in (source.store, target.store) if is_compacted else ():
        store.save("plain", b"")
        store.reader.engine.compact(store.at().revision)
    copying.reached = 1
    again = Copying(source, partial(DatabaseWriter, target.store, "other", source="5e"))
    again.batch = lambda: None
    again.run()
    assert leaves(target) == leaves(source)


@pytest.mark.slow
def test_whatever_the_source_cuts_the_target_has_the_same_leaves(seed):
    for turn in range(4):
        rng = random.Random(seed + turn)
        with snapkv.open("memory:") as here, snapkv.open("memory:") as there:
            source = ChangesDB(here, NAME).create(revs_limit=rng.choice([1, 2, 3]))
            copying = Copying(source, partial(DatabaseWriter, there, "f", source="5e"))
            for _ in run_randomly(copying, rng, 20):
                target = ChangesDB(there, NAME)
                assert leaves(target) == leaves(source), turn
                assert living(target) == living(source), turn
