"""The etcd that is observed is restored, and loses writes that no tick had stamped yet.

The newest tick is in the backup, so what was returned stays true. What comes next must be of the
history that the server has now.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from etcd_server import EtcdProxy, EtcdServer, eventually

import snapkv
from snapkv.errors import StoreRestoredError

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]

WAIT_S = 60


class Observing:
    """A watch through a proxy that has returned one tick, and what was lost after it."""

    def __init__(self, etcd: EtcdServer, watch: Any, proxy: EtcdProxy, backup: Path) -> None:
        self.etcd, self.watch, self.proxy, self._backup = etcd, watch, proxy, backup

    def put(self, **values: bytes) -> None:
        for name, value in values.items():
            self.etcd.gateway.put(b"/r/" + name.encode(), value)

    def lose(self, **values: bytes) -> None:
        """Back up, and write on until the watch has received all of it."""
        self.etcd.gateway.save_snapshot(self._backup)
        self.put(**values)
        last = self.etcd.gateway.revision()

        def received() -> bool:
            assert self.watch.next(timeout=0.05) is None, "nothing is stamped"
            watch = getattr(self.watch, "_followers", [None])[0]
            observed = self.watch if watch is None else watch._watch
            return observed._taken >= last

        eventually(received, "what no tick stamps to be received", wait_s=WAIT_S)

    def restore(self) -> None:
        self.proxy.refuse()
        self.etcd.restore_snapshot(self._backup)

    def next(self) -> dict[str, bytes | None]:
        """The changes of the next tick; the watch may wait for its streams to be opened again."""
        self.proxy.resume()
        found: list[Any] = []

        def came() -> bool:
            found.append(self.watch.next(timeout=0.5))
            return found[-1] is not None

        eventually(came, "a tick", wait_s=WAIT_S)
        item = found[-1]
        changes = item.changes if hasattr(item, "changes") else item.members["a"]
        return {change.key: change.value for change in changes}


@pytest.fixture(params=["observed", "fleet"])
def observing(request: pytest.FixtureRequest, etcd: EtcdServer, tmp_path: Path) -> Any:
    etcd.gateway.put(b"/r/a", b"1")
    with snapkv.open(etcd.url) as store, EtcdProxy(etcd) as proxy:
        store.tick()
        if request.param == "observed":
            source = snapkv.observe(proxy.url, prefix="/r/")
        else:
            source = snapkv.fleet.open({"a": {"url": proxy.url, "prefix": "/r/"}}, timeout=5.0)
        with source, source.watch() as watch:
            made = Observing(etcd, watch, proxy, tmp_path / "backup.db")
            made.put(a=b"2")
            store.tick()
            assert made.next() == {"/r/a": b"2"}
            yield made


def tick(etcd: EtcdServer) -> None:
    with snapkv.open(etcd.url) as store:
        store.tick()


def test_writes_that_no_tick_had_stamped_are_those_of_the_present(observing: Observing) -> None:
    observing.lose(b=b"lost", c=b"lost")
    observing.restore()
    observing.put(d=b"new", b=b"new", e=b"new")
    tick(observing.etcd)
    assert observing.next() == {"/r/d": b"new", "/r/b": b"new", "/r/e": b"new"}


def test_a_tick_below_what_was_received(observing: Observing) -> None:
    """It is not returned with the changes of another one, nor without its own."""
    observing.lose(b=b"lost", c=b"lost", d=b"lost", e=b"lost")
    observing.restore()
    observing.put(f=b"new")
    tick(observing.etcd)
    observing.put(g=b"new", h=b"new", i=b"new")
    tick(observing.etcd)
    try:
        found = observing.next()
    except StoreRestoredError:
        return
    assert found == {"/r/f": b"new"}
    assert observing.next() == {"/r/g": b"new", "/r/h": b"new", "/r/i": b"new"}


def test_a_restart_loses_and_repeats_nothing(observing: Observing) -> None:
    observing.lose(b=b"1", c=b"1")  # a backup that is not used
    observing.proxy.refuse()
    observing.etcd.restart()
    observing.put(c=b"2", d=b"1")
    tick(observing.etcd)
    assert observing.next() == {"/r/b": b"1", "/r/c": b"2", "/r/d": b"1"}
