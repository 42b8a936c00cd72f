"""Threads of the server, and its routes."""

import asyncio
import gc
import re
import threading

import anyio
import pytest

import snapkv
from cdcmeta.changes import ChangesDB
from cdcmeta.couch_http import couch_server
from cdcmeta.couch_http import wakeup as waking
from cdcmeta.couch_http.couch_server import Routes
from cdcmeta.couch_http.service import CallThreads, ServedDB

pytestmark = pytest.mark.slow


def run_with(most: int, do):
    threads = CallThreads(most, "test")
    try:
        return anyio.run(do, threads)
    finally:
        threads.close()


def test_results_and_errors():
    def fails():
        raise ZeroDivisionError("mine")

    async def do(threads):
        assert await threads.run(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError, match="mine"):
            await threads.run(fails)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(lambda: next(iter(())))
        assert await threads.run(lambda: threading.current_thread().name) == "test 1"

    run_with(3, do)


def test_no_more_than_the_most_and_in_turn():
    going, most, order = set(), [], []
    gate = threading.Event()

    async def do(threads):
        def work(n):
            going.add(n)
            most.append(len(going))
            assert gate.wait(20)
            going.discard(n)
            order.append(n)

        async with anyio.create_task_group() as tasks:
            for n in range(12):
                tasks.start_soon(threads.run, lambda n=n: work(n))
            with anyio.fail_after(20):
                while len(going) < 3:
                    await anyio.sleep(0.001)
            gate.set()

    run_with(3, do)
    assert max(most) == 3
    assert sorted(order) == list(range(12))


def test_one_thread_runs_calls_in_the_order_they_came():
    order = []

    async def do(threads):
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(threads.run, lambda n=n: order.append(n))

    run_with(1, do)
    assert order == list(range(20))


def test_who_is_cancelled_waits_for_the_call():
    ended, gate = [], threading.Event()

    async def do(threads):
        def work():
            assert gate.wait(20)
            ended.append(True)

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(threads.run, work)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
                asyncio.get_running_loop().call_later(0.01, gate.set)
        assert ended == [True]

    run_with(2, do)


def test_closed_threads_end():
    before = set(threading.enumerate())

    async def do(threads):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(threads.run, lambda: None)

    run_with(4, do)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive()


ROUTES = Routes(
    {
        "/": "root",
        "/_up": "up",
        "/{db}": "db",
        "/{db}/_changes": "changes",
        "/{db}/_all_docs/queries": "queries",
        "/{db}/{id}": "doc",
        "/{db}/_design/{design}": "design",
        "/{db}/{id}/{rest:path}": "deeper",
    }
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("root", {})),
        ("/_up", ("up", {})),
        ("/a", ("db", {"db": "a"})),
        ("/a/_changes", ("changes", {"db": "a"})),
        ("/_up/_changes", ("changes", {"db": "_up"})),
        ("/a/b", ("doc", {"db": "a", "id": "b"})),
        ("/a/_design", ("doc", {"db": "a", "id": "_design"})),
        ("/a/_design/x", ("design", {"db": "a", "design": "x"})),
        ("/a/_design/x/y", ("deeper", {"db": "a", "id": "_design", "rest": "x/y"})),
        ("/a/_all_docs/queries", ("queries", {"db": "a"})),
        ("/a/_changes/x", ("deeper", {"db": "a", "id": "_changes", "rest": "x"})),
        ("/a/b//c", ("deeper", {"db": "a", "id": "b", "rest": "/c"})),
        ("/a%2Fb/c", ("doc", {"db": "a%2Fb", "id": "c"})),
        ("//a", None),
        ("/a//b", None),
    ],
)
def test_routes(path, expected):
    assert ROUTES.find(path) == expected


@pytest.mark.parametrize("path", couch_server.ROUTES)
def test_each_route_of_the_server_is_found(path):
    """The first one that fits takes precedence: none may hide a later one."""
    routes = Routes({each: each for each in couch_server.ROUTES})
    assert routes.find(re.sub(r"{\w+(:path)?}", "x", path))[0] == path


def test_what_a_cancelled_call_raises_is_nobodys(caplog):
    """Asyncio logs an error that nobody fetched: who hangs up could fill the log."""
    began = threading.Event()

    def fails():
        began.set()
        raise ZeroDivisionError

    async def do(threads):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(threads.run, fails)
            await anyio.sleep(0)
            tasks.cancel_scope.cancel()
        assert began.wait(20)
        gc.collect()
        await anyio.sleep(0)

    run_with(1, do)
    gc.collect()
    assert caplog.records == []


def test_a_burst_of_own_commits_does_not_hide_anothers(tmp_path, monkeypatch):
    """The thread that follows rests behind the newest own commit, not behind each."""
    monkeypatch.setattr(waking, "REST_S", 1.0)
    url = f"lmdb:{tmp_path / 'store'}"

    async def do(threads):
        async with wakeups.wakeup("d") as waker:
            await threads.run(lambda: [served.bulk([{"_id": f"own{n}"}]) for n in range(50)])
            version = waker.version
            await threads.run(lambda: foreign.bulk([{"_id": "foreign"}]))
            with anyio.fail_after(20):
                while foreign_seen(waker) < 1:
                    await waker.wait(version)
                    version = waker.version
        wakeups.stop()

    def foreign_seen(waker):
        return waker._covered >= foreign.info().update_seq.timestamp

    with snapkv.open(url) as store, snapkv.open(url, create=False) as other:
        wakeups = waking.Wakeups(store, 1)
        served = ServedDB(store, wakeups, "d")
        served.create()
        foreign = ChangesDB(other, "d")
        run_with(2, do)
        wakeups.close()
