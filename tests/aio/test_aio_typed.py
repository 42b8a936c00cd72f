"""Values through a codec in a loop answer as those of threads."""

import asyncio

import pytest

import snapkv
import snapkv.aio
from snapkv import codecs
from snapkv.errors import DecodeError, InvalidOptionError, InvalidTypeError, InvalidValueError

WAIT_S = 20.0


async def listed(steps):
    return [step async for step in steps]


def test_typed_reads_are_those_of_threads(place, opened):
    sync = place.open().with_codec(codecs.json)

    async def main():
        async with opened(codec=codecs.json) as plans:
            first = await plans.save("a/1", {"seats": 1}, note="first")
            commit = await plans.commit(puts={"a/2": [1, 2], "b": "text"})
            await plans.remove("b")
            assert await plans.load("a/1", first) == sync.load("a/1", first) == {"seats": 1}
            assert await plans.get("z", {}) == {}
            assert await plans.get("b", None, commit.ts) == "text"
            assert await plans.entry("a/2") == sync.entry("a/2")
            assert await plans.entries_of(["a/2", "z"]) == sync.entries_of(["a/2", "z"])
            assert await plans.load_with_prefix("a/") == sync.load_with_prefix("a/")
            assert await listed(plans.diff(first)) == list(sync.diff(first))
            assert await listed(plans.history("b", newest_first=True, limit=1)) == list(
                sync.history("b", newest_first=True, limit=1)
            )
            snapshot, same = await plans.at(commit.ts), sync.at(commit.ts)
            assert await snapshot["b"] == same["b"]
            assert await snapshot.raw["b"] == b'"text"'
            assert await listed(snapshot.items(after="a/1", limit=1)) == [("a/2", [1, 2])]
            assert await listed(snapshot.entries("a/")) == list(same.entries("a/"))
            past = await plans.at(first)
            assert await listed(past.diff(snapshot)) == list(sync.at(first).diff(same))
            assert await plans.raw.load("a/2") == b"[1,2]"
            space = plans.space("s").with_codec(codecs.msgpack)
            await space.save(b"k", {"seats": 2})
            assert await space.load(b"k") == {"seats": 2}
            assert type(plans).__name__ in repr(plans)
            assert plans.codec is codecs.json

    asyncio.run(main())


def test_typed_watches_share_the_watch_of_the_store(opened):
    async def main():
        async with opened() as store:
            views = [store.with_codec(codecs.json) for _ in range(2)]
            watches = [await view.watch("a/") for view in views]
            raw = await store.watch("a/")
            await store.save("a/1", b'{"seats": 1}')
            broken = await store.save("a/2", b"{")
            last = await store.remove("a/1")
            for watch in watches:
                assert [c.value for c in await watch.next(WAIT_S)] == [{"seats": 1}]
                with pytest.raises(DecodeError, match="'a/2'"):
                    await watch.next(WAIT_S)
                assert watch.timestamp == broken
                assert [c.value for c in await anext(watch)] == [None]
                assert watch.timestamp == last
            assert [(await raw.next(WAIT_S)).commit.ts for _ in range(3)][1:] == [broken, last]
            assert store._shared._watches >= set(watches)
            async with views[0].watch(since=broken, timeout=0) as again:
                assert [c.value async for found in again for c in found] == [None]

    asyncio.run(main())


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_what_a_codec_does_not_take(opened):
    async def main():
        async with opened() as store:
            plans = store.with_codec(codecs.json)
            with pytest.raises(InvalidValueError):
                await plans.save("a", object())
            with pytest.raises(InvalidTypeError):
                store.with_codec(7)
            with pytest.raises(InvalidTypeError):
                plans.watch(7, timeout="soon")
            with pytest.raises(InvalidTypeError, match="snapshot of the same view"):
                await listed((await plans.at()).diff(await store.at()))
        with pytest.raises(InvalidTypeError):
            await snapkv.aio.open("memory:", codec=7)

    asyncio.run(main())


@pytest.mark.parametrize("place", ["lmdb", "etcd"], indirect=True)
def test_without_a_url_the_store_of_the_environment_is_opened(place, monkeypatch):
    async def main():
        async with snapkv.aio.open(**place.kind.options) as store:
            await store.save("a", b"1")
            assert place.open().load("a") == b"1"
            kind = "LoopRunner" if place.url.startswith("etcd") else "ThreadRunner"
            assert type(store._runner).__name__ == kind

    monkeypatch.setenv("SNAPKV_STORE", place.url)
    asyncio.run(main())


def test_without_a_url_and_without_the_variable(monkeypatch):
    async def main():
        await snapkv.aio.open()

    monkeypatch.delenv("SNAPKV_STORE", raising=False)
    with pytest.raises(InvalidOptionError, match="SNAPKV_STORE"):
        asyncio.run(main())
