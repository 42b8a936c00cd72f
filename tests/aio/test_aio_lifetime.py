"""A store belongs to one loop; closing it takes a moment, whatever its calls wait for."""

import asyncio
import fcntl
import os
import time

import pytest

import snapkv
import snapkv.aio

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


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_closing_does_not_wait_for_calls_that_wait(place, opened):
    async def main():
        async with opened(commit_timeout=WAIT_S) as store:
            await store.save("a", b"1")
            with open(os.path.join(place.url.removeprefix("lmdb:"), "writer.lock"), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # as another process that writes
                saves = [asyncio.create_task(store.save(f"k/{n}", b"1")) for n in range(20)]
                async with asyncio.timeout(WAIT_S):
                    while not store._store.stats().waiting:
                        await asyncio.sleep(0.001)
                began = time.monotonic()
                await store.aclose()
                ended = time.monotonic()
            found = await asyncio.gather(*saves, return_exceptions=True)
            assert {type(each) for each in found} == {snapkv.errors.StoreClosedError}
            assert ended - began < WAIT_S / 2, "it did not wait for the commits' timeout"

    asyncio.run(main())
