"""A consumer's progress: whose it is, and what happens to who opens another's."""

import pytest

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations import (
    CdcLog,
    ConsumerId,
    GenerationLog,
    Sharding,
    StreamConsumer,
)
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.generation_layout import Progress
from snapkv import pack
from snapkv.base.waiting import pause

from .live import RING
from .live import clock as clock
from .live import log as log
from .live import member as member
from .tables import rows_of

pytestmark = pytest.mark.slow


def test_two_tables_of_one_store_are_read_under_one_name(store, log, member):
    a, b = (CdcLog(store, member, name) for name in "ab")
    written = [each.write(b"k%d" % n, b"v") for n in range(5) for each in (a, b)]
    assert rows_of(StreamConsumer(log, a, "idx")) == written[::2]
    assert rows_of(StreamConsumer(log, b, "idx")) == written[1::2]
    assert set(log.consumers()) == {ConsumerId("a", "idx"), ConsumerId("b", "idx")}
    assert log.forget("idx", "a")
    assert set(log.consumers()) == {ConsumerId("b", "idx")}


def test_a_table_is_not_read_by_another_logs_generations(store, log, member):
    other = GenerationLog(store, "other", propagation_delay=0.0, leeway=0.2)
    other.make(RING)
    rows = CdcLog(store, member)
    written = rows.write(b"k", b"v")
    before = store.resolved()
    with pytest.raises(InvalidArgumentError, match=r"'generations/default', not of .*other"):
        StreamConsumer(other, rows, "idx")
    with (
        other.member("stray") as stray,
        pytest.raises(InvalidArgumentError, match="open it with that log"),
    ):
        CdcLog(store, stray).write(b"k", b"lost")
    assert (rows.get(b"k"), other.consumers()) == (b"v", {})
    assert [commit.note for commit in store.commits(since=before) if commit.note] == []
    assert rows_of(StreamConsumer(log, rows, "idx")) == [written]


def test_who_reads_first_says_of_which_log_a_table_is(store, log, member):
    other = GenerationLog(store, "other", propagation_delay=0.0, leeway=0.2)
    other.make(RING)
    rows = CdcLog(store, member)
    StreamConsumer(other, rows, "idx")
    with pytest.raises(InvalidArgumentError, match="open it with that log"):
        rows.write(b"k", b"v")
    assert rows.get(b"k") is None


def test_since_is_for_names_that_are_new(store, log, member):
    rows = CdcLog(store, member)
    rows.write(b"k", b"1")
    consumer = StreamConsumer(log, rows, "idx", since="-1h")
    assert len(rows_of(consumer)) == 1
    with pytest.raises(
        InvalidArgumentError,
        match=rf"registered already, at .*\({consumer.progress.position}\): leave",
    ):
        StreamConsumer(log, rows, "idx", since=0)
    assert rows_of(StreamConsumer(log, rows, "idx")) == []
    log.forget("idx")
    assert len(rows_of(StreamConsumer(log, rows, "idx", since=0))) == 1


def test_progress_of_an_older_version_is_not_taken_for_a_tables(store, log, member):
    """It has no table: whoever opens it hears how to go on where it was."""
    rows = CdcLog(store, member)
    first, second = (rows.write(b"k", value) for value in (b"1", b"2"))
    old = Progress(log.generations()[0].time, first.timestamp)
    log._space.commit(
        puts={layout.consumer_key(layout.ConsumerId(None, "idx")): layout.encode(old)}
    )
    with pytest.raises(InvalidArgumentError, match=f"since={first.timestamp}"):
        StreamConsumer(log, rows, "idx")
    assert log.consumers() == {ConsumerId(None, "idx"): old}
    assert log.forget("idx")
    assert rows_of(StreamConsumer(log, rows, "idx", since=first.timestamp)) == [second]


def test_old_progress_still_keeps_its_generation(store, log, member):
    old = Progress(log.generations()[0].time, log.generations()[0].time)
    log._space.commit(
        puts={layout.consumer_key(layout.ConsumerId(None, "idx")): layout.encode(old)}
    )
    second = log.make({5: Sharding(1)})
    while store.tick().ts <= second.time + pack(400):
        pause(0.05)
    assert log.expire(0).removed == ()
    log.forget("idx")
    assert len(log.expire(0).removed) == 1
