"""Each failover is logged, counted and reported once; a probe of a dead cluster ends in time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from etcd_engines import Background, within
from etcd_server import EtcdProxy, EtcdServer, eventually
from store.noting import Noting

import snapkv
from snapkv.engine.etcd import cluster_client as failover
from snapkv.hooks import FailoverEvent

pytestmark = pytest.mark.slow


@pytest.fixture
def second(etcd: EtcdServer) -> Iterator[EtcdProxy]:
    """Another way to the server of `proxy`."""
    with EtcdProxy(etcd) as proxy:
        yield proxy


@pytest.fixture
def noting() -> Noting:
    return Noting()


@pytest.fixture
def store(proxy: EtcdProxy, second: EtcdProxy, noting: Noting) -> Iterator[snapkv.SnapshotKV]:
    url = f"etcd://{proxy.endpoint},{second.endpoint}"
    with snapkv.open(url, hooks=noting, password="hunter2", user="ann") as store:
        yield store


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == failover.__name__]


def test_a_failover(
    store: snapkv.SnapshotKV,
    proxy: EtcdProxy,
    second: EtcdProxy,
    noting: Noting,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.save("key", b"secret")
    assert not logged(caplog)
    proxy.refuse()
    for _ in range(3):
        store.save("key", b"secret")
        store.load("key")
    event = noting.the(FailoverEvent)
    assert (event.left, event.entered) == (proxy.endpoint, second.endpoint)
    assert event.reason
    (line,) = logged(caplog)
    assert proxy.endpoint in line
    assert second.endpoint in line
    assert "secret" not in caplog.text
    assert "hunter2" not in caplog.text
    assert store.stats().failovers == 1


def test_all_endpoints_down_and_one_back(
    store: snapkv.SnapshotKV,
    proxy: EtcdProxy,
    second: EtcdProxy,
    noting: Noting,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.save("key", b"1")
    proxy.refuse()
    second.refuse()
    with within(0.5):
        sick = store.health(timeout=0.5)
    assert (sick.answers, sick.newest_timestamp) == (False, store.stats().newest_timestamp)
    assert proxy.endpoint in (sick.error or "")
    assert not logged(caplog), "going round dead endpoints is not a failover"
    second.resume()
    assert store.health(timeout=20).answers
    assert noting.the(FailoverEvent).entered == second.endpoint
    assert len(logged(caplog)) == 1


def test_a_failover_of_a_watch_alone(
    store: snapkv.SnapshotKV, proxy: EtcdProxy, second: EtcdProxy, noting: Noting
) -> None:
    store.save("key", b"1")
    watch = store.watch()
    waiting = Background(lambda: watch.next(timeout=20))
    eventually(lambda: proxy.open_connections == 2)
    proxy.refuse()
    eventually(lambda: noting.of(FailoverEvent))
    assert noting.the(FailoverEvent).entered == second.endpoint
    store.save("key", b"2")
    found = waiting.result()
    assert found is not None
    assert [change.value for change in found] == [b"2"]
