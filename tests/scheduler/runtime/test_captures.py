"""Captures in threads of one process: the records, requests, pauses, errors that operators see."""

import signal
import threading

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.cli.server_commands import _Stop
from cdcmeta.scheduler import Limits
from cdcmeta.scheduler.runtime import Capture, Changefeeds, leader_term
from cdcmeta.scheduler.runtime import capture as capture_module
from cdcmeta.scheduler.runtime.cluster_view import ClusterView, Gone
from cdcmeta.scheduler.transport.local import LocalNetwork
from snapkv.base.waiting import monotonic
from snapkv.errors import EngineUnavailableError

pytestmark = pytest.mark.slow

WAIT_S = 30
TABLES = [f"t{n}/" for n in range(6)]


class Cluster:
    """Captures that share a store in memory, which is the source as well."""

    def __init__(self, store):
        self.store, self.feeds, self.network = store, Changefeeds(store), LocalNetwork()
        self.captures, self.written, self.fails = {}, {}, set()
        self._lock = threading.Lock()

    def write(self, table, token, commits, checkpoint):
        if table in self.fails:
            raise OSError("the disk is full")
        with self._lock:
            for commit in commits:
                self.written.update((change.key, change.value) for change in commit)

    def start(self, *labels):
        for label in labels:
            capture = Capture(
                self.store,
                self.network.post(label),
                label=label,
                store_url="memory:here",
                ttl=5,
                functions={"write": self.write},
                tick_s=0.02,
            )
            self.captures[label] = capture
            capture.start()
        self.until(lambda: len(self.feeds.captures()) == len(self.captures), "all captures")

    def create(self, id="copy", **options):
        start = self.store.resolved()
        return self.feeds.create(id, "memory:here", "call:write", TABLES, start=start, **options)

    def until(self, holds, what):
        eventually(holds, what, wait_s=WAIT_S)

    def placed(self):
        alive = self.feeds.captures()
        found = self.feeds.places("copy")
        return {p.table: alive[p.capture].label for p in found if p.capture in alive}

    def life(self, label):
        self.until(lambda: self.captures[label].life, f"{label} to be alive")
        return self.captures[label].life

    def leader(self):
        lives = {label: capture.life for label, capture in self.captures.items()}
        return next((label for label, life in lives.items() if life and life.is_leading), None)


@pytest.fixture
def cluster():
    with snapkv.open("memory:") as store:
        store.save("t0/first", b"1")
        cluster = Cluster(store)
        yield cluster
        for capture in cluster.captures.values():
            capture.stop(drain=False)
            assert capture.error is None


def test_tables_are_spread_moved_and_drained(cluster):
    cluster.start("c1", "c2")
    cluster.create(with_state=True)
    cluster.until(lambda: len(cluster.placed()) == len(TABLES), "all tables")
    assert sorted(cluster.placed().values()) == ["c1"] * 3 + ["c2"] * 3
    cluster.until(lambda: cluster.written == {"t0/first": b"1"}, "the state")
    table = next(table for table, label in cluster.placed().items() if label == "c1")
    cluster.feeds.move("copy", table, "c2")
    cluster.until(lambda: cluster.placed().get(table) == "c2", "the move")
    cluster.feeds.rebalance("copy")
    cluster.until(
        lambda: sorted(cluster.placed().values()) == ["c1"] * 3 + ["c2"] * 3, "the balance"
    )
    leader = cluster.leader()
    (other,) = {"c1", "c2"} - {leader}
    cluster.feeds.drain(leader)  # another one has to lead first
    cluster.until(lambda: list(cluster.placed().values()) == [other] * len(TABLES), "the drain")
    cluster.until(lambda: cluster.leader() == other, "the other one to lead")
    last = [each.why for each in cluster.feeds.history("copy", table)]
    assert last[0] == "placed"
    assert "a move was asked for" in last


def test_a_pause_stops_and_a_resume_goes_on(cluster):
    cluster.create()
    cluster.start("c1")
    ts = cluster.store.save("t1/a", b"1")
    cluster.until(lambda: cluster.feeds.checkpoint("copy").checkpoint >= ts, "the checkpoint")
    cluster.feeds.pause("copy")
    life = cluster.captures["c1"].life
    cluster.until(lambda: life.tables() == {}, "all tables to stop")
    later = cluster.store.save("t1/a", b"2")
    assert cluster.written == {"t1/a": b"1"}
    cluster.feeds.resume("copy")
    cluster.until(lambda: cluster.feeds.checkpoint("copy").checkpoint >= later, "the rest")
    assert cluster.written == {"t1/a": b"2"}
    cluster.feeds.remove("copy")
    cluster.until(lambda: life.tables() == {}, "the end")


def test_a_capture_that_joins_gets_its_share_soon(cluster, monkeypatch):
    """The balance is checked each minute, and soon after a capture has joined."""
    monkeypatch.setattr(leader_term, "JOINED_US", 200_000)
    cluster.start("c1")
    cluster.create()
    cluster.until(lambda: list(cluster.placed().values()) == ["c1"] * len(TABLES), "all tables")
    cluster.start("c2")
    cluster.until(
        lambda: sorted(cluster.placed().values()) == ["c1"] * 3 + ["c2"] * 3, "the balance"
    )


def test_what_is_wrong_is_reported(cluster):
    cluster.create()
    cluster.start("c1")
    cluster.until(lambda: len(cluster.placed()) == len(TABLES), "all tables")
    cluster.fails.add("t2/")
    cluster.store.save("t2/a", b"1")
    ts = cluster.store.save("t3/a", b"1")
    cluster.until(lambda: "t3/a" in cluster.written, "another table")

    def problem():
        reports = cluster.feeds.reports().values()
        return [each["copy"].problems if "copy" in each else None for each in reports]

    wanted = [{"t2/": "OSError: the disk is full"}]
    cluster.until(lambda: problem() == wanted, "the problem")
    assert cluster.feeds.checkpoint("copy").checkpoint < ts
    cluster.fails.clear()
    cluster.until(lambda: cluster.feeds.checkpoint("copy").checkpoint >= ts, "it to go on")


def test_a_sink_that_cannot_be_opened_is_reported(cluster):
    cluster.feeds.create("copy", "memory:here", "call:unknown", TABLES, start=5)
    cluster.start("c1")

    def errors():
        return [each["copy"].error for each in cluster.feeds.reports().values() if "copy" in each]

    cluster.until(
        lambda: errors() == ["this capture has no function 'unknown'; it has: write"], "the error"
    )


def test_all_leave_at_once_and_no_thread_remains(cluster):
    before = threading.active_count()
    cluster.create()
    cluster.start("c1", "c2", "c3")
    cluster.until(lambda: len(cluster.placed()) == len(TABLES), "all tables")
    stops = [threading.Thread(target=each.stop) for each in cluster.captures.values()]
    for stop in stops:
        stop.start()
    for stop in stops:
        stop.join(WAIT_S)
        assert not stop.is_alive()
    cluster.until(lambda: cluster.feeds.captures() == {}, "the sessions to end")
    cluster.until(lambda: threading.active_count() <= before, "threads to end")


class Flag:
    """What a signal handler sets: it has no lock for which a handler could wait."""

    wanted = False

    def is_set(self):
        return self.wanted


@pytest.mark.parametrize("registers", [True, False])
def test_a_flag_ends_it(cluster, monkeypatch, registers):
    """`threading.Event.wait` would hold a lock that `set`, called by a handler, needs."""
    flag, capture = Flag(), Capture(cluster.store, cluster.network.post("c1"), label="c1", ttl=5)
    asked = threading.Event()
    if not registers:

        def fails(*_):
            asked.set()
            raise EngineUnavailableError("down")

        monkeypatch.setattr(capture_module, "Life", fails)
    running = threading.Thread(target=capture.run, args=(flag,), daemon=True)
    running.start()
    cluster.until(lambda: capture.life if registers else asked.is_set(), "the capture")
    assert running.is_alive()
    flag.wanted = True
    running.join(WAIT_S)
    assert not running.is_alive()


@pytest.fixture
def handlers():
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_signals_set_a_flag_and_a_second_interrupt_interrupts(handlers):
    stop = _Stop()
    assert not stop.is_set()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    assert stop.is_set()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_evicted_capture_stops_before_its_tables_move(cluster):
    cluster.start("c1", "c2")
    cluster.create()
    cluster.until(lambda: len(cluster.placed()) == len(TABLES), "all tables")
    leader = cluster.captures[cluster.leader()].life
    (victim,) = [c.life for c in cluster.captures.values() if c.life is not leader]
    name = victim.name
    leader._owner_writes.evict(leader.registry.view.captures[name])
    cluster.until(lambda: not victim.is_alive, "it to notice")
    mine = {each.table for each in cluster.feeds.places("copy") if each.capture == name}
    assert len(mine) == 3  # they wait for as long as it may write
    cluster.until(
        lambda: name not in {each.capture for each in cluster.feeds.places("copy")}, "the move"
    )
    ts = cluster.store.save("t1/a", b"1")
    cluster.until(lambda: cluster.feeds.checkpoint("copy").checkpoint >= ts, "all tables to go on")
    cluster.until(
        lambda: not list(cluster.store.space("scheduler/default").at().keys(b"evicted/")),
        "the record of the eviction to go",
    )


BAD = {
    b"ask/x": b"",
    b"ask/\xff/move/t": b"\xff",
    b"ask/copy/move/t0/": b"\xff",
    b"drain/\xff": b"",
    b"evicted/zz": b"{}",
    b"evicted/1": b"\xc1",
    b"report/\xff": b"\xc1",
    b"feed/bad": b"{}",
    b"checkpoint/bad": b"[]",
    b"place/bad": b"1",
    b"unknown": b"1",
}


def test_records_that_are_none_stop_no_capture(cluster):
    cluster.create()
    cluster.store.space("scheduler/default").commit(puts=BAD)
    cluster.start("c1", "c2")
    ts = cluster.store.save("t1/a", b"1")
    cluster.until(lambda: cluster.feeds.checkpoint("copy").checkpoint >= ts, "the checkpoint")
    cluster.store.space("scheduler/default").commit(puts={b"place/other": b"2", **BAD})
    later = cluster.store.save("t1/a", b"2")
    cluster.until(lambda: cluster.feeds.checkpoint("copy").checkpoint >= later, "it to go on")
    assert all(capture.error is None for capture in cluster.captures.values())


def test_a_new_owner_waits_for_captures_that_vanished_before_it_led():
    """Its registry saw them vanish; a term's own first look cannot."""
    seen_at = monotonic()
    view = ClusterView(5, {}, None, gone={"c1-a": Gone(3, seen_at), "c2-b": Gone(4, seen_at - 2)})
    new = leader_term.Term("c3-c", 5, Limits(), writes=None)
    assert new._captures(view, int((seen_at + 0.5) * 1e6)) == {"c1-a": 3}
    assert new._captures(view, int((seen_at + 1.5) * 1e6)) == {}


def test_a_registry_remembers_who_vanished(cluster):
    cluster.start("c1", "c2")
    registry = cluster.life("c1").registry
    other = cluster.life("c2").name
    cluster.until(lambda: other in registry.view.captures, "both")
    cluster.captures.pop("c2").stop(drain=False)
    cluster.until(lambda: other in registry.view.gone, "its end")
    assert other not in registry.view.captures
    cluster.start("c2")
    cluster.until(lambda: len(registry.view.captures) == 2, "another registration")
    assert other in registry.view.gone  # a minute long, under its old name


def test_a_registry_that_cannot_read_its_records_reads_them_later(cluster, caplog):
    cluster.start("c1")
    registry = cluster.life("c1").registry
    real, failures = registry._read_records, iter([EngineUnavailableError("down")] * 2)

    def read():
        if (error := next(failures, None)) is not None:
            raise error
        return real()

    registry._read_records, registry._is_lost = read, True  # as after a compaction
    cluster.until(lambda: registry.error is not None, "the failure")
    assert "cannot be read: down" in caplog.text
    cluster.create()
    cluster.until(lambda: "copy" in registry.view.feeds, "the new changefeed")
    cluster.until(lambda: len(cluster.placed()) == len(TABLES), "all tables")


def test_a_stop_without_a_drain_hands_nothing_over(cluster):
    cluster.start("c1", "c2")
    cluster.create()
    cluster.until(lambda: len(cluster.placed()) == len(TABLES), "all tables")
    follower = next(label for label in ("c1", "c2") if label != cluster.leader())
    cluster.captures.pop(follower).stop(drain=False)
    cluster.until(
        lambda: list(cluster.placed().values()) == [cluster.leader()] * len(TABLES), "the move"
    )
    reasons = {each.why for table in TABLES for each in cluster.feeds.history("copy", table)}
    assert not [why for why in reasons if "drained" in why], reasons


def test_tokens_grow_over_a_pause(cluster):
    """A sink rejects a smaller token as that of an earlier assignment."""
    tokens = []
    real = cluster.write

    def write(table, token, commits, checkpoint):
        tokens.append(token)
        real(table, token, commits, checkpoint)

    cluster.write = write
    cluster.start("c1")
    cluster.create()
    cluster.until(lambda: len(cluster.placed()) == len(TABLES), "all tables")
    for n in range(3):
        ts = cluster.store.save("t1/a", b"%d" % n)
        cluster.until(lambda ts=ts: cluster.feeds.checkpoint("copy").checkpoint >= ts, "a commit")
        cluster.feeds.pause("copy")
        cluster.until(lambda: not cluster.life("c1").tables().get("copy"), "the pause")
        cluster.feeds.resume("copy")
    assert len(set(tokens)) == 3
    assert tokens == sorted(tokens)
