"""Compaction overtakes a stream: an error that says how to go on, or what is left."""

import pytest
from store.engines import write_raw
from stream_queries import LIMITS, Query, changes, inserted, needs_limits, refused_by

from snapkv.engine.contract import Put

pytestmark = pytest.mark.slow

LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture
def engine(place):
    return place.engine()


def foreign(engine) -> int:
    """Raise the revision beside the store."""
    return write_raw(engine, Put(b"elsewhere", b"x"))


def refused_for_loss(call) -> None:
    message = refused_by("VERSION_COMPACTED", call)
    assert "new checkpoint" in message
    assert "failOnDataLoss=false" in message


@pytest.fixture
def behind(store, place, clock):
    """A query that has read `a`, and the three commits that it has not read yet."""
    store.commit(puts={"a": b"0"})
    query = Query(place.url)
    query.drained()
    unread = []
    for n in range(1, 4):
        clock.advance(1_000)
        puts = {"a": b"%d" % n, f"new{n}": b"%d" % n}
        unread.append((store.commit(puts=puts), puts))
    return query.checkpoint, unread


# --- changes ---


@pytest.mark.parametrize("limit", LIMITS)
def test_changes_that_are_gone_end_the_query(place, engine, behind, limit):
    checkpoint, unread = behind
    engine.compact(unread[1][0].revision)
    query = Query(place.url, checkpoint, **limit)
    refused_for_loss(query.drained)
    query = Query(place.url, checkpoint, **limit)  # the next driver
    done = checkpoint.offsets[checkpoint.done - 1]
    assert query.read(done, done) == [], "what PySpark before 4.2 begins with lost nothing"
    refused_for_loss(query.drained)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("failed_before", [False, True])
def test_or_it_goes_on_with_what_is_left(place, engine, behind, limit, failed_before, caplog):
    checkpoint, unread = behind
    engine.compact(unread[1][0].revision)
    if failed_before:
        refused_for_loss(Query(place.url, checkpoint, **limit).drained)
    query = Query(place.url, checkpoint, **LENIENT, **limit)
    assert query.drained() == changes(unread[2], existed="a")
    assert "compacted unread: 2" in caplog.text
    assert query.reader.reportLatestOffset()["metrics"]["commitsLost"] == 2
    assert query.drained() == []


@pytest.mark.parametrize("failed_before", [False, True])
def test_everything_may_be_gone(store, place, engine, behind, failed_before):
    checkpoint, unread = behind
    engine.compact(unread[2][0].revision)
    if failed_before:
        refused_for_loss(Query(place.url, checkpoint).drained)
    query = Query(place.url, checkpoint, **LENIENT)
    assert query.drained() == []
    more = store.commit(puts={"b": b"1"})
    assert query.drained() == changes((more, {"b": b"1"}))


def test_nothing_is_lost_up_to_the_first_unread_commit(place, engine, behind):
    """A compaction at a commit keeps what that commit wrote."""
    checkpoint, unread = behind
    engine.compact(unread[0][0].revision)
    assert Query(place.url, checkpoint).drained() == changes(*unread, existed="a")


def test_but_what_stood_before_it_is(place, engine, behind, caplog):
    """So with preimages that commit cannot be told any more."""
    checkpoint, unread = behind
    engine.compact(unread[0][0].revision)
    with_before = {"preimages": "true"}
    refused_for_loss(Query(place.url, checkpoint, **with_before).drained)
    rows = Query(place.url, checkpoint, **with_before, **LENIENT).drained()
    assert [row for row in rows if row[2] != "update_preimage"] == changes(*unread[1:], existed="a")
    assert [row[1] for row in rows if row[2] == "update_preimage"] == [b"1", b"2"]


def test_compaction_of_what_was_read_is_no_loss(store, place, engine, behind):
    """Also when it went on to revisions of others, with nothing to read after."""
    checkpoint, unread = behind
    query = Query(place.url, checkpoint)
    assert query.drained() == changes(*unread, existed="a")
    foreign(engine)
    engine.compact(foreign(engine))
    query = Query(place.url, checkpoint)
    assert query.drained() == []
    more = store.commit(puts={"b": b"1"})
    assert query.drained() == changes((more, {"b": b"1"}))


def test_compaction_of_a_batch_that_is_to_be_read_again(place, engine, behind):
    checkpoint, unread = behind
    query = Query(place.url, checkpoint)
    query.log()
    engine.compact(unread[2][0].revision)
    refused_for_loss(query.run)
    query = Query(place.url, checkpoint, **LENIENT)
    assert query.drained() == []


def test_compaction_between_planning_and_reading(place, engine, behind):
    """The task says what to do; the next driver finds out by itself."""
    checkpoint, unread = behind
    query = Query(place.url, checkpoint)
    query.log()
    planned = query.reader.partitions

    def overtaken(start, end):
        tasks = planned(start, end)
        engine.compact(unread[1][0].revision)
        return tasks

    query.reader.partitions = overtaken
    refused_for_loss(query.run)
    assert Query(place.url, checkpoint, **LENIENT).drained() == changes(unread[2], existed="a")


# --- the snapshot ---


@pytest.fixture
def halfway(store, place, clock):
    """A query that has read `a` and `b` of the snapshot, and a commit that came meanwhile."""
    first = store.commit(puts=dict.fromkeys("abcd", b"0"))
    query = Query(place.url, maxRowsPerTrigger=2)
    batches = query.batches()
    assert [len(batch) for batch in (next(batches), next(batches))] == [0, 1]
    assert query.checkpoint.rows() == inserted(first, a=b"0", b=b"0")
    clock.advance(1_000)
    puts = {"a": b"1", "c": b"1", "d": None}
    second = store.commit(puts={"a": b"1", "c": b"1"}, deletes=["d"])
    return query.checkpoint, first, (second, puts)


@needs_limits
@pytest.mark.parametrize("limit", LIMITS)
def test_the_snapshot_stays_while_it_can_be_read(store, place, engine, halfway, limit):
    checkpoint, first, second = halfway
    engine.compact(first.revision)
    query = Query(place.url, checkpoint, **limit)
    rest = [*inserted(first, c=b"0", d=b"0"), *changes(second, existed="a c d")]
    assert query.drained() == rest


@needs_limits
@pytest.mark.parametrize("limit", LIMITS)
def test_a_snapshot_that_is_gone_ends_the_query(store, place, engine, halfway, limit):
    checkpoint, _, second = halfway
    engine.compact(second[0].revision)
    refused_for_loss(Query(place.url, checkpoint, **limit).drained)


@needs_limits
@pytest.mark.parametrize("limit", LIMITS)
def test_or_goes_on_as_it_is_left(store, place, engine, halfway, limit, caplog):
    """What was read already lacks the changes in between: that is the loss."""
    checkpoint, _, second = halfway
    engine.compact(second[0].revision)
    query = Query(place.url, checkpoint, **LENIENT, **limit)
    third = store.commit(puts={"a": b"2"})
    rest = [*inserted(second[0], c=b"1"), *changes((third, {"a": b"2"}), existed="a")]
    assert query.drained() == rest
    assert "compacted unread: 1" in caplog.text


@needs_limits
def test_a_logged_part_of_a_snapshot_that_is_gone(place, engine, halfway):
    checkpoint, _, second = halfway
    query = Query(place.url, checkpoint, maxRowsPerTrigger=1)
    query.log()
    engine.compact(second[0].revision)
    refused_for_loss(query.run)
    query = Query(place.url, checkpoint, maxRowsPerTrigger=1, **LENIENT)
    assert query.drained() == inserted(second[0], c=b"1")


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("text", ["maybe", "", "0"])
def test_what_is_no_answer_whether_to_fail(store, place, text):
    """It is said at once, not when there was a loss."""
    refused_by("INVALID_OPTION", lambda: Query(place.url, failOnDataLoss=text))
