"""Cancelled calls leak nothing, and each cancelled commit has an outcome that can be found out."""

import asyncio
import random

import pytest

import snapkv

WAIT_S = 30.0


def cause_of(error):
    """Return the commit of unknown outcome that an error names, None without one."""
    while error is not None and not isinstance(error, snapkv.CommitUnknownError):
        error = error.__cause__
    return error


async def outcome(store, unknown):
    return await store.resolve(
        unknown.timestamp, unknown.nonce, batch=unknown.batch, guards=unknown.guards
    )


def test_random_cancellations(opened):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)

    async def main():
        async with opened() as store:
            tasks = {}
            for n in range(300):
                tasks[f"k/{n}"] = task = asyncio.create_task(store.save(f"k/{n}", b"1"))
                if rng.random() < 0.5:
                    loop = asyncio.get_running_loop()
                    loop.call_later(rng.choice([0, 0.0005, 0.002, 0.01]), task.cancel)
                if rng.random() < 0.2:
                    await asyncio.sleep(rng.choice([0, 0.001]))
            await asyncio.wait(tasks.values(), timeout=WAIT_S)
            landed, unknown = set(), 0
            for key, task in tasks.items():
                try:
                    await task
                    landed.add(key)
                except asyncio.CancelledError as error:
                    open_commit = cause_of(error)
                    notes = getattr(error, "__notes__", [])
                    if open_commit is not None:
                        unknown += 1
                        if await outcome(store, open_commit) is not None:
                            landed.add(key)
                    elif any("ended with" in note for note in notes):
                        landed.add(key)
            assert set((await store.load_with_prefix("k/"))[0]) == landed
            assert await store.load(await anext(aiter((await store.at()).keys()))) == b"1"
            print(len(landed), "landed,", unknown, "looked up")

    asyncio.run(main())


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_one_of_a_group_is_cancelled_while_the_server_is_silent(place, opened):
    async def main():
        async with opened() as store:
            await store.save("a", b"1")
            place._server.pause()
            first = asyncio.create_task(store.save("k/first", b"1"))
            await asyncio.sleep(0)  # it leads, and has sent
            others = [asyncio.create_task(store.save(f"k/{n}", b"1")) for n in range(10)]
            async with asyncio.timeout(WAIT_S):
                while store._sync._core.committer._queue.request is None:
                    await asyncio.sleep(0.001)
            first.cancel()
            others[3].cancel()
            with pytest.raises(asyncio.CancelledError) as of_first:
                await first
            with pytest.raises(asyncio.CancelledError) as of_waiting:
                await others.pop(3)
            assert cause_of(of_waiting.value) is None, "it was not sent"
            place._server.resume()
            await asyncio.wait_for(asyncio.gather(*others), WAIT_S)
            unknown = cause_of(of_first.value)
            commit = await outcome(store, unknown)
            keys = set((await store.load_with_prefix("k/"))[0])
            assert ("k/first" in keys) == (commit is not None)
            assert keys - {"k/first"} == {f"k/{n}" for n in range(10) if n != 3}

    asyncio.run(main())


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_a_timeout_names_what_it_left_open(place, opened):
    async def main():
        async with opened() as store:
            await store.save("a", b"1")
            place._server.pause()
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.2):
                    await store.save("a", b"2")
            place._server.resume()
            unknown = cause_of(caught.value)
            assert unknown.may_still_land
            commit = await outcome(store, unknown)
            assert await store.load("a") == (b"1" if commit is None else b"2")

    asyncio.run(main())


def test_cancelled_reads_leave_the_store_usable(opened):
    async def main():
        async with opened() as store:
            await store.commit(puts={f"k/{n}": b"1" for n in range(50)})
            tasks = [asyncio.create_task(store.load("k/1")) for _ in range(50)]
            tasks += [asyncio.create_task(anext(aiter(store.commits()))) for _ in range(10)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, bytes | snapkv.Commit) for each in done[1::2])
            assert await store.load("k/1") == b"1"

    asyncio.run(main())


def test_a_cancelled_campaign_resigns(opened):
    async def main():
        async with opened() as store, await store.election("e") as leader:
            await leader.campaign(b"first")
            second = await store.election("e")
            waiting = asyncio.create_task(second.campaign(b"second"))
            async with asyncio.timeout(WAIT_S):
                while len(await store.sessions()) < 2:
                    await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            third = await store.election("e")
            waiting = asyncio.create_task(third.campaign(b"third", timeout=WAIT_S))
            await leader.resign()
            await waiting
            assert (await third.leader()).value == b"third"
            leaders = await third.watch_leader()
            assert (await leaders.next(WAIT_S)).value == b"third"
            await third.proclaim(b"again")
            assert (await leaders.next(WAIT_S)).value == b"again"
            assert await leaders.next(0.01) is None
            await leaders.aclose()
            await third.aclose()

    asyncio.run(main())


def test_a_session_is_renewed_and_ends(place, opened):
    async def main():
        async with opened() as store:
            ttl = place.kind.ttl_s
            session = await store.session(ttl, b"me")
            assert not await session.wait_lost(1.5 * session.ttl_s), "it was renewed"
            assert [each.value for each in await store.sessions()] == [b"me"]
            waiting = asyncio.create_task(session.wait_lost())
            await session.aclose()
            assert await asyncio.wait_for(waiting, WAIT_S)
            assert not session.alive
            assert not await store.sessions()

    asyncio.run(main())
