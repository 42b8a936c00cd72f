"""Watches of a loop share one of the engine: none misses or repeats a commit."""

import asyncio
import gc
import random
from contextlib import suppress

import pytest

import snapkv
from snapkv.aio import watch as watching

WAIT_S = 20.0


def keys_of(found):
    return [change.key for change in found]


async def taken(watch, last):
    """Return the timestamps that a watch brings, up to the last."""
    seen = []
    async with asyncio.timeout(WAIT_S):
        while not seen or seen[-1] < last:
            seen.append((await watch.next()).commit.ts)
    return seen


def test_each_watch_gets_what_matches(opened):
    async def main():
        async with opened() as store:
            everything, ours, other = [await store.watch(prefix) for prefix in (None, "a/", "b/")]
            await store.commit(puts={"a/1": b"1", "b/1": b"1", "c": b"1"})
            await store.save("c", b"2")
            await store.remove("a/1")
            found = [await everything.next(WAIT_S) for _ in range(3)]
            assert [keys_of(each) for each in found] == [["a/1", "b/1", "c"], ["c"], ["a/1"]]
            mine = [await ours.next(WAIT_S) for _ in range(2)]
            assert [[(c.key, c.value) for c in each] for each in mine] == [
                [("a/1", b"1")],
                [("a/1", None)],
            ]
            assert keys_of(await other.next(WAIT_S)) == ["b/1"]
            assert await other.next(0.01) is None
            assert other.timestamp == everything.timestamp, "seen, though it did not match"

    asyncio.run(main())


def test_from_the_past_on_while_others_commit(opened):
    async def main():
        async with opened() as store:
            saved = [await store.save(f"k/{n}", b"1") for n in range(30)]
            first = await store.watch("k/")  # the shared watch has begun

            async def commit():
                for n in range(30, 60):
                    saved.append(await store.save(f"k/{n}", b"1"))

            committing = asyncio.create_task(commit())
            starts = [0, saved[3], saved[29], saved[-1]]
            watches = [await store.watch("k/", since=since) for since in starts]
            await committing
            for since, watch in zip(starts, watches, strict=True):
                assert await taken(watch, saved[-1]) == [ts for ts in saved if ts > since]
            assert await taken(first, saved[-1]) == saved[30:]

    asyncio.run(main())


def test_iteration_ends_after_what_is_older(opened):
    async def main():
        async with opened() as store:
            saved = [await store.save("a", b"%d" % n) for n in range(5)]
            seen = [found.commit.ts async for found in store.watch(since=saved[1], timeout=0)]
            assert seen == saved[2:]
            assert [found async for found in store.watch(since=saved[-1], timeout=0)] == []
            space = store.space("s")
            commit = await space.commit(puts={b"k": b"v"})
            found = [each async for each in space.watch(since=saved[-1], timeout=0)]
            assert [each.commit.ts for each in found] == [commit.ts]

    asyncio.run(main())


@pytest.mark.parametrize("queued", [2, 5])
def test_a_slow_reader_misses_nothing_and_holds_little(opened, monkeypatch, queued):
    monkeypatch.setattr(watching, "QUEUE_MAX", queued)

    async def main():
        async with opened() as store:
            slow, fast = await store.watch(), await store.watch()
            reading = asyncio.create_task(fast.next())
            saved = [await store.save("a", b"%d" % n) for n in range(40)]
            await reading
            async with asyncio.timeout(WAIT_S):
                while fast.timestamp < saved[-1]:  # so the shared watch has passed them
                    await fast.next()
            assert len(slow._queue) <= queued
            assert await taken(slow, saved[-1]) == saved
            last = await store.save("a", b"last")
            assert await taken(slow, last) == [last]

    asyncio.run(main())


def test_cancelled_waits_lose_nothing(opened):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)

    async def main():
        async with opened() as store:
            saved = [await store.save("a", b"0") for _ in range(100)]
            watch = store.watch("a", since=0)
            async with asyncio.timeout(WAIT_S):
                committing = asyncio.create_task(commit(store, saved))
                seen = []
                while not committing.done() or seen[-1:] != saved[-1:]:
                    waiting = asyncio.create_task(watch.next())
                    done, _ = await asyncio.wait({waiting}, timeout=rng.choice([0, 0.001, 0.01]))
                    if not done:
                        waiting.cancel()
                    with suppress(asyncio.CancelledError):
                        seen.append((await waiting).commit.ts)
            assert seen == saved

    async def commit(store, saved):
        for n in range(100):
            saved.append(await store.save("a", b"%d" % n))
            await asyncio.sleep(rng.choice([0, 0.002]))

    asyncio.run(main())


@pytest.mark.long_on("etcd")
def test_a_slow_reader_that_is_cancelled_anywhere_loses_nothing(opened, monkeypatch):
    monkeypatch.setattr(watching, "QUEUE_MAX", 2)

    async def cancelled(watch, steps):
        """Return the commit that `next` brings, None if it was cancelled after some steps."""
        waiting = asyncio.create_task(watch.next(WAIT_S))
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            return (await waiting).commit.ts

    async def main():
        async with opened() as store, store.watch() as slow, store.watch() as fast:
            saved, seen = [], []
            for steps in range(24):
                saved += [await store.save("a", b"%d" % n) for n in range(4)]
                await taken(fast, saved[-1])  # so the queue of `slow` was full
                seen += [await cancelled(slow, steps) for _ in range(4)]
            seen = [ts for ts in seen if ts is not None]
            assert seen + await taken(slow, saved[-1]) == saved

    asyncio.run(main())


def test_closing_ends_what_waits(opened):
    async def main():
        async with opened() as store:
            closed, left = await store.watch("a"), await store.watch("b")

            async def follow(watch):
                return [found async for found in watch]

            ending, failing = (asyncio.create_task(follow(watch)) for watch in (closed, left))
            await asyncio.sleep(0)
            await closed.aclose()
            assert await asyncio.wait_for(ending, WAIT_S) == []
            with pytest.raises(snapkv.errors.StoreClosedError):
                await closed.next()
        with pytest.raises(snapkv.errors.StoreClosedError):
            await asyncio.wait_for(failing, WAIT_S)
        with pytest.raises(snapkv.errors.StoreClosedError):
            await store.watch("c")

    asyncio.run(main())


def test_the_last_watch_ends_that_of_the_engine(opened, monkeypatch):
    monkeypatch.setattr(watching, "LOOK_S", 0.02)

    async def main():
        async with opened() as store:
            async with store.watch("a"), store.watch("b"):
                assert store._shared._watch is not None
            assert store._shared._watch is None
            dropped = await store.watch("a")
            del dropped
            gc.collect()
            async with asyncio.timeout(WAIT_S):
                while store._shared._watch is not None:
                    await asyncio.sleep(0.01)
            async with store.watch("a") as watch:
                await store.save("a", b"1")
                assert keys_of(await watch.next(WAIT_S)) == ["a"]

    asyncio.run(main())


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_watches_report_that_all_tasks_were_cancelled(opened, begun):
    """Also tasks that asyncio has not begun."""

    async def main():
        async with opened() as store:
            watch = await store.watch("a")
            if begun:
                await store.save("a", b"0")
                assert keys_of(await watch.next(WAIT_S)) == ["a"]
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            with pytest.raises(snapkv.errors.EngineUnavailableError, match="CancelledError"):
                await watch.next(WAIT_S)
            async with store.watch("a") as another:
                await store.save("a", b"1")
                assert keys_of(await another.next(WAIT_S)) == ["a"]

    asyncio.run(main())


def test_errors_come_after_what_was_seen(opened):
    async def main():
        async with opened() as store:
            with pytest.raises(snapkv.errors.InvalidTypeError):
                await store.watch(7)
            with pytest.raises(snapkv.errors.SnapKVError):
                store.watch("a", timeout=-1)
            with pytest.raises(snapkv.errors.InvalidTimeError):
                await store.watch("a", since="yesterday-ish")

    asyncio.run(main())
