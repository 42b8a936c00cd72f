"""Where a new query begins: a snapshot first, or at a version, at a time, or with what is new."""

from datetime import UTC, datetime, timedelta

import pytest
from store.engines import START_MS, write_raw
from stream_queries import LIMITS, Query, changes, inserted, refused_by

from snapkv import format_time
from snapkv.engine.contract import Put

pytestmark = pytest.mark.slow


@pytest.fixture
def commits(store, clock):
    """Three commits, a second from each other, of which the second writes what the first did."""
    done = []
    for puts in ({"a": b"1", "b": b"1"}, {"a": b"2"}, {"c": b"3"}):
        clock.advance(1_000)
        done.append((store.commit(puts=puts), puts))
    return done


def compact_to(place, commit) -> None:
    place.engine().compact(commit.revision)


def test_by_default_the_whole_snapshot_and_then_changes(store, place, commits):
    query = Query(place.url)
    assert query.drained() == inserted(commits[-1][0], a=b"2", b=b"1", c=b"3")
    more = store.commit(puts={"a": b"4"}, deletes=["c"])
    assert query.drained() == changes((more, {"a": b"4", "c": None}), existed="a c")
    assert query.drained() == []


def test_of_an_empty_store(store, place):
    query = Query(place.url)
    assert query.drained() == []
    first = store.commit(puts={"a": b"1"})
    assert query.drained() == changes((first, {"a": b"1"}))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_from_a_version_on_inclusive(place, commits, first):
    query = Query(place.url, startingVersion=commits[first][0].revision)
    existed = "" if first == 0 else "a b"
    assert query.drained() == changes(*commits[first:], existed=existed)


def test_from_the_next_version_on(store, place, commits):
    query = Query(place.url, startingVersion=commits[-1][0].revision + 1)
    assert query.drained() == []
    more = store.commit(puts={"d": b"4"})
    assert query.drained() == changes((more, {"d": b"4"}))


def test_from_the_first_version_on(place, commits):
    assert Query(place.url, startingVersion=1).drained() == changes(*commits)


def test_not_from_a_version_that_is_not_there(place, commits):
    newest = commits[-1][0].revision
    query = Query(place.url, startingVersion=newest + 2)
    assert f"[1, {newest}]" in refused_by("VERSION_NOT_FOUND", query.initial)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("text", ["newest", "-1", "1.5", ""])
def test_not_from_what_is_no_version(place, commits, text):
    refused_by("INVALID_OPTION", lambda: Query(place.url, startingVersion=text).initial())


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("earlier_ms", [0, 1, 999])
def test_from_a_time_on_inclusive(place, commits, first, earlier_ms):
    at = datetime.fromtimestamp((START_MS + (first + 1) * 1_000 - earlier_ms) / 1_000, UTC)
    query = Query(place.url, startingTimestamp=at.isoformat())
    existed = "" if first == 0 else "a b"
    assert query.drained() == changes(*commits[first:], existed=existed)


def test_from_a_time_after_the_newest_commit(store, place, clock, commits):
    later = format_time(commits[-1][0].ts + (1_000 << 18))
    query = Query(place.url, startingTimestamp=later)
    assert query.drained() == []
    clock.advance(2_000)
    more = store.commit(puts={"d": b"4"})
    assert query.drained() == changes((more, {"d": b"4"}))


def test_from_a_time_before_the_first_commit(place, commits):
    assert Query(place.url, startingTimestamp="2001-01-01T00:00:00Z").drained() == changes(*commits)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_not_from_a_time_to_come(place, commits):
    """Nobody could say which of the next commits are before it."""
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    query = Query(place.url, startingTimestamp=later)
    assert later in refused_by("TIMESTAMP_INVALID", query.initial)


def test_latest_is_only_what_is_new(store, place, commits):
    query = Query(place.url, startingVersion="Latest")
    assert query.drained() == []
    more = store.commit(puts={"a": b"4"})
    assert query.drained() == changes((more, {"a": b"4"}), existed="a")


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("name", ["endingVersion", "endingTimestamp"])
def test_a_stream_has_no_end(place, commits, name):
    message = refused_by("INVALID_OPTION", lambda: Query(place.url, **{name: "3"}))
    assert "availableNow" in message


# --- once there is a checkpoint ---


STARTS = [
    {},
    {"startingVersion": 1},
    {"startingVersion": "latest"},
    {"startingVersion": 999},
    {"startingTimestamp": "2001-01-01T00:00:00Z"},
]


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("begun", STARTS[:3], ids=str)
@pytest.mark.parametrize("options", STARTS, ids=str)
def test_a_checkpoint_goes_before_any_start(store, place, commits, begun, options):
    query = Query(place.url, **begun)
    query.drained()
    more = store.commit(puts={"d": b"4"})
    query = Query(place.url, query.checkpoint, **options)
    assert query.drained() == changes((more, {"d": b"4"}))


@pytest.mark.parametrize(
    "begun", [{"startingVersion": 3}, {"startingTimestamp": "2001-01-01T00:00:00Z"}]
)
def test_also_when_the_start_is_compacted_by_then(store, place, clock, commits, begun):
    query = Query(place.url, **begun)
    query.drained()
    compact_to(place, commits[-1][0])
    more = store.commit(puts={"d": b"4"})
    query = Query(place.url, query.checkpoint, **begun)
    assert query.drained() == changes((more, {"d": b"4"}))


# --- compacted before it began ---


def test_a_start_that_is_compacted(place, commits):
    compact_to(place, commits[1][0])
    query = Query(place.url, startingVersion=commits[0][0].revision)
    refused_by("VERSION_COMPACTED", query.initial)
    query = Query(place.url, startingTimestamp=format_time(commits[0][0].ts))
    refused_by("TIMESTAMP_EARLIER_THAN_RETENTION", query.initial)


@pytest.mark.parametrize("by_time", [False, True])
def test_a_compacted_start_begins_with_what_is_left(place, commits, caplog, by_time):
    compact_to(place, commits[1][0])
    version = {"startingVersion": commits[0][0].revision}
    start = {"startingTimestamp": format_time(commits[0][0].ts)} if by_time else version
    query = Query(place.url, failOnDataLoss="false", **start)
    assert query.drained() == changes(commits[2])
    assert "compacted unread" in caplog.text


@pytest.mark.parametrize("limit", LIMITS)
def test_a_snapshot_is_there_whatever_was_compacted(place, commits, limit):
    """Also where compaction went beyond the newest commit, to what others wrote."""
    engine = place.engine()
    engine.compact(write_raw(engine, Put(b"elsewhere", b"x")))
    query = Query(place.url, **limit)
    assert query.drained() == inserted(commits[-1][0], a=b"2", b=b"1", c=b"3")
