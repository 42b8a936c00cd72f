"""Leased keys in a loop."""

import asyncio
from contextlib import suppress

import pytest

import snapkv
from snapkv.errors import InvalidOptionError, InvalidTypeError, LeaseNotFoundError, StoreClosedError

WAIT_S = 20.0
TTL_S = 30.0


def test_leased_keys_are_put_renewed_followed_and_revoked(place, opened):
    sync = place.open()

    async def main():
        async with opened() as store:
            live = store.live
            known = await live.items()
            leased = await live.put("workers/1", b"one", ttl=TTL_S)
            assert (leased.key, leased.ttl_s) == ("workers/1", TTL_S)
            assert await live.get("workers/1") == sync.live.get("workers/1") == b"one"
            assert await live.get("workers/2", b"none") == b"none"
            assert await live.items("workers/") == sync.live.items("workers/")
            assert await leased.renew() >= TTL_S
            async with await store.session(TTL_S) as session:
                await live.put("workers/2", b"two", session=session)
            await leased.revoke()
            with pytest.raises(LeaseNotFoundError):
                await leased.renew()
            async with live.watch("workers/", since=known.revision) as watch:
                found = [await watch.next(WAIT_S) for _ in range(4)]
            changes = [(change.key, change.value) for change in found]
            assert changes == [
                ("workers/1", b"one"),
                ("workers/2", b"two"),
                ("workers/2", None),
                ("workers/1", None),
            ]

    asyncio.run(main())


def test_a_cancelled_next_loses_nothing(opened):
    async def main():
        async with opened() as store:
            watch = await store.live.watch("a/")
            seen, revisions = [], []
            for n in range(6):
                waiting = asyncio.create_task(watch.next())
                await asyncio.wait({waiting}, timeout=0.01 * (n % 2))
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    seen.append(await waiting)
                put = await store.live.put(f"a/{n}", b"%d" % n, ttl=TTL_S)
                revisions.append(put.revision)
            while len(seen) < 6:
                seen.append(await watch.next(WAIT_S))
            assert [(c.key, c.revision) for c in seen] == [
                (f"a/{n}", revision) for n, revision in enumerate(revisions)
            ]
            assert await watch.next(0.01) is None
            await watch.aclose()

    asyncio.run(main())


def test_closing_ends_what_waits(opened):
    async def main():
        async def follow(watch):
            return [change async for change in watch]

        async with opened() as store:
            closed, left = await store.live.watch(), store.live.watch()
            ending, failing = (asyncio.create_task(follow(each)) for each in (closed, left))
            await asyncio.sleep(0.05)
            await closed.aclose()
            assert await asyncio.wait_for(ending, WAIT_S) == []
            with pytest.raises(StoreClosedError):
                await closed.next()
            await store.live.watch().aclose()  # one that has not begun
        with pytest.raises(StoreClosedError):
            await asyncio.wait_for(failing, WAIT_S)
        await left.aclose()
        with pytest.raises(StoreClosedError):
            await store.live.watch()

    asyncio.run(main())


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_wrong_arguments(place, opened):
    async def main():
        async with opened() as store:
            with pytest.raises(InvalidOptionError, match="ttl"):
                await store.live.put("a", b"1")
            with pytest.raises(InvalidTypeError, match=r"Session of snapkv\.aio"):
                await store.live.put("a", b"1", session=place.open().session(TTL_S))
            with pytest.raises(snapkv.SnapKVError):
                store.live.watch(timeout=-1)
            with pytest.raises(InvalidTypeError):
                await store.live.watch(since="now")
            watch = await store.live.watch()
            with pytest.raises(snapkv.SnapKVError):
                await watch.next(-1)

    asyncio.run(main())
