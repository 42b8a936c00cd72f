"""A folder on a disk that is full: nothing half-written is seen, and the next attempt works."""

import os
import resource
import signal
from pathlib import Path

import pytest
from engine.crash_processes import children
from sampling import first_of

import snapkv
from snapkv.archive.folder import Folder
from snapkv.errors import NoSpaceError

from .histories import recorder

pytestmark = pytest.mark.forks


def limit_files(size):
    """No file of this process grows beyond `size` bytes; writing there fails with EFBIG."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def found(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("size", first_of([5_000, 1, 0, 9_999], one_in=2))
@pytest.mark.long_after(1)
def test_a_file_that_does_not_fit(tmp_path, size):
    def body(say):
        files = Folder(str(tmp_path / "archive"))
        files.put_new("a/1", b"before")
        seen = []
        limit_files(size)
        try:
            files.put_new("a/2", os.urandom(10_000))
        except NoSpaceError as e:
            seen = [str(e), sorted(found(tmp_path / "archive")), len(files.list(""))]
        limit_files(resource.RLIM_INFINITY)
        say("full", *seen)
        say("again", files.put_new("a/2", bytes(10_000)), len(files.read("a/2")))

    with children() as start:
        child = start(tmp_path / "said", body)
        status, said = child.wait(), child.heard()
    assert status == 0, said
    (full, message, left, listed), again = said
    assert full == "full"
    assert "a/2" in message
    assert left == ["a/1"], "not even a part of it is left"
    assert listed == 1
    assert again == ["again", True, 10_000]


@pytest.mark.slow
@pytest.mark.parametrize("size", first_of([2_000, 100, 0, 20_000], one_in=2))
@pytest.mark.long_after(1)
def test_a_recorder_on_a_full_disk(tmp_path, size):
    def body(say):
        with snapkv.open("memory:") as store:
            store.save("a", b"1")
            recording = recorder(store, tmp_path / "archive")
            recording.catch_up()
            for n in range(50):
                store.save(f"k{n}", os.urandom(1_000))
            seen = []
            limit_files(size)
            try:
                recording.catch_up()
            except NoSpaceError:
                with snapkv.open_archive(str(tmp_path / "archive")) as alone:
                    seen = sorted(key for key, _ in alone.at().items())
            limit_files(resource.RLIM_INFINITY)
            say("full", seen)
            recording.catch_up()
            with snapkv.open_archive(str(tmp_path / "archive")) as alone:
                say("again", list(alone.commits()) == list(store.commits()))

    with children() as start:
        child = start(tmp_path / "said", body)
        status, said = child.wait(), child.heard()
    assert status == 0, said
    assert said == [["full", ["a"]], ["again", True]]
