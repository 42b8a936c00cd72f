"""Where compaction stands, found without an administrator's rights and with few questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from etcd_engines import opened, put
from etcd_server import EtcdProxy, EtcdServer

from snapkv.engine.etcd import EtcdEngine
from snapkv.engine.etcd.connection import Connection
from snapkv.errors import CompactedError


class Questions:
    """Counts what is asked of a cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.watched_from: list[int] = []
        read, watch = Connection.read, Connection.watch

        def counted_read(connection: Connection, *arguments: Any) -> Any:
            self.reads += 1
            return read(connection, *arguments)

        def counted_watch(connection: Connection, first: Any, *arguments: Any) -> Any:
            self.watched_from.append(first.create_request.start_revision)
            return watch(connection, first, *arguments)

        monkeypatch.setattr(Connection, "read", counted_read)
        monkeypatch.setattr(Connection, "watch", counted_watch)

    def asked(self) -> tuple[int, list[int]]:
        """Return the number of reads, and where watches began, since the last time."""
        found = self.reads, self.watched_from
        self.reads, self.watched_from = 0, []
        return found


@pytest.fixture
def engine(etcd: EtcdServer) -> Iterator[EtcdEngine]:
    with opened(etcd.url) as engine:
        for i in range(10):
            put(engine, b"k", b"%d" % i)
        yield engine


def test_it_is_0_at_first_and_no_history_is_searched(
    engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = Questions(monkeypatch)
    for _ in range(3):
        assert engine.compacted_revision() == 0
    assert questions.asked() == (3, [])


def test_it_follows_what_others_compact(
    etcd: EtcdServer, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = Questions(monkeypatch)
    known = 0
    for revision in (3, 4, 11):
        etcd.gateway.compact(revision)
        assert engine.compacted_revision() == revision
        assert questions.asked() == (2, [known or 1])  # look, watch what is gone, look again
        assert engine.compacted_revision() == revision
        assert questions.asked() == (1, [])
        known = revision


def test_it_follows_our_own(engine: EtcdEngine) -> None:
    engine.compact(5)
    assert engine.compacted_revision() == 5
    engine.compact(5)  # nothing more to do
    with pytest.raises(CompactedError):
        engine.compact(4)
    assert engine.compacted_revision() == 5


def test_an_engine_that_comes_later(etcd: EtcdServer, engine: EtcdEngine) -> None:
    etcd.gateway.compact(7)
    with opened(etcd.url) as later:
        assert later.compacted_revision() == 7
        assert later.info()["compacted_revision"] == 7


def test_a_connection_that_breaks_while_asking(etcd: EtcdServer) -> None:
    with EtcdProxy(etcd) as proxy, opened(proxy.url, home=b"the-home-key") as engine:
        for i in range(10):
            put(engine, b"k", b"%d" % i)
        for number in range(4):
            etcd.gateway.compact(3 + number)
            for _ in range(number):
                proxy.cut_before(b"the-home-key")
            assert engine.compacted_revision() == 3 + number


def test_an_engine_that_went_back_in_time(etcd: EtcdServer, tmp_path_factory: Any) -> None:
    snapshot = tmp_path_factory.mktemp("snapshot") / "snapshot"
    with opened(etcd.url) as engine:
        put(engine, b"k")
        etcd.gateway.save_snapshot(snapshot)
        newest = [put(engine, b"k", b"%d" % i) for i in range(10)][-1]
        etcd.gateway.compact(newest)
        assert engine.compacted_revision() == newest
        etcd.restore_snapshot(snapshot)
        assert engine.compacted_revision() == 0
