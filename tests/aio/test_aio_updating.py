"""Updates of a loop: none is lost, and one that is cancelled makes no further try."""

import asyncio

import pytest

import snapkv
from snapkv import codecs

WAIT_S = 20.0


def one_more(value):
    return b"%d" % (int(value or 0) + 1)


def test_updates_of_many_tasks_lose_nothing(opened):
    async def main():
        async with opened() as store:
            space, plans = store.space("s"), store.with_codec(codecs.json)
            done = await asyncio.gather(*(store.update("n", one_more) for _ in range(20)))
            assert sorted(int(each.value) for each in done) == list(range(1, 21))
            for _ in range(2):
                await space.update(b"n", one_more)
                await plans.update("plan", lambda plan: {"seats": (plan or {"seats": 4})["seats"]})
            assert await space.get(b"n") == b"2"
            assert [v.value async for v in plans.history("plan")] == [{"seats": 4}]
            assert (await store.update("n", lambda _: None, note="end")).commit.note == "end"
            assert await store.get("n") is None

    asyncio.run(main())


@pytest.mark.parametrize("place", ["memory", "etcd"], indirect=True)
def test_a_cancelled_update_makes_no_further_try(place, opened):
    other, calls = place.open(), []

    async def main():
        loop, lost_often = asyncio.get_running_loop(), asyncio.Event()

        def losing(value):
            calls.append(value)
            other.save("n", b"%d" % len(calls))  # so this try is lost
            if len(calls) == 4:
                loop.call_soon_threadsafe(lost_often.set)
            return b"mine"

        async with opened() as store:
            updating = asyncio.create_task(store.update("n", losing, tries=10_000))
            await asyncio.wait_for(lost_often.wait(), WAIT_S)
            updating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await updating
            called = len(calls)
            done = await store.update("n", one_more)
            assert (done.value, done.tries) == (b"%d" % (called + 1), 1)
            assert len(calls) == called
            assert not len(store._sync._core.key_locks), "nothing is locked"

    asyncio.run(main())


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_cancelled_update_in_a_thread_notes_that_nothing_was_written(place, opened):
    other = place.open()

    async def main():
        async with opened() as store:
            loop, called = asyncio.get_running_loop(), asyncio.Event()

            def losing(value):
                other.save("n", one_more(value))
                loop.call_soon_threadsafe(called.set)
                return b"mine"

            updating = asyncio.create_task(store.update("n", losing, tries=10_000))
            await asyncio.wait_for(called.wait(), WAIT_S)
            updating.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await updating
            assert "before this try: nothing was written" in caught.value.__notes__[0]

    asyncio.run(main())


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_wrong_arguments_and_errors_are_those_of_threads(place, opened):
    sync = place.open()
    wrong = [
        ("n", 7, {}),
        ("n", one_more, {"tries": 0}),
        ("n", one_more, {"guards": 7}),
        ("", one_more, {}),
        ("n", len, {}),
        ("n", lambda _: 7, {}),
        ("n", lambda _: b"1", {"guards": [snapkv.AtRevision("n", 99)]}),
    ]

    async def main():
        async with opened() as store:
            for key, fn, options in wrong:
                with pytest.raises((snapkv.SnapKVError, TypeError)) as expected:
                    sync.update(key, fn, **options)
                with pytest.raises(type(expected.value)) as caught:
                    await store.update(key, fn, **options)
                assert str(caught.value) == str(expected.value)

    asyncio.run(main())
