"""Engines around engines: one that counts, one that intrudes, one that can be exchanged."""

from __future__ import annotations

from collections import Counter
from time import sleep as pause

import snapkv.store.open
from snapkv.engine.contract import (
    ALL_KEYS_END,
    Delete,
    OutcomeUnknown,
    Pairs,
    Put,
    Range,
    Txn,
    one_of,
)
from snapkv.engine.memory import MemoryEngine
from snapkv.store.location import open_engine
from snapkv.timeline import continuity

WAIT_S = 20
ROUND_TRIPS = (
    *("read", "scan", "columns", "pieces", "changes"),
    *("transact", "watch", "compact", "compacted_revision"),
)


class Wrapped:
    """Passes everything on to the engine inside."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def get(self, key, revision=0):
        """Read a point as a range: what is done to `read` is done to it, too."""
        return one_of(self.read([Range(key, revision=revision)]))

    def pairs(self, key, range_end, *, revision, keys_only=False):
        """List by a scan: what is done to `scan` is done to it, too."""
        for page in self.scan(key, range_end, revision=revision, keys_only=keys_only):
            yield Pairs([kv.key for kv in page], [] if keys_only else [kv.value for kv in page])


class Exchangeable(Wrapped):
    """A server whose state can be set back under its clients: they only lose their streams."""

    remote = True

    def server_time_ms(self, *, fresh=False):
        return None  # stores of these tests live on clocks of their own

    def watch(self, key, range_end, *, start_revision):
        return Reopening(self, key, range_end, start_revision)


class Reopening:
    """A watcher that goes on after what it has seen, whatever its server holds by then."""

    def __init__(self, engine, key, range_end, start_revision) -> None:
        self.engine, self.reopened = engine, 0
        self._range, self._next = (key, range_end), start_revision
        self._open()

    def _open(self) -> None:
        self._inner = self.engine.inner
        self._watcher = self._inner.watch(*self._range, start_revision=self._next)

    def next(self, timeout):
        if self.engine.inner is not self._inner:
            self._watcher.close()
            self._open()
            self.reopened += 1
        batch = self._watcher.next(timeout)
        if batch is not None:
            self._next = batch.revision + 1
        return batch

    def close(self) -> None:
        self._watcher.close()


class Counting(Wrapped):
    """Counts the calls that would be round trips to a server."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.calls = Counter()

    def __getattr__(self, name):
        if name in ROUND_TRIPS:
            self.calls[name] += 1
        return super().__getattr__(name)

    def during(self, action) -> dict:
        """Return the calls that an action made."""
        before = Counter(self.calls)
        action()
        return dict(self.calls - before)

    def cheapest(self, action) -> dict:
        """Of a few tries: an engine that was slow is asked once more whose answers these are."""
        return min((self.during(action) for _ in range(5)), key=lambda calls: sum(calls.values()))


class Slow(Wrapped):
    """Takes a while for each call that would be a round trip to a server; has short pages."""

    delay_s = 0.02
    page_keys = 9

    def __getattr__(self, name):
        found = getattr(self.inner, name)
        if name not in ROUND_TRIPS:
            return found

        def late(*args, **options):
            pause(self.delay_s)
            return found(*args, **options)

        return late

    def pairs(self, key, range_end, *, revision, keys_only=False):
        """List a few keys at a time."""
        for page in super().pairs(key, range_end, revision=revision, keys_only=keys_only):
            for at in range(0, len(page.keys), self.page_keys):
                some = slice(at, at + self.page_keys)
                yield Pairs(page.keys[some], page.values[some])


class Intruding(Wrapped):
    """Calls `intrude()` before each transaction, as a faster neighbour would come first."""

    def intrude(self) -> None:
        """Do nothing, until a test says otherwise."""

    def transact(self, prepare, peek, *, timeout):
        self.intrude()
        return self.inner.transact(prepare, peek, timeout=timeout)


class LosingOnce(Wrapped):
    """Loses the next request on its way, once `lose` is set; nobody knows what became of it."""

    lose = False

    def transact(self, prepare, peek, *, timeout):
        if not self.lose:
            return self.inner.transact(prepare, peek, timeout=timeout)
        self.lose = False

        def prepare_and_lose(peeked):
            prepare(peeked)
            raise OutcomeUnknown("the connection was lost", retry=True)

        return self.inner.transact(prepare_and_lose, peek, timeout=timeout)


def wrap_engines(monkeypatch, wrapper) -> list:
    """Let `snapkv.open` put a wrapper around each engine it opens; return the list of them.

    Where calls are counted, no answer counts as slow: after one a store checks its server.
    """
    wrapped = []
    if issubclass(wrapper, Counting):
        monkeypatch.setattr(continuity, "GAP_S", WAIT_S)

    def opened(url, **rest):
        wrapped.append(wrapper(open_engine(url, **rest)))
        return wrapped[-1]

    monkeypatch.setattr(snapkv.store.open, "open_engine", opened)
    return wrapped


def backup(engine, revision: int, *, same_cluster: bool) -> MemoryEngine:
    """Return an engine as `engine` was at a revision: what a restored backup is."""
    copy = MemoryEngine("memory:backup")
    if same_cluster:
        copy._cluster = engine.read([]).header.cluster
    watcher = engine.watch(b"\0", ALL_KEYS_END, start_revision=1)
    while copy.info()["revision"] < revision:
        batch = watcher.next(WAIT_S)
        assert batch is not None, "the history does not come"
        if not batch.events or batch.revision > revision:
            break
        ops = tuple(
            Delete(e.kv.key) if e.is_delete else Put(e.kv.key, e.kv.value) for e in batch.events
        )
        answer = copy.transact(lambda _, ops=ops: Txn(success=ops), b"-", timeout=10)
        assert answer.header.revision == batch.revision
    watcher.close()
    return copy
