"""Sources that fail, wait, are compacted or closed: a table loses no commit, or ends visibly."""

import random
import threading
from functools import partial

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors import feed_reader, pipeline, prefix_source
from cdcmeta.scheduler.executors.contracts import CalledWriter
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter
from snapkv import CompactedError
from snapkv.errors import EngineUnavailableError, StoreClosedError, StoreRestoredError

from .driving import WAIT_S, Driven, Noting
from .sources import Hooked, content, open_source, stopping

pytestmark = pytest.mark.slow

TABLES = ["a/", "b/", "c/"]


@pytest.fixture(params=["memory", "lmdb"])
def store(request, tmp_path):
    with open_source(request.param, tmp_path / "source") as opened:
        yield opened


@pytest.fixture
def source(store):
    return Hooked(store)


@pytest.fixture
def noting():
    return Noting()


@pytest.fixture
def driven(source, noting, monkeypatch):
    monkeypatch.setattr(feed_reader, "RETRY_S", 0.01)
    driven = Driven(source, partial(CalledWriter, noting), TABLES)
    yield driven
    driven.close()


def save(store, table, count):
    return [store.save(f"{table}{n % 7}", b"%d" % n) for n in range(count)]


def ended(driven, table):
    driven.until(lambda: driven.state(table) is TableState.STOPPED, f"the end of {table}")
    return driven.executor.problems()[table].error


@pytest.mark.parametrize("error", [EngineUnavailableError("down"), RuntimeError("a fault")])
def test_a_source_that_comes_back_has_lost_nothing(store, source, driven, noting, error):
    driven.start(store.resolved())
    made = save(store, "a/", 5)
    is_down = threading.Event()
    is_down.set()

    def fail(since):
        if is_down.is_set():
            raise error

    source.before = fail
    made += save(store, "a/", 20)
    driven.until(lambda: driven.executor.error is error, "the error to be seen")
    assert driven.state("a/") is TableState.REPLICATING
    made += save(store, "a/", 20)
    is_down.clear()
    driven.reach(made[-1])
    assert noting.commits("a/") == made
    driven.until(lambda: driven.executor.error is None, "the error to be over")


def rising(numbers):
    """Return into how few rising rows numbers can be parted."""
    ends = []
    for number in numbers:
        fitting = [end for end in ends if end <= number]
        if fitting:
            ends.remove(max(fitting))
        ends.append(number)
    return len(ends)


def test_a_second_watch_that_fails_goes_on_where_it_was(store, source, driven, noting):
    start = store.resolved()
    made = save(store, "a/", 30)
    opened = []

    def fail(since):
        if since is not None:
            opened.append(since)
            if len(opened) % 5 == 0:
                raise EngineUnavailableError("down")

    source.before = fail
    driven.start(start, tables=["a/", "b/"])
    driven.reach(made[-1], ["a/", "b/"])
    assert noting.commits("a/") == made
    assert noting.commits("b/") == []
    rows = rising(opened)
    assert rows <= 2, "tables that joined one after the other take turns, and none goes back"
    assert len(opened) < 2 * len(made) * rows


def test_a_fetch_that_fails_with_a_queue_half_full_still_prepares(
    store, source, driven, noting, monkeypatch
):
    monkeypatch.setattr(pipeline, "QUEUE_COMMITS", 10)
    start = store.resolved()
    made = save(store, "a/", 40)
    driven.start(made[-1], tables=["b/"])
    failing = stopping([None] * 8 + [EngineUnavailableError("down")])  # opening is a call, too
    source.before = lambda since: failing() if since == start else None
    driven.start(start, tables=["a/"])
    driven.reach(made[-1], ["a/"])
    assert noting.commits("a/") == made
    driven.until(lambda: driven.executor.error is None, "the error to be over")


def test_a_watch_that_was_compacted_loses_nothing_that_is_there(store, source, driven, noting):
    driven.start(store.resolved())
    failing = stopping([CompactedError(1, 1)])
    source.before = lambda since: failing() if since is None else None
    made = save(store, "a/", 30)
    driven.reach(made[-1])
    made += save(store, "a/", 30)
    driven.reach(made[-1])
    assert noting.commits("a/") == made


def test_a_compaction_overtakes_a_slow_table_and_no_other(store, driven, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "QUEUE_COMMITS", 10)
    go_on = threading.Event()
    noting.before = lambda table, checkpoint: table != "a/" or go_on.wait(WAIT_S)
    driven.start(store.resolved())
    made = save(store, "a/", 50)
    later = save(store, "b/", 5)
    driven.reach(later[-1], ["b/", "c/"])
    store.reader.engine.compact(store.at().revision)
    go_on.set()
    assert "CompactedError" in ended(driven, "a/")
    assert noting.commits("a/") == made[: len(noting.commits("a/"))]
    assert driven.stop(["a/"])["a/"] < made[-1]
    ts = store.save("b/after", b"1")
    driven.reach(ts, ["b/", "c/"])
    assert "a/" in driven.executor.problems()


@pytest.mark.parametrize("error", [StoreRestoredError("restored"), StoreClosedError("closed")])
def test_a_source_that_is_another_one_ends_all_tables_also_later_ones(store, source, driven, error):
    driven.start(store.resolved(), tables=["a/", "b/"])
    source.before = stopping([error])
    store.save("a/1", b"1")
    for table in ("a/", "b/"):
        assert str(error) in ended(driven, table)
    driven.executor.add_table("c/", store.resolved(), Token(1, 9), is_prepare=True)
    assert str(error) in ended(driven, "c/")
    assert driven.executor.error is error


def test_a_table_that_is_back_at_once_gets_its_commits(store, source, driven, noting):
    """The second watch still serves the pipeline that was removed."""
    start = store.resolved()
    made = save(store, "a/", 3)
    waits, go_on = threading.Event(), threading.Event()

    def wait(since):
        if since is not None:
            waits.set()
            assert go_on.wait(WAIT_S)

    driven.start(made[-1], tables=["b/"])
    source.before = wait
    driven.executor.add_table("a/", start, Token(1, 1), is_prepare=True)
    assert waits.wait(WAIT_S)
    driven.stop(["a/"])
    driven.executor.add_table("a/", start, Token(1, 2), is_prepare=True)
    go_on.set()
    driven.until(lambda: driven.is_done("a/", is_prepare=True), "a/ to be prepared")
    driven.executor.add_table("a/", start, Token(1, 2), is_prepare=False)
    driven.reach(made[-1], ["a/"])
    assert noting.commits("a/") == made


def test_a_table_far_behind_holds_up_no_other(store, source, driven, noting, monkeypatch):
    monkeypatch.setattr(feed_reader, "SLICE_S", 0.02)
    start = store.resolved()
    made = save(store, "a/", 60)
    may_end, seen = threading.Event(), []

    def count(since):
        if since is not None and since < made[-1]:
            seen.append(since)
            if len(seen) > 40:
                may_end.wait(0.05)  # the rest comes slowly

    driven.start(made[-1], tables=["b/"])
    source.before = count
    driven.executor.add_table("a/", start, Token(1, 1), is_prepare=True)
    eventually(lambda: len(seen) > 40, "the second watch to be under way", wait_s=WAIT_S)
    driven.executor.add_table("c/", made[-1], Token(1, 1), is_prepare=True)
    driven.until(lambda: driven.is_done("c/", is_prepare=True), "c/ to be prepared")
    assert driven.state("a/") is TableState.PREPARING
    may_end.set()
    driven.until(lambda: driven.is_done("a/", is_prepare=True), "a/ to be prepared")


def test_a_slow_table_recovers_with_all_its_commits(store, driven, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "QUEUE_COMMITS", 20)
    monkeypatch.setattr(feed_reader, "WAIT_S", 0.01)
    rng, made = random.Random(7), {table: [] for table in TABLES}
    driven.start(store.resolved())
    hold = threading.Event()
    noting.before = lambda table, checkpoint: table != "b/" or hold.wait(WAIT_S)
    for n in range(300):
        table = rng.choice(TABLES)
        made[table].append(store.save(f"{table}{n % 5}", b"%d" % n))
    driven.reach(store.resolved(), ["a/", "c/"])
    assert driven.checkpoint("b/") < made["b/"][0]
    hold.set()
    driven.reach(store.resolved())
    assert {table: noting.commits(table) for table in TABLES} == made
    driven.until(lambda: driven.executor.laggards()[1] == [], "b/ to be as far as the rest")
    assert noting.content() == content(store)


class Checked:
    """A condition that calls a function whenever a thread has released it."""

    def __init__(self, inner, released):
        self._inner, self._released = inner, released

    def __enter__(self):
        return self._inner.__enter__()

    def __exit__(self, *given):
        self._inner.__exit__(*given)
        self._released()

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_commit_that_was_handed_out_is_never_after_the_position(store, driven):
    """Else a table that becomes live at the position in that moment would lose the commit."""
    reader, seen = driven.executor._reader, []

    def released():
        for each in list(reader._live.values()):
            received = each.received  # read first: the position may move on
            seen.append((received, reader.position))

    start = store.resolved()
    reader._condition = Checked(reader._condition, released)
    driven.start(start)
    made = save(store, "a/", 20)
    driven.reach(made[-1])
    assert made[-1] in [received for received, _ in seen]
    assert [(got, at) for got, at in seen if start < got and at < got and got in made] == []


# --- the state that comes first ---


def test_a_part_of_the_state_that_fails_is_written_again(store, source, noting, monkeypatch):
    monkeypatch.setattr(pipeline, "RETRY_S_MIN", 0.01)
    monkeypatch.setattr(prefix_source, "PAGE_KEYS", 3)
    for n in range(20):
        store.save(f"a/{n}", b"%d" % n)
    noting.before = stopping([None, OSError("down"), None, OSError("down"), OSError("down")])
    driven = Driven(source, partial(CalledWriter, noting), ["a/"], state_at=store.resolved())
    driven.start(store.resolved() - 1)
    driven.reach(store.resolved())
    assert noting.content() == content(store)
    assert sum(len(each.changes) for call in noting.calls for each in call[2]) == 20
    driven.close()


def test_a_state_that_cannot_be_read_ends_the_table_which_can_come_again(store, source, noting):
    for n in range(20):
        store.save(f"a/{n}", b"%d" % n)
    source.before_read = stopping([None, None, EngineUnavailableError("down")])
    driven = Driven(source, partial(CalledWriter, noting), ["a/"], state_at=store.resolved())
    for is_prepare in (True, False):
        driven.executor.add_table("a/", store.resolved() - 1, Token(1, 1), is_prepare=is_prepare)
        if is_prepare:
            driven.until(lambda: driven.is_done("a/", is_prepare=True), "a/ to be prepared")
    assert "down" in ended(driven, "a/")
    assert driven.stop(["a/"])["a/"] == store.resolved() - 1
    driven.start(store.resolved() - 1, owner=2)
    driven.reach(store.resolved())
    assert noting.content() == content(store)
    assert driven.executor.problems() == {}
    driven.close()


def test_parts_of_a_state_are_bounded_and_a_small_target_gets_smaller_ones(
    store, source, noting, monkeypatch
):
    for n in range(12):
        store.save(f"a/{n}", b"x" * 200_000)
    driven = Driven(source, partial(CalledWriter, noting), ["a/"], state_at=store.resolved())
    driven.start(store.resolved() - 1)
    driven.reach(store.resolved())
    sizes = [sum(len(c.value) for each in call[2] for c in each) for call in noting.calls]
    assert max(sizes) <= prefix_source.PAGE_BYTES
    driven.close()
    with snapkv.open("memory:") as target:
        real = target.commit

        def small(build, **options):
            size = sum(map(len, build(snapkv.Stamp(1, 0)).puts.values()))
            if size > 300_000:
                raise snapkv.CommitTooLargeError("the size", size, 300_000)
            return real(build, **options)

        monkeypatch.setattr(target, "commit", small)
        driven = Driven(
            source, partial(StoreTableWriter, target, "f"), ["a/"], state_at=store.resolved()
        )
        driven.start(store.resolved() - 1)
        driven.reach(store.resolved())
        assert content(target) == content(store)
        driven.close()
