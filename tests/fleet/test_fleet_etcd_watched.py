"""What a watch has given, and moments that are read after its member was set back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from etcd_server import EtcdServer

import snapkv
from snapkv import Commit
from snapkv.errors import StoreRestoredError
from snapkv.fleet import FleetChanges
from snapkv.timeline import continuity

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]
WAIT_S = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("node")) as server:
        yield server


def committed(node: EtcdServer, name: str, *values: bytes) -> list[Commit]:
    """Commit as another process."""
    with snapkv.open(node.url, name=name) as other:
        return [other.commit(puts={"k": value}) for value in values]


READS: dict[str, Callable[[snapkv.fleet.Fleet, Commit], Any]] = {
    "the time of the last item": lambda fleet, lost: fleet.at(lost.ts)["orders", "k"],
    "now": lambda fleet, lost: fleet.at()["orders", "k"],
    "resolved": lambda fleet, lost: fleet.resolved(),
    "commits": lambda fleet, lost: list(fleet.commits(until=lost.ts)),
}


@pytest.mark.parametrize("soon", [False, True])
@pytest.mark.parametrize("first", READS)
def test_moments_do_not_contradict_what_a_watch_has_given(
    node: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, soon: bool
) -> None:
    """Nothing but the watch has seen the commits that the member loses.

    A watch may bring them late, and a read may follow soon: then it has to check them, too.
    """
    name, backup = f"{first.replace(' ', '-')}-{soon}", tmp_path / "backup.db"
    if soon:
        monkeypatch.setattr(continuity, "GAP_S", WAIT_S)
    base = committed(node, name, b"base")
    with snapkv.fleet.open({"orders": {"url": node.url, "name": name}}) as fleet:
        with fleet.watch(since=base[0].ts) as watch:
            node.gateway.save_snapshot(backup)
            lost = committed(node, name, b"lost0", b"lost1")
            for commit in lost:
                item = watch.next(timeout=WAIT_S)
                assert isinstance(item, FleetChanges)
                assert item.timestamp == commit.ts
        node.restore_snapshot(backup)
        committed(node, name, b"new0", b"new1", b"new2")
        with pytest.raises(StoreRestoredError) as caught:
            READS[first](fleet, lost[-1])
        assert caught.value.member == "orders"
