"""Reading: points, ranges, revisions."""

from __future__ import annotations

import pytest
from cases import cases
from conformance_driver import ALL, FIRST, Driver

from snapkv.engine.bulk_reads import versions_of
from snapkv.engine.contract import Delete, Put, Range, Versions
from snapkv.errors import CompactedError, FutureRevisionError

AWKWARD = sorted(
    [
        b"\0",
        b"\0\0",
        b"\0\x01",
        b"\0\xff",
        b"\x01",
        b"a",
        b"a\0",
        b"a\0\0",
        b"a\0\x01",
        b"a\0\xff",
        b"a\0b",
        b"a\x01",
        b"a\x02",
        b"a\xff",
        b"a\xff\0",
        b"ab",
        b"b",
        b"\xfe\xff",
        b"\xff",
        b"\xff\0",
        b"\xff\xff",
        b"\xff\xff\xff",
    ]
)


@pytest.mark.new_engine
def test_a_new_engine_is_empty_at_revision_1(db: Driver) -> None:
    answer = db.engine.read([Range(b"a"), Range(FIRST, ALL), Range(FIRST, ALL, count_only=True)])
    assert answer.header.revision == 1
    for result in answer.results:
        assert (result.kvs, result.count, result.more) == ([], 0, False)


def test_an_empty_engine_answers_at_its_revision_and_not_beyond(db: Driver) -> None:
    assert db.keys(revision=db.head()) == []
    with pytest.raises(FutureRevisionError) as caught:
        db.keys(revision=db.head() + 1)
    assert (caught.value.requested, caught.value.current) == (db.head() + 1, db.head())


def test_the_header_names_one_cluster(db: Driver) -> None:
    first = db.engine.read([Range(b"a")]).header
    assert db.txn(Put(b"a", b"1")).header == (first.revision + 1, first.cluster)
    assert db.engine.read([Range(b"a")]).header == (first.revision + 1, first.cluster)


def test_a_point_read_names_the_newest_revision(db: Driver) -> None:
    first, second = db.put(b"k", b"1"), db.put(b"k", b"2")
    cluster = db.engine.read([Range(b"k")]).header.cluster
    for revision in (0, first, second):
        assert db.engine.get(b"k", revision).header == (second, cluster)
    third = db.put(b"other")
    assert db.engine.get(b"k", first) == ((third, cluster), (b"k", b"1", first, first, 1, 0))
    assert db.engine.get(b"absent") == ((third, cluster), None)
    assert db.engine.get(b"k", first - 1) == ((third, cluster), None)


def test_a_point_read_needs_a_revision_that_is_held(db: Driver) -> None:
    first, second = db.put(b"k", b"1"), db.put(b"k", b"2")
    with pytest.raises(FutureRevisionError) as future:
        db.get(b"k", second + 1)
    assert (future.value.requested, future.value.current) == (second + 1, second)
    db.engine.compact(second)
    with pytest.raises(CompactedError) as compacted:
        db.get(b"k", first)
    assert (compacted.value.requested, compacted.value.earliest) == (first, second)
    assert db.value(b"k", second) == db.value(b"k") == b"2"


def test_a_point_read_of_leased_keys(db: Driver) -> None:
    lease = db.grant()
    put = db.put(b"k", b"1", lease)
    assert db.get(b"k") == db.get(b"k", put) == (b"k", b"1", put, put, 1, lease)
    db.revoke(lease)
    assert (db.get(b"k"), db.value(b"k", put)) == (None, b"1")


@pytest.mark.parametrize("limit", [1, 2, 5, 300])
def test_versions_follow_each_other_from_a_revision_down(db: Driver, limit: int) -> None:
    """Other keys may be written in between; a remote engine may return fewer, but no gaps."""
    lease = db.grant()
    db.put(b"k", b"before")
    db.delete(b"k")
    revisions = []
    for n in range(6):
        revisions.append(db.put(b"k", b"%d" % n, lease if n % 2 else 0))
        db.put(b"k\0")
        db.put(b"j")
    for at, revision in enumerate(revisions):
        for until in (revision, revision + 2):
            found = db.engine.versions(b"k", until, limit)
            expected = [db.get(b"k", each) for each in reversed(revisions[: at + 1])][:limit]
            assert found == versions_of(expected[: len(found.values)])
            assert found.values
            if not db.engine.remote:
                assert found == versions_of(expected)
    db.delete(b"k")
    nothing = Versions([], [])
    assert db.engine.versions(b"k", db.head(), limit) == nothing
    assert db.engine.versions(b"k", revisions[0] - 1, limit) == nothing
    assert db.engine.versions(b"absent", db.head(), limit) == nothing
    assert db.engine.versions(b"k", revisions[0], limit).values == [b"0"]


def test_versions_need_a_revision_that_is_held(db: Driver) -> None:
    revisions = [db.put(b"k", b"%d" % n) for n in range(4)]
    with pytest.raises(FutureRevisionError):
        db.engine.versions(b"k", revisions[-1] + 1, 9)
    db.engine.compact(revisions[2])
    with pytest.raises(CompactedError):
        db.engine.versions(b"k", revisions[1], 9)
    assert db.engine.versions(b"k", revisions[3], 1) == versions_of([db.get(b"k")])
    found = db.engine.versions(b"k", revisions[3], 9)
    assert (found.revisions[0], found.values[0]) == (revisions[3], b"3")


def test_a_key_has_its_values_at_each_revision(db: Driver) -> None:
    start = db.head()
    first, second = db.put(b"k", b"1"), db.put(b"k", b"2")
    gone, third = db.delete(b"k"), db.put(b"k", b"3")
    assert [first, second, gone, third] == [start + 1, start + 2, start + 3, start + 4]
    found = [db.value(b"k", revision) for revision in range(start, third + 1)]
    assert found == [None, b"1", b"2", None, b"3"]
    assert db.value(b"k") == b"3"


def test_versions_and_creation_over_delete_and_create(db: Driver) -> None:
    r1, r2, r3 = db.put(b"k", b"1"), db.put(b"k", b"2"), db.put(b"k", b"3")
    db.delete(b"k")
    r5, r6 = db.put(b"k", b"5"), db.put(b"k", b"")
    found = [db.get(b"k", r) for r in (r1, r2, r3, r5, r6)]
    assert found == [
        (b"k", b"1", r1, r1, 1, 0),
        (b"k", b"2", r1, r2, 2, 0),
        (b"k", b"3", r1, r3, 3, 0),
        (b"k", b"5", r5, r5, 1, 0),
        (b"k", b"", r5, r6, 2, 0),
    ]


def test_a_key_shows_the_revision_of_its_own_write(db: Driver) -> None:
    r1 = db.put(b"a")
    db.put(b"b")
    db.put(b"c")
    found = db.get(b"a", db.head())
    assert found is not None
    assert found.mod_revision == r1


def test_future_revisions_are_refused_at_the_boundary(db: Driver) -> None:
    head = db.put(b"a")
    assert db.value(b"a", head) == b"v"
    for key, end in ((b"a", b""), (b"nothing", b""), (FIRST, ALL)):
        with pytest.raises(FutureRevisionError):
            db.range(key, end, revision=head + 1)


def test_one_bad_range_fails_the_whole_read(db: Driver) -> None:
    head = db.put(b"a")
    with pytest.raises(FutureRevisionError):
        db.engine.read([Range(b"a"), Range(b"a", revision=head + 9)])


def test_one_read_answers_many_revisions(db: Driver) -> None:
    revisions = [db.put(b"k", b"%d" % i) for i in range(5)]
    answer = db.engine.read([Range(b"k", revision=r) for r in reversed(revisions)])
    assert [result.kvs[0].value for result in answer.results] == [b"4", b"3", b"2", b"1", b"0"]
    assert answer.header.revision == revisions[-1]


def test_a_read_mixes_points_ranges_and_counts(db: Driver) -> None:
    first = db.txn(Put(b"a", b"1"), Put(b"b", b"2")).header.revision
    db.put(b"c", b"3")
    answer = db.engine.read(
        [
            Range(b"b", revision=first),
            Range(FIRST, ALL, count_only=True),
            Range(FIRST, ALL, revision=first, keys_only=True),
            Range(b"x"),
        ]
    )
    found = [([(kv.key, kv.value) for kv in r.kvs], r.count) for r in answer.results]
    assert found == [
        ([(b"b", b"2")], 1),
        ([], 3),
        ([(b"a", b""), (b"b", b"")], 2),
        ([], 0),
    ]


def test_awkward_keys_are_told_apart_and_sorted(db: Driver) -> None:
    db.txn(*(Put(key, b"=" + key) for key in reversed(AWKWARD)))
    assert db.keys() == AWKWARD
    for key in AWKWARD:
        assert db.value(key) == b"=" + key
        assert db.range(key).count == 1


@pytest.mark.long_on("asyncio etcd")
@cases("end", [*AWKWARD[1:], b"a\0\0\0", b"zz", ALL])
def test_ranges_of_awkward_keys(db: Driver, end: bytes) -> None:
    """Both ends at, between and beyond keys with zero and 0xff bytes."""
    db.txn(*(Put(key, b"v") for key in AWKWARD))
    for start in [*AWKWARD, b"a\0\0\0", b"zz"]:
        expected = [key for key in AWKWARD if key >= start and (end == ALL or key < end)]
        assert db.keys(start, end) == expected
        assert db.range(start, end, count_only=True).count == len(expected)
        assert [kv.key for kv in scanned(db, start, end, db.head())] == expected


def scanned(db: Driver, key: bytes, end: bytes, revision: int, **options: bool) -> list:
    pages = db.engine.scan(key, end, revision=revision, **options)
    return [kv for page in pages for kv in page]


def test_every_prefix_is_a_range(db: Driver) -> None:
    db.txn(*(Put(key, b"v") for key in AWKWARD))
    for prefix in (b"\0", b"a", b"a\0", b"a\xff", b"\xff", b"\xff\xff"):
        stripped = prefix.rstrip(b"\xff")
        end = stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else ALL
        assert db.keys(prefix, end) == [key for key in AWKWARD if key.startswith(prefix)]


def test_empty_and_backward_ranges_hold_nothing(db: Driver) -> None:
    db.txn(Put(b"a", b"1"), Put(b"b", b"2"), Put(b"c", b"3"))
    for key, end in ((b"b", b"b"), (b"c", b"a"), (b"b", b"a"), (b"d", ALL), (b"bb", b"c")):
        assert db.keys(key, end) == []
        assert db.range(key, end, count_only=True).count == 0
        assert db.range(key, end, limit=1).more is False


def test_a_range_end_is_exclusive_and_the_start_inclusive(db: Driver) -> None:
    db.txn(Put(b"a", b"1"), Put(b"b", b"2"), Put(b"c", b"3"))
    assert db.keys(b"a", b"c") == [b"a", b"b"]
    assert db.keys(b"a", b"c\0") == [b"a", b"b", b"c"]
    assert db.keys(b"b", ALL) == [b"b", b"c"]


@pytest.mark.parametrize("limit", range(5))
def test_limit_more_and_count(db: Driver, limit: int) -> None:
    db.txn(Put(b"a", b"1"), Put(b"b", b"2"), Put(b"c", b"3"))
    db.delete(b"b")
    db.put(b"d", b"4")
    result = db.range(FIRST, ALL, limit=limit)
    assert [kv.key for kv in result.kvs] == [b"a", b"c", b"d"][: limit or None]
    assert (result.count, result.more) == (3, 0 < limit < 3)


def test_more_looks_past_removed_keys(db: Driver) -> None:
    db.txn(*(Put(b"%02d" % i, b"v") for i in range(30)))
    db.delete(b"01", ALL)
    result = db.range(FIRST, ALL, limit=1)
    assert ([kv.key for kv in result.kvs], result.count, result.more) == ([b"00"], 1, False)


def test_limit_at_an_old_revision(db: Driver) -> None:
    old = db.txn(Put(b"a", b"1"), Put(b"b", b"2"), Put(b"c", b"3")).header.revision
    db.delete(FIRST, ALL)
    result = db.range(FIRST, ALL, limit=2, revision=old)
    assert ([kv.key for kv in result.kvs], result.count, result.more) == ([b"a", b"b"], 3, True)
    assert db.range(FIRST, ALL, limit=2).count == 0


def test_keys_only_has_everything_but_values(db: Driver) -> None:
    first, second = db.put(b"a", b"long value"), db.put(b"a", b"longer value")
    for result in (
        db.range(b"a", keys_only=True),
        db.range(FIRST, ALL, keys_only=True),
        db.range(FIRST, ALL, keys_only=True, limit=1),
    ):
        assert result.kvs == [(b"a", b"", first, second, 2, 0)]
        assert result.count == 1


def test_count_only_has_no_keys(db: Driver) -> None:
    db.txn(*(Put(b"%02d" % i, b"v") for i in range(20)))
    db.delete(b"05", b"10")
    result = db.range(FIRST, ALL, count_only=True)
    assert (result.kvs, result.count) == ([], 15)
    assert db.range(b"03", count_only=True).count == 1
    assert db.range(b"07", count_only=True).count == 0


@pytest.mark.parametrize("versions", [1, 2, 7, 8, 9, 40])
def test_ranges_pass_many_versions(db: Driver, versions: int) -> None:
    """Keys with more versions than are worth stepping over, read in the middle of them."""
    revisions = [
        db.txn(Put(b"a", b"a%d" % i), Put(b"b", b"b%d" % i)).header.revision
        for i in range(versions)
    ]
    db.put(b"aa", b"late")
    for i, revision in enumerate(revisions):
        found = [(kv.key, kv.value) for kv in db.range(FIRST, ALL, revision=revision).kvs]
        assert found == [(b"a", b"a%d" % i), (b"b", b"b%d" % i)]
        assert db.range(FIRST, ALL, revision=revision, limit=1).count == 2
    assert db.keys() == [b"a", b"aa", b"b"]


def test_values_of_any_bytes_and_sizes(db: Driver) -> None:
    values = [b"", b"\0", b"\xff" * 9, bytes(range(256)), b"x" * 100_000]
    db.txn(*(Put(b"%d" % i, value) for i, value in enumerate(values)))
    assert [db.value(b"%d" % i) for i in range(len(values))] == values
    assert [kv.value for kv in db.range(FIRST, ALL).kvs] == values


def test_keys_up_to_the_limit(db: Driver) -> None:
    longest = min(db.engine.limits.key_bytes, 4_096)
    keys = [b"k" * size for size in (1, longest - 1, longest)]
    db.txn(*(Put(key, b"v") for key in keys))
    assert db.keys() == keys
    assert db.keys(keys[1] + b"\0") == keys[2:]
    assert db.keys(keys[2], keys[2] + b"\0") == keys[2:]
    assert db.keys(keys[2] + b"\0", ALL) == []
    assert db.keys(FIRST, keys[2] + b"\xff") == keys
    db.txn(Delete(keys[2]))
    assert db.keys() == keys[:2]


def test_reads_with_options_for_remote_engines(db: Driver) -> None:
    db.put(b"a", b"1")
    answer = db.engine.read([Range(b"a", revision=db.head())], serializable=True, timeout=5.0)
    assert answer.results[0].kvs[0].value == b"1"


def test_compaction_ends_reading_exactly_below_it(db: Driver) -> None:
    revisions = [db.put(b"k", b"%d" % i) for i in range(6)]
    db.engine.compact(revisions[3])
    for revision in (1, revisions[0], revisions[2]):
        for key, end in ((b"k", b""), (b"nothing", b""), (FIRST, ALL)):
            with pytest.raises(CompactedError) as caught:
                db.range(key, end, revision=revision)
            assert caught.value.unit == "revision"
            assert (caught.value.requested, caught.value.earliest) == (revision, revisions[3])
    found = [db.value(b"k", revision) for revision in revisions[3:]]
    assert found == [b"3", b"4", b"5"]
