"""What tests of the etcd engine share: short words for its calls, and threads waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from etcd_server import WAIT_S, EtcdServer, Gateway

from snapkv.base.waiting import monotonic
from snapkv.engine.contract import (
    ALL_KEYS_END,
    Compare,
    Engine,
    KeyEvent,
    KeyValue,
    Put,
    Range,
    Txn,
    TxnResult,
    Watcher,
)
from snapkv.engine.etcd.engine import EtcdEngine, open_etcd

CALL_S = 10.0
LOOSELY_S = 3.0
"""Added to the bounds: the machine may be busy."""

ROOT, SECRET = "root", "root-s3cret"
USER, PASSWORD = "app", "app-s3cret"
USERS = {ROOT: (SECRET, None), USER: (PASSWORD, [("default/", "readwrite")])}
"""For `enable_auth`: an administrator, and somebody who may use one store."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer, loosely."""
    began = monotonic()
    yield
    assert monotonic() - began < seconds + LOOSELY_S


@contextmanager
def opened(url: str, **options: Any) -> Iterator[EtcdEngine]:
    """Open an engine for a block; no thread of its watchers outlives it."""
    engine = open_etcd(url, **options)
    try:
        yield engine
    finally:
        readers = [watcher._thread for watcher in engine._watchers]
        engine.close()
    for reader in readers:
        if reader is not None:
            reader.join(WAIT_S)
            assert not reader.is_alive(), f"{reader.name} does not end"


def transact(engine: Engine, txn: Txn, timeout: float = CALL_S) -> TxnResult:
    """Send one transaction."""
    return engine.transact(lambda _: txn, b"unused", timeout=timeout)


def put(engine: Engine, key: bytes, value: bytes = b"v", **options: Any) -> int:
    """Put one key; return the revision."""
    return transact(engine, Txn(success=(Put(key, value),)), **options).header.revision


def compare_and_put(engine: Engine, compare: Compare, key: bytes, value: bytes) -> bool:
    """Put one key if a compare holds; return whether it did."""
    return transact(engine, Txn((compare,), (Put(key, value),))).succeeded


def get(engine: Engine, key: bytes, **options: Any) -> bytes | None:
    """Return a key's value."""
    kvs = engine.read([Range(key)], **options).results[0].kvs
    return kvs[0].value if kvs else None


def head(engine: Engine) -> int:
    """Return the newest revision."""
    return engine.read([Range(b"\0", count_only=True)]).header.revision


def everything(engine: Engine, key: bytes = b"\0", end: bytes = ALL_KEYS_END) -> list[KeyValue]:
    """Return all pairs of a range by a scan of the newest revision."""
    return [kv for page in engine.scan(key, end, revision=head(engine)) for kv in page]


def events_until(watcher: Watcher, revision: int, wait_s: float = 20.0) -> list[KeyEvent]:
    """Take batches until one at or above a revision has come; they rise and are whole."""
    deadline, events, newest = monotonic() + wait_s, [], 0
    while newest < revision:
        batch = watcher.next(1.0)
        assert monotonic() < deadline, f"only up to {newest} of {revision} in {wait_s:.0f} s"
        if batch is None:
            continue
        if batch.events:
            assert batch.revision > newest, f"{batch.revision} after {newest}"
            assert {event.kv.mod_revision for event in batch.events} == {batch.revision}
            events += batch.events
        newest = max(newest, batch.revision)
    return events


def puts_of(server: EtcdServer, prefix: bytes, number: int, start: int = 0) -> list[bytes]:
    """Put keys past all of snapkv; return them."""
    keys = [prefix + b"%06d" % i for i in range(start, start + number)]
    for key in keys:
        server.gateway.put(key, b"v")
    return keys


def logged_in(server: EtcdServer, user: str, password: str) -> Gateway:
    """Return a gateway of its own, as a user."""
    gateway = Gateway(server.client_port)
    gateway.log_in(user, password)
    return gateway


class Background:
    """Work in a thread; `result` waits for it and raises what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._answer = work()
        except BaseException as e:
            self._error = e

    @property
    def running(self) -> bool:
        """Whether the work goes on."""
        return self._thread.is_alive()

    def result(self, wait_s: float = 30.0) -> Any:
        """Wait for the end of the work."""
        self._thread.join(wait_s)
        assert not self.running, f"the work hangs for {wait_s:.0f} s"
        if self._error is not None:
            raise self._error
        return self._answer


def told(error: BaseException | None) -> str:
    """Return all that an error and those behind it say, in every form that a log may show."""
    texts = []
    while error is not None:
        texts += [str(error), repr(error), repr(error.args), repr(vars(error))]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)
