"""What do calls of asyncio cost on etcd, alone, a thousand at once, and beside 1,000 watchers?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

import snapkv
import snapkv.aio
from benchmarks.harness import Rival, Row, measure, report
from benchmarks.servers import Bare, etcd_server, server_facts
from snapkv.engine.etcd import etcd_pb2 as pb

IN_TURN, AT_ONCE, THREADS, WATCHERS = 20, 1_000, 32, 1_000
KEYS = 500


class BareLoop:
    """The floor: `grpc.aio`'s own client, which sends the request and decodes the answer."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint)
        self._range = self._method("Range", pb.RangeResponse)
        self._txn = self._method("Txn", pb.TxnResponse)

    def _method(self, name: str, answer: Any) -> Any:
        return self._channel.unary_unary(
            f"/etcdserverpb.KV/{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    async def load(self, i: int, revision: int) -> None:
        """Read a key at a revision."""
        key = b"default/data/k%d" % (i % KEYS)
        answer = await self._range(pb.RangeRequest(key=key, revision=revision))
        assert answer.kvs[0].value

    async def save(self, i: int) -> None:
        """Send a transaction of two puts."""
        stamp = time.time_ns().to_bytes(8, "big")
        puts = [(b"bare/ts", stamp), (b"bare/%d" % (i % KEYS), bytes(100))]
        ops = [pb.RequestOp(request_put=pb.PutRequest(key=k, value=v)) for k, v in puts]
        assert (await self._txn(pb.TxnRequest(success=ops))).succeeded

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()


class Question:
    """A loop, the floor in it, a store in it, and a store of threads."""

    def __init__(self, server: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.sync = snapkv.open(server.url)
        self.bare = Bare(server.endpoint)
        self.stamps = [self.sync.save(f"k{i}", b"%d" % i) for i in range(KEYS)]
        self.newest = self.stamps[-1]
        self.revision = self.sync.at(self.newest).revision
        self.run(self._open(server))

    async def _open(self, server: Any) -> None:
        self.floor = BareLoop(server.endpoint)
        self.store = await snapkv.aio.open(server.url)

    def run(self, coroutine: Any) -> Any:
        """Return the result of a coroutine."""
        return self.loop.run_until_complete(coroutine)

    def in_turn(self, call: Callable[[int], Awaitable[object]]) -> Callable[[int], None]:
        """Return a block of calls, one after the other."""

        async def block(first: int) -> None:
            for i in range(first, first + IN_TURN):
                await call(i)

        return lambda i: self.run(block(i * IN_TURN))

    def at_once(self, call: Callable[[int], Awaitable[object]]) -> Callable[[int], None]:
        """Return a block of calls, all at once."""

        async def block() -> None:
            await asyncio.gather(*(call(i) for i in range(AT_ONCE)))

        return lambda _: self.run(block())

    def load(self, i: int) -> Awaitable[bytes]:
        """Read a key at the newest commit of the first ones."""
        return self.store.load(f"k{i % KEYS}", self.newest)

    def close(self) -> None:
        """Close all of it."""
        self.run(self.store.aclose())
        self.run(self.floor.close())
        self.sync.close()
        self.bare.close()
        self.loop.close()


def main() -> None:
    """Ask one node for keys of 500, and save 100 bytes."""
    tables: dict[str, list[Row]] = {}
    with etcd_server() as server:
        question = Question(server)
        tables["one call after the other"] = _in_turn(question)
        tables[f"{AT_ONCE:,} loads at once (per load)"] = _at_once(question)
        tables[f"a save beside {WATCHERS:,} watchers in the same loop"] = _beside_watchers(
            question, server
        )
        tables["closing a store (all of it)"] = _closing(question, server)
        question.close()
    notes = (
        f"{server_facts()} The floor is `grpc.aio` itself, with the same messages. The loads are "
        f"of a recent time, in the ring; the floor is told the revision. {THREADS} threads divide "
        f"the {AT_ONCE:,} loads among them. A watcher is a task that waits in `async for`. The "
        "last rival of that table shows what asyncio takes to wake as many tasks."
    )
    report("aio", "What do calls of asyncio cost on etcd?", tables, notes)


def _in_turn(q: Question) -> list[Row]:
    floor, store = q.floor, q.store
    loads = measure(
        [
            Rival("grpc.aio: a read at a revision (floor)",
                  q.in_turn(lambda i: floor.load(i, q.revision))),
            Rival("snapkv.aio load(key, ts)", q.in_turn(q.load)),
        ],
        rounds=100,
    )  # fmt: skip
    saves = measure(
        [
            Rival("grpc.aio: a transaction of two puts (floor)", q.in_turn(floor.save)),
            Rival("snapkv.aio save", q.in_turn(lambda i: store.save(f"s{i % KEYS}", bytes(100)))),
        ],
        rounds=100,
    )
    return [row.per(IN_TURN) for row in loads + saves]


def _at_once(q: Question) -> list[Row]:
    with ThreadPoolExecutor(THREADS) as pool:

        def of_threads(call: Callable[[int], object]) -> Callable[[int], None]:
            return lambda _: [*pool.map(call, range(AT_ONCE))] and None

        def bare(i: int) -> None:
            assert q.bare.range(b"default/data/k%d" % (i % KEYS), revision=q.revision).kvs

        rows = measure(
            [
                Rival("grpc.aio (floor)", q.at_once(lambda i: q.floor.load(i, q.revision))),
                Rival("snapkv.aio load(key, ts)", q.at_once(q.load)),
                Rival(f"grpc in {THREADS} threads", of_threads(bare)),
                Rival(
                    f"snapkv load(key, ts) in {THREADS} threads",
                    of_threads(lambda i: q.sync.load(f"k{i % KEYS}", q.newest)),
                ),
            ],
            rounds=20,
        )
    return [row.per(AT_ONCE) for row in rows]


def _beside_watchers(q: Question, server: Any) -> list[Row]:
    """Time saves of a store alone, and of stores whose watchers live in the same loop."""
    seen = 0

    async def follow(watch: snapkv.aio.Watch[str]) -> None:
        nonlocal seen
        async for _ in watch:
            seen += 1

    async def opened(name: str, prefix: str) -> snapkv.aio.SnapshotKV:
        store = await snapkv.aio.open(server.url, name=name)
        for n in range(WATCHERS):
            watches.append(await store.watch(prefix.format(n)))
            tasks.append(asyncio.create_task(follow(watches[-1])))
        return store

    async def bare_waiter() -> None:
        while True:
            waiting.append(asyncio.get_running_loop().create_future())
            await waiting[-1]

    async def save_and_wake(i: int) -> None:
        await q.store.save(f"w/{i % KEYS}", bytes(100))
        woken, waiting[:] = waiting[:], []
        for future in woken:
            future.set_result(None)
        await asyncio.sleep(0)

    async def close() -> None:
        for watch in watches:
            await watch.aclose()
        for task in bare:
            task.cancel()
        await asyncio.gather(*tasks, *bare, return_exceptions=True)
        await asyncio.gather(idle.aclose(), woken.aclose())

    async def start_bare() -> list[asyncio.Task[None]]:
        return [asyncio.create_task(bare_waiter()) for _ in range(WATCHERS)]

    watches: list[snapkv.aio.Watch[str]] = []
    tasks: list[asyncio.Task[None]] = []
    waiting: list[asyncio.Future[None]] = []
    idle, woken = q.run(opened("idle", "other-{}/")), q.run(opened("woken", "w/"))
    bare = q.run(start_bare())

    def saving(store: snapkv.aio.SnapshotKV) -> Callable[[int], None]:
        return q.in_turn(lambda i: store.save(f"w/{i % KEYS}", bytes(100)))

    rows = measure(
        [
            Rival("save, no watcher (floor)", saving(q.store)),
            Rival(f"save, {WATCHERS:,} watchers of other keys", saving(idle)),
            Rival(f"save, {WATCHERS:,} watchers of this key", saving(woken)),
            Rival(f"save, then {WATCHERS:,} bare futures", q.in_turn(save_and_wake)),
        ],
        rounds=50,
    )
    assert seen
    q.run(close())
    return [row.per(IN_TURN) for row in rows]


def _closing(q: Question, server: Any) -> list[Row]:
    """Time `aclose` of a store with tasks that wait in watches."""

    async def follow(watch: snapkv.aio.Watch[str]) -> None:
        try:
            async for _ in watch:
                pass
        except snapkv.errors.StoreClosedError:
            pass

    async def close(watchers: int) -> float:
        store = await snapkv.aio.open(server.url)
        watches = [await store.watch(f"p{n}/") for n in range(watchers)]
        tasks = [asyncio.create_task(follow(watch)) for watch in watches]
        await asyncio.sleep(0)
        started = time.perf_counter()
        await store.aclose()
        await asyncio.gather(*tasks)
        return (time.perf_counter() - started) * 1e6

    def times(watchers: int) -> list[float]:
        return sorted(q.run(close(watchers)) for _ in range(9))

    none, many = times(0), times(WATCHERS)
    return [
        Row("without watchers", round(none[4], 1), round(none[-1], 1), 1.0),
        Row(f"with {WATCHERS:,}", round(many[4], 1), round(many[-1], 1),
            round(many[4] / none[4], 2)),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
