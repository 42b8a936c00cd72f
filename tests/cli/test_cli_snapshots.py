"""Snapshot files of real etcds: what they contain is what etcd answered, and damage is an error."""

import hashlib
import os
import random
import struct
import subprocess

import pytest
from cli_runner import Cli
from etcd_server import EtcdPool, EtcdServer
from etcd_server.programs import etcdctl

import snapkv
from snapkv.engine.contract import Range
from snapkv.errors import CompactedError, CorruptStoreError, ReadOnlyError, SnapKVError
from snapkv.store.location import open_engine

pytestmark = pytest.mark.slow
KEYS = 40
HOUR_MS = 3_600_000


def write(etcd: EtcdServer, rng: random.Random, count: int) -> None:
    for _ in range(count):
        key = b"/r/%d" % rng.randrange(KEYS)
        if rng.random() < 0.2:
            etcd.gateway.delete(key)
        else:
            etcd.gateway.put(key, rng.choice([b"", b"\xff\0", rng.randbytes(rng.randrange(900))]))


def answers(etcd: EtcdServer, since: int) -> dict[int, list]:
    """Return what etcd answers for all keys at each revision that it still has."""
    newest = etcd.gateway.revision()
    return {at: etcd.gateway.range(b"\0", b"\0", revision=at) for at in range(since, newest + 1)}


def assert_equal(url: str, expected: dict[int, list]) -> None:
    engine = open_engine(url, create=False, options={})
    assert engine.get(b"x").header.revision == max(expected)
    assert engine.check() == []
    for at, pairs in expected.items():
        found = engine.read([Range(b"\0", b"\0", revision=at)]).results[0].kvs
        assert [kv[:5] for kv in found] == [
            (p.key, p.value, p.create_revision, p.mod_revision, p.version) for p in pairs
        ], at


def saved(etcd: EtcdServer, path) -> None:
    """Save a snapshot with the etcdctl of this etcd."""
    command = [str(etcdctl()), "--endpoints", etcd.endpoint, "snapshot", "save", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def test_every_revision_of_a_snapshot_is_what_etcd_answered(etcd: EtcdServer, tmp_path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    saved(etcd, tmp_path / "empty.db")
    assert_equal(f"etcd-snapshot:{tmp_path}/empty.db", answers(etcd, 1))
    write(etcd, rng, 300)
    saved(etcd, tmp_path / "all.db")
    assert_equal(f"etcd-snapshot:{tmp_path}/all.db", answers(etcd, 2))
    middle = etcd.gateway.revision() // 2
    etcd.gateway.compact(middle)
    write(etcd, rng, 50)
    saved(etcd, tmp_path / "compacted.db")
    url = f"etcd-snapshot:{tmp_path}/compacted.db"
    assert_equal(url, answers(etcd, middle))
    engine = open_engine(url, create=False, options={})
    with pytest.raises(CompactedError):
        engine.read([Range(b"\0", b"\0", revision=middle - 1)])
    with pytest.raises(ReadOnlyError):
        snapkv.open(url)


def test_several_snapshots_are_one_history(cli: Cli, etcd: EtcdServer) -> None:
    rng, states = random.Random(5), {}
    for number in range(3):
        since = etcd.gateway.revision() + 1
        write(etcd, rng, 30)
        path = cli.place / f"{number}.db"
        saved(etcd, path)
        os.utime(path, (3600 * (number + 1),) * 2)
        states |= answers(etcd, since)
        if number == 1:  # what comes until the next snapshot is lost
            write(etcd, rng, 20)
            lost = etcd.gateway.revision()
            etcd.gateway.compact(lost)
    files = [str(cli.place / f"{number}.db") for number in (2, 0, 1)]
    first = cli.ok("import", "etcd", files[1])
    assert first.lines == ["1970-01-01T01:00:00.000Z"]
    done = cli.ok("import", "etcd", *files)
    assert done.lines == ["1970-01-01T02:00:00.000Z", "1970-01-01T03:00:00.000Z"]
    assert "were compacted before they were recorded" in done.err
    assert cli.ok("import", "etcd", *files).lines == []
    with snapkv.open(cli.url) as store:
        for at, pairs in states.items():
            if at < max(states) - 30 or at >= lost:
                found = dict(store.at(f"rv:{at}").items())
                texts = {p.key.decode(): p.value for p in pairs}
                assert found == texts, at
        times = [commit.ts >> 18 for commit in store.commits() if commit.source_revision]
        assert times == sorted(times)
        assert set(times) <= {HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS - 1, 3 * HOUR_MS}
        gaps = [commit.note for commit in store.commits() if commit.note and "gap" in commit.note]
        assert len(gaps) == 1


def test_options_of_an_import_of_snapshots(cli: Cli, etcd: EtcdServer) -> None:
    etcd.gateway.put(b"/r/a", b"1")
    etcd.gateway.put(b"/r/secret", b"1")
    etcd.gateway.put(b"/s/b", b"1")
    saved(etcd, cli.place / "x.db")
    words = ("import", "etcd", str(cli.place / "x.db"), "--observe", "/r/", "--except", "/r/secret")
    answer = cli.ok(*words, "--time", "2026-01-31T14:05:00Z")
    assert answer.lines == ["2026-01-31T14:05:00.000Z"]
    assert cli.ok("ls").lines == ["/r/a"]
    assert cli(*words, str(cli.place / "x.db"), "--time", "2026-01-31T14:05:00Z").code == 2
    assert cli(*words, "--time", "rev:4").code == 2
    cli.ok("import-prefix", "/s/", "--from", f"etcd-snapshot:{cli.place}/x.db", "--force-fork")
    assert cli.ok("get", "/s/b").out == "1"


def test_a_snapshot_of_another_history_is_an_error(
    cli: Cli, etcd: EtcdServer, etcd_pool: EtcdPool
) -> None:
    etcd.gateway.put(b"a", b"1")
    saved(etcd, cli.place / "x.db")
    cli.ok("import", "etcd", str(cli.place / "x.db"))
    with etcd_pool.taken() as other:
        for _ in range(9):
            other.gateway.put(b"b", b"1")
        saved(other, cli.place / "other.db")
    answer = cli("import", "etcd", str(cli.place / "other.db"))
    assert (answer.code, answer.out) == (5, "")
    assert "has another history than what was recorded" in answer.err
    assert cli.ok("ls").lines == ["a"]


def test_a_store_with_commits_of_its_own_is_left_alone(cli: Cli, etcd: EtcdServer) -> None:
    cli.ok("put", "a", "1")
    saved(etcd, cli.place / "x.db")
    assert "has commits of its own" in cli("import", "etcd", str(cli.place / "x.db")).err


@pytest.fixture
def snapshot(etcd: EtcdServer, tmp_path) -> bytes:
    write(etcd, random.Random(3), 120)
    saved(etcd, tmp_path / "whole.db")
    return (tmp_path / "whole.db").read_bytes()


def refused(tmp_path, content: bytes) -> str:
    (tmp_path / "x.db").write_bytes(content)
    with pytest.raises(SnapKVError) as found:
        open_engine(f"etcd-snapshot:{tmp_path}/x.db", create=False, options={})
    return str(found.value)


def test_damage_is_a_typed_error(snapshot: bytes, tmp_path) -> None:
    rng = random.Random(7)
    assert "etcdctl snapshot save" in refused(tmp_path, b"")
    assert "etcdctl snapshot save" in refused(tmp_path, snapshot[:-32]), "a copy of the database"
    assert "etcdctl snapshot save" in refused(tmp_path, b"x" * 4096 + b"y" * 32)
    with pytest.raises(SnapKVError, match="No such file"):
        open_engine("etcd-snapshot:no", create=False, options={})
    for size in rng.sample(range(len(snapshot)), 20):
        refused(tmp_path, snapshot[:size])
    for at in rng.sample(range(len(snapshot)), 40):
        damaged = bytearray(snapshot)
        damaged[at] ^= 1 << rng.randrange(8)
        refused(tmp_path, bytes(damaged))


def test_pages_that_lie_end_in_bounded_time_and_memory(snapshot: bytes, tmp_path) -> None:
    """Numbers of pages and lengths are changed, and the checksum is made to match."""
    rng, opened = random.Random(11), 0
    for _ in range(250):
        body = bytearray(snapshot[:-32])
        for _ in range(rng.randint(1, 4)):
            page = rng.randrange(len(body) // 4096) * 4096
            at = page + rng.randrange(0, 120, 2)
            body[at : at + 4] = struct.pack(
                "<I", rng.choice([0, 1, 2, 3, 9, 1 << 20, (1 << 32) - 1])
            )
        path = tmp_path / "x.db"
        path.write_bytes(bytes(body) + hashlib.sha256(body).digest())
        try:
            open_engine(f"etcd-snapshot:{path}", create=False, options={})
            opened += 1
        except (CorruptStoreError, SnapKVError):
            continue
    assert opened < 250
