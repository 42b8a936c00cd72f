"""A copy of a live store: whole, sound, and a true prefix of its history."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import snapkv
from snapkv import SnapKVError
from snapkv.base.waiting import monotonic
from snapkv.errors import (
    InvalidFileError,
    InvalidOptionError,
    InvalidTypeError,
    NotSupportedError,
)

WRITER = """
import sys, snapkv
with snapkv.open(sys.argv[1], durability="none", writer=sys.argv[2]) as store:
    print("ready", flush=True)
    n = 0
    while True:
        n += 1
        store.multi_save({f"{sys.argv[2]}/{n % 50}": b"x" * 2_000, f"{sys.argv[2]}/n": b"%d" % n})
        if n % 100 == 0:
            store.remove(f"{sys.argv[2]}/7")
"""
WAIT_S = 30.0


def everything(store: snapkv.SnapshotKV) -> list[tuple[object, ...]]:
    """What `commits` tells of a store, oldest first."""
    return [(c.ts, c.revision, c.writer, c.note) for c in store.commits()]


def wait_for_commits(store: snapkv.SnapshotKV, more: int) -> None:
    goal, deadline = store.info()["commits"] + more, monotonic() + WAIT_S
    while store.info()["commits"] < goal:
        assert monotonic() < deadline, "the writers stand still"


@pytest.mark.slow
def test_a_copy_under_writers_is_a_true_prefix(path: Path, tmp_path: Path) -> None:
    url = f"lmdb:{path}"
    with snapkv.open(url, durability="none") as store:
        store.save("first", b"1")
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, url, who], stdout=subprocess.PIPE)
            for who in ("ann", "bob")
        ]
        try:
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"ready\n"
            for number in range(4):
                wait_for_commits(store, 50)
                store.backup(tmp_path / f"copy-{number}")
            wait_for_commits(store, 50)
        finally:
            for writer in writers:
                writer.kill()
                writer.communicate()
        told = everything(store)
        for number in range(4):
            with snapkv.open(f"lmdb:{tmp_path}/copy-{number}", create=False) as copy:
                assert copy.check().problems == ()
                then = everything(copy)
                assert 50 * (number + 1) < len(then) < len(told)
                assert then == told[: len(then)]
                assert dict(copy.at().items()) == dict(store.at(then[-1][0]).items())
                half = then[len(then) // 2][0]
                assert dict(copy.at(half).items()) == dict(store.at(half).items())
                assert copy.save("mine", b"1") > then[-1][0], "it is a store of its own"
        assert "mine" not in store.at()


def test_threads_of_the_same_process_write_on(path: Path, tmp_path: Path) -> None:
    with snapkv.open(f"lmdb:{path}", durability="none", map_bytes=1 << 20) as store:
        stop, failed = threading.Event(), []

        def write() -> None:
            try:
                number = 0
                while not stop.is_set():
                    number += 1
                    store.save(f"k{number % 500}", b"x" * 5_000)
            except BaseException as e:
                failed.append(e)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for number in range(5):
                wait_for_commits(store, 100)
                store.backup(tmp_path / f"copy-{number}")
        finally:
            stop.set()
            thread.join(WAIT_S)
        assert failed == []
    for number in range(5):
        with snapkv.open(f"lmdb:{tmp_path}/copy-{number}", create=False) as copy:
            assert copy.check().problems == ()


def test_a_copy_holds_all_stores_and_no_free_pages(path: Path, tmp_path: Path) -> None:
    with (
        snapkv.open(f"lmdb:{path}", name="a") as one,
        snapkv.open(f"lmdb:{path}", name="b") as two,
    ):
        first = one.save("k", b"1")
        one.save("k", b"2")
        two.space("s").commit(puts={b"k": b"s"})
        one.backup(tmp_path / "copy")
    assert os.stat(tmp_path / "copy" / "data.mdb").st_size < 1 << 20
    with (
        snapkv.open(f"lmdb:{tmp_path}/copy", name="a", create=False) as one,
        snapkv.open(f"lmdb:{tmp_path}/copy", name="b", create=False) as two,
    ):
        assert (one.load("k", first), one.load("k")) == (b"1", b"2")
        assert two.space("s").load(b"k") == b"s"


@pytest.mark.parametrize(("options", "mode"), [({}, 0o600), ({"mode": 0o640}, 0o640)])
def test_who_may_read_a_copy(
    path: Path, tmp_path: Path, options: dict[str, int], mode: int
) -> None:
    before = os.umask(0)
    try:
        with snapkv.open(f"lmdb:{path}", mode=0o666) as store:
            store.backup(tmp_path / "copy", **options)
    finally:
        os.umask(before)
    found = [stat.S_IMODE(os.stat(tmp_path / "copy" / name).st_mode) for name in ("", "data.mdb")]
    assert found == [mode | (mode & 0o444) >> 2, mode]


def test_what_is_there_is_left_alone(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("precious")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nowhere")
    with snapkv.open(f"lmdb:{path}") as store:
        store.save("k", b"1")
        before = sorted(os.listdir(tmp_path))
        for name in ("file", "full", "link", "dangling", "store", "none/copy", "file/copy", ""):
            with pytest.raises(InvalidFileError):
                store.backup(f"{tmp_path}/{name}" if name else "")
        for bad in ("\0", "\ud800", "x" * 9_000):
            with pytest.raises(InvalidFileError):
                store.backup(bad)
        for wrong in (None, 5, b"copy", []):
            with pytest.raises(InvalidTypeError):
                store.backup(wrong)
        with pytest.raises(InvalidOptionError):
            store.backup(tmp_path / "copy", mode=0o777)
        assert sorted(os.listdir(tmp_path)) == before
        store.backup(tmp_path / "empty")
        assert store.check().problems == ()


def test_a_copy_that_finds_no_space_leaves_nothing(path: Path, tmp_path: Path) -> None:
    code = f"""
import resource, signal, snapkv
from snapkv.errors import NoSpaceError
with snapkv.open("lmdb:{path}") as store:
    store.save("k", b"x" * 1_000_000)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        store.backup("{tmp_path}/copy")
    except NoSpaceError as e:
        assert "copy" in str(e), e
        print("full")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("full\n", 0), done.stderr
    assert os.listdir(tmp_path) == ["store"]


def test_other_engines_name_what_they_can() -> None:
    with snapkv.open("memory:") as store, pytest.raises(NotSupportedError, match="dump") as caught:
        store.backup("copy")
    assert isinstance(caught.value, SnapKVError)
