"""The etcd whose keys are recorded is restored from a backup, without its revisions raised.

Then it has other writes, up to beyond the last recorded revision: only what was recorded can show
that they are of another history.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from etcd_server import EtcdProxy, EtcdServer, eventually

import snapkv
from snapkv.copying import store_target
from snapkv.errors import StoreRestoredError

from .targets import opened, target_url

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]

R = b"/registry/"
WAIT_S = 60
KINDS = ("archive", "lmdb")


class Restored:
    """An etcd, a record of its prefix, and a backup of it."""

    def __init__(self, etcd: EtcdServer, kind: str, folder: Path) -> None:
        self.etcd, self.kind, self.folder = etcd, kind, folder
        self.gateway = etcd.gateway
        self._backup = folder / "backup.db"

    def put(self, name: bytes, *values: bytes) -> None:
        for value in values:
            self.gateway.put(R + name, value)

    def put_elsewhere(self, count: int) -> None:
        for n in range(count):
            self.gateway.put(b"/elsewhere", b"%d" % n)

    def save(self) -> None:
        self.gateway.save_snapshot(self._backup)

    def restore(self, *flags: str) -> None:
        self.etcd.restore_snapshot(self._backup, *flags)

    def recorder(self, url: str | None = None, **options: Any) -> snapkv.Recorder:
        into = target_url(self.kind, self.folder / "record")
        return snapkv.record(url or self.etcd.url, observe="/registry/", into=into, **options)

    def record(self) -> None:
        self.recorder().catch_up()

    def recorded(self) -> tuple[list[int | None], dict[str, bytes]]:
        """The source's revisions of all commits, and the newest state."""
        with opened(self.kind, self.folder / "record") as store:
            commits = list(store.commits())
            revisions = [
                c.revision if self.kind == "archive" else c.source_revision for c in commits
            ]
            return revisions, dict(store.at().items())


@pytest.fixture(params=KINDS)
def restored(request: pytest.FixtureRequest, etcd: EtcdServer, tmp_path: Path) -> Restored:
    made = Restored(etcd, request.param, tmp_path)
    made.put(b"a", b"1", b"2")
    return made


def changed_again(at: Restored) -> None:
    """The last recorded change is of a key that gets another value at the same revision."""
    at.record()
    at.save()
    at.put(b"a", b"3", b"lost")
    at.record()
    at.restore()
    at.put(b"a", b"3", b"new", b"newer")


def a_state_changed_again(at: Restored) -> None:
    at.save()
    at.put(b"a", b"3", b"lost")
    at.record()
    at.restore()
    at.put(b"a", b"3", b"new", b"newer")


def same_value_at_another_revision(at: Restored) -> None:
    at.record()
    at.save()
    at.put(b"a", b"3", b"4")
    at.record()
    at.restore()
    at.put(b"a", b"4", b"5", b"6")
    at.gateway.delete(R + b"a")
    at.put(b"a", b"4")


def removed(at: Restored) -> None:
    """The last recorded change is the removal of a key that never was in the new history."""
    at.record()
    at.save()
    at.put(b"pod", b"1")
    at.gateway.delete(R + b"pod")
    at.record()
    at.restore()
    at.put_elsewhere(5)


def lost_nothing_but_missed(at: Restored) -> None:
    """All recorded changes are in the backup; what is new begins below the last revision."""
    runs = Running(at)
    with runs:
        at.put(b"a", b"3")
        at.save()
        at.put_elsewhere(10)
        runs.reach()
    at.restore()
    at.put(b"b", b"new")
    at.put_elsewhere(20)


def a_first_state_alone(at: Restored) -> None:
    at.save()
    at.put(b"b", b"lost")
    at.put(b"c", b"1")
    at.record()
    at.restore()
    at.put(b"b", b"new")
    at.put(b"c", b"1", b"2")


def a_first_state_without_keys(at: Restored) -> None:
    at.gateway.delete(R + b"a")
    at.save()
    at.put_elsewhere(5)
    at.record()
    at.restore()
    at.put(b"a", b"new")
    at.put_elsewhere(9)


def a_long_key(at: Restored) -> None:
    """lmdb has it under a short key."""
    at.record()
    at.save()
    at.put(b"n" * 600, b"lost")
    at.record()
    at.restore()
    at.put(b"n" * 600, b"new", b"newer")


def not_enough_written(at: Restored) -> None:
    """The newest revision alone shows it."""
    at.record()
    at.save()
    at.put(b"a", b"3", b"4")
    at.record()
    at.restore()
    at.put(b"a", b"3")


HISTORIES: list[Callable[[Restored], None]] = [
    changed_again,
    a_state_changed_again,
    same_value_at_another_revision,
    removed,
    lost_nothing_but_missed,
    a_first_state_alone,
    a_first_state_without_keys,
    a_long_key,
    not_enough_written,
]


@pytest.mark.long_after(5)
@pytest.mark.parametrize("happens", HISTORIES, ids=lambda happens: happens.__name__)
def test_a_recorder_that_is_started_again_ends(
    restored: Restored, happens: Callable[[Restored], None]
) -> None:
    happens(restored)
    before = restored.recorded()
    with pytest.raises(StoreRestoredError, match="it was restored since; record into a new place"):
        restored.record()
    assert restored.recorded() == before, "nothing of the new history is recorded"


def test_a_record_whose_last_change_is_long_ago(
    restored: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_target, "NEWEST_IN", (2, 5))
    restored.record()
    restored.put(b"a", b"3")
    restored.save()
    restored.put(b"b", b"lost")
    for _ in range(7):
        restored.put_elsewhere(1)
        restored.record()
    restored.record()
    restored.restore()
    restored.put(b"b", b"new")
    restored.put_elsewhere(20)
    with pytest.raises(StoreRestoredError):
        restored.record()


@pytest.mark.filterwarnings("ignore:the server shows no clock")  # while it starts
@pytest.mark.parametrize("removes", [False, True])
def test_a_server_that_is_started_again_has_the_history(restored: Restored, removes: bool) -> None:
    """Nothing was restored: the recorders before and after it, and one beside it, go on."""
    with Running(restored) as runs:
        restored.put(b"b", b"1", b"2")
        if removes:
            restored.gateway.delete(R + b"b")
        runs.reach()
        restored.put_elsewhere(3)
        restored.etcd.restart()
        restored.put(b"c", b"3")
        runs.reach()
    restored.record()
    restored.etcd.restart()
    restored.put(b"c", b"4")
    restored.record()
    assert restored.recorded()[1]["/registry/c"] == b"4"


def test_a_backup_whose_revisions_were_raised_leaves_a_gap(restored: Restored) -> None:
    """As etcd's documentation wants it restored: all that was before is compacted."""
    restored.save()
    restored.put(b"a", b"lost")
    restored.record()
    restored.restore("--bump-revision=1000000", "--mark-compacted")
    restored.put(b"b", b"new")
    recorder = restored.recorder()
    recorder.catch_up()
    (gap,) = recorder.status.gaps
    assert gap.startswith("gap: revisions ")
    assert restored.recorded()[1] == {"/registry/a": b"2", "/registry/b": b"new"}
    for values in ([], [b"newer"], []):
        restored.put(b"b", *values)
        restored.record()
    assert restored.recorded()[1] == {"/registry/a": b"2", "/registry/b": b"newer"}


# --- a recorder that runs all the time ---


class Running:
    """A recorder in a thread, which reaches the server through a proxy."""

    def __init__(self, at: Restored) -> None:
        self._at, self._stop, self.ended = at, threading.Event(), threading.Event()
        self.proxy = EtcdProxy(at.etcd)
        self._recorder = at.recorder(self.proxy.url, flush="100ms", every="100ms")
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._recorder.run(self._stop)
        except Exception as e:
            self.error = e
        finally:
            self.ended.set()

    def reach(self) -> None:
        newest = self._at.gateway.revision()
        status = self._recorder.status

        def reached() -> bool:
            assert not self.ended.is_set(), self.error
            return (status.recorded_revision or 0) >= newest

        eventually(reached, f"revision {newest} to be recorded", wait_s=WAIT_S)

    def __enter__(self) -> Running:
        self._thread.start()
        self.reach()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        self.proxy.close()
        assert not self._thread.is_alive()


def over_with_more(at: Restored) -> None:
    at.put(b"a", b"new", b"newer", b"newest")


def over_and_idle(at: Restored) -> None:
    """No event follows what the recorder has: it must not wait for one."""


def over_elsewhere(at: Restored) -> None:
    at.put_elsewhere(20)


def over_below(at: Restored) -> None:
    """What is new in the prefix is below what the recorder has seen."""
    at.put(b"b", b"new")
    at.put_elsewhere(20)


@pytest.mark.long_after(4)
@pytest.mark.parametrize("loses", [True, False], ids=["loses", "loses nothing"])
@pytest.mark.parametrize(
    "then",
    [over_with_more, over_and_idle, over_elsewhere, over_below],
    ids=lambda then: then.__name__,
)
def test_a_recorder_beside_a_restore_ends(
    restored: Restored, then: Callable[[Restored], None], loses: bool
) -> None:
    """Its server is back, with other writes, before it is connected again."""
    with Running(restored) as runs:
        restored.save()
        if loses:
            restored.put(b"a", b"3", b"lost")
        restored.put_elsewhere(5)
        runs.reach()
        runs.proxy.refuse()
        restored.restore()
        then(restored)
        runs.proxy.resume()
        if not loses and then is over_elsewhere:  # the prefix has the history that was recorded
            restored.put(b"b", b"new")
            runs.reach()
            return
        assert runs.ended.wait(WAIT_S)
        assert isinstance(runs.error, StoreRestoredError)
    revisions, state = restored.recorded()
    assert state == {"/registry/a": b"lost" if loses else b"2"}
    assert revisions == sorted(revisions)
