"""Many tables move between two executors while sinks fail: nothing is lost, repeated or reordered.

The test is the owner: it removes a table here and adds it there, under a token of its own.
"""

import json
import random
from functools import partial

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors import feed_reader, pipeline, prefix_source
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter, file_name
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter
from snapkv.errors import EngineUnavailableError

from .driving import opened as opened_executor
from .sources import Hooked, below, open_source

pytestmark = pytest.mark.slow

TABLES = [f"t{n}/" for n in range(12)]
STEPS = 25
WAIT_S = 20


def unreliable(sink, rng, *, after):
    """Return a sink whose writers fail now and then, before a call or after it has ended."""
    return lambda table, token: UnreliableWriter(sink(table, token), rng, after=after)


class UnreliableWriter:
    def __init__(self, inner, rng, *, after):
        self._inner, self._rng, self._after = inner, rng, after
        self.close, self.replace = inner.close, inner.replace

    def begin(self, start):
        return self._now_and_then(partial(self._inner.begin, start))

    def write(self, commits, checkpoint):
        self._now_and_then(partial(self._inner.write, commits, checkpoint))

    def _now_and_then(self, call):
        way = self._rng.random()
        if way < 0.15:
            raise OSError("before")
        found = call()
        if self._after and way > 0.85:
            raise OSError("after")
        return found


class Owner:
    """Two executors, and which of them has a table."""

    def __init__(self, source, sinks, tables, state_at):
        self.nodes = [
            opened_executor(
                PrefixTableSource(source, {table: table for table in tables}),
                sink,
                tables,
                state_at=state_at,
            )
            for sink in sinks
        ]
        self.holder, self.number = {}, 0

    def place(self, table, start, at):
        """Prepare and replicate a table, until that works."""
        while True:
            self.number += 1
            token, node = Token(1, self.number), self.nodes[at]
            self.holder[table] = at
            node.add_table(table, start, token, is_prepare=True)
            if self.is_done(table, is_prepare=True):
                node.add_table(table, start, token, is_prepare=False)
                if self.is_done(table, is_prepare=False):
                    return
            start = max(start, self.take(table))

    def is_done(self, table, *, is_prepare):
        """Wait; return False if the table ended instead."""

        def is_over():
            return self.has_ended(table) or node.is_add_finished(table, is_prepare=is_prepare)

        node = self.nodes[self.holder[table]]
        eventually(is_over, f"{table}: {node.problems()}", wait_s=WAIT_S)
        return not self.has_ended(table)

    def has_ended(self, table):
        state = self.nodes[self.holder[table]].status(table).state
        return state in (TableState.STOPPING, TableState.STOPPED)

    def take(self, table):
        """Remove a table; return its last checkpoint."""
        node = self.nodes[self.holder[table]]
        node.remove_table(table)
        eventually(
            lambda: node.status(table).state is TableState.STOPPED,
            f"{table} to stop",
            wait_s=WAIT_S,
        )
        return node.is_remove_finished(table)

    def reach(self, ts):
        """Wait until all tables are at a timestamp; those that ended go on elsewhere."""

        def is_there(table):
            if self.has_ended(table):
                self.place(table, self.take(table), 1 - self.holder[table])
            node = self.nodes[self.holder[table]]
            return node.status(table).progress.checkpoint >= ts

        for table in list(self.holder):
            eventually(partial(is_there, table), f"{table} at {ts}", wait_s=WAIT_S)


def change(store, rng, made):
    """Commit to one table or to several at once."""
    chosen = rng.sample(TABLES, rng.choice([1, 1, 1, 3]))
    puts = {
        f"{table}{rng.randrange(6)}": rng.randbytes(rng.choice([2, 2, 400])) for table in chosen
    }
    now = dict(store.at().items())
    present = [key for key in puts if key in now and rng.random() < 0.3]
    ts = store.commit(puts={k: v for k, v in puts.items() if k not in present}, deletes=present).ts
    for table in chosen:
        made[table].append(ts)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Make queues, batches, pauses and turns small, so that all of them happen."""
    monkeypatch.setattr(pipeline, "RETRY_S_MIN", 0.002)
    monkeypatch.setattr(pipeline, "QUEUE_COMMITS", 8)
    monkeypatch.setattr(pipeline, "WRITE_COMMITS", 5)
    monkeypatch.setattr(feed_reader, "WAIT_S", 0.01)
    monkeypatch.setattr(feed_reader, "RETRY_S", 0.005)
    monkeypatch.setattr(feed_reader, "SLICE_S", 0.01)
    monkeypatch.setattr(prefix_source, "PAGE_KEYS", 2)


@pytest.mark.long_after(2)
@pytest.mark.parametrize(
    ("into", "with_state"),
    [
        pytest.param("store", False, id="store-since"),
        pytest.param("lines", True, id="lines-state"),
        pytest.param("store", True, id="store-state"),
        pytest.param("lines", False, id="lines-since"),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_tables_that_move_while_everything_fails(kind, into, with_state, tmp_path):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    made = {table: [] for table in TABLES}
    with (
        open_source(kind, tmp_path / "source") as store,
        snapkv.open("memory:") as target,
    ):
        if with_state:
            for _ in range(60):
                change(store, rng, made)
        state_at = store.resolved()
        start, before = state_at, dict(store.at().items())
        if with_state:
            start -= 1
            made = {table: [] for table in TABLES}

        def fail(since):
            if rng.random() < 0.02:
                raise EngineUnavailableError("down")

        source = Hooked(store)
        source.before = fail
        is_store = into == "store"
        sinks = [
            unreliable(
                partial(StoreTableWriter, target, "f")
                if is_store
                else partial(JsonLinesWriter, tmp_path / "out"),
                random.Random(seed + n),
                after=is_store,
            )
            for n in range(2)
        ]
        owner = Owner(source, sinks, TABLES, state_at)
        try:
            for table in TABLES:
                owner.place(table, start, rng.randrange(2))
            for _ in range(STEPS):
                for _ in range(rng.randrange(15)):
                    change(store, rng, made)
                table = rng.choice(TABLES)
                owner.place(table, owner.take(table), 1 - owner.holder[table])
            owner.reach(store.resolved())
            if is_store:
                assert below(target, TABLES) == dict(store.at().items())
            else:
                check_lines(tmp_path / "out", before if with_state else {}, made, store)
        finally:
            for node in owner.nodes:
                assert node.close(WAIT_S)


def check_lines(directory, before, made, store):
    """Each commit is in a table's file once, in order, after the table's first state."""
    now = dict(store.at().items())
    for table, wanted in made.items():
        lines = [
            json.loads(line) for line in (directory / file_name(table)).read_bytes().splitlines()
        ]
        state = sum(key.startswith(table) for key in before)
        commits = [line for line in lines if "ts" in line]
        assert len(commits) >= len(wanted), f"{table} lost commits"
        first = commits[: len(commits) - len(wanted)]
        assert sum(len(line["changes"]) for line in first) == state
        assert [line["ts"] for line in commits[len(first) :]] == wanted
        assert {change["key"] for line in commits for change in line["changes"]} >= {
            key for key in now if key.startswith(table)
        }
        reached = [line["checkpoint"] for line in lines if "checkpoint" in line]
        assert reached == sorted(reached)
        tokens = [line["token"] for line in lines if "token" in line]
        assert tokens == sorted(tokens)
