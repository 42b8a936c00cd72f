"""Many reads at once on etcd share requests; each has its own answer, or its own error."""

import asyncio

import pytest

import snapkv
from snapkv.engine.etcd.cluster_client import ClusterClient

pytestmark = pytest.mark.parametrize("place", ["etcd"], indirect=True)


@pytest.fixture
def requests(monkeypatch):
    """The reads that were sent."""
    sent, read = [], ClusterClient.read

    def counted(self, method, request, timeout=None):
        sent.append(method.path)
        return read(self, method, request, timeout)

    monkeypatch.setattr(ClusterClient, "read", counted)
    return sent


def test_each_gets_its_own_answer(opened, requests):
    async def main():
        async with opened() as store:
            await store.commit(puts={f"k{n}": b"%d" % n for n in range(100)})
            saved = [await store.save("a", b"%d" % n) for n in range(5)]
            requests.clear()
            loads = [store.load(f"k{n % 100}", saved[n % 5]) for n in range(300)]
            loads += [store.load("a", ts) for ts in saved]
            loads += [store.load("none", saved[0]), store.load("a")]
            found = await asyncio.gather(*loads, return_exceptions=True)
            assert found[:300] == [b"%d" % (n % 100) for n in range(300)]
            assert found[300:305] == [b"0", b"1", b"2", b"3", b"4"]
            assert isinstance(found[305], snapkv.KeyNotFoundError)
            assert found[306] == b"4"
            assert len(requests) < 60

    asyncio.run(main())


def test_one_that_cannot_be_read_fails_alone(opened):
    async def main():
        async with opened() as store:
            for n in range(20):
                await store.save("a", b"%d" % n)
            revision = (await store.at()).revision
            get, engine = store._sync._core.engine.get, store._sync._core.engine
            await store._runner.run(engine.compact, revision - 5)
            reads = [store._runner.run(get, b"default/data/a", revision - n) for n in range(15)]
            found = await asyncio.gather(*reads, return_exceptions=True)
            assert [each.kv.value for each in found[:6]] == [b"%d" % (19 - n) for n in range(6)]
            assert all(isinstance(each, snapkv.CompactedError) for each in found[6:])

    asyncio.run(main())


def test_cancelled_ones_leave_the_others(opened):
    async def main():
        async with opened() as store:
            ts = await store.save("a", b"1")
            tasks = [asyncio.create_task(store.load("a", ts)) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(each, asyncio.CancelledError) for each in found[::3])
            assert {each for n, each in enumerate(found) if n % 3} == {b"1"}
            assert await store.load("a", ts) == b"1"

    asyncio.run(main())
