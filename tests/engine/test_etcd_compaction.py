"""Where compaction stands, found without an administrator's rights and with few questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from etcd_engines import opened, put
from etcd_server import EtcdProxy, EtcdServer, eventually

import snapkv
from snapkv.base.waiting import monotonic
from snapkv.engine.etcd.cluster_client import ClusterClient
from snapkv.engine.etcd.engine import EtcdEngine
from snapkv.engine.etcd.grpc_client import CallFailed
from snapkv.errors import CompactedError, EngineUnavailableError, StoreClosedError
from snapkv.store.store_writer import RETAIN_S

pytestmark = pytest.mark.slow


class Questions:
    """Counts what is asked of a cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.watched_from: list[int] = []
        read, watch = ClusterClient.read, ClusterClient.watch

        def counted_read(connection: ClusterClient, *arguments: Any) -> Any:
            self.reads += 1
            return read(connection, *arguments)

        def counted_watch(connection: ClusterClient, first: Any, *arguments: Any) -> Any:
            self.watched_from.append(first.create_request.start_revision)
            return watch(connection, first, *arguments)

        monkeypatch.setattr(ClusterClient, "read", counted_read)
        monkeypatch.setattr(ClusterClient, "watch", counted_watch)

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
        assert questions.asked() == (2, [])  # it can be read, and what is before it cannot
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


def test_an_engine_that_went_back_in_time_and_on(etcd: EtcdServer, tmp_path_factory: Any) -> None:
    """Its newest revision says nothing any more: the history before the backup is there again."""
    snapshot = tmp_path_factory.mktemp("snapshot") / "snapshot"
    with opened(etcd.url) as engine:
        revisions = [put(engine, b"k", b"%d" % i) for i in range(10)]
        etcd.gateway.compact(revisions[1])
        etcd.gateway.save_snapshot(snapshot)
        for at in (4, 9):
            etcd.gateway.compact(revisions[at])
            assert engine.compacted_revision() == revisions[at]
            etcd.restore_snapshot(snapshot)
            for _ in range(3):
                put(engine, b"k", b"new")
            assert engine.compacted_revision() == revisions[1]


@pytest.mark.parametrize("where", ["opening", "reading"])
def test_watches_that_are_refused_for_a_while(
    where: str, etcd: EtcdServer, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member without a leader ends streams at once, for as long as an election takes."""
    etcd.gateway.compact(5)
    watch, until, tries = ClusterClient.watch, monotonic() + 0.5, []

    class Refused:
        def __iter__(self) -> Iterator[Any]:
            raise CallFailed("UNAVAILABLE", "etcdserver: no leader")

        def cancel(self) -> None:
            pass

    def refusing(connection: ClusterClient, *arguments: Any) -> Any:
        tries.append(monotonic())
        if monotonic() > until:
            return watch(connection, *arguments)
        if where == "opening":
            raise CallFailed("CANCELLED", "the channel was closed")
        watching = watch(connection, *arguments)
        watching.stream.cancel()
        return watching._replace(stream=Refused())

    monkeypatch.setattr(ClusterClient, "watch", refusing)
    assert engine.compacted_revision() == 5
    assert len(tries) < 40, "it waits in between"


def test_it_is_found_in_time_or_not_at_all(etcd: EtcdServer) -> None:
    with EtcdProxy(etcd) as proxy, opened(proxy.url) as engine:
        for i in range(10):
            put(engine, b"k", b"%d" % i)
        etcd.gateway.compact(5)
        for wait in (proxy.pause, proxy.refuse):
            wait()
            began = monotonic()
            for call in (
                lambda: engine.compacted_revision(timeout=0.5),
                lambda: engine.compact(7, timeout=0.5),
            ):
                with pytest.raises(EngineUnavailableError):
                    call()
            assert monotonic() - began < 3.0
            proxy.resume()
            assert engine.compacted_revision() == 5


def test_streams_that_never_answer_are_given_up(
    etcd: EtcdServer, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd.gateway.compact(5)

    def refused(*_: Any) -> Any:
        raise CallFailed("CANCELLED", "the channel was closed")

    monkeypatch.setattr(ClusterClient, "watch", refused)
    began = monotonic()
    with pytest.raises(EngineUnavailableError, match="did not return its compacted revision"):
        engine.compacted_revision(timeout=0.5)
    assert monotonic() - began < 2.0


def test_closing_ends_the_search(
    etcd: EtcdServer, engine: EtcdEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd.gateway.compact(5)
    watch = ClusterClient.watch

    def closing(connection: ClusterClient, *arguments: Any) -> Any:
        watching = watch(connection, *arguments)
        engine.close()
        return watching

    monkeypatch.setattr(ClusterClient, "watch", closing)
    with pytest.raises(StoreClosedError):
        engine.compacted_revision()


# --- retain= --------------------------------------------------------------------------------


def test_retain_never_keeps_a_commit(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit stands; what compaction came to is told later."""
    with EtcdProxy(etcd) as proxy, snapkv.open(proxy.url, retain="1h") as store:
        engine, found = store._core.engine, EtcdEngine.compacted_revision

        def paused(engine: EtcdEngine, **options: Any) -> int:
            proxy.pause()
            return found(engine, **options)

        monkeypatch.setattr(EtcdEngine, "compacted_revision", paused)
        began = monotonic()
        commit = store.commit(puts={"a": b"1"}, timeout=1.0)
        assert monotonic() - began < RETAIN_S + 1.5
        assert "longer than" in str(store._core.retain_error)
        monkeypatch.undo()
        proxy.resume()
        assert store.load("a", commit.ts) == b"1"
        eventually(lambda: store._core.retain_error is None, "the end of the compaction")
        assert not engine._closed
