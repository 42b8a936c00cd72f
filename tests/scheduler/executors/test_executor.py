"""Executors: a store is read once for all tables, and each table gets all of its commits, once."""

import random
import threading
from functools import partial

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.errors import InvalidArgumentError, SinkError
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors import pipeline
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource, Router
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter

from .driving import WAIT_S, Driven, Noting
from .driving import opened as opened_executor

pytestmark = pytest.mark.slow

TABLES = ["a/", "b/", "c/"]


@pytest.fixture(params=["memory", "lmdb"])
def source(request, tmp_path):
    url = "memory:" if request.param == "memory" else f"lmdb:{tmp_path / 'source'}"
    with snapkv.open(url) as store:
        yield store


@pytest.fixture
def noting():
    return Noting()


@pytest.fixture
def driven(source, noting):
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    yield driven
    driven.close()


def fill(store, rng, steps):
    """Change keys at random; return the timestamps of the commits of each table."""
    made, present = {table: [] for table in TABLES}, set()
    for _ in range(steps):
        table = rng.choice(TABLES)
        key = f"{table}{rng.randrange(9)}"
        if key in present and rng.random() < 0.3:
            present.discard(key)
            made[table].append(store.remove(key))
        else:
            present.add(key)
            made[table].append(store.save(key, rng.randbytes(4)))
    return made


def content(store):
    return dict(store.at().items())


def test_the_changes_since_a_time_in_their_order(source, driven, noting):
    rng = random.Random(1)
    start = source.save("a/before", b"not replicated")
    early = fill(source, rng, 50)
    driven.start(start)
    late = fill(source, rng, 50)
    source.save("elsewhere", b"of no table")
    driven.reach(source.resolved())
    for table in TABLES:
        assert noting.commits(table) == early[table] + late[table]
    assert noting.content() == {
        key: value for key, value in content(source).items() if key[:2] in TABLES and key[2] != "b"
    }


def test_the_state_comes_first(source, noting):
    rng = random.Random(2)
    fill(source, rng, 60)
    source.save("b/large", b"x" * 3_000_000)
    state_at = source.resolved()
    driven = Driven(source, partial(CalledWriter, noting), TABLES, state_at=state_at)
    later = fill(source, rng, 30)
    driven.start(state_at - 1)
    driven.reach(source.resolved())
    assert noting.content() == content(source)
    for table in TABLES:
        assert noting.commits(table) == later[table]
        ends = [call[3] for call in noting.calls if call[0] == table]
        assert state_at in ends
    driven.close()


def test_a_sink_that_fails_gets_the_same_again(source, driven, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "RETRY_S_MIN", 0.01)
    failures = iter([OSError("down"), SinkError("busy"), None, OSError("down again")])

    def fail(table, checkpoint):
        error = next(failures, None)
        if error is not None:
            raise error

    start = source.resolved()
    driven.start(start)
    noting.before = fail
    made = fill(source, random.Random(3), 30)
    driven.reach(source.resolved())
    assert {table: noting.commits(table) for table in TABLES} == made
    assert driven.executor.problems() == {}


def test_a_sink_that_keeps_failing_gives_the_table_back(source, driven, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "RETRY_S_MIN", 0.001)

    def fail(table, checkpoint):
        if table == "a/":
            raise OSError("down")

    driven.start(source.resolved())
    noting.before = fail
    source.save("a/1", b"1")
    ts = source.save("b/1", b"1")
    driven.reach(ts, ["b/"])
    driven.until(lambda: driven.state("a/") is TableState.STOPPED, "the end of a/")
    problem = driven.executor.problems()["a/"]
    assert (problem.error, problem.tries) == ("OSError: down", pipeline.TRIES)
    assert driven.checkpoint("a/") < ts
    assert driven.state("b/") is TableState.REPLICATING


def test_a_fenced_writer_ends_at_once(source, driven, noting):
    driven.start(source.resolved())

    def fence(table, checkpoint):
        raise SinkError("a later one began", "fenced")

    noting.before = fence
    source.save("a/1", b"1")
    driven.until(lambda: driven.state("a/") is TableState.STOPPED, "the end of a/")
    assert driven.executor.problems()["a/"].tries == 1


def test_a_slow_table_holds_up_no_other(source, driven, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "QUEUE_COMMITS", 10)
    go_on = threading.Event()

    def hang(table, checkpoint):
        if table == "a/":
            assert go_on.wait(WAIT_S)

    driven.start(source.resolved())
    noting.before = hang
    made = fill(source, random.Random(4), 200)
    driven.reach(source.resolved(), ["b/", "c/"])
    assert noting.commits("a/") == []
    assert driven.executor.busy_since() is not None
    go_on.set()
    driven.reach(source.resolved())
    assert noting.commits("a/") == made["a/"]


def test_nothing_is_written_once_it_may_not(source, noting):
    may = threading.Event()
    may.set()
    driven = Driven(source, partial(CalledWriter, noting), TABLES, may_write=may.is_set)
    driven.start(source.resolved())
    may.clear()
    ts = source.save("a/1", b"1")
    other = source.save("b/1", b"1")
    driven.until(lambda: driven.executor._reader.position >= other, "the reader")
    assert noting.calls == []
    may.set()
    driven.reach(ts, ["a/"])
    driven.close()


def test_a_stopped_table_writes_no_more_and_says_where_it_was(source, driven, noting):
    driven.start(source.resolved())
    ts = source.save("a/1", b"1")
    driven.reach(ts)
    assert driven.stop(["a/"])["a/"] >= ts
    later = source.save("a/2", b"2")
    source.save("b/2", b"2")
    driven.reach(later, ["b/"])
    assert noting.commits("a/") == [ts]
    assert set(driven.executor.all_tables()) == {"b/", "c/"}


def test_a_stop_waits_for_the_write_under_way(source, driven, noting):
    driven.start(source.resolved())
    began, go_on = threading.Event(), threading.Event()

    def hang(table, checkpoint):
        began.set()
        assert go_on.wait(WAIT_S)

    noting.before = hang
    source.save("a/1", b"1")
    assert began.wait(WAIT_S)
    driven.executor.remove_table("a/")
    assert driven.executor.is_remove_finished("a/") is None
    assert driven.state("a/") is TableState.STOPPING
    go_on.set()
    driven.until(lambda: driven.executor.is_remove_finished("a/") is not None, "the stop")


def test_tables_that_never_began_stop(source, driven):
    driven.executor.add_table("a/", source.resolved(), Token(1, 1), is_prepare=True)
    driven.stop(["a/"])
    assert driven.executor.is_remove_finished("b/") == 0
    with pytest.raises(InvalidArgumentError, match="not in this changefeed"):
        driven.executor.add_table("z/", 5, Token(1, 1), is_prepare=True)


def test_a_compacted_start_ends_the_table_with_the_reason(source, driven, noting):
    start = source.save("a/1", b"1")
    fill(source, random.Random(5), 20)
    now = source.resolved()
    source.reader.engine.compact(source.at().revision)
    driven.executor.add_table("a/", start, Token(1, 1), is_prepare=True)
    driven.until(lambda: driven.state("a/") is TableState.STOPPED, "the end of a/")
    assert "CompactedError" in driven.executor.problems()["a/"].error
    driven.start(now, tables=["b/"])
    ts = source.save("b/new", b"1")
    driven.reach(ts, ["b/"])


def test_no_thread_remains(source, noting):
    before = set(threading.enumerate())
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    driven.start(source.resolved())
    driven.close()
    eventually(lambda: set(threading.enumerate()) <= before, "threads to end", wait_s=WAIT_S)


def test_laggards_are_the_tables_that_are_behind(source, driven, noting):
    driven.start(source.resolved())
    ts = source.save("a/1", b"1")
    driven.until(lambda: driven.executor.laggards()[0].checkpoint >= ts, "the reader")
    driven.until(lambda: driven.executor.laggards()[1] == [], "all to be written")
    go_on = threading.Event()
    noting.before = lambda table, checkpoint: go_on.wait(WAIT_S)
    later = source.save("b/1", b"1")
    driven.until(lambda: driven.executor.laggards()[0].checkpoint >= later, "the reader")
    assert driven.executor.laggards()[1] == ["b/"]
    assert driven.checkpoint("b/") < later
    go_on.set()
    driven.until(lambda: driven.executor.laggards()[1] == [], "b/ to be written")


def test_keys_find_their_tables():
    router = Router({"x": "a/", "y": "a/b", "*": "c"})
    assert [router.table_of(key) for key in ("a/1", "c", "cc/9", "b", "")] == [
        "x",
        "*",
        "*",
        None,
        None,
    ]
    assert Router({"*": ""}).table_of("anything") == "*"


def test_moves_between_two_executors_lose_and_repeat_nothing(source, tmp_path):
    """Each table moves again and again, also while an earlier writer is still alive."""
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    start = source.resolved()
    with snapkv.open("memory:") as target:
        nodes = [Driven(source, partial(StoreTableWriter, target, "f"), TABLES) for _ in range(2)]
        holder = dict.fromkeys(TABLES, 0)
        nodes[0].start(start, owner=1)
        reached = dict.fromkeys(TABLES, start)
        for owner in range(2, 12):
            fill(source, rng, rng.randrange(40))
            table = rng.choice(TABLES)
            before, after = nodes[holder[table]], nodes[1 - holder[table]]
            if rng.random() < 0.5:
                reached[table] = before.stop([table])[table]
                after.start(reached[table], owner=owner, tables=[table])
            else:  # the earlier one does not know, and is fenced
                after.start(reached[table], owner=owner, tables=[table])
                source.save(f"{table}fence", rng.randbytes(4))
                before.until(
                    lambda b=before, t=table: b.state(t) is TableState.STOPPED, "the fence"
                )
                before.stop([table])
            holder[table] = 1 - holder[table]
        fill(source, rng, 20)
        for table in TABLES:
            nodes[holder[table]].reach(source.resolved(), [table])
        assert content(target) == content(source)
        for node in nodes:
            node.close()


def test_an_executor_begins_without_tables(source, noting):
    executor = opened_executor(
        PrefixTableSource(source, {"a/": "a/"}), partial(CalledWriter, noting), ["a/"]
    )
    assert (list(executor.all_tables()), executor.busy_since(), executor.laggards()[1]) == (
        [],
        None,
        [],
    )
    assert executor.close(WAIT_S)
