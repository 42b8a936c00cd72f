"""Rates and delays reach owner and operator: balance follows load, slow tables have names."""

import json
import threading

import pytest
from etcd_server import eventually
from rich.console import Console

import snapkv
from cdcmeta.cli.changefeed_status import status_lines, status_of
from cdcmeta.scheduler import Limits
from cdcmeta.scheduler.executors.changefeed_executor import Delay, WriteTotals
from cdcmeta.scheduler.executors.pipeline import Problem
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource
from cdcmeta.scheduler.runtime import Capture, Changefeeds, leader_term, reports
from cdcmeta.scheduler.runtime import capture as capture_module
from cdcmeta.scheduler.runtime.reports import FeedReport, Rate, Reporter, Weights, feed_reports
from cdcmeta.scheduler.transport.local import LocalNetwork
from snapkv.errors import CorruptStoreError

pytestmark = pytest.mark.slow

WAIT_S = 30
TABLES = [f"t{n}/" for n in range(4)]


class Pair:
    """Two captures in threads, whose function waits for the tables that a test names."""

    def __init__(self, store):
        self.store, self.feeds, self.network = store, Changefeeds(store), LocalNetwork()
        self.hangs, self.go_on = set(), threading.Event()
        limits = Limits(balance_every_us=300_000)
        self.captures = [self.capture(label, limits) for label in ("c1", "c2")]
        for each in self.captures:
            each.start()
        eventually(lambda: len(self.feeds.captures()) == 2, "both captures", wait_s=WAIT_S)
        self.feeds.create("copy", "memory:", "call:write", TABLES, start=store.resolved())
        eventually(lambda: len(self.placed()) == len(TABLES), "all tables", wait_s=WAIT_S)

    def capture(self, label, limits):
        return Capture(
            self.store,
            self.network.post(label),
            label=label,
            store_url="memory:",
            ttl=10,
            limits=limits,
            functions={"write": self.write},
            tick_s=0.02,
        )

    def write(self, table, token, commits, checkpoint):
        if table in self.hangs:
            assert self.go_on.wait(WAIT_S)

    def placed(self):
        return {each.table: each.capture for each in self.feeds.places("copy") if each.capture}


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(reports, "LOOK_S", 0.3)
    monkeypatch.setattr(reports, "LATE_S", 1.0)
    monkeypatch.setattr(capture_module, "REPORT_S", 0.3)
    monkeypatch.setattr(leader_term, "WEIGH_US", 500_000)
    with snapkv.open("memory:") as store:
        store.save("t0/first", b"1")
        pair = Pair(store)
        yield pair
        pair.go_on.set()
        for capture in pair.captures:
            capture.stop(drain=False)
            assert capture.error is None


def test_balance_parts_two_busy_tables(pair):
    placed = pair.placed()
    first = placed["t0/"]
    busy = [table for table, capture in placed.items() if capture == first]
    assert len(busy) == 2

    def write():
        for table in busy:
            for n in range(20):
                pair.store.save(f"{table}{n}", b"x")

    def is_parted():
        write()
        return len({pair.placed().get(table) for table in busy}) == 2

    def are_reported():
        """The capture that got a table reports its rate once it has written some rows."""
        write()
        reports = [found["copy"] for found in pair.feeds.reports().values() if "copy" in found]
        return {table for report in reports for table in report.rates} == set(busy)

    eventually(is_parted, "the busy tables to be on two captures", wait_s=WAIT_S)
    reasons = {each.why for table in busy for each in pair.feeds.history("copy", table)}
    assert any("balance" in why for why in reasons), reasons
    eventually(are_reported, "both rates", wait_s=WAIT_S)


def test_a_table_whose_sink_hangs_is_named(pair):
    pair.hangs.add("t1/")
    pair.store.save("t1/late", b"x")
    pair.store.save("t2/fast", b"x")

    def late():
        _, *rows = status_lines(pair.feeds, "copy", None)
        return {row["table"]: row["late"] for row in rows if row["late"]}

    eventually(lambda: late().keys() == {"t1/"}, "the late table to be named", wait_s=WAIT_S)
    assert late()["t1/"].endswith("s, not written")
    console = Console(record=True, width=150)
    console.print(status_of(pair.feeds, "copy", None))
    (line,) = [each for each in console.export_text().splitlines() if each.startswith("t1/")]
    assert "s, not written" in line
    pair.go_on.set()
    eventually(lambda: not late(), "it to be written", wait_s=WAIT_S)


def test_a_capture_that_cannot_report_is_named_and_logs_why(pair, monkeypatch, caplog):
    silent = pair.placed()["t1/"]
    real = snapkv.SnapshotKV.space

    class Failing:
        def __init__(self, space):
            self._space = space

        def commit(self, *, puts=(), **options):
            if any(key.endswith(silent.encode()) for key in puts):
                raise snapkv.ClockSkewError("the clock is off", 9_000, 5_000)
            return self._space.commit(puts=puts, **options)

        def __getattr__(self, name):
            return getattr(self._space, name)

    space = real(pair.store, capture_module.records.space_of("default"))
    space.commit(deletes=[capture_module.records.report_key(silent)])
    monkeypatch.setattr(snapkv.SnapshotKV, "space", lambda *a: Failing(real(*a)))
    pair.store.save("t1/new", b"1")

    def wrong():
        return next(status_lines(pair.feeds, "copy", None))["problems"]

    wanted = [f"{silent} does not report: its log says why"]
    eventually(lambda: wrong() == wanted, "it to be named", wait_s=WAIT_S)
    eventually(
        lambda: f"capture {silent} cannot report: the clock is off" in caplog.text,
        "the log",
        wait_s=WAIT_S,
    )
    monkeypatch.setattr(snapkv.SnapshotKV, "space", real)
    eventually(lambda: wrong() == [], "its report", wait_s=WAIT_S)


def test_an_eviction_while_a_sink_is_called_does_not_end_the_process(pair):
    """The call has until the session would have ended by itself."""
    ended = []
    for capture in pair.captures:
        capture._end_process = ended.append
        capture.life._end_process = ended.append
    owner = next(each.life for each in pair.captures if each.life.is_leading)
    life = next(each.life for each in pair.captures if each.life is not owner)
    table = next(table for table, capture in pair.placed().items() if capture == life.name)
    pair.hangs.add(table)
    ts = pair.store.save(f"{table}slow", b"1")
    eventually(life._is_writing, "the call", wait_s=WAIT_S)
    (session,) = [each for each in pair.store.sessions() if each.id == life.session.id]
    owner._election.end_session(session)
    eventually(lambda: not life.is_alive, "the end of the session", wait_s=WAIT_S)
    assert not pair.go_on.wait(0.3)  # the watchdog looks each 0.05 s
    pair.hangs.clear()
    pair.go_on.set()
    eventually(lambda: life._is_over, "the end of its life", wait_s=WAIT_S)
    eventually(lambda: pair.feeds.checkpoint("copy").checkpoint >= ts, "the table", wait_s=WAIT_S)
    assert ended == []


def test_a_changefeed_of_an_empty_store_begins_with_the_first_commit(monkeypatch):
    with snapkv.open("memory:") as source, snapkv.open("memory:") as store:
        written, feeds = [], Changefeeds(store)
        capture = Capture(
            store,
            LocalNetwork().post("c1"),
            label="c1",
            functions={"write": lambda t, k, commits, c: written.extend(commits)},
        )
        monkeypatch.setattr(
            capture_module, "open_source", lambda feed, _: PrefixTableSource(source, {"*": ""})
        )
        capture.start()
        feeds.create("copy", "memory:", "call:write", start=source.resolved(), with_state=True)
        ts = source.save("a", b"1")
        eventually(lambda: feeds.checkpoint("copy").checkpoint >= ts, "it", wait_s=WAIT_S)
        assert [change.key for commit in written for change in commit] == ["a"]
        capture.stop(drain=False)


def test_a_weight_follows_its_rate_in_steps():
    weights = Weights(["a", "b"])
    first = weights.of_tables
    weights.update({"a": Rate(99.0, 0.0)})
    assert weights.of_tables == {"a": 100.0, "b": 1.0}
    assert first == {"a": 1.0, "b": 1.0}  # never changed in place
    seen = weights.of_tables
    weights.update({"a": Rate(130.0, 0.0), "b": Rate(0.4, 0.0)})
    assert weights.of_tables is seen  # too little to move anything
    weights.update({})
    assert weights.of_tables == {"a": 50.0, "b": 1.0}


def test_a_report_is_the_same_after_its_record():
    report = FeedReport(
        3, "no disk", {"a": "late"}, {"a": Rate(1.5, 2.0)}, {"b": Delay(70.0, "prepared")}
    )
    assert FeedReport.decode(report.encode()) == report
    old = {"tables": 1, "error": None, "problems": {}}  # of a capture of an earlier version
    assert FeedReport.decode(old) == FeedReport(1, None, {}, {}, {})


@pytest.mark.parametrize(
    "raw", [b"[]", b'{"feeds":{"f":{}}}', b'{"feeds":{"f":7}}', b'{"feeds":7}']
)
def test_a_report_of_another_form_is_refused(raw):
    with pytest.raises(CorruptStoreError):
        feed_reports(raw)


def test_tables_that_are_not_listed_share_the_rest():
    report = FeedReport(4, None, {}, {"a": Rate(9.0, 90.0)}, {}, rest=Rate(6.0, 60.0))
    again = FeedReport.decode(report.encode())
    assert again.rates_of(["a", "b", "c"]) == {
        "a": Rate(9.0, 90.0),
        "b": Rate(3.0, 30.0),
        "c": Rate(3.0, 30.0),
    }
    assert again.rates_of(["a"]) == {"a": Rate(9.0, 90.0)}


def test_a_report_of_many_failing_tables_is_bounded():
    class Failing:
        error = None

    executor = Failing()
    executor.problems = lambda: {f"t{n}": Problem("x" * 2_000, 0.0, 1) for n in range(20_000)}
    executor.written = lambda: {f"t{n}": WriteTotals(n, n) for n in range(20_000)}
    executor.delays = lambda least_s: {f"t{n}": Delay(n, "written") for n in range(20_000)}
    reporter = Reporter(executor)
    raw = json.dumps(reporter.report(20_000).encode())
    assert len(raw) < 200_000
    assert FeedReport.decode(json.loads(raw)).failing == 20_000
