"""What clients share: readings, pages of the feed, and what is known of a database."""

import asyncio
import itertools
import json
import queue
import threading
import time
from types import SimpleNamespace

import anyio
import pytest
from store.wrapping import Counting, wrap_engines

from cdcmeta import ChangesDB
from cdcmeta.changes.feed import DatabaseFollower, FeedWalk
from cdcmeta.couch_http.wakeup import QUESTIONS_MAX, SharedState, Wakeup, WalkStart

from .crowd import Crowd
from .served import WAIT_S, error_of
from .test_couch_feeds import LONG_MS, until

pytestmark = pytest.mark.slow

# --- a moment ---


def answer(ended: bool = True) -> WalkStart:
    return WalkStart(SimpleNamespace(ended=ended), [], None)


def asked(questions: list[object], begin) -> list[WalkStart]:
    """Ask them all at once."""
    moment = SharedState(state=None)
    found: dict[int, WalkStart] = {}

    async def ask(n: int, question: object) -> None:
        found[n] = await moment.started(question, begin)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for n, question in enumerate(questions):
                tasks.start_soon(ask, n, question)

    anyio.run(all_of_them)
    return [found[n] for n in range(len(questions))]


class Beginning:
    """Answers after a while; counts how often."""

    def __init__(self, ended: bool = True) -> None:
        self.ended, self.count = ended, 0

    async def __call__(self) -> WalkStart:
        self.count += 1
        await anyio.sleep(0)
        return answer(self.ended)


def test_the_same_question_is_answered_once():
    begin = Beginning()
    found = asked(["a", "b"] * 20, begin)
    assert begin.count == 2
    assert all(each is found[n % 2] for n, each in enumerate(found))
    assert found[0] is not found[1]


def test_a_walk_that_goes_on_is_not_shared():
    begin = Beginning(ended=False)
    assert len({id(each) for each in asked(["a"] * 10, begin)}) == begin.count == 10


def test_few_answers_are_kept():
    begin = Beginning()
    asked([n % (2 * QUESTIONS_MAX) for n in range(10 * QUESTIONS_MAX)], begin)
    assert begin.count == QUESTIONS_MAX + 5 * QUESTIONS_MAX  # the first ones once, others each time


def test_who_leaves_while_answering_is_followed_by_the_next():
    first = anyio.Event()

    async def begin() -> WalkStart:
        if not first.is_set():
            first.set()
            await anyio.sleep_forever()
        return answer()

    async def leaves() -> WalkStart:
        moment = SharedState(state=None)
        leaving = asyncio.create_task(moment.started("a", begin))
        staying = asyncio.create_task(moment.started("a", begin))
        await first.wait()
        leaving.cancel()
        return await staying

    assert anyio.run(leaves).walk.ended


# --- a waker ---


def waked(db, do):
    """Run something with the waker of a database."""

    async def run() -> object:
        waker = Wakeup(db.lib)
        try:
            await waker.wait(0)
            return await do(waker)
        finally:
            waker.stop()

    return anyio.run(run)


def test_one_reading_serves_all_who_asked_before_it(db):
    """Who asks while it goes on may know of what it does not see."""
    readings = 0

    async def do(waker):
        going = anyio.Event()
        found: list[WalkStart] = []

        def begin(state) -> WalkStart:
            return WalkStart(SimpleNamespace(ended=True, state=state), [], None)

        async def read(begun):
            nonlocal readings
            readings += 1
            read = begun()
            await going.wait()
            return read

        async def ask() -> None:
            found.append(await waker.started("all", begin, read))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            db.lib.put({"_id": "a"})
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            going.set()
        return found

    found = waked(db, do)
    assert readings == 2
    assert all(each is found[0] for each in found[:10])
    assert [len(list(found[n].walk.state.documents())) for n in (0, 10)] == [0, 1]


def test_nobody_is_always_the_last(db):
    """Clients of a longpoll come again in the order in which they were served."""

    async def do(waker):
        lasts = set()
        for _ in range(60):
            order: list[int] = []

            async def client(n: int, order: list[int]) -> None:
                await waker.wait(waker.version)
                order.append(n)

            async with anyio.create_task_group() as tasks:
                for n in range(10):
                    tasks.start_soon(client, n, order)
                await anyio.wait_all_tasks_blocked()
                waker._wake()
            assert sorted(order) == list(range(10))
            lasts.add(order[-1])
        assert not waker._sleepers
        return lasts

    assert len(waked(db, do)) > 4


def test_who_no_longer_waits_is_forgotten(db):
    async def do(waker):
        for _ in range(3):
            with anyio.move_on_after(0.01):
                await waker.wait(waker.version)
        return len(waker._sleepers)

    assert waked(db, do) == 0


# --- over HTTP ---

ALL_WAIT_MS = "3000"
"""Long enough for all to wait at once, on a machine that is busy."""
QUESTIONS = [
    {},
    {"include_docs": "true"},
    {"style": "all_docs"},
    {"limit": "1"},
    {"limit": "2"},
    {"seq_interval": "2"},
    {"filter": "_doc_ids", "doc_ids": '["c","a"]'},
    {"filter": "_design"},
    {"filter": "_doc_ids", "doc_ids": '["nobody"]', "timeout": ALL_WAIT_MS},
]


@pytest.mark.long_after(1)
@pytest.mark.parametrize("feed", ["longpoll", "continuous"])
def test_each_has_its_own_answer(db, feed):
    """Many questions at once, each asked several times, about the same commit."""
    since = str(db.lib.put({"_id": "before"}).seq)
    feeds = [dict(query, feed=feed, since=since) for query in QUESTIONS for _ in "abc"]
    feeds = [
        {"timeout": ALL_WAIT_MS if feed == "continuous" else LONG_MS, **query} for query in feeds
    ]
    found: dict[int, list[str]] = {}

    def follow(n: int) -> None:
        with db.feed(**feeds[n]) as lines:
            found[n] = lines.rest()

    clients = [threading.Thread(target=follow, args=(n,)) for n in range(len(feeds))]
    for client in clients:
        client.start()
    wakeups = db.served.wakeups
    until(lambda: db.lib.name in wakeups._by_name, "nobody waits")
    waker = wakeups._by_name[db.lib.name]
    until(lambda: len(waker._sleepers) == len(feeds), "not all of them wait")
    db.lib.bulk([{"_id": id} for id in ("a", "_design/b", "c")])
    for client in clients:
        client.join()
    for n, query in enumerate(feeds):
        page = db.changes(**(query | {"feed": "normal", "timeout": "0"}))
        rows = [json.loads(line.strip(",")) for line in found[n] if line.startswith('{"seq')]
        assert rows == page["results"], query
        assert page["last_seq"] in found[n][-1], query


@pytest.mark.parametrize("more", ["", "&include_docs=true"])
def test_a_page_for_many_is_read_once(own, monkeypatch, more):
    served = own()
    db = served.database()
    since = str(db.lib.put({"_id": "before"}).seq)
    step, walks = FeedWalk.step, []
    monkeypatch.setattr(FeedWalk, "step", lambda walk, n: walks.append(walk) or step(walk, n))
    path = f"/{db.lib.name}/_changes?feed=longpoll{more}"
    crowd = Crowd(served.server.port, path, 100, rounds=1)

    def write() -> None:
        crowd.all_wait()
        waker = served.wakeups._by_name[db.lib.name]
        until(lambda: len(waker._sleepers) == 100, "not all of them wait")
        walks.clear()
        db.lib.put({"_id": "a"})

    writer = threading.Thread(target=write)
    writer.start()
    assert crowd.run(since) == [["a"]] * 100
    writer.join()
    assert len(walks) <= 2  # the first who woke, and all others


# --- what is known of a database ---


def test_round_trips_of_an_edit(own, monkeypatch):
    engines = wrap_engines(monkeypatch, Counting)
    db = own().database()
    assert db("PUT", "warm", json={}).status_code == 201
    db.lib.put({"_id": "too"})
    fresh = itertools.count()
    calls = engines[-1].cheapest(lambda: db("PUT", f"a{next(fresh)}", json={}))
    assert calls == engines[-1].cheapest(lambda: db.lib.put({"_id": f"b{next(fresh)}"}))
    assert sum(calls.values()) == 2, calls


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "b", {}),
        ("PUT", "a", {"_rev": "{rev}"}),
        ("DELETE", "a?rev={rev}", None),
        ("POST", "_bulk_docs", {"docs": [{}]}),
        ("GET", "_local/x", None),
        ("PUT", "_local/x", {"_rev": "0-1"}),
        ("PUT", "_local/y", {}),
        ("DELETE", "_local/x?rev=0-1", None),
    ],
)
def test_a_database_that_others_deleted(db, method, path, body):
    """What the server remembers of it is out of date."""
    rev = db("PUT", "a", json={}).json()["rev"]
    assert db("PUT", "_local/x", json={}).status_code == 201
    ChangesDB(db.lib.store, db.lib.name).delete()
    sent = json.dumps(body).replace("{rev}", rev)
    headers = {"Content-Type": "application/json"}
    answer = db(method, path.format(rev=rev), content=sent, headers=headers)
    assert error_of(answer) == (404, "not_found", "Database does not exist.")


def test_a_database_that_another_server_recreated(db):
    rev = db("PUT", "a", json={}).json()["rev"]
    other = ChangesDB(db.lib.store, db.lib.name)
    other.delete()
    other.create()
    assert error_of(db("PUT", "a", json={"_rev": rev}))[0] == 409
    assert error_of(db("DELETE", f"a?rev={rev}"))[0] == 404
    assert db("PUT", "b", json={}).status_code == 201
    assert [change.id for change in other.changes().rows] == ["b"]


@pytest.mark.parametrize("write", ["PUT", "_bulk_docs", "DELETE"])
def test_an_edit_over_http_wakes_before_the_follower_finds_it(db, monkeypatch, write):
    rev = db.lib.put({"_id": "there"}).rev
    since, name = db.changes()["last_seq"], db.lib.name
    monkeypatch.setattr(DatabaseFollower, "next_within", lambda self, timeout: time.sleep(timeout))
    told: queue.Queue[dict] = queue.Queue()

    def wait() -> None:
        told.put(db.changes(feed="longpoll", since=since))

    threading.Thread(target=wait, daemon=True).start()
    wakers = db.served.wakeups._by_name
    until(lambda: name in wakers and wakers[name].version and wakers[name]._sleepers, "it waits")
    if write == "PUT":
        assert db("PUT", "d", json={}).status_code == 201
    elif write == "DELETE":
        assert db("DELETE", f"there?rev={rev}").status_code == 200
    else:
        assert db.post("_bulk_docs", {"docs": [{}, {}]}).status_code == 201
    assert len(told.get(timeout=WAIT_S)["results"]) == (2 if write == "_bulk_docs" else 1)
