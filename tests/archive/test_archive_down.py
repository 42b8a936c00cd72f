"""What users see while an archive's object store is down, and after."""

import time
from itertools import product

import pytest

import snapkv
from snapkv.archive import open_files
from snapkv.errors import EngineUnavailableError, ReadTimeoutError

from .histories import Recorder

BOUND_S = 20
"""Far above the longest request of these tests."""

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["memory"], indirect=True)]


@pytest.fixture
def since(store):
    return store.save("a", b"1")


@pytest.fixture
def url(store, clock, since, s3):
    """Return the URL of an archive of `store`, which has compacted what is in it."""
    url = s3.new_url()
    for value in (b"2", b"3"):
        store.save("a", value)
    Recorder(store, open_files(url, s3.storage)).catch_up()
    clock.advance(600_000)
    store.compact(store.save("z", b"live"), past_recordings=True)
    return url


READS = {
    "load": lambda store, since: store.load("a", since) == b"1",
    "at": lambda store, since: dict(store.at(since).items()) == {"a": b"1"},
    "history": lambda store, since: [v.value for v in store.history("a")] == [b"1", b"2", b"3"],
    "commits": lambda store, since: next(store.commits()).ts == since,
    "watch": lambda store, since: [c.value for c in next(store.watch(since=since))] == [b"2"],
}


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        ("load", 503),
        ("watch", 503),
        ("load", "hold"),
        *(
            pytest.param(read, fault, marks=pytest.mark.long)
            for read, fault in product(READS, [503, "hold"])
            if read != "load" and (read, fault) != ("watch", 503)
        ),
        ("load", "close"),
        ("load", "truncate"),
        ("load", "drip"),
    ],
)
def test_reads_fail_in_bounded_time_and_then_go_on(place, url, since, proxy, clock, read, fault):
    with (
        snapkv.open_archive(url, storage=proxy.storage) as alone,
        place.open(archive=url, storage=proxy.storage, clock=clock) as joined,
    ):
        for store in (alone, joined):
            proxy.arm(fault)
            began = time.monotonic()
            with pytest.raises(EngineUnavailableError, match="s3://"):
                READS[read](store, since)
            assert time.monotonic() - began < BOUND_S
            proxy.disarm()
            assert READS[read](store, since), "the same open store"


def test_what_the_engine_has_is_read_and_written(place, url, proxy, clock):
    with place.open(archive=url, storage=proxy.storage, clock=clock) as joined:
        proxy.arm("hold")
        newest = joined.save("b", b"new")
        assert joined.load("b") == b"new"
        assert joined.load("b", newest) == b"new"
        assert dict(joined.at().items()) == {"a": b"3", "b": b"new", "z": b"live"}
        assert proxy.hurt == 0


def test_a_store_does_not_open_with_an_archive_that_is_down(place, url, proxy, clock):
    proxy.arm(503)
    with pytest.raises(EngineUnavailableError, match=r"cannot list _manifest in s3://.*HTTP 503"):
        place.open(archive=url, storage=proxy.storage, clock=clock)


def test_a_timeout_ends_a_read_after_the_request_that_is_under_way(url, since, proxy):
    """Of three slow requests one is made, and none after the deadline."""
    with snapkv.open_archive(url, storage=proxy.storage) as alone:
        proxy.seen.clear()
        proxy.arm("hold", 1)
        with pytest.raises(ReadTimeoutError, match=r"its timeout of 0\.5 s"):
            alone.load("a", since, timeout=0.5)
        assert len(proxy.seen) == 2, "a try, and another one of the same request"
        assert alone.load("a", since, timeout=BOUND_S) == b"1"
