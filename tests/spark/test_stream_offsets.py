"""Where a stream starts and goes on: offsets, their bytes, and whose store they are of."""

import json
import shutil

import pytest
from store.engines import write_raw
from stream_queries import Checkpoint, Query, changes, inserted, refused_by

import snapkv
from snapkv import format_time
from snapkv.engine.contract import Delete
from snapkv.layout import Mark
from snapkv.spark.micro_batches import ChangesOffset

pytestmark = pytest.mark.slow

STORE = bytes(range(16))


# --- the start ---


def test_the_start_is_the_same_however_often_it_is_asked(store, place):
    store.save("a", b"1")
    query = Query(place.url)
    first = query.initial()
    store.save("b", b"1")
    assert query.initial() == first


@pytest.mark.parametrize(
    "options",
    [{}, {"startingVersion": "latest"}, {"startingTimestamp": "-1h"}],
    ids=str,
)
def test_the_first_batch_is_empty_and_brings_the_start_into_the_log(store, place, options):
    store.save("a", b"1")
    query = Query(place.url, **options)
    start = query.initial()
    store.save("b", b"1")
    end = query.latest(start)
    assert json.loads(start)["pinned"] is False
    assert json.loads(end) == json.loads(start) | {"pinned": True}
    assert query.read(start, end) == []


@pytest.mark.parametrize("by", ["version", "timestamp", "time"])
def test_a_start_that_cannot_move_needs_no_empty_batch(store, place, clock, by):
    """Each driver finds it again, so its first batch has rows, the same for both."""
    store.save("a", b"1")
    clock.advance(1_000)
    since = store.commit(puts={"b": b"1"})
    options = {
        "version": {"startingVersion": since.revision},
        "timestamp": {"startingTimestamp": since.ts},
        "time": {"startingTimestamp": format_time(since.ts)},
    }[by]
    query = Query(place.url, **options)
    assert query.log()
    rows = query.run()
    clock.advance(1_000)
    later = store.commit(puts={"c": b"1"})
    query = Query(place.url, query.checkpoint, **options)  # the first driver died
    assert query.run() == rows
    query.commit()
    query.drained()
    expected = changes((since, {"b": b"1"}), (later, {"c": b"1"}))
    assert query.checkpoint.rows() == expected


def test_nothing_is_lost_between_two_questions_for_the_start(store, place):
    store.save("a", b"1")
    query = Query(place.url, startingVersion="latest")
    query.log()  # asks once
    between = store.commit(puts={"b": b"1"})
    query.run()  # and again
    query.commit()
    after = store.commit(puts={"c": b"1"})
    assert query.drained() == changes((between, {"b": b"1"}), (after, {"c": b"1"}))


@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
@pytest.mark.parametrize("run", [False, True], ids=["logged", "run"])
def test_a_driver_may_die_before_its_first_batch_is_done(store, place, run, passes_start):
    first = store.commit(puts={"a": b"1", "b": b"2"})
    query = Query(place.url, passes_start=passes_start)
    assert query.log()
    if run:
        query.run()
    second = store.commit(puts={"a": b"3"})  # the next driver's start would be here
    query = Query(place.url, query.checkpoint, passes_start=passes_start)
    query.drained()
    assert query.checkpoint.rows() == [
        *inserted(first, a=b"1", b=b"2"),
        *changes((second, {"a": b"3"}), existed="a"),
    ]


def test_latest_stays_where_it_was_when_a_driver_dies_at_once(store, place):
    store.save("a", b"1")
    query = Query(place.url, startingVersion="latest")
    assert query.log()
    unseen = store.commit(puts={"b": b"1"})
    query = Query(place.url, query.checkpoint, startingVersion="latest")
    assert query.drained() == changes((unseen, {"b": b"1"}))


def test_before_4_2_a_start_that_is_asked_for_late_repeats_nothing(store, place):
    """PySpark 4.0 and 4.1 ask how far the first batch goes, and then where it starts."""
    first = store.commit(puts={"a": b"1"})
    query = Query(place.url, passes_start=False)
    assert query.log()
    second = store.commit(puts={"b": b"2"})
    query.run()
    query.commit()
    query.drained()
    assert query.checkpoint.rows() == [*inserted(first, a=b"1"), *changes((second, {"b": b"2"}))]


# --- their bytes ---


VECTORS = [
    (
        ChangesOffset(STORE, Mark(445644800032243719, 12, 5), pinned=False),
        '{"v": 1, "store": "000102030405060708090a0b0c0d0e0f", "rev": 12, '
        '"ts": 445644800032243719, "commit": 5, "snapshot": false, "after": null, "pinned": false}',
    ),
    (
        ChangesOffset(STORE, Mark(0, 2, 1), b""),
        '{"v": 1, "store": "000102030405060708090a0b0c0d0e0f", "rev": 2, '
        '"ts": 0, "commit": 1, "snapshot": true, "after": "", "pinned": true}',
    ),
    (
        ChangesOffset(STORE, Mark((1 << 64) - 1, (1 << 63) - 1, 7), b"s/data/\xff"),
        '{"v": 1, "store": "000102030405060708090a0b0c0d0e0f", "rev": 9223372036854775807, '
        '"ts": 18446744073709551615, "commit": 7, "snapshot": true, "after": "732f646174612fff", '
        '"pinned": true}',
    ),
]


@pytest.mark.parametrize(("offset", "text"), VECTORS)
def test_vectors(offset, text):
    assert json.dumps(offset.to_json()) == text, "Spark compares offsets as texts"
    assert ChangesOffset.from_json(json.loads(text)) == offset


GOOD = VECTORS[0][0].to_json()


@pytest.mark.parametrize(
    "given",
    [
        *({k: v for k, v in GOOD.items() if k != name} for name in GOOD if name != "snapshot"),
        GOOD | {"v": 2},
        GOOD | {"v": "1"},
        GOOD | {"store": "0g"},
        GOOD | {"store": 7},
        GOOD | {"rev": "12"},
        GOOD | {"rev": -1},
        GOOD | {"rev": 1.5},
        GOOD | {"rev": True},
        GOOD | {"ts": float("inf")},
        GOOD | {"ts": 1 << 64},
        GOOD | {"commit": None},
        GOOD | {"after": "x"},
        GOOD | {"after": 0},
        GOOD | {"pinned": "false"},
        {"offset": 3},
        {},
        [],
        "12",
        12,
        None,
    ],
    ids=str,
)
def test_what_is_no_offset_of_ours(given):
    message = refused_by("CHECKPOINT_INVALID", lambda: ChangesOffset.from_json(given))
    assert "reads version 1" in message or "not one of this format" in message


def test_a_broken_checkpoint_is_refused_wherever_it_comes_in(store, place):
    query = Query(place.url)
    start = query.initial()
    refused_by("CHECKPOINT_INVALID", lambda: query.latest('{"v": 1}'))
    refused_by("CHECKPOINT_INVALID", lambda: query.read(start, '{"v": 3}'))
    refused_by("CHECKPOINT_INVALID", lambda: query.read('{"rate": 7}', start))


# --- whose they are ---


def left_behind(place, store, **options) -> Checkpoint:
    """A checkpoint of a query that has read all there is."""
    query = Query(place.url, **options)
    query.drained()
    return query.checkpoint


def mismatched(query: Query) -> None:
    """Assert that a query does not go on from another store's checkpoint."""
    last = query.checkpoint.offsets[-1]
    assert "new checkpoint" in refused_by("STORE_MISMATCH", lambda: query.latest(last))


def mismatched_anew(place, checkpoint: Checkpoint, **options) -> None:
    """The same of a new driver, which may have a batch to read again first."""
    mismatched(Query(place.url, checkpoint, **options))
    last = checkpoint.offsets[-1]
    refused_by("STORE_MISMATCH", lambda: Query(place.url, **options).read(last, last))


def test_another_store_of_the_same_engine(store, place, clock):
    store.save("a", b"1")
    place.open(name="other", clock=clock).save("a", b"1")
    mismatched_anew(place, left_behind(place, store), name="other")


@pytest.mark.parametrize("running", [False, True])
def test_a_store_that_was_removed_and_recreated(store, place, clock, running):
    store.save("a", b"1")
    query = Query(place.url)
    query.drained()
    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    place.open(clock=clock).save("a", b"1")
    if running:
        mismatched(query)
    mismatched_anew(place, query.checkpoint)


def test_a_new_store_ends_a_batch_that_was_logged(store, place, clock):
    """Spark asks for a start of the new store, and goes on to where the old one was."""
    query = Query(place.url)
    query.log()
    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    place.open(clock=clock)
    refused_by("STORE_MISMATCH", Query(place.url, query.checkpoint).run)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("newer", [0, 1, 2, 5])
def test_a_folder_exchanged_for_an_older_copy(store, place, clock, running, newer):
    folder = place.url.removeprefix("lmdb:")
    for n in range(3):
        store.save("a", b"%d" % n)
    shutil.copytree(folder, folder + ".old")
    for n in range(2):
        clock.advance(1_000)
        store.save("a", b"lost %d" % n)
    query = Query(place.url)
    query.drained()
    store.close()
    shutil.move(folder, folder + ".gone")
    shutil.move(folder + ".old", folder)
    restored = place.open(clock=clock)
    for n in range(newer):
        clock.advance(1_000)
        restored.save("a", b"new %d" % n)
    if running:
        mismatched(query)
    mismatched_anew(place, query.checkpoint)


@pytest.mark.parametrize("newer", [2, 5])
@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_an_older_copy_whose_commits_were_compacted(store, place, clock, newer):
    """Then the commit itself cannot be compared: what stands there now is older, or too new."""
    folder = place.url.removeprefix("lmdb:")
    store.save("a", b"0")
    shutil.copytree(folder, folder + ".old")
    clock.advance(1_000)
    store.commit(puts={"a": b"1"})
    store.commit(puts={"a": b"2"})
    checkpoint = left_behind(place, store)
    store.close()
    shutil.rmtree(folder)
    shutil.move(folder + ".old", folder)
    restored = place.open(clock=clock)
    engine = place.engine()
    for _ in range(6):  # revisions that are nobody's commits
        write_raw(engine, snapkv.engine.contract.Put(b"elsewhere", b"x"))
    clock.advance(1_000)
    for n in range(newer):
        restored.save("a", b"new %d" % n)
    engine.compact(engine.read([]).header.revision)
    if newer == 2:  # as many commits as there were, but others
        mismatched_anew(place, checkpoint, failOnDataLoss="false")
    else:
        query = Query(place.url, checkpoint, failOnDataLoss="false")
        assert query.drained() == []  # indistinguishable from having been compacted unread


@pytest.mark.parametrize("newer", [0, 4])
def test_an_etcd_that_was_set_back_under_a_running_query(etcd, tmp_path, newer):
    with snapkv.open(etcd.url) as store:
        store.save("a", b"0")
        etcd.gateway.save_snapshot(tmp_path / "backup")
        store.save("a", b"1")
        query = Query(etcd.url)
        query.drained()
    etcd.restore_snapshot(tmp_path / "backup")
    with snapkv.open(etcd.url) as store:
        for n in range(newer):
            store.save("a", b"new %d" % n)
        mismatched(query)
        mismatched_anew(etcd, query.checkpoint)


def test_a_store_that_is_gone(store, place):
    query = Query(place.url)
    query.drained()
    store.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    last = query.checkpoint.offsets[-1]
    with pytest.raises(snapkv.SnapKVError, match=r"SNAPKV_STORE_(NOT_FOUND|MISMATCH)"):
        query.latest(last)
    refused_by("STORE_NOT_FOUND", lambda: Query(place.url, query.checkpoint))
