"""Reads and writes in a loop answer as those of threads, on each engine."""

import asyncio
import os
import sys
import threading
from typing import ClassVar

import greenlet
import pytest

import snapkv
from snapkv import codecs
from snapkv.base.greenlet_runtime import GreenletRuntime

PUTS = {f"a/{n:02}": b"%d" % n for n in range(40)} | {"b/1": b"x"}


async def filled(store):
    first = await store.save("a/00", b"0", note="first", writer="ann", meta={"request": "r-1"})
    await store.commit(puts=PUTS)
    await store.remove("b/1")
    await store.multi_save({"c": b"1"}, [lambda ts: ("c/ts", str(ts).encode())])
    await store.multi_save_and_remove_with_prefix({"a/new": b"1"}, ["a/1"])
    await store.space("s").commit(puts={b"k": b"v"})
    return first


def one_more(value):
    return b"%d" % (int(value or 0) + 1)


async def listed(steps):
    return [step async for step in steps]


def test_all_reads(place, opened):
    sync = place.open()

    async def main():
        async with opened() as store:
            first = await filled(store)
            assert await store.load("a/00", first) == sync.load("a/00", first) == b"0"
            assert await store.get("a/00", ts=first) == sync.get("a/00", ts=first) == b"0"
            assert await store.get("z", "none") == "none"
            assert await store.entry("a/02") == sync.entry("a/02")
            assert await store.entries_of(["a/02", "z"]) == sync.entries_of(["a/02", "z"])
            assert await store.load_with_prefix("a/") == sync.load_with_prefix("a/")
            assert await listed(store.diff(first)) == list(sync.diff(first))
            assert await listed(store.history("b/1")) == list(sync.history("b/1"))
            pages = {"newest_first": True, "limit": 1, "since": first}
            assert await listed(store.history("a/00", **pages)) == list(
                sync.history("a/00", **pages)
            )
            assert await listed(store.commits()) == list(sync.commits())
            assert await listed(store.spaces()) == list(sync.spaces()) == ["s"]
            assert await store.revisions_at([first, 0]) == sync.revisions_at([first, 0])
            assert await store.timestamp_of(first) == first
            assert await store.resolved() == sync.resolved()
            assert (await store.check()).problems == ()
            assert (await store.info())["commits"] == 6
            assert store.stats().commits == 6
            health = await store.health()
            assert health.answers
            assert health.newest_timestamp == sync.resolved()
            assert await store.space("s").load(b"k") == b"v"
            assert store.guards_max == sync.guards_max

            snapshot, same = await store.at(), sync.at()
            assert (snapshot.revision, snapshot.timestamp, snapshot.final) == (
                same.revision, same.timestamp, same.final,
            )  # fmt: skip
            assert await snapshot["a/02"] == await snapshot.get("a/02") == b"2"
            assert await snapshot.get("z", "none") == "none"
            assert await snapshot.contains("a/02")
            assert not await snapshot.contains("z")
            assert await listed(snapshot) == list(same)
            assert await listed(snapshot.items("a/", start="a/2")) == list(
                same.items("a/", start="a/2")
            )
            assert await listed(snapshot.keys("a/", after="a/02", limit=2)) == ["a/03", "a/04"]
            assert await listed(snapshot.values()) == list(same.values())
            assert await listed(snapshot.entries("c")) == list(same.entries("c"))
            assert await snapshot.count("a/") == same.count("a/")
            assert await snapshot.items_of([("a/", "a0")], limit=2) == same.items_of(
                [("a/", "a0")], limit=2
            )
            past = await store.at(first)
            assert await listed(past.diff(snapshot)) == list(sync.at(first).diff(same))
            tick = await store.tick()
            assert (await store.at(tick.ts)).final
            restored = await store.restore(first, note="undo")
            assert await listed((await store.at(restored.ts)).keys()) == ["a/00"]

    asyncio.run(main())


def test_errors_are_those_of_threads(opened):
    async def main():
        async with opened() as store:
            await store.save("a", b"1")
            with pytest.raises(snapkv.KeyNotFoundError):
                await store.load("b")
            with pytest.raises(snapkv.ConflictError):
                await store.commit(puts={"a": b"2"}, guards=[snapkv.Absent("a")])
            with pytest.raises(ZeroDivisionError):
                await store.commit(lambda stamp: 1 / 0)
            with pytest.raises(snapkv.errors.InvalidTypeError):
                await store.save("a", "text")
            assert await store.load("a") == b"1"
        with pytest.raises(snapkv.errors.StoreClosedError):
            await store.load("a")

    asyncio.run(main())


def test_dumps_and_observed_keys(place, opened, tmp_path):
    async def main():
        async with opened() as store:
            await store.save("a", b"1")
            tick = await store.tick()
            assert await store.dump(tmp_path / "dump") == 1
            await store.load_dump(tmp_path / "dump", replace=True)
            options = place.kind.options
            async with snapkv.aio.observe(place.url, prefix="default/data/", **options) as keys:
                assert await keys.load("default/data/a", tick.ts) == b"1"
                assert await keys.resolved() > tick.ts
                assert [v.value async for v in keys.history("default/data/a")] == [b"1", b"1"]

    asyncio.run(main())


def test_several_observed_prefixes(place, opened):
    async def main():
        prefixes, options = ["default/data/a", "default/data/c"], place.kind.options
        async with opened() as store:
            tick = await store.commit(puts=dict.fromkeys(("a1", "a2", "b", "c"), b"1"))
            async with snapkv.aio.observe(
                place.url, prefix=prefixes, exclude="default/data/a2", **options
            ) as keys:
                snapshot = await keys.at(tick.ts)
                wanted = ["default/data/a1", "default/data/c"]
                assert [key async for key in snapshot] == wanted
                async with await keys.watch() as watch:
                    await store.save("b", b"2")
                    await store.save("c", b"2")
                    changes = await watch.next(20)
                    assert [change.key for change in changes] == wanted[1:]

    asyncio.run(main())


def test_a_watch_of_observed_keys_begins_in_the_past(place, opened):
    async def main():
        async with opened() as store:
            ticks = [await store.save(key, b"1") for key in ("a", "b")]
            await store.tick()
            async with (
                snapkv.aio.observe(place.url, prefix="default/data/", **place.kind.options) as keys,
                await keys.watch(since=0) as watch,
            ):
                assert [(await watch.next(20)).commit.ts for _ in ticks] == ticks

    asyncio.run(main())


def test_concurrent_commits_share_transactions(place, opened):
    async def main():
        async with opened() as store:
            saved = await asyncio.gather(*(store.save(f"k/{n}", b"%d" % n) for n in range(200)))
            keys, values = await store.load_with_prefix("k/")
            assert dict(zip(keys, values, strict=True)) == {f"k/{n}": b"%d" % n for n in range(200)}
            assert not place.url.startswith("etcd") or len(set(saved)) < 100

    asyncio.run(main())


class Tracked:
    """A lock that knows in which greenlet it is held."""

    held: ClassVar[set] = set()

    def __init__(self) -> None:
        self._lock = threading._allocate_lock()

    def acquire(self, *args, **options):
        taken = self._lock.acquire(*args, **options)
        if taken:
            self._by = (id(self), id(greenlet.getcurrent()))
            self.held.add(self._by)
        return taken

    def release(self):
        self.held.discard(self._by)
        self._lock.release()

    def locked(self):
        return self._lock.locked()

    __enter__ = acquire

    def __exit__(self, *error):
        self.release()


@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_no_lock_of_threads_is_held_while_a_call_waits(opened, monkeypatch):
    """It would stop the loop for good as soon as a second call wanted it."""
    real, checked = threading.Lock, 0

    def lock():
        ours = sys._getframe(1).f_globals.get("__name__", "").startswith("snapkv")
        return Tracked() if ours else real()

    wait_for = GreenletRuntime.wait_for

    def watched(self, awaitable):
        nonlocal checked
        me = id(greenlet.getcurrent())
        held = [each for each in Tracked.held if each[1] == me]
        assert not held, "a lock of threads is held in a wait"
        checked += 1
        return wait_for(self, awaitable)

    monkeypatch.setattr(threading, "Lock", lock)
    monkeypatch.setattr(GreenletRuntime, "wait_for", watched)

    async def main():
        async with opened() as store:
            first = await filled(store)
            await asyncio.gather(*(store.save(f"k/{n}", b"1") for n in range(20)))
            await asyncio.gather(*(store.load("a/00", first + n % 2) for n in range(20)))
            async with (
                await store.session(5) as session,
                await store.election("e", session=session) as election,
            ):
                await election.campaign(b"me")
                await store.commit(puts={"e": b"1"}, guards=[election.guard])
            await store.compact("-0s")
            assert await listed(store.history("a/00"))
            assert await listed(store.diff(first))
            assert await listed(store.watch(since=first, timeout=0))
            await asyncio.gather(*(store.update("n", one_more) for _ in range(20)))
            plans = store.with_codec(codecs.json)
            await asyncio.gather(*(plans.update("plan", lambda _: {"seats": 2}) for _ in range(5)))
            assert await listed(plans.watch("plan", since=first, timeout=0))
            known, leased = await store.live.items(), await store.live.put("w", b"1", ttl=5)
            await leased.renew()
            assert await store.live.watch(since=known.revision).next(5)
            await leased.revoke()

    asyncio.run(main())
    assert checked > 100


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_a_store_in_threads_needs_few(opened):
    async def main():
        async with opened() as store:
            await asyncio.gather(*(store.save(f"k/{n}", b"1") for n in range(500)))
            names = [t.name for t in threading.enumerate() if t.name.startswith("snapkv aio")]
            assert 1 <= len(names) <= 12, os.linesep.join(names)

    asyncio.run(main())
    assert not [t for t in threading.enumerate() if t.name.startswith("snapkv aio")]


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_reads_do_not_wait_behind_writes(place, opened):
    """Another store of the machine keeps the write lock while its commit is built."""
    building, go_on = threading.Event(), threading.Event()

    def build(stamp):
        building.set()
        assert go_on.wait(60)
        return snapkv.Ops(puts={"slow": b"1"})

    async def main():
        async with opened() as store:
            ts = await store.save("a", b"1")
            other = place.open()
            slow = threading.Thread(target=other.commit, args=(build,))
            slow.start()
            assert building.wait(60)
            saves = [asyncio.create_task(store.save(f"k/{n}", b"1")) for n in range(20)]
            await asyncio.sleep(0)  # so that they are before the load
            async with asyncio.timeout(5):  # the writers wait for longer
                assert await store.load("a", ts) == b"1"
            go_on.set()
            slow.join()
            await asyncio.gather(*saves)

    asyncio.run(main())
