"""A store belongs to one loop; closing it takes a moment, whatever its calls wait for."""

import asyncio
import fcntl
import os
import time
from contextlib import suppress

import pytest

import snapkv
import snapkv.aio
from snapkv.aio import opening

WAIT_S = 20.0


def test_closing_may_be_repeated(opened):
    async def main():
        async with opened() as store:
            await store.save("a", b"1")
            await store.aclose()
            await store.aclose()
            with pytest.raises(snapkv.errors.StoreClosedError):
                await store.load("a")

    asyncio.run(main())


def test_another_loop_gets_an_error(place):
    async def opened_here():
        return await snapkv.aio.open(place.url, **place.kind.options)

    with asyncio.Runner() as ours:
        store = ours.run(opened_here())

        async def used_there():
            calls = [
                store.load("a"),
                store.save("a", b"1"),
                store.watch("a").next(),
                store.session(),
            ]
            for call in [*calls, anext(aiter(store.commits()))]:
                with pytest.raises(snapkv.errors.NotSupportedError, match="another event loop"):
                    await call

        asyncio.run(asyncio.wait_for(used_there(), WAIT_S))
        ours.run(store.save("a", b"1"))
        ours.run(store.aclose())


def test_a_cancelled_open_leaves_nothing_open(monkeypatch):
    made = []

    def counted(*args, **options):
        made.append(opened_sync(*args, **options))
        return made[-1]

    opened_sync = opening._open.open
    monkeypatch.setattr(opening._open, "open", counted)

    async def main():
        while not made:  # a call that is cancelled early opens nothing
            task = asyncio.create_task(opening.open("memory:"))
            while not made and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await (await task).aclose()
        for store in made:
            with pytest.raises(snapkv.errors.StoreClosedError):
                store.load("a")

    asyncio.run(asyncio.wait_for(main(), WAIT_S))


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_closing_does_not_wait_for_calls_that_wait(place, opened):
    async def main():
        async with opened(commit_timeout=WAIT_S) as store:
            await store.save("a", b"1")
            with open(os.path.join(place.url.removeprefix("lmdb:"), "writer.lock"), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # as another process that writes
                saves = [asyncio.create_task(store.save(f"k/{n}", b"1")) for n in range(20)]
                async with asyncio.timeout(WAIT_S):
                    while not store._sync.stats().waiting:
                        await asyncio.sleep(0.001)
                began = time.monotonic()
                await store.aclose()
                ended = time.monotonic()
            found = await asyncio.gather(*saves, return_exceptions=True)
            assert {type(each) for each in found} == {snapkv.errors.StoreClosedError}
            assert ended - began < WAIT_S / 2, "it did not wait for the commits' timeout"

    asyncio.run(main())
