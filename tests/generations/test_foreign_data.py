"""Records and rows that others damaged: each is told by its type, and members live on."""

from functools import partial

import msgpack
import pytest

from cdcmeta.errors import CorruptTopologyError, InvalidArgumentError, SwitchAbortedError
from cdcmeta.generations import (
    CdcLog,
    Generations,
    Sharding,
    StreamConsumer,
    Topology,
)
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.generation_layout import Aborted, ConsumerId, Generation, Progress, Switch
from snapkv.errors import CorruptStoreError
from snapkv.tuples import pack

from .test_switching import RING, WIDER, Slow, in_background, until_pending

pytestmark = pytest.mark.slow

ID = bytes(16)
RECORDS = [
    Generation(5, ID, b"ring", 1, 2, made=3),
    Generation(5, ID, b"ring", 1, 2, made=3, expired=9),
    Switch(ID, b"ring", 1, 2, layout.STORING, 0, 7, first=True),
    Aborted(ID, "why"),
    Progress(5, 4),
]
FOREIGN = [None, "x", b"x", -1, 1 << 65, 1.0, True, [], {}, "5", float("nan")]


def damaged(record, name, value):
    """Return a record's bytes with another field, past all checks; None where none can be."""
    fields = msgpack.unpackb(layout.encode(record)) | {name: value}
    try:
        return msgpack.packb(fields)
    except OverflowError:
        return None


def cases():
    for record in RECORDS:
        for name in record.__slots__:
            own = getattr(record, name)
            for value in FOREIGN:
                fine = (name, value) in (("expired", None), ("first", True), ("why", "x"))
                fine |= (name, value) in (("why", "5"), ("ring", b"x"), ("refines", True))
                if not fine and value is not own:
                    yield pytest.param(record, name, value, id=f"{name}-{value!r}")


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_records_come_back(record):
    assert layout.decode(type(record), layout.encode(record)) == record


@pytest.mark.parametrize(("record", "name", "value"), list(cases()))
def test_a_field_of_another_kind_is_no_record(record, name, value):
    if (raw := damaged(record, name, value)) is not None:
        with pytest.raises(CorruptStoreError, match=f"{name} is"):
            layout.decode(type(record), raw)


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x90", b"\x05", b"\xa1x", b"\x80", bytes(30)])
def test_bytes_that_are_no_record(raw):
    with pytest.raises(CorruptStoreError):
        layout.decode(Progress, raw)


@pytest.mark.parametrize("size", [0, 7, 9, 400])
def test_numbers_have_eight_bytes(size):
    with pytest.raises(CorruptStoreError):
        layout.number_of(bytes(size))


KEYS = [
    pack((5,)),
    pack(("x" * 8,)),
    pack(()),
    b"\xff" * 10,
    pack((bytes(8), 1)),
    pack((bytes(7),)),
]


@pytest.mark.parametrize("packed", [*KEYS, b"\x01" + bytes(8) + b"\x01", b"\x01abc\x00\xffefg\x00"])
def test_keys_of_rows_that_are_of_no_range(packed):
    with pytest.raises(CorruptTopologyError):
        layout.end_of(b"prefix", b"prefix" + packed)


@pytest.mark.parametrize(
    "end", [bytes(8), b"\xff" * 8, b"\x00\xff" * 4, b"abcdefgh", b"abcdef\x00g"]
)
def test_keys_of_rows_come_back(end):
    assert layout.end_of(b"p", layout.row_key(b"p", end)) == end


@pytest.mark.parametrize("row", [(5, b"\x0c"), (b"k" * 8, "text"), (None, None), (b"k", b"\x0c")])
def test_rows_that_are_of_no_topology(row):
    rows = [*Topology.make(RING).rows(), row]
    with pytest.raises(CorruptTopologyError):
        Topology.of_rows(rows)


# --- in a store ---


def test_a_foreign_row_ends_the_switch_and_not_its_members(log, clock):
    with Slow(log, clock) as slow, log.member("node", generations=Generations(clock=clock)) as node:
        made = in_background(lambda: log.make(RING, timeout=60))
        switch = until_pending(log)
        log._space.commit(puts={layout.rows_prefix(switch.id) + pack((5,)): b"foreign"})
        slow.catch_up_until(made)
        with pytest.raises(SwitchAbortedError, match="is not a range"):
            made.result()
        again = in_background(lambda: log.make(RING, timeout=60))
        slow.catch_up_until(again)
        assert (log.generations(), node.alive) == ([again.result()], True)


def test_an_answer_that_nobody_can_read_ends_the_switch(log, clock):
    ack_key = partial(layout.answer_key, layout.ACK)
    for at, key in enumerate((ack_key, lambda id, _: ack_key(id) + b"\xff")):
        with Slow(log, clock):
            made = in_background(lambda: log.make(RING, timeout=60))
            switch = until_pending(log)
            log._space.commit(puts={key(switch.id, 5): b"foreign"})
            with pytest.raises(SwitchAbortedError, match="is not valid"):
                made.result(20)
            assert (log.generations(), log.pending()) == ([], None), at


@pytest.fixture
def two(log, clock, store):
    """A log of two generations, and a consumer's rows."""
    made = [log.make(ring) for ring in (RING, WIDER)]
    clock.set((made[1].time >> 18) + 60_000)
    store.tick()
    return made


@pytest.mark.parametrize(
    ("name", "value"), [("time", "x"), ("time", -5), ("id", 7), ("made", None)]
)
def test_a_generation_that_cannot_be_read(log, store, two, name, value):
    rows = CdcLog(store, Generations())
    consumer = StreamConsumer(log, rows, "c")
    key = layout.generation_key(two[0].time)
    log._space.commit(puts={key: damaged(two[0], name, value)})
    for ask in (log.generations, lambda: log.expire(0), consumer.next, log.member):
        with pytest.raises(CorruptStoreError):
            ask()
    assert store.sessions() == []


def test_a_generation_under_the_key_of_another(log, two):
    log._space.commit(puts={layout.generation_key(two[0].time): layout.encode(two[1])})
    for ask in (log.generations, lambda: log.expire(0)):
        with pytest.raises(CorruptStoreError):
            ask()


@pytest.mark.parametrize("value", ["x", None, -1, 1.5])
def test_progress_that_cannot_be_read(log, store, two, value):
    rows = CdcLog(store, Generations())
    StreamConsumer(log, rows, "c")
    raw = damaged(Progress(two[0].time, 0), "position", value)
    log._space.commit(puts={layout.consumer_key(ConsumerId("default", "c")): raw})
    for ask in (log.consumers, lambda: log.expire(0), lambda: StreamConsumer(log, rows, "c")):
        with pytest.raises(CorruptStoreError):
            ask()
    assert len(log.generations()) == 2


def test_names_of_consumers_that_cannot_be_read(log, two):
    log._space.commit(puts={pack(("consumer", 5)): layout.encode(Progress(two[0].time, 0))})
    with pytest.raises(CorruptStoreError):
        log.consumers()


def test_a_count_that_cannot_be_read(log, two):
    log._space.commit(puts={layout.CONSUMERS: bytes(7)})
    with pytest.raises(CorruptStoreError):
        log.register([ConsumerId("default", "c")], Progress(two[0].time, two[0].time))


@pytest.mark.parametrize("progress", [Progress("x", 5), Progress(-1, 5), Progress(1 << 64, 5)])
def test_what_could_not_be_read_is_not_written(log, store, two, progress):
    before = store.resolved()
    with pytest.raises(InvalidArgumentError):
        log.save(ConsumerId("default", "c"), 1, progress)
    assert store.resolved() == before


def test_ids_of_another_length_are_not_written(log, store):
    log._coordinator._random_bytes = lambda count: bytes(3 if count == 16 else count)
    with pytest.raises(InvalidArgumentError, match="id is"):
        log.make({5: Sharding(1)})
    assert log.pending() is None
