"""Keys in a real kine: what a recorder of them has is what kine's database has."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from etcd_server.kine_server import KineServer, Row, needs_kine

import snapkv
from snapkv.engine.contract import Compare, Delete, Put, Range, Target, Txn
from snapkv.engine.etcd.engine import EtcdEngine, open_etcd
from snapkv.errors import SnapKVError

from .recorders import Recorders

pytestmark = [pytest.mark.slow, needs_kine]

PREFIX = "/registry/"
CALL_S = 5.0
WAIT_S = 30.0


@pytest.fixture
def kine(tmp_path: Path) -> Iterator[KineServer]:
    with KineServer(tmp_path, socket=True) as server:
        yield server


class WasOtherError(Exception):
    """The object was not as the writer had seen it."""


class Objects:
    """Writes objects as a Kubernetes API server does, each call a revision."""

    def __init__(self, engine: EtcdEngine) -> None:
        self._engine = engine

    def _sent(self, txn: Txn) -> int:
        answer = self._engine.transact(lambda _: txn, b"", timeout=CALL_S)
        if not answer.succeeded:
            raise WasOtherError(txn)
        return answer.header.revision

    def create(self, key: bytes, value: bytes) -> int:
        """Create an object that does not exist; return the revision."""
        return self._sent(Txn((Compare(key, Target.MOD, "=", 0),), (Put(key, value),)))

    def update(self, key: bytes, value: bytes, last: int) -> int:
        """Write an object that was last written at a revision."""
        was = Compare(key, Target.MOD, "=", last)
        return self._sent(Txn((was,), (Put(key, value),), (Range(key),)))

    def note_compaction(self, value: bytes) -> int:
        """Write what an API server writes at its first compaction."""
        never = Compare(b"compact_rev_key", Target.VERSION, "=", 0)
        return self._sent(Txn((never,), (Put(never.key, value),), (Range(never.key),)))

    def delete(self, key: bytes, last: int) -> int:
        """Delete an object that was last written at a revision."""
        was = Compare(key, Target.MOD, "=", last)
        return self._sent(Txn((was,), (Delete(key),), (Range(key),)))

    def delete_unseen(self, key: bytes) -> int:
        """Delete what never was, which is a revision of kine."""
        return self._sent(Txn((), (Range(key), Delete(key))))


@pytest.fixture
def objects(kine: KineServer) -> Iterator[Objects]:
    with closing(open_etcd(kine.url)) as engine:
        yield Objects(engine)


def record(kine: KineServer, folder: Path, observe: str = PREFIX) -> str:
    """Record once; return the record's URL."""
    into = f"lmdb:{folder}/record"
    snapkv.record(kine.url, into=into, observe=observe).catch_up(timeout=WAIT_S)
    return into


def recorded(url: str) -> list[Row]:
    """Return the recorded changes, each with its revision in kine, in order."""
    with snapkv.open(url, create=False) as store:
        commits = list(store.commits())
        revisions = {each.revision: each.source_revision for each in commits}
        found = store.changes_to_arrow(since=min(each.ts for each in commits)).to_pylist()
    return [(row["key"], revisions[row["_commit_version"]] or 0, row["value"]) for row in found]


def state(url: str) -> dict[str, bytes]:
    with snapkv.open(url, create=False) as store:
        return dict(store.at().items())


def expected(rows: list[Row]) -> dict[str, bytes]:
    """Return the state that changes lead to, below the prefix."""
    found = {key: value for key, _, value in rows if key.startswith(PREFIX)}
    return {key: value for key, value in found.items() if value is not None}


# --- any history of it ---


def test_each_change_is_recorded_with_its_revision(
    kine: KineServer, objects: Objects, tmp_path: Path
) -> None:
    first = objects.create(b"/registry/pods/a", b"1")
    into = record(kine, tmp_path)
    objects.delete(b"/registry/pods/a", objects.update(b"/registry/pods/a", b"2", first))
    objects.create(b"/registry/pods/a", b"3")
    objects.create(b"/other/a", b"1")
    record(kine, tmp_path)
    assert recorded(into) == [row for row in kine.rows(first) if row[0].startswith(PREFIX)]
    with snapkv.open(into) as store:
        assert [each.value for each in store.history("/registry/pods/a")] == [
            b"1",
            b"2",
            None,
            b"3",
        ]


def test_a_removal_of_what_never_was_changes_nothing(
    kine: KineServer, objects: Objects, tmp_path: Path
) -> None:
    into = record(kine, tmp_path)
    never = objects.delete_unseen(b"/registry/pods/never")
    after = objects.create(b"/registry/pods/a", b"1")
    record(kine, tmp_path)
    assert ("/registry/pods/never", never, None) in kine.rows()
    assert recorded(into) == [("/registry/pods/a", after, b"1")]
    with snapkv.open(into) as store:
        assert store.check().problems == ()


def test_a_large_first_state_is_whole(kine: KineServer, objects: Objects, tmp_path: Path) -> None:
    for n in range(600):
        objects.create(b"/registry/pods/%04d" % n, b"%d" % n * 4_000)
    assert state(record(kine, tmp_path)) == expected(kine.rows())


def test_all_keys_are_recorded_if_no_prefix_is_given(
    kine: KineServer, objects: Objects, tmp_path: Path
) -> None:
    keys = [b"!first", b"a", b"compact_rev_key2", b"zz", "\U0010ffff".encode()]
    for key in keys[::2]:
        objects.create(key, key)
    into = record(kine, tmp_path, "")
    for key in keys[1::2]:
        objects.create(key, key)
    record(kine, tmp_path, "")
    found = state(into)
    assert {key.decode(): key for key in keys}.items() <= found.items()
    assert set(found) == {key.decode() for key in keys} | {"/registry/health"}


def test_the_key_of_an_api_server_s_compaction_is_recorded_once(
    kine: KineServer, objects: Objects, tmp_path: Path
) -> None:
    objects.note_compaction(b"7")
    assert state(record(kine, tmp_path, ""))["compact_rev_key"] == b"7"


def test_what_was_compacted_is_a_gap_and_the_state_behind_it_is_whole(
    kine: KineServer, objects: Objects, tmp_path: Path
) -> None:
    last = objects.create(b"/registry/pods/a", b"0")
    gone = objects.create(b"/registry/pods/gone", b"0")
    into = record(kine, tmp_path)
    objects.delete(b"/registry/pods/gone", gone)
    for n in range(1_100):  # kine keeps the newest 1,000 revisions
        last = objects.update(b"/registry/pods/a", b"%d" % n, last)
    with closing(open_etcd(kine.url)) as engine:
        engine.compact(last)
        compacted = engine.compacted_revision()
        assert compacted == last - 1_000
    record(kine, tmp_path)
    assert state(into) == expected(kine.rows())
    found = recorded(into)
    assert found[-1_000:] == kine.rows(compacted)
    with snapkv.open(into) as store:
        assert any((commit.note or "").startswith("gap:") for commit in store.commits())


def test_a_watch_beyond_the_newest_revision_waits(kine: KineServer, objects: Objects) -> None:
    newest = objects.create(b"/registry/pods/a", b"0")
    with closing(open_etcd(kine.url)) as engine:
        watcher = engine.watch(b"/registry/", b"/registry0", start_revision=newest + 3)
        assert watcher.next(0.5) is None
        for n in range(3):
            objects.create(b"/registry/pods/%d" % n, b"0")
        batch = watcher.next(WAIT_S)
        assert batch is not None
        assert batch.revision == newest + 3


# --- while recorder and kine are killed ---

KILLS = 3
WRITERS = 3


class Writer(threading.Thread):
    """Creates, changes and deletes objects of its own until `stop`, whatever kine does."""

    def __init__(self, number: int, kine: KineServer, stop: threading.Event) -> None:
        super().__init__()
        self._number, self._kine, self._stop_it = number, kine, stop
        self._random = random.Random(number)

    def run(self) -> None:
        with closing(open_etcd(self._kine.url)) as engine:
            objects = Objects(engine)
            while not self._stop_it.is_set():
                key = b"/registry/pods/%d-%d" % (self._number, self._random.randrange(20))
                try:
                    found = engine.get(key).kv
                    value = self._random.randbytes(self._random.randrange(2_000))
                    if found is None:
                        objects.create(key, value)
                    elif self._random.random() < 0.1:
                        objects.delete(key, found.mod_revision)
                    else:
                        objects.update(key, value, found.mod_revision)
                except (SnapKVError, WasOtherError):
                    self._stop_it.wait(0.05)  # kine was killed; the write may have been applied


@pytest.mark.parametrize(
    ("kills", "between_s"), [(KILLS, 0.6), pytest.param(25, 2.0, marks=pytest.mark.soak)]
)
def test_killed_at_random_moments(
    kine: KineServer, tmp_path: Path, kills: int, between_s: float
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, stop = random.Random(seed), threading.Event()
    into = record(kine, tmp_path)
    recorders = Recorders(["--store", kine.url, "--into", into, "--observe", PREFIX], tmp_path)
    began = kine.rows()[-1][1]
    writers = [Writer(n, kine, stop) for n in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        recorders.start()
        for n in range(kills):
            recorders.reach(kine.rows()[-1][1])
            time.sleep(rng.random() * between_s)  # any moment is good
            if n % 2:
                recorders.end()
                recorders.start()
            else:
                kine.kill()
                kine.start()
        recorders.reach(kine.rows()[-1][1])
    finally:
        stop.set()
        for writer in writers:
            writer.join(WAIT_S)
        ended = recorders.end(signal.SIGTERM)
    assert ended == 0
    record(kine, tmp_path)
    rows = kine.rows(began)
    assert len(rows) > 100
    assert recorded(into) == rows
    assert state(into) == expected(kine.rows())
