"""Stores of an asyncio process: a commit is later than what was read from another store."""

import asyncio

import pytest

from snapkv import clock as clocks
from snapkv.clock import SharedFloor, SystemClock
from snapkv.times import pack

AHEAD_MS = 4_000
WAIT_S = 20.0


class Fast:
    """The clock of another machine."""

    def now_ms(self):
        return SystemClock().now_ms() + AHEAD_MS


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """Let each test be a process that has seen nothing."""
    monkeypatch.setattr(clocks, "_machine_floor", SharedFloor())


@pytest.fixture
def fast(place):
    """Another writer of the store `a`, with a faster clock."""
    store = place.open(name="a", clock=Fast())
    store.save("k", b"old")
    return store


async def watched(a, fast):
    async with await a.watch("k") as watch:
        fast.save("k", b"newer")
        changes = await watch.next(WAIT_S)
        assert changes.changes[0].value == b"newer"
        return changes.commit.ts


async def loaded(a, fast):
    assert await a.load("k") == b"new"


async def at_now(a, fast):
    assert await (await a.at())["k"] == b"new"


async def loaded_by_many(a, fast):
    assert await asyncio.gather(*(a.load("k") for _ in range(20))) == [b"new"] * 20


@pytest.mark.parametrize("read", [loaded, loaded_by_many, at_now, watched])
def test_a_commit_is_later_than_what_a_task_has_read(place, opened, fast, read):
    async def main():
        async with opened(name="a") as a, opened(name="b") as b:
            ts = fast.save("k", b"new")
            ts = await read(a, fast) or ts
            assert ts > pack(SystemClock().now_ms()), "else the clock alone would do"
            assert await b.save("x", b"1") > ts

    asyncio.run(main())


def test_each_task_of_a_group_is_later_than_what_it_has_read(place, opened, fast):
    async def main():
        async with opened(name="a") as a, opened(name="b") as b:

            async def work(n):
                for _ in range(10):
                    ts = await asyncio.to_thread(fast.save, "k", b"%d" % n)
                    await a.load("k")
                    assert await b.save(f"x{n}", b"1") > ts

            await asyncio.gather(*(work(n) for n in range(4)))

    asyncio.run(main())


def test_stores_of_threads_and_of_a_loop_do_not_wait_for_each_other(place, opened, fast):
    """On etcd they run in two places: neither reads the other one; both take commits."""
    threads = place.open(name="threads")

    async def main():
        async with opened(name="a") as a:
            ts = fast.save("k", b"new")
            assert await a.load("k") == b"new"
            await asyncio.wait_for(asyncio.to_thread(threads.save, "x", b"1"), WAIT_S)
            await a.resolved()
            assert await asyncio.to_thread(threads.save, "x", b"2") > ts, "as the docs advise"
            fast.save("k", b"newer")
            mine = place.open(name="a")
            assert mine.load("k") == b"newer"
            assert await asyncio.wait_for(a.save("x", b"1"), WAIT_S)

    asyncio.run(main())
