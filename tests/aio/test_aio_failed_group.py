"""A task whose TaskGroup has failed is not cancelled: its calls fail with their own errors."""

import asyncio
from contextlib import suppress

import pytest

import snapkv
import snapkv.aio

WAIT_S = 20.0


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_a_close_is_no_cancellation(place):
    async def fail():
        raise ValueError

    async def failing_group():
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(WAIT_S)

    async def load(store):
        with pytest.raises(ExceptionGroup):
            await failing_group()
        await store.load("a")  # asyncio still counts the cancellation (before Python 3.13)

    async def main():
        async with snapkv.aio.open(place.url) as store:
            await store.save("a", b"1")
            place._server.pause()
            loading = asyncio.create_task(load(store))
            done, _ = await asyncio.wait({loading}, timeout=0.2)
            assert not done
        place._server.resume()
        with pytest.raises((snapkv.errors.StoreClosedError, snapkv.errors.EngineUnavailableError)):
            await asyncio.wait_for(loading, WAIT_S)

    asyncio.run(main())


def test_a_session_whose_making_is_cancelled_is_closed(opened):
    async def main():
        async with opened() as store:
            for n in range(12):
                making = asyncio.create_task(store.session(30, b"s"))
                await asyncio.sleep(n / 2_000)
                making.cancel()
                with suppress(asyncio.CancelledError):
                    await (await making).aclose()
            assert not await store.sessions()

    asyncio.run(main())
