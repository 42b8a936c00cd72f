"""What workers do: each process keeps its engines, and several read one lmdb at once."""

import threading
from collections import Counter

import pytest
from direct import Planned, new_worker, read
from frames import load
from pyspark.sql import functions as F

from snapkv.base.waiting import monotonic
from snapkv.engine.lmdb import registry
from snapkv.spark import process_readers, read_tasks

pytestmark = pytest.mark.slow

ROWS = 80_000
WAIT_S = 60


@pytest.fixture
def opens(monkeypatch):
    """How often a store, and the environment of an lmdb, were opened."""
    found = Counter()

    def counted(name, method):
        def call(*args, **rest):
            found[name] += 1
            return method(*args, **rest)

        return call

    monkeypatch.setattr(
        process_readers, "open_to_read", counted("store", process_readers.open_to_read)
    )
    monkeypatch.setattr(registry, "_open", counted("environment", registry._open))
    return found


def test_a_worker_opens_an_engine_once(store, place, opens, monkeypatch):
    monkeypatch.setattr(read_tasks, "PIECE_ROWS", 5)
    store.commit(puts={f"k{n:02}": b"1" for n in range(40)})
    store.close()
    readers = [Planned(place.url, numPartitions=4).reader() for _ in range(2)]
    assert [len(reader.tasks) for reader in readers] == [4, 4]
    new_worker()
    opens.clear()
    for reader in readers:
        for task in range(4):
            assert reader.rows(task)
    # an embedded store is looked at anew for each task, in the environment that is open
    assert opens == ({"store": 8, "environment": 1} if place.kind.url else {"store": 1})
    new_worker()
    assert readers[0].rows(0)
    assert opens["environment" if place.kind.url else "store"] == 2


def test_a_worker_keeps_a_few_engines(place, opens):
    names = [f"store{n}" for n in range(process_readers.KEPT_MAX + 2)]
    for name in names:
        place.open(name=name).save("k", name.encode())
    readers = {name: Planned(place.url, name=name, columns="value").reader() for name in names}
    assert len(process_readers._kept) == process_readers.KEPT_MAX
    for name in [*names, *reversed(names)]:
        assert readers[name].rows() == [(name.encode(),)]
    assert len(process_readers._kept) == process_readers.KEPT_MAX
    new_worker()
    opens.clear()
    for _ in range(3):
        readers[names[0]].rows()
        readers[names[1]].rows()
    assert opens["environment"] <= 1
    assert opens["store"] == (6 if place.kind.url else 2)


def test_options_are_part_of_a_place(store, place):
    """What one user opened is not for another one; another space is another place."""
    store.save("k", b"1")
    store.space("s").commit(puts={b"k": b"2"})
    assert read(place.url, columns="value") == [(b"1",)]
    assert read(place.url, columns="value", space="s") == [(b"2",)]
    if not place.kind.url:
        read(place.url, user="ann", password="a")
        assert {dict(kept.options).get("user") for kept in process_readers._kept} == {None, "ann"}


@pytest.mark.long
@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_several_workers_read_one_lmdb_beside_a_writer(spark, store, place):
    for start in range(0, ROWS, 10_000):
        store.commit(puts={f"k{n:05}": b"%d" % n for n in range(start, start + 10_000)})
    then = store.resolved()
    store.commit(puts={"k00000": b"-1"}, delete_prefixes=["k6", "k7"])
    done, written = threading.Event(), []

    def write() -> None:
        deadline = monotonic() + WAIT_S
        while not done.is_set() and monotonic() < deadline:
            puts = {f"k{(len(written) * 7_919) % ROWS:05}": b"0", f"new{len(written)}": b"0"}
            written.append(store.commit(puts=puts, deletes=[f"k{len(written):05}"]))

    asked = ({"timestampAsOf": then}, {})
    frames = [load(spark, place.url, numPartitions=4, **options) for options in asked]
    assert all(len(Planned(place.url, **each).reader().tasks) > 1 for each in asked)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = []
        for frame in frames:
            number = F.col("value").cast("string").cast("long")
            row = frame.agg(F.count("key"), F.countDistinct("key"), F.sum(number)).first()
            found.append(tuple(row))
    finally:
        done.set()
        writer.join(WAIT_S)
    assert len(written) > 3, "there was a writer"
    left = range(60_000)
    assert found == [(ROWS, ROWS, sum(range(ROWS))), (len(left), len(left), sum(left) - 1)]
