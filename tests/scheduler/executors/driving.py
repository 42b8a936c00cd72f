"""Executors as an agent drives them, and sinks that fail, hang or note what they get."""

import threading
from functools import partial

from etcd_server import eventually

from cdcmeta.scheduler import TableState, Token
from cdcmeta.scheduler.executors.changefeed_executor import StoreExecutor
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource

WAIT_S = 20


def opened(source, sink, tables, **options):
    """Return an executor whose source and sink are open."""
    executor = StoreExecutor(lambda: (source, sink), tables, **options)
    executor.open()
    return executor


class Driven:
    """An executor with tables that are prepared, started and stopped as an agent does it."""

    def __init__(self, source, sink, tables, *, state_at=0, **options):
        if not hasattr(source, "feed"):  # a store: its tables are prefixes
            source = PrefixTableSource(source, {table: table for table in tables})
        self.executor = opened(source, sink, tables, state_at=state_at, **options)
        self.tables = tables

    def start(self, start, owner=1, tables=None):
        """Replicate tables from a timestamp on, under tokens of an owner."""
        chosen = self.tables if tables is None else tables
        tokens = {table: Token(owner, n) for n, table in enumerate(chosen, 1)}
        for is_prepare in (True, False):
            for table, token in tokens.items():
                assert self.executor.add_table(table, start, token, is_prepare=is_prepare)
            for table in tokens:
                self.until(partial(self.is_done, table, is_prepare=is_prepare), table)

    def is_done(self, table, *, is_prepare):
        return self.executor.is_add_finished(table, is_prepare=is_prepare)

    def reach(self, ts, tables=None):
        """Wait until everything up to a timestamp is in the sink."""
        for table in self.tables if tables is None else tables:
            self.until(lambda t=table: self.checkpoint(t) >= ts, f"{table} at {ts}")

    def checkpoint(self, table):
        return self.executor.status(table).progress.checkpoint

    def state(self, table):
        return self.executor.status(table).state

    def stop(self, tables=None):
        """Stop tables; return their last checkpoints."""
        chosen = list(self.executor.all_tables()) if tables is None else tables
        for table in chosen:
            self.executor.remove_table(table)
        found = {}
        for table in chosen:
            self.until(lambda t=table: self.state(t) is TableState.STOPPED, f"the end of {table}")
            found[table] = self.executor.is_remove_finished(table)
        return found

    def until(self, holds, what):
        try:
            eventually(holds, what, wait_s=WAIT_S)
        except AssertionError as e:
            raise AssertionError(f"{e}: {self.executor.problems()}") from e

    def close(self):
        assert self.executor.close(WAIT_S)


class Noting:
    """A function that notes each call, and does first what a test wants."""

    def __init__(self):
        self.calls, self.before = [], lambda table, checkpoint: None
        self._lock = threading.Lock()

    def __call__(self, table, token, commits, checkpoint):
        self.before(table, checkpoint)
        with self._lock:
            self.calls.append((table, token, list(commits), checkpoint))

    def commits(self, table):
        """The timestamps of a table's commits, as they came, without its first state."""
        return [
            each.commit.ts
            for name, _, commits, checkpoint in self.calls
            if name == table and checkpoint
            for each in commits
        ]

    def content(self):
        found = {}
        for _, _, commits, _ in self.calls:
            for commit in commits:
                found.update((change.key, change.value) for change in commit)
        return {key: value for key, value in found.items() if value is not None}
