"""How much a batch brings: limits that part no commit, and queries that end."""

import pytest
from stream_queries import Query, needs_limits, refused_by

KEY_BYTES = len("default/data/k00")

pytestmark = [pytest.mark.slow, needs_limits]
one_engine = pytest.mark.parametrize("place", ["lmdb"], indirect=True)
"""For what no engine can change."""


def keys(batches) -> list[list[str]]:
    """The keys of the batches that brought any."""
    found = [[row[0] for task in batch for row in task] for batch in batches]
    return [batch for batch in found if batch]


def sizes(batches) -> list[int]:
    return [len(batch) for batch in keys(batches)]


@pytest.fixture
def ten(store):
    """Ten keys, each of as many bytes as the others, in one commit."""
    return store.commit(puts={f"k{n:02}": b"%04d" % n for n in range(10)})


# --- the snapshot ---


@one_engine
@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, [1] * 10), (3, [3, 3, 3, 1]), (5, [5, 5]), (9, [9, 1]), (10, [10]), (1_000, [10])],
)
def test_rows_of_the_snapshot(place, ten, limit, expected):
    query = Query(place.url, maxRowsPerTrigger=limit)
    assert sizes(query.batches()) == expected
    assert [row[0] for row in query.checkpoint.rows()] == [f"k{n:02}" for n in range(10)]
    assert len(query.checkpoint.offsets) == 1 + len(expected), "an empty batch, the first"


@one_engine
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [1] * 10),
        (2 * (KEY_BYTES + 4) - 1, [1] * 10),
        (2 * (KEY_BYTES + 4), [2] * 5),
        (10 * (KEY_BYTES + 4), [10]),
    ],
)
def test_bytes_of_the_snapshot(place, ten, limit, expected):
    assert sizes(Query(place.url, maxBytesPerTrigger=limit).batches()) == expected


@one_engine
def test_the_smaller_of_both_limits_counts(place, ten):
    one = Query(place.url, maxRowsPerTrigger=4, maxBytesPerTrigger=2 * (KEY_BYTES + 4))
    other = Query(place.url, maxRowsPerTrigger=2, maxBytesPerTrigger=4 * (KEY_BYTES + 4))
    assert sizes(one.batches()) == sizes(other.batches()) == [2] * 5


def test_a_snapshot_under_limits_is_of_one_moment(store, place, ten):
    query = Query(place.url, maxRowsPerTrigger=4)
    batches = query.batches()
    assert keys([next(batches), next(batches)]) == [["k00", "k01", "k02", "k03"]]
    store.commit(puts={"k05": b"new", "a": b"new"}, deletes=["k09"])
    query = Query(place.url, query.checkpoint, maxRowsPerTrigger=4)
    assert keys(query.batches()) == [
        ["k04", "k05", "k06", "k07"],
        ["k08", "k09"],
        ["a", "k05", "k09"],
    ]
    assert [row[1] for row in query.checkpoint.rows() if row[0] == "k05"] == [b"0005", b"new"]


def test_a_limit_may_be_lifted_in_the_middle_of_a_snapshot(store, place, ten):
    query = Query(place.url, maxRowsPerTrigger=4)
    batches = query.batches()
    assert keys([next(batches), next(batches)]) == [["k00", "k01", "k02", "k03"]]
    store.commit(puts={"k01": b"new"})
    rest = [f"k{n:02}" for n in range(4, 10)]
    assert keys(Query(place.url, query.checkpoint).batches()) == [[*rest, "k01"]]


def test_another_prefix_in_the_middle_of_a_snapshot(store, place, ten):
    query = Query(place.url, maxRowsPerTrigger=4)
    batches = query.batches()
    assert keys([next(batches), next(batches)]) == [["k00", "k01", "k02", "k03"]]
    for prefix, rest in (("k00", []), ("k05", ["k05"]), ("z", []), ("a", [])):
        other = Query(place.url, query.checkpoint, maxRowsPerTrigger=4, keyPrefix=prefix)
        end = other.latest(query.checkpoint.offsets[-1])
        batch = other.read(query.checkpoint.offsets[-1], end)
        assert [row[0] for task in batch for row in task] == rest, prefix


# --- changes ---


@pytest.fixture
def commits(store, clock):
    """Commits of 1, 2, 3, 4 and 1 rows, with ticks between them."""
    for size in (1, 2, 3, 4, 1):
        clock.advance(1_000)
        store.commit(puts={f"k{n:02}": b"%04d" % n for n in range(size)})
        store.tick()


@one_engine
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [1, 2, 3, 4, 1]),
        (2, [1, 2, 3, 4, 1]),
        (3, [3, 3, 4, 1]),
        (4, [3, 3, 4, 1]),
        (5, [3, 3, 5]),
        (6, [6, 5]),
        (10, [10, 1]),
        (11, [11]),
    ],
)
def test_rows_of_changes_part_no_commit(place, commits, limit, expected):
    query = Query(place.url, maxRowsPerTrigger=limit, startingVersion=1)
    assert sizes(query.batches()) == expected


@one_engine
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (1, [1, 2, 3, 4, 1]),
        (3 * (KEY_BYTES + 4) - 1, [1, 2, 3, 4, 1]),
        (3 * (KEY_BYTES + 4), [3, 3, 4, 1]),
    ],
)
def test_bytes_of_changes_part_no_commit(place, commits, limit, expected):
    query = Query(place.url, maxBytesPerTrigger=limit, startingVersion=1)
    assert sizes(query.batches()) == expected


@one_engine
def test_rows_count_as_they_are_delivered(store, place, commits):
    """An update has two rows with preimages, a removal none where it is not wanted."""
    store.commit(deletes=["k00", "k01", "k02"])
    store.commit(puts=dict.fromkeys(("k00", "k01", "k02"), b"1"))
    options = {"startingVersion": 1, "maxRowsPerTrigger": 4}
    with_before = Query(place.url, preimages="true", **options)
    # 1 | 1 update and 1 insert | 2 and 1 | 3 and 1 | 1 update | 3 removals | 3 inserts
    assert sizes(with_before.batches()) == [4, 5, 7, 2, 3, 3]
    without = Query(place.url, ignoreDeletes="true", **options)
    assert sizes(without.batches()) == [3, 3, 4, 4]


@one_engine
def test_bytes_count_as_they_are_delivered(store, place):
    """With preimages each row has its own value, and a removal the one that stood."""
    for value in (b"1" * 100, b"2", b"3" * 100, None, b"4"):
        store.commit(**({"deletes": ["k00"]} if value is None else {"puts": {"k00": value}}))
    options = {"startingVersion": 1, "preimages": "true"}
    # of 1 row | 2 rows | 2 | 1 | 1, with so many bytes of values
    values = (100, 101, 101, 100, 1)
    first = 3 * KEY_BYTES + values[0] + values[1]
    for limit, expected in (
        (first - 1, [1, 2, 2, 2]),
        (first, [3, 3, 1]),
        (first + 2 * KEY_BYTES + values[2] - 1, [3, 4]),
        (first + 2 * KEY_BYTES + values[2], [5, 2]),
    ):
        query = Query(place.url, maxBytesPerTrigger=limit, **options)
        assert sizes(query.batches()) == expected, limit
    without = Query(place.url, maxBytesPerTrigger=first, ignoreDeletes="true", **options)
    assert sizes(without.batches()) == [3, 3]


@one_engine
def test_values_before_are_read_128_at_a_time(store, place):
    keys = [f"k{n:03}" for n in range(300)]
    for value in (b"1" * 10, b"2"):
        store.commit(puts=dict.fromkeys(keys, value))
    query = Query(place.url, maxBytesPerTrigger=1, startingVersion=1, preimages="true")
    assert sizes(query.batches()) == [300, 600]


def test_what_comes_after_the_snapshot_has_limits_too(store, place, commits):
    query = Query(place.url, maxRowsPerTrigger=2)
    assert sizes(query.batches()) == [2, 2]
    for n in range(5):
        store.commit(puts={"a": b"%d" % n})
    assert sizes(query.batches()) == [2, 2, 1]


# --- commits without rows ---


@pytest.mark.parametrize("bounded", [False, True])
def test_commits_that_match_nothing_move_the_offset_once(store, place, bounded):
    store.save("k", b"1")
    limit = {"maxRowsPerTrigger": 2} if bounded else {}
    query = Query(place.url, keyPrefix="nothing/", startingVersion=1, **limit)
    for n in range(20):
        store.save(f"k{n}", b"1")
        store.tick()
    assert list(query.batches()) == [[[]]], "one batch to the head, without rows"
    assert list(query.batches()) == []
    newest = query.latest(query.checkpoint.offsets[-1])
    assert newest == query.checkpoint.offsets[-1]


def test_the_same_stretch_is_not_read_again(store, place, monkeypatch):
    """Neither by the next driver."""
    for n in range(200):
        store.save(f"k{n}", b"1")
    query = Query(place.url, keyPrefix="nothing/", startingVersion=1, maxRowsPerTrigger=1)
    query.drained()
    starts = []
    engine = type(store.reader.engine)
    watch = engine.watch

    def noted(self, key, range_end, *, start_revision):
        starts.append(start_revision)
        return watch(self, key, range_end, start_revision=start_revision)

    monkeypatch.setattr(engine, "watch", noted)
    before = store.tick().revision
    store.tick()
    query = Query(place.url, query.checkpoint, keyPrefix="nothing/", maxRowsPerTrigger=1)
    assert list(query.batches()) == [[[]]]
    assert min(starts) >= before


@pytest.mark.long_on("etcd")
def test_a_match_behind_many_others_comes(store, place):
    for n in range(50):
        store.save(f"k{n}", b"1")
    store.save("wanted/1", b"1")
    for n in range(50):
        store.save(f"k{n}", b"2")
    store.save("wanted/2", b"2")
    query = Query(place.url, keyPrefix="wanted/", startingVersion=1, maxRowsPerTrigger=1)
    assert keys(query.batches()) == [["wanted/1"], ["wanted/2"]]


# --- queries that end ---


def writing_on(store, batches):
    """Let a writer commit before each batch."""
    for n, batch in enumerate(batches):
        store.commit(puts={f"new{n}": b"1", f"more{n}": b"1"})
        yield batch


@pytest.mark.parametrize("limit", [None, 3])
def test_available_now_ends_though_a_writer_goes_on(store, place, ten, limit):
    options = {} if limit is None else {"maxRowsPerTrigger": limit}
    query = Query(place.url, **options)
    query.reader.prepareForTriggerAvailableNow()
    seen = [key for batch in keys(writing_on(store, query.batches())) for key in batch]
    assert seen == [f"k{n:02}" for n in range(10)]
    query = Query(place.url, query.checkpoint, **options)
    query.reader.prepareForTriggerAvailableNow()
    later = [key for batch in keys(writing_on(store, query.batches())) for key in batch]
    assert later == [f"{name}{n}" for n in range(len(later) // 2) for name in ("more", "new")]
    assert len(later) >= 4


def test_available_now_with_nothing_new(place, ten):
    query = Query(place.url)
    assert len(query.available_now()) == 10
    assert Query(place.url, query.checkpoint).available_now() == []


def test_available_now_ends_also_when_its_end_is_before_its_start(store, place, ten):
    """Spark prepares first, and asks for the start afterwards."""
    query = Query(place.url)
    query.reader.prepareForTriggerAvailableNow()
    store.save("k99", b"1")
    assert len(query.drained()) == 11
    store.save("k98", b"1")
    assert query.drained() == []


def test_once_knows_no_limits(store, place, ten):
    """The first batch of a query is the one that brings its start into the log."""
    query = Query(place.url, maxRowsPerTrigger=3)
    assert query.once() == []
    assert len(query.once()) == 10
    for n in range(7):
        store.save("k00", b"%d" % n)
    assert len(Query(place.url, query.checkpoint, maxRowsPerTrigger=3).once()) == 7
    assert Query(place.url, query.checkpoint, maxRowsPerTrigger=3).once() == []


# --- what Spark is told ---


@one_engine
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("ReadAllAvailable", {})),
        ({"maxRowsPerTrigger": 7}, ("ReadMaxRows", {"max_rows": 7})),
        ({"maxBytesPerTrigger": 1 << 40}, ("ReadMaxBytes", {"max_bytes": 1 << 40})),
        ({"maxBytesPerTrigger": 9, "maxRowsPerTrigger": 7}, ("ReadMaxRows", {"max_rows": 7})),
    ],
    ids=str,
)
def test_the_limit_that_spark_is_told(store, place, options, expected):
    limit = Query(place.url, **options).reader.getDefaultReadLimit()
    assert (type(limit).__name__, vars(limit)) == expected


@one_engine
@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "maxBytesPerTrigger"])
@pytest.mark.parametrize("given", ["0", "-1", "1.5", "many", ""])
def test_what_is_no_limit(store, place, name, given):
    assert name in refused_by("INVALID_OPTION", lambda: Query(place.url, **{name: given}))


def test_progress_shows_the_newest_commit(store, place, ten):
    query = Query(place.url, maxRowsPerTrigger=1)
    query.log()
    assert query.reader.reportLatestOffset()["rev"] == ten.revision
    newer = store.save("k", b"1")
    assert query.reader.reportLatestOffset()["ts"] == newer


def metrics(query: Query) -> list[int]:
    return list(query.reader.reportLatestOffset()["metrics"].values())


def test_progress_shows_how_far_behind_a_stream_is(store, place, clock):
    store.save("a", b"0")
    query = Query(place.url, maxRowsPerTrigger=1)
    query.drained()
    assert metrics(query) == [0, 0, 0]
    for n in range(3):
        clock.advance(1_000)
        store.save("a", b"%d" % n)
    query = Query(place.url, query.checkpoint, maxRowsPerTrigger=1)
    for behind in (2, 1, 0):
        query.log()
        if behind == 1:  # the next driver repeats the batch that is logged
            query = Query(place.url, query.checkpoint, maxRowsPerTrigger=1)
            query.run()
        assert metrics(query) == [behind, 1_000 * behind, 0]
        query.run()
        query.commit()
    assert not query.log()
    assert metrics(query) == [0, 0, 0]
