"""Archives in an object store: recorded, read, and joined with a live store."""

import os
import random
import subprocess
import sys

import pytest

import snapkv
from snapkv.archive import open_files, state_rows, writer
from snapkv.errors import ArchiveError, ArchiveTakenError

from .histories import Recorder, Writing, answers

pytestmark = pytest.mark.slow

WAIT_S = 60

embedded = pytest.mark.parametrize("place", ["memory"], indirect=True)


@pytest.fixture
def url(s3):
    return s3.new_url()


@pytest.mark.long_after(1)
@embedded
@pytest.mark.parametrize("seed", range(2))
def test_it_answers_what_the_live_store_answered(place, store, clock, s3, url, monkeypatch, seed):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 9)
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


def test_the_command_line_finds_credentials_in_the_environment(s3, url, tmp_path):
    lmdb = f"lmdb:{tmp_path / 'plans'}"
    with snapkv.open(lmdb) as store:
        timestamp = store.save("a", b"1")
    there = {
        "AWS_ACCESS_KEY_ID": s3.storage["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3.storage["secret_access_key"],
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
    }
    for arguments, expected in [
        (["record", "--store", lmdb, "--into", url, "--once", "--raw"], b"%d\n" % timestamp),
        (["get", "a", "--store", f"archive:{url}"], b"1"),
    ]:
        command = [sys.executable, "-m", "snapkv.cli", *arguments]
        done = subprocess.run(command, env=os.environ | there, capture_output=True, timeout=WAIT_S)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr


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
