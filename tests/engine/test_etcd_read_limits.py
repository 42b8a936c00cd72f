"""Reading more than the server takes at once: many keys, long ones, servers that take little."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from etcd_engines import within
from etcd_server import EtcdServer

import snapkv
from snapkv.engine.contract import Range
from snapkv.errors import CommitTooLargeError, InvalidKeyError

pytestmark = pytest.mark.slow

OPS = [49, 64, 127]
COMMITS = 300


@pytest.fixture(scope="module", params=OPS)
def modest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int, list[snapkv.Commit]]]:
    """A server that takes few operations in a list, with a store on it and its commits."""
    flags = [f"--max-txn-ops={request.param}"]
    with EtcdServer(tmp_path_factory.mktemp("modest"), flags=flags) as server:
        with snapkv.open(server.url, max_txn_ops=request.param) as store:
            commits = [
                store.commit(puts={f"k{n % 200:03d}": b"%d" % n, "same": b"%d" % n})
                for n in range(COMMITS)
            ]
        yield server.url, request.param, commits


@pytest.fixture
def store(modest: tuple[str, int, list[snapkv.Commit]]) -> Iterator[snapkv.SnapshotKV]:
    url, ops, _ = modest
    with snapkv.open(url, max_txn_ops=ops, ring_slots=2) as store:
        yield store


def values(entries: list[snapkv.Entry | None]) -> list[bytes]:
    return [entry.value for entry in entries if entry is not None]


def test_a_server_that_takes_few_operations_can_be_read(
    store: snapkv.SnapshotKV, modest: tuple[str, int, list[snapkv.Commit]]
) -> None:
    commits = modest[2]
    for at in (0, 17, 150, 298):
        assert store.load("same", commits[at].ts) == b"%d" % at
        assert store.at(commits[at].ts).revision == commits[at].revision
    then = store.at(commits[199].ts)
    for count in (48, 63, 120, 127, 200):
        keys = [f"k{n:03d}" for n in range(count)]
        old = [b"%d" % n for n in range(count)]
        assert values(store.entries_of(keys, commits[199].ts)) == old
        assert values(then.entries_of(keys)) == old
        assert values(store.entries_of(keys)) == [
            b"%d" % (n + 200 if n < 100 else n) for n in range(count)
        ]
    assert [v.value for v in store.history("same")] == [b"%d" % n for n in range(COMMITS)]
    assert len(list(store.diff(commits[199].ts, None))) == 101
    assert [c.ts for c in store.commits()] == [c.ts for c in commits]
    with store.watch(since=commits[-3].ts, timeout=20) as watch:
        assert [next(watch).commit.ts for _ in range(2)] == [c.ts for c in commits[-2:]]
    assert store.check().problems == ()


def test_long_keys_are_read_in_requests_that_the_server_takes(etcd: EtcdServer) -> None:
    keys = ["y" * 60_000 + f"{n:03d}" for n in range(130)]
    with snapkv.open(etcd.url) as store:
        last = [store.save(key, b"1") for key in keys][-1]
        for some in (keys[:30], keys[:40], keys):
            assert len(values(store.entries_of(some))) == len(some)
            assert len(values(store.at(last).entries_of(some))) == len(some)
        assert len(list(store.diff(0, last))) == len(keys)


@pytest.mark.parametrize("length", [70_000, 3 << 20])
def test_a_key_that_no_store_has_is_told_at_once(etcd: EtcdServer, length: int) -> None:
    with snapkv.open(etcd.url) as store, within(2.0):
        with pytest.raises((snapkv.KeyNotFoundError, InvalidKeyError)):
            store.load("y" * length)
        assert store.load_with_prefix("") == ([], [])


def test_a_server_that_takes_less_than_it_was_said_to_is_told_of(
    modest: tuple[str, int, list[snapkv.Commit]],
) -> None:
    """Its answer is final: it is neither asked for twelve seconds nor told as no answer."""
    url, ops, commits = modest
    with snapkv.open(url) as store, within(3.0):
        wanted = [Range(b"k", revision=commits[0].revision)] * (ops + 1)
        with pytest.raises(CommitTooLargeError, match="--max-txn-ops"):
            store._core.engine.read(wanted)
