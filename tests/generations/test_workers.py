"""A consumer split over workers: each row once, a generation finished by all before the next."""

import random

import pytest
from cases import cases
from sampling import fewer_on_etcd

from cdcmeta.errors import ConsumerTakenError, InvalidArgumentError
from cdcmeta.generations import GenerationLog, Sharding
from cdcmeta.generations.log_rows import SLOTS, slot_of

from .tables import Site, rows_of

pytestmark = pytest.mark.slow

RING = {(n << 58) + 1: Sharding(2) for n in range(-32, 32)}
MOVED = {(n << 58) + (1 << 57): Sharding(3) for n in range(-32, 32)}


@pytest.fixture
def log(store):
    return GenerationLog(store, propagation_delay=0.0, leeway=5.0)


class Table(Site):
    """One that workers read."""

    def worker(self, part, parts, **more):
        return self.consumer(part=part, parts=parts, **more)


@pytest.fixture
def table(store, log, clock):
    table = Table(log, store, clock, keys=50)
    table.switch(RING)
    return table


@pytest.mark.long_after(3)
@pytest.mark.parametrize("parts", [1, 2, 3, 7, SLOTS])
def test_together_they_see_each_row_once(table, parts):
    table.write(40)
    found = [rows_of(table.worker(part, parts)) for part in range(parts)]
    assert sorted(row for each in found for row in each) == table.written
    slots = [{slot_of(row.stream) for row in each} for each in found]
    assert all(not one & other for one in slots for other in slots if one is not other)
    assert parts > 3 or all(found)


def test_a_generation_is_finished_by_all_before_the_next(table):
    table.write(30)
    table.clock.advance(20_000)
    second = table.switch(MOVED)
    table.clock.advance(20_000)
    table.write(30)
    one, two = (table.worker(part, 2) for part in range(2))
    got = rows_of(one)
    assert all(row.timestamp < second.time for row in got)
    assert (one.waiting_for, one.next()) == ((1,), None)
    assert one.progress.position == second.time - 1
    while not (window := two.next()).is_last:
        got += window.rows
        two.save(window)
    assert one.next() is None  # read, not saved
    got += window.rows
    two.save(window)
    assert sorted(got) == [row for row in table.written if row.timestamp < second.time]
    for worker in (one, two):
        got += rows_of(worker)
        assert worker.waiting_for == ()
    assert sorted(got) == table.written


@pytest.mark.long_after(1)
@pytest.mark.parametrize(("place", "seed"), fewer_on_etcd(range(6), one_in=3), indirect=["place"])
def test_changes_of_a_row_come_in_order_whatever_rings_do(table, seed):
    """Workers in turns, crashes, generations that move streams from one worker to another."""
    print("seed", seed)
    rng = random.Random(seed)
    parts = rng.choice([2, 3, 5])
    workers = [table.worker(part, parts, max_rows=9) for part in range(parts)]
    got = []
    rings = [MOVED, RING, {5: Sharding(3)}, RING | MOVED]

    def step():
        part = rng.randrange(parts)
        if rng.random() < 0.1:
            workers[part] = table.worker(part, parts, max_rows=9)
        if (window := workers[part].next()) is not None:
            got.extend(window.rows)
            workers[part].save(window)

    for _ in range(150):
        if rng.random() < 0.05:
            table.clock.advance(15_000)
            table.switch(rng.choice(rings))
        table.write(rng.choice([0, 0, 1, 4]))
        step()
    table.clock.advance(30_000)
    table.store.tick()
    for _ in range(2_000):
        if len(got) == len(table.written):
            break
        step()
    assert sorted(got) == table.written
    for key in {row.key for row in got}:
        own = [row for row in got if row.key == key]
        assert own == sorted(own)


def test_the_first_worker_registers_all_so_nothing_goes_before_the_others_came(table):
    table.write(10)
    first = table.worker(0, 3)
    list(first)
    table.clock.advance(20_000)
    table.switch(MOVED)
    table.clock.advance(60_000)
    table.write(1)
    assert rows_of(first) == []
    assert table.log.expire(0).removed == ()
    assert table.rows.trim("-0s") == 0
    assert len(table.log.consumers()) == 3
    rest = [row for part in (1, 2) for window in table.worker(part, 3) for row in window.rows]
    assert rest


def test_another_number_of_workers_is_told(table):
    table.worker(0, 2)
    for part, parts in ((0, 1), (2, 3)):
        with pytest.raises(match=f"has 2 workers, not {parts}"):
            table.worker(part, parts)
    assert table.log.forget("c")
    assert table.log.consumers() == {}
    table.worker(2, 3)


def test_two_of_one_part_are_told(table):
    table.write(5)
    one, two = table.worker(0, 1), table.worker(0, 1)
    one.save(one.next())
    with pytest.raises(ConsumerTakenError):
        two.save(two.next())


def test_workers_may_all_be_started_with_the_same_since(table):
    table.write(10)
    since = table.written[4].timestamp
    workers = [table.worker(part, 2, since=since) for part in range(2)]
    found = sorted(row for worker in workers for window in worker for row in window.rows)
    assert found == table.written[5:]


def test_workers_that_register_at_once(table, monkeypatch):
    register, others = type(table.log).register, []

    def second(self, *args):
        if not others:
            others.append(True)
            others.append(table.worker(1, 2))
        return register(self, *args)

    monkeypatch.setattr(type(table.log), "register", second)
    assert table.worker(0, 2).progress == others[1].progress


@cases(
    ("part", "parts"), [(1, 1), (-1, 2), (0, 0), (0, 65), (None, 1), (0, "2"), (True, 2), (0.0, 1)]
)
def test_parts_that_cannot_be(table, part, parts):
    with pytest.raises(InvalidArgumentError, match="part"):
        table.worker(part, parts)
    assert table.log.consumers() == {}
