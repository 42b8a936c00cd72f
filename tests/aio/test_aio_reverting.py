"""Reverts of a loop do what reverts of threads do, also among writers."""

import asyncio
import random

import pytest
from store.revert_model import KEYS, History, Wanted, arguments, wanted, written

import snapkv.aio
from snapkv import ConflictError, KeyNotFoundError, RevertConflictError

STEPS = 25


async def read(store):
    history = History()
    async for changes in store.watch(since=0, timeout=0):
        history.add(changes.commit.ts, {each.key: each.value for each in changes})
    return history


def test_any_revert_in_any_history(opened):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    async def main():
        async with opened() as store:
            reverts = 0
            for _ in range(STEPS):
                await store.commit(**arguments(written(chance)))
                history = await read(store)
                if not history.commits:
                    continue
                asked = wanted(chance, len(history.commits))
                times = [history.commits[at][0] for at in asked.commits]
                state, conflicts = history.reverted(asked)
                if not history.chosen_are_met(asked):
                    with pytest.raises(KeyNotFoundError):
                        await store.revert(*times, **asked.options)
                elif conflicts and asked.mode == "plain":
                    with pytest.raises(RevertConflictError) as caught:
                        await store.revert(*times, **asked.options)
                    found = caught.value.conflicts
                    assert {key: each.ts for key, each in found.items()} == conflicts
                else:
                    done = await store.revert(*times, **asked.options)
                    assert {key: each.ts for key, each in done.conflicts.items()} == conflicts
                    assert (await read(store)).state == state
                    reverts += done.commit is not None
            assert reverts, "some are carried out"

    asyncio.run(main())


def test_among_tasks_that_write(place, opened):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, reverts = random.Random(seed), []

    async def write(store):
        for _ in range(30):
            await store.commit(**arguments(written(chance)))

    async def revert(store):
        for _ in range(15):
            newest = [ts for ts, _ in (await read(store)).visible[-3:]]
            mode = chance.choice(("plain", "theirs", "force"))
            try:
                done = await store.revert(*newest[:1], **Wanted([], [], [], mode).options)
            except ConflictError:
                continue
            if done.commit is not None:
                reverts.append((done.commit, newest[:1], mode))

    async def main():
        async with opened() as store:
            await store.commit(puts={"a": b"0"})
            async with snapkv.aio.open(place.url, **place.kind.options) as other:
                await asyncio.gather(write(other), write(other), revert(store))
            history = await read(store)
        index = {ts: at for at, (ts, _) in enumerate(history.commits)}
        assert reverts
        for commit, times, mode in reverts:
            before = History()
            for ts, changed in history.commits[: index[commit.ts]]:
                before.add(ts, {key: after for key, (_, after) in changed.items()})
            state, _ = before.reverted(Wanted([index[ts] for ts in times], [], [], mode))
            changed = history.commits[index[commit.ts]][1]
            for key in KEYS:
                now = changed[key][1] if key in changed else before.state.get(key)
                assert now == state.get(key), key

    asyncio.run(main())


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_dry_run_writes_nothing(opened):
    async def main():
        async with opened() as store:
            ts = await store.save("a", b"1")
            preview = await store.revert(ts, dry_run=True)
            assert ([each.key for each in preview.changes], preview.commit) == (["a"], None)
            assert await store.load("a") == b"1"

    asyncio.run(main())
