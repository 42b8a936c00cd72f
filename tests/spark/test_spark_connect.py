"""Spark Connect plans a DataFrame anew for each action: what is pinned there, and what is not."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from direct import read, refused
from store.engines import write_raw

from snapkv.engine.contract import Put
from snapkv.spark import sessions

pytestmark = pytest.mark.slow

CLIENT = Path(__file__).with_name("connect_client.py")
FEED = {"readChangeFeed": "true", "startingVersion": 1}


@pytest.fixture(scope="module")
def client(tmp_path_factory, etcd_pool):
    """What a client printed, in a process of its own; git stores are on lmdb and on etcd."""
    folder, seed = tmp_path_factory.mktemp("connect"), random.SystemRandom().getrandbits(32)
    print("seed", seed)
    with etcd_pool.taken() as etcd:
        urls = [f"lmdb:{folder / 'of-git'}", etcd.url]
        command = [sys.executable, str(CLIENT), str(folder), str(seed), *urls]
        return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.long
@pytest.mark.spark_since("4.2", "an end by availableNow")
def test_what_a_client_sees_stays_the_same(client):
    lines = client.stdout.strip().split("\n")
    assert len(lines) >= 3, (client.args, client.stderr[-3_000:])
    frames, rejected, streamed = map(json.loads, lines[:3])
    assert frames["before"] == {
        "snapshot": 2,
        "prefix": 1,
        "changes": 2,
        "a schema": 2,
        "history": 2,
        "diff": 1,
        "a version": 1,
        "a time": 2,
    }
    assert frames["after"] == frames["before"]
    assert frames["now"] == 4
    assert all("[SNAPKV_NOT_PINNED]" in message for message in rejected), rejected
    assert streamed == ["a", "b", "bb", "c"]


@pytest.mark.long
@pytest.mark.spark_since("4.2", "an end by availableNow")
def test_moments_and_feeds_of_a_git_history_are_gits(client):
    """git's own commands are the oracle."""
    assert client.returncode == 0, (client.args, client.stderr[-3_000:])
    assert client.stdout.strip().endswith("equal")


@pytest.fixture
def on_connect(monkeypatch):
    """This process does as one that Spark starts for a session of Connect."""
    monkeypatch.setenv(sessions.ARTIFACTS, "0eee7a21-67fb-4bf1-8c03-8e29dab00054")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the newest state moves on; Spark Connect plans"),
        ({"timestampAsOf": "-0s"}, "timestampAsOf -0s moves on"),
        ({"timestampAsOf": "2999-01-01T00:00:00Z"}, "is later than the newest commit"),
        (FEED, "changes need an end"),
        (FEED | {"endingTimestamp": "-1s"}, "endingTimestamp -1s moves on"),
        ({"readChangeFeed": "true", "startingTimestamp": "-1d", "endingVersion": 9}, "moves on"),
        ({"view": "history"}, "give endingVersion or endingTimestamp"),
        ({"view": "commits"}, "give endingVersion or endingTimestamp"),
    ],
)
def test_what_could_change_is_an_error(store, place, on_connect, options, said):
    store.save("a", b"1")
    assert said in refused("NOT_PINNED", place.url, **options)


def test_what_cannot_change_is_read(store, place, on_connect):
    commit = store.commit(puts={"a": b"1"})
    store.commit(puts={"b": b"2"})
    for options in ({"versionAsOf": commit.revision}, {"timestampAsOf": commit.ts}):
        assert [row[0] for row in read(place.url, **options)] == ["a"]
    for options in ({"endingVersion": commit.revision}, {"endingTimestamp": commit.ts}):
        assert [row[0] for row in read(place.url, **FEED, **options)] == ["a"]


def test_the_newest_commit_is_read_after_compaction_passed_it(store, place):
    """It is what a client of Connect pins, and its state is still there."""
    newest = store.commit(puts={"a": b"1"})
    engine = place.engine()
    engine.compact(write_raw(engine, Put(b"elsewhere", b"x")))
    assert [row[:2] for row in read(place.url, versionAsOf=newest.revision)] == [("a", b"1")]
    rows = read(place.url, view="history", endingVersion=newest.revision, columns="key,value")
    assert rows == [("a", b"1")]


def test_the_newest_commit_alone(store, place):
    assert read(place.url, view="commits", startingVersion="latest") == []
    first = store.commit(puts={"a": b"1"})
    last = store.commit(puts={"b": b"2"})
    options = {"view": "commits", "columns": "version"}
    assert read(place.url, **options, startingVersion="latest") == [(last.revision,)]
    rows = read(place.url, **options, startingVersion="Latest", endingTimestamp=first.ts)
    assert rows == [(first.revision,)]
