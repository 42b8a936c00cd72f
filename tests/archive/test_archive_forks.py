"""Archives in a forked child: in a folder they work, in an object store if the parent used none."""

import os
import sys
import threading
import time

import pytest

import snapkv
from snapkv.archive import open_files
from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.folder import Folder
from snapkv.errors import NotSupportedError

from .histories import recorder

WAIT_S = 30

pytestmark = pytest.mark.forks


@pytest.fixture
def url(s3):
    return s3.new_url()


def in_child(body) -> str:
    """Return what a forked child returned; a child that hangs is killed."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        try:
            said = str(body())
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    try:
        for _ in range(1_500):
            if os.waitpid(pid, os.WNOHANG)[0]:
                return os.read(reading, 10_000).decode()
            time.sleep(0.02)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise AssertionError("the child hangs")
    finally:
        os.close(reading)


def test_a_fork_before_the_first_request_does_no_harm(s3, url):
    files = open_files(url, s3.storage)
    assert in_child(lambda: files.put_new("a", b"1")) == "True"
    assert in_child(lambda: open_files(url, s3.storage).read("a")) == "b'1'"
    assert files.read("a") == b"1"


def test_a_child_of_a_process_that_used_it_does_not_hang(s3, url):
    """obstore would: the threads of its runtime are not in the child."""
    files = open_files(url, s3.storage)
    files.put_new("a", b"1")
    for use in (lambda: files.read("a"), lambda: open_files(url, s3.storage).read("a")):
        said = in_child(use)
        assert said.startswith(f"{NotSupportedError.__name__}: cannot use {url} in this process")
        assert "use the start method 'spawn'" in said
    assert files.read("a") == b"1", "the parent goes on"


class SlowFolder(Folder):
    """A folder of which a read begins, and ends when the test says so."""

    def __init__(self, root):
        super().__init__(root)
        self.slow, self.began, self.end = False, threading.Event(), threading.Event()

    def read_part(self, name, start, size):
        if self.slow:
            self.began.set()
            assert self.end.wait(WAIT_S)
        return super().read_part(name, start, size)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_child_reads_while_a_thread_of_the_parent_was_reading(store, tmp_path):
    since = store.save("a", b"1")
    store.save("a", b"2")
    recorder(store, tmp_path / "archive").catch_up()
    files = SlowFolder(str(tmp_path / "archive"))
    with snapkv.open_on(ArchiveEngine(files), create=False) as alone:
        files.slow = True
        found = []
        thread = threading.Thread(target=lambda: found.append(alone.load("a", since)))
        thread.start()
        assert files.began.wait(WAIT_S)
        files.slow = False
        assert in_child(lambda: alone.load("a", since)) == "b'1'"
        files.end.set()
        thread.join(WAIT_S)
        assert found == [b"1"]
