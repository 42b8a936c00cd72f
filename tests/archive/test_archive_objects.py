"""Archives in an object store: recorded, read, joined with a live store, and after a fork."""

import os
import random
import sys
import time

import pytest

import snapkv
from snapkv.archive import state, writer
from snapkv.archive.places import open_files
from snapkv.errors import ArchiveError, ArchiveTakenError, NotSupportedError

from .histories import Recorder, Writing, answers

embedded = pytest.mark.parametrize("place", ["memory"], indirect=True)


@pytest.fixture
def url(s3):
    return s3.new_url()


@embedded
@pytest.mark.parametrize("seed", range(2))
def test_it_answers_what_the_live_store_answered(place, store, clock, s3, url, monkeypatch, seed):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state, "CHUNK_ROWS", 9)
    writing = Writing(place, store, clock, random.Random(seed))
    since = store.save("z", b"the first that is known")
    recording = Recorder(store, open_files(url, s3.storage))
    for _ in range(5):
        recording.catch_up()
        recording.writer.tidy()
        writing.steps(12)
    recording.catch_up()
    clock.advance(600_000)
    expected = answers(store, since)
    with snapkv.open_archive(url, storage=s3.storage) as alone:
        found = answers(alone, since)
    store.compact(store.save("z", b"the newest"), past_recordings=True)
    with place.open(archive=url, storage=s3.storage, clock=clock) as joined:
        assert joined.load_with_prefix("", since) == (["z"], [b"the first that is known"])
    for what, each in expected.items():
        assert found[what] == each, what


@embedded
def test_record_writes_there(place, store, s3, url):
    store.save("a", b"1")
    recorder = snapkv.record(place.url, into=url, storage=s3.storage)
    recorder.catch_up()
    newest = store.save("a", b"2")
    assert recorder.catch_up() == newest
    with snapkv.open_archive(url, storage=s3.storage) as alone:
        assert [v.value for v in alone.history("a")] == [b"1", b"2"]


@embedded
def test_of_two_recorders_one_goes_on(store, s3, url):
    store.save("a", b"0")
    one, other = (Recorder(store, open_files(url, s3.storage)) for _ in range(2))
    one.catch_up()
    with pytest.raises((ArchiveTakenError, ArchiveError)):
        other.catch_up()
    store.save("a", b"1")
    one.catch_up()
    third = Recorder(store, open_files(url, s3.storage))
    store.save("a", b"2")
    third.catch_up()
    with pytest.raises(ArchiveTakenError):
        one.catch_up()


# --- forks ---


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


@pytest.mark.forks
def test_a_fork_before_the_first_request_does_no_harm(s3, url):
    files = open_files(url, s3.storage)
    assert in_child(lambda: files.put_new("a", b"1")) == "True"
    assert in_child(lambda: open_files(url, s3.storage).read("a")) == "b'1'"
    assert files.read("a") == b"1"


@pytest.mark.forks
def test_a_child_of_a_process_that_used_it_does_not_hang(s3, url):
    """obstore would: the threads of its runtime are not in the child."""
    files = open_files(url, s3.storage)
    files.put_new("a", b"1")
    for use in (lambda: files.read("a"), lambda: open_files(url, s3.storage).read("a")):
        said = in_child(use)
        assert said.startswith(f"{NotSupportedError.__name__}: cannot use {url} in this process")
        assert "use the start method 'spawn'" in said
    assert files.read("a") == b"1", "the parent goes on"
