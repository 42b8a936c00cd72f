"""Following: where a watch starts, what it gives, how it ends."""

from __future__ import annotations

import pytest
from conformance_driver import ALL, Background, Driver, brief, take

from snapkv.engine.contract import Delete, KeyEvent, KeyValue, Put, WatchBatch
from snapkv.errors import CompactedError, StoreClosedError


def test_a_watch_replays_from_the_past(db: Driver) -> None:
    r1, r2 = db.put(b"a", b"1"), db.put(b"b", b"2")
    r3, r4 = db.delete(b"a"), db.put(b"a", b"4")
    events = [(r1, b"a", b"1"), (r2, b"b", b"2"), (r3, b"a", None), (r4, b"a", b"4")]
    for at, start in enumerate((r1, r2, r3, r4)):
        assert brief(take(db.watch(start), r4)) == events[at:]


@pytest.mark.new_engine
def test_a_watch_from_the_very_first_revision(db: Driver) -> None:
    r1 = db.put(b"a", b"1")
    assert brief(take(db.watch(1), r1)) == [(r1, b"a", b"1")]


def test_events_are_whole(db: Driver) -> None:
    r1 = db.put(b"a", b"1")
    r2 = db.txn(Put(b"a", b"2"), Put(b"b", b"")).header.revision
    r3 = db.delete(b"a")
    batches = take(db.watch(r1), r3)
    assert batches == [
        WatchBatch(r1, (KeyEvent(KeyValue(b"a", b"1", r1, r1, 1), False),)),
        WatchBatch(
            r2,
            (
                KeyEvent(KeyValue(b"a", b"2", r1, r2, 2), False),
                KeyEvent(KeyValue(b"b", b"", r2, r2, 1), False),
            ),
        ),
        WatchBatch(r3, (KeyEvent(KeyValue(b"a", b"", 0, r3, 0), True),)),
    ]


def test_a_revision_is_one_batch_in_key_order(db: Driver) -> None:
    db.txn(Put(b"c", b"0"), Put(b"a\0", b"0"))
    head = db.txn(
        Put(b"b", b"1"), Delete(b"c"), Put(b"a\xff", b"2"), Delete(b"a\0"), Put(b"a", b"3")
    ).header.revision
    [batch] = take(db.watch(head), head)
    found = [(event.kv.key, event.is_delete) for event in batch.events]
    assert found == [
        (b"a", False),
        (b"a\0", True),
        (b"a\xff", False),
        (b"b", False),
        (b"c", True),
    ]


def test_a_watch_from_head_plus_1_gives_only_what_comes(db: Driver) -> None:
    head = db.put(b"a", b"1")
    watcher = db.watch(head + 1)
    assert watcher.next(0) is None
    new = db.put(b"b", b"2")
    assert brief(take(watcher, new)) == [(new, b"b", b"2")]
    assert watcher.next(0) is None


def test_a_watch_from_the_future_gives_nothing_before(db: Driver) -> None:
    head = db.put(b"a", b"1")
    watcher = db.watch(head + 3)
    db.put(b"a", b"2")
    db.put(b"a", b"3")
    assert watcher.next(0) is None
    new = db.put(b"a", b"4")
    assert new == head + 3
    assert brief(take(watcher, new)) == [(new, b"a", b"4")]


@pytest.mark.parametrize(
    ("key", "range_end", "expected"),
    [
        (b"a", b"", [b"a"]),
        (b"a", b"b", [b"a", b"a\0", b"ab", b"a\xff"]),
        (b"a\0", b"", [b"a\0"]),
        (b"ab", ALL, [b"ab", b"a\xff", b"b", b"\xff"]),
        (b"\xff", ALL, [b"\xff"]),
        (b"x", b"y", []),
    ],
)
def test_a_watch_is_of_a_key_or_a_range(
    db: Driver, key: bytes, range_end: bytes, expected: list[bytes]
) -> None:
    start = db.head() + 1
    for each in (b"b", b"a\xff", b"a", b"\xff", b"a\0", b"ab"):
        db.put(each)
    head = db.txn(Put(b"a", b"2"), Put(b"b", b"2"), Put(b"ab", b"2")).header.revision
    found = brief(take(db.watch(start, key, range_end), head))
    assert sorted({event[1] for event in found}) == expected
    last = [event[1] for event in found if event[0] == head]
    assert last == [each for each in expected if each in (b"a", b"ab", b"b")]


def test_progress_is_told_once(db: Driver) -> None:
    watcher = db.watch(db.head() + 1, b"mine")
    assert watcher.next(0) is None
    head = [db.put(b"other") for _ in range(3)][-1]
    told = _told_until(watcher, head)
    assert told == sorted(set(told))
    assert watcher.next(0) is None
    mine = db.put(b"mine")
    assert brief(take(watcher, mine)) == [(mine, b"mine", b"v")]
    assert watcher.next(0) is None  # the event told as much


def _told_until(watcher: object, head: int) -> list[int]:
    told: list[int] = []
    for _ in range(200):
        batch = watcher.next(0.1)  # type: ignore[attr-defined]
        if batch is not None:
            assert batch.events == ()
            told.append(batch.revision)
            if batch.revision == head:
                return told
    raise AssertionError(f"progress {told} never came to {head}")


def test_progress_after_events(db: Driver) -> None:
    watcher = db.watch(db.head() + 1, b"mine")
    mine, head = db.put(b"mine"), db.put(b"other")
    assert brief(take(watcher, mine)) == [(mine, b"mine", b"v")]
    assert _told_until(watcher, head)[-1] == head


def test_next_waits_for_what_comes(db: Driver) -> None:
    watcher = db.watch(db.head() + 1)
    waiting = Background(lambda: watcher.next(None))
    new = db.put(b"a", b"1")
    batch = waiting.result()
    assert brief([batch]) == [(new, b"a", b"1")]


def test_next_comes_back_when_nothing_comes(db: Driver) -> None:
    watcher = db.watch(db.head() + 1)
    assert watcher.next(0.05) is None
    assert watcher.next(0) is None
    assert watcher.next(-1) is None


def test_watches_do_not_disturb_each_other(db: Driver) -> None:
    start = db.head() + 1
    first, second = db.watch(start), db.watch(start)
    r1 = db.put(b"a")
    assert len(take(first, r1)) == 1
    r2 = db.put(b"a")
    assert len(take(first, r2)) == 1
    assert len(take(second, r2)) == 2
    first.close()
    r3 = db.put(b"a")
    assert len(take(second, r3)) == 1


@pytest.mark.long_on("asyncio etcd")
def test_a_long_history_comes_complete(db: Driver) -> None:
    start = db.head() + 1
    for i in range(2_300):
        db.put(b"k%d" % (i % 7), b"%d" % i)
    head = db.head()
    found = brief(take(db.watch(start), head))
    assert [value for _, _, value in found] == [b"%d" % i for i in range(2_300)]
    one = brief(take(db.watch(start, b"k3"), head))
    assert [value for _, _, value in one] == [b"%d" % i for i in range(3, 2_300, 7)]


def test_following_while_others_write(db: Driver) -> None:
    watcher = db.watch(db.head() + 1)
    start = db.head()

    def write(name: bytes) -> None:
        for i in range(60):
            db.txn(Put(name, b"%d" % i), Put(b"both", name))

    writers = [Background(lambda n=n: write(n)) for n in (b"x", b"y")]
    batches = take(watcher, start + 120)
    for writer in writers:
        writer.result()
    assert [batch.revision for batch in batches] == list(range(start + 1, start + 121))
    for batch in batches:
        assert next(event.kv.key for event in batch.events) == b"both"
        assert batch.events[0].kv.value == batch.events[1].kv.key


def test_a_compacted_start_is_told(db: Driver) -> None:
    revisions = [db.put(b"a", b"%d" % i) for i in range(5)]
    db.engine.compact(revisions[3])
    for start in (1, revisions[0], revisions[2]):
        watcher = db.watch(start)
        with pytest.raises(CompactedError) as caught:
            _until_error(watcher)
        assert caught.value.unit == "revision"
        assert caught.value.earliest == revisions[3]
    assert len(take(db.watch(revisions[3]), revisions[4])) == 2


def _until_error(watcher: object) -> None:
    for _ in range(200):
        watcher.next(0.1)  # type: ignore[attr-defined]


@pytest.mark.etcd_since("3.5.18", "a watch from the compacted revision")
@pytest.mark.parametrize("batches", [None, 0, 1])
def test_a_watch_from_exactly_the_compacted_revision(db: Driver, batches: int | None) -> None:
    """It gives the events at that very revision, removals too."""
    db.txn(Put(b"a", b"0"), Put(b"b", b"0"), Put(b"c", b"0"))
    at = db.txn(Put(b"a", b"1"), Delete(b"b"), Put(b"d", b"1")).header.revision
    later = db.txn(Delete(b"a"), Put(b"c", b"2")).header.revision
    db.engine.compact(at, batches=batches)
    assert brief(take(db.watch(at), later)) == [
        (at, b"a", b"1"),
        (at, b"b", None),
        (at, b"d", b"1"),
        (later, b"a", None),
        (later, b"c", b"2"),
    ]


def test_a_watch_at_the_head_survives_compaction_of_all(db: Driver) -> None:
    db.put(b"a")
    watcher = db.watch(db.head() + 1)
    db.engine.compact(db.head())
    new = db.put(b"a", b"2")
    assert brief(take(watcher, new)) == [(new, b"a", b"2")]


def test_closing_a_watch_ends_it(db: Driver) -> None:
    db.put(b"a")
    watcher = db.watch(1)
    watcher.close()
    watcher.close()
    with pytest.raises(StoreClosedError):
        watcher.next(0)


@pytest.mark.parametrize("whole_engine", [False, True])
def test_closing_from_another_thread_ends_a_waiting_watch(db: Driver, whole_engine: bool) -> None:
    watcher = db.watch(db.head() + 1)
    waiting = Background(lambda: watcher.next(None))
    (db.engine if whole_engine else watcher).close()
    with pytest.raises(StoreClosedError):
        waiting.result()
