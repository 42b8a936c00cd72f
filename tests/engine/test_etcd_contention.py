"""A large commit beside somebody who commits small ones all the time."""

from __future__ import annotations

import threading

import pytest
from etcd_server import EtcdServer, eventually

import snapkv
from snapkv import Ops, Stamp

pytestmark = pytest.mark.slow

KEYS = 12_000
GAP_S = 0.02
ROUNDS_MAX = 20
"""It was sixty without an end, before a claim followed the length of a flight."""


@pytest.fixture
def steady(etcd: EtcdServer):
    """Somebody who saves one other key fifty times a second."""
    stop, saved = threading.Event(), []

    def save() -> None:
        with snapkv.open(etcd.url) as store:
            while not stop.wait(GAP_S):
                saved.append(store.save("elsewhere", b"1"))

    thread = threading.Thread(target=save)
    thread.start()
    eventually(lambda: len(saved) > 3, "the other one to save")
    yield saved
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_large_commit_gets_its_turn(etcd: EtcdServer, steady: list[int]) -> None:
    built = 0

    def build(stamp: Stamp) -> Ops:
        nonlocal built
        built += 1
        return Ops(puts={f"k{n:05d}": b"v" * 20 for n in range(KEYS)})

    with snapkv.open(etcd.url) as store:
        commit = store.commit(build, timeout=30)
        assert store.at(commit.ts).count("k") == KEYS
        assert built <= ROUNDS_MAX
        during = len(steady)
        eventually(lambda: len(steady) > during + 3, "the other one to go on")
        later = [ts for ts in steady if ts > commit.ts]
        assert later, "it is not left behind"
        stamps = [c.ts for c in store.commits()]
        assert stamps == sorted(stamps)
