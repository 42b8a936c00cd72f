"""A CouchDB database has what the source has, once, also after repeated batches and takeovers."""

import random
from functools import partial

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors import couch_sink
from cdcmeta.scheduler.executors.couch_client import CouchDatabase
from cdcmeta.scheduler.executors.couch_sink import CouchWriter
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource
from cdcmeta.scheduler.runtime import Capture, Changefeeds
from cdcmeta.scheduler.runtime.changefeed_records import Changefeed
from cdcmeta.scheduler.runtime.stores_and_sinks import Stores, open_sink
from cdcmeta.scheduler.transport.local import LocalNetwork

from .between import Between, answers
from .driving import opened as opened_executor
from .mirror import T1, T2, T3, TABLE, commit

TABLES = {"a/": "a/", "b/": "b/"}


@pytest.fixture
def source():
    with snapkv.open("memory:") as store:
        yield store


@pytest.fixture
def executors():
    running = []
    yield running
    for executor in running:
        assert executor.close(20)


def replicated(source, sink, start, state_at, token=T1):
    """Return an executor that replicates all tables."""
    executor = opened_executor(PrefixTableSource(source, TABLES), sink, TABLES, state_at=state_at)
    for is_prepare in (True, False):
        for table in TABLES:
            assert executor.add_table(table, start, token, is_prepare=is_prepare)
        for table in TABLES:
            done = partial(executor.is_add_finished, table, is_prepare=is_prepare)
            eventually(done, f"{table} prepared: {executor.problems()}")
    return executor


def reaches(executor, ts):
    for table in TABLES:
        eventually(
            lambda t=table: executor.status(t).progress.checkpoint >= ts,
            f"{table} at {ts}: {executor.problems()}",
        )


def test_content_equals_the_sources_after_state_updates_removals_and_re_creations(
    source, mirror, executors
):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    keys = [f"{table}{n}" for table in TABLES for n in range(150)]
    for key in rng.sample(keys, 250):
        source.save(key, b"first")
    ts = source.save("elsewhere", b"not in a table")
    executors.append(
        replicated(source, partial(CouchWriter, CouchDatabase(mirror.url(), {}), "f"), 1, ts)
    )
    for n in range(60):
        chosen = rng.sample(keys, rng.randint(1, 8))
        removed = [key for key in chosen if rng.random() < 0.4]
        puts = {key: b'{"n": %d}' % n for key in chosen if key not in removed}
        ts = source.commit(puts=puts, deletes=removed).ts
    reaches(executors[0], ts)
    expected = {key: value for table in TABLES for key, value in source.at().items(table)}
    assert mirror.content() == expected
    assert all(len(mirror.leaves(key)) == 1 for key in rng.sample(sorted(expected), 20))


def test_a_later_assignment_goes_on_where_the_sink_is(source, mirror, executors):
    source.save("a/1", b"1")
    ts = source.save("b/1", b"1")
    sink = partial(CouchWriter, CouchDatabase(mirror.url(), {}), "f")
    first = replicated(source, sink, 1, ts)
    reaches(first, last := source.save("a/1", b"2"))
    assert first.close(20)
    before = mirror.docs()
    executors.append(replicated(source, sink, 1, ts, T2))
    reaches(executors[0], last)
    assert mirror.docs() == before
    reaches(executors[0], source.save("a/1", b"3"))
    assert mirror.content() == {"a/1": b"3", "b/1": b"1"}


def test_a_state_that_begins_anew_removes_what_the_source_lacks_and_nothing_else(
    source, mirror, executors, monkeypatch
):
    monkeypatch.setattr(couch_sink, "LISTED_DOCS", 3)
    source.commit(puts={f"a/{n}": b"1" for n in range(9)} | {"b/1": b"1", "_x": b"1"})
    sink = partial(CouchWriter, CouchDatabase(mirror.url(), {}), "f")
    first = replicated(source, sink, 1, source.resolved())
    reaches(first, source.resolved())
    assert first.close(20)
    mirror.http.put("/a%2Ftheirs", json={"value": "x"}).raise_for_status()
    ts = source.commit(puts={"a/new": b"2"}, deletes=[f"a/{n}" for n in range(1, 9)]).ts
    source.reader.engine.compact(source.at().revision)
    executors.append(replicated(source, sink, ts - 1, ts, T2))
    reaches(executors[0], ts)
    assert mirror.content() == {"a/0": b"1", "a/new": b"2", "a/theirs": b"x", "b/1": b"1"}


def test_a_document_has_the_value_the_time_the_table_and_the_token(mirror):
    writer = mirror.writer(T1)
    assert writer.begin(3) == 3
    writer.write([commit(5, a=b'{"n": 1}')], 5)
    (doc,) = mirror.docs().values()
    del doc["_rev"]
    named = {"_id": "t/a", "table": TABLE, "ts": 5, "token": list(T1)}
    assert doc == {**named, "value": {"n": 1}}
    assert mirror.record() == (5, T1)


@pytest.mark.parametrize("state", [[], [commit(4, a=b"s", b=b"s")]])
def test_repeated_batches_change_nothing(mirror, state):
    batches = [
        ([commit(5, a=b"1"), commit(6, a=b"2", b=b"1")], 6),
        ([commit(7, a=None), commit(8, b=b"2")], 8),
        ([commit(9, a=b"3"), commit(10, a=None), commit(11, c=b"1"), commit(12, c=None)], 12),
    ]
    writer = mirror.writer(T1)
    writer.begin(1)
    writer.write(state, 0)
    for commits, checkpoint in batches:
        writer.write(commits, checkpoint)
    docs, seq = mirror.docs(), mirror.seq()
    assert docs.keys() == {"t/b"}
    for again in (writer, mirror.writer(T1), mirror.writer(T2)):
        if again is not writer:
            assert again.begin(1) == 12
        for has_checkpoint in (True, False):  # with one, the record says that a batch is old
            again.write(state, 0)
            for commits, checkpoint in batches:
                again.write(commits, checkpoint * has_checkpoint)
    assert (mirror.docs(), mirror.seq()) == (docs, seq)
    assert mirror.record() == (12, T2)
    for key in ("t/a", "t/b", "t/c"):
        assert len(mirror.leaves(key)) == 1


def test_a_checkpoint_never_goes_back(mirror):
    writer = mirror.writer(T1)
    writer.begin(1)
    writer.write([commit(5, a=b"1")], 5)
    writer.write([commit(3, b=b"1")], 3)
    assert mirror.record() == (5, T1)
    assert mirror.writer(T2).begin(4) == 5
    assert mirror.writer(T3).begin(9) == 9


def test_the_state_of_many_keys_is_written_in_several_requests(mirror, between, monkeypatch):
    monkeypatch.setattr("cdcmeta.scheduler.executors.couch_sink.BATCH_BYTES", 5_000)
    values = {f"k{n:04}": b"x" * 500 for n in range(40)}
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    writer.write([commit(5, **values)], 0)
    writer.write([], 5)
    assert len(mirror.docs()) == 40
    assert 4 <= sum("_bulk_docs" in line for line in between.requests) <= 10
    assert mirror.record() == (5, T1)


def test_keys_that_a_writer_wrote_are_not_read_again(mirror, between):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    writer.write([commit(5, a=b"1")], 5)
    del between.requests[:]
    writer.write([commit(6, a=b"2")], 6)
    assert [line.split()[0] for line in between.requests] == ["GET", "POST", "PUT"]
    assert mirror.content() == {"t/a": b"2"}


def test_a_mirror_of_more_updates_than_couchdb_keeps_revisions(mirror):
    writer = mirror.writer(T1)
    writer.begin(1)
    mirror.http.put("/_revs_limit", content=b"10").raise_for_status()
    for first in range(2, 62, 15):
        writer.write([commit(ts, a=b"%d" % ts) for ts in range(first, first + 15)], first + 14)
    (leaf,) = mirror.leaves("t/a")
    assert (leaf["value"], leaf["_rev"].partition("-")[0]) == ("61", "60")


def test_what_another_program_wrote_is_replaced(mirror):
    writer = mirror.writer(T1)
    writer.begin(1)
    foreign = mirror.http.put("/t%2Fa", json={"mine": True}).json()["rev"]
    writer.write([commit(5, a=b"1")], 5)
    assert mirror.content() == {"t/a": b"1"}
    (leaf,) = mirror.leaves("t/a")
    assert leaf["_revisions"]["ids"][-1] == foreign.partition("-")[2]


def test_a_changefeed_replicates_into_couchdb(mirror):
    """The whole way: a capture, a changefeed, and a sink that its URL chooses."""
    store = snapkv.open("memory:")
    capture = Capture(store, LocalNetwork().post("here"), label="c1", store_url="memory:")
    capture.start()
    try:
        start = store.save("orders/1", b'{"apples": 2}')
        feeds = Changefeeds(store)
        feeds.create("copy", "memory:", mirror.url(), ["orders/"], start=start)
        ts = store.commit(puts={"orders/2": b"1 pear"}, deletes=["orders/1"]).ts
        eventually(lambda: feeds.checkpoint("copy").checkpoint >= ts, "the checkpoint")
        assert mirror.content() == {"orders/2": b"1 pear"}
    finally:
        capture.stop()
        store.close()


# --- URLs and logins ---


def opened(url):
    feed = Changefeed("f", "memory:", url, ("t/",), 1)
    with snapkv.open("memory:") as store:
        return open_sink(feed, Stores(store), {}, 3.0)


def test_the_url_of_a_changefeed_chooses_the_sink(mirror):
    assert isinstance(opened(mirror.url())(TABLE, T1), CouchWriter)


@pytest.mark.parametrize(
    "url",
    [
        "couch+http://127.0.0.1:5984",
        "couch+http://127.0.0.1:5984/",
        "couch+http:///mirror",
        "couch+http://127.0.0.1:x/mirror",
        "couch+http://[::1/mirror",
        "couch+http://127.0.0.1/mirror?x=1",
        "couch+http://127.0.0.1/my mirror",
    ],
)
def test_a_url_without_a_database_is_an_error(url):
    with pytest.raises(InvalidArgumentError, match=r"give couch\+http://HOST:PORT/DATABASE"):
        opened(url)


@pytest.mark.parametrize("login", ["ann:hush@", "ann:hu/sh@", "ann@"])
def test_a_login_in_the_url_is_an_error_that_does_not_show_it(login):
    with pytest.raises(InvalidArgumentError, match="CDCMETA_SINK_PASSWORD") as raised:
        opened(f"couch+http://{login}127.0.0.1:5984/mirror")
    assert "sh@" not in str(raised.value)
    assert "ann" not in str(raised.value)


@pytest.mark.parametrize(("user", "password"), [("ann", ""), ("", "hush"), ("a:b", "hush")])
def test_half_a_login_is_an_error(monkeypatch, user, password):
    monkeypatch.setenv("CDCMETA_SINK_USER", user)
    monkeypatch.setenv("CDCMETA_SINK_PASSWORD", password)
    with pytest.raises(InvalidArgumentError, match="a login needs both") as raised:
        opened("couch+http://127.0.0.1:5984/mirror")
    assert "hush" not in str(raised.value)


def test_a_database_behind_a_path_is_reached(mirror, served):
    with Between(served.server.url) as between:
        between.next(answers(404, b'{"error":"not_found"}'), "GET /couch/db/_local", times=1)
        between.next(answers(404, b'{"error":"not_found"}'), "GET /couch/db")
        between.next(answers(201, b'{"ok":true}'), "PUT /couch/db")
        between.next(answers(201, b'{"ok":true}'), "PUT /couch/db/_local")
        url = f"couch+http://127.0.0.1:{between.port}/couch/db/"
        writer = partial(CouchWriter, CouchDatabase(url, {}), "f")(TABLE, Token(1, 1))
        assert writer.begin(4) == 4
        writer.close()
        assert [line.partition("-")[0] for line in between.requests] == [
            "GET /couch/db/_local/cdcmeta",
            "GET /couch/db",
            "PUT /couch/db",
            "PUT /couch/db/_local/cdcmeta",
        ]


def test_a_table_that_stops_closes_its_connection(source, mirror):
    executor = replicated(source, partial(CouchWriter, CouchDatabase(mirror.url(), {}), "f"), 1, 1)
    assert executor.remove_table("a/")
    eventually(lambda: executor.status("a/").state is TableState.STOPPED, "a/ stopped")
    assert executor.close(20)
