"""An object store that fails: errors that say what happened, in bounded time, and no wrong data."""

import socket
import threading
import time

import pytest

import snapkv
from snapkv.archive import manifest as manifests
from snapkv.archive import open_files
from snapkv.archive.manifest import newest, publish
from snapkv.errors import (
    AccessDeniedError,
    ArchiveTakenError,
    EngineUnavailableError,
    InvalidOptionError,
    NotSupportedError,
)

from .histories import LONG_OVER, Recorder
from .test_archive_files import delta, manifest
from .test_archive_recording import assert_recorded

pytestmark = pytest.mark.slow

BOUND_S = 20
"""Far above the longest request of these tests, which is that of a server that never answers."""
ALWAYS = 1 << 30

CALLS = {
    "put_new": lambda files: files.put_new("a/2", b"new"),
    "read": lambda files: files.read("a/1"),
    "read_part": lambda files: files.read_part("a/1", 2, 4),
    "list": lambda files: [entry[:2] for entry in files.list("a")],
    "delete": lambda files: files.delete("a/3"),
}
EXPECTED = {
    "put_new": True,
    "read": b"0123456789",
    "read_part": b"2345",
    "list": [("a/1", 10)],
    "delete": None,
}
PASSING = [500, 503, "close"]
AGAIN = {
    "put_new": [*PASSING, "lose", "lose 503", "lose hold"],
    "read": [*PASSING, "truncate", "hold"],
    "read_part": [*PASSING, "truncate", "hold"],
    "list": [*PASSING, "hold"],
    "delete": [*PASSING, "lose"],
}
IN_SHORT = {
    "put_new": [500, "lose", "lose 503", "lose hold"],
    "read": ["truncate"],
    "read_part": ["hold"],
    "list": [503],
    "delete": ["close"],
}
"""Each call fails at least once, and each kind of fault comes; make test-all has all pairs."""


@pytest.fixture
def direct(s3, proxy):
    files = open_files(s3.new_url(), s3.storage)
    files.put_new("a/1", b"0123456789")
    return files


@pytest.fixture
def hurt(direct, proxy):
    """Return the same files, through a proxy that the test arms."""
    files = open_files(direct.url, proxy.storage)
    files.put_new("first", b"")  # the first put is followed by its check
    return files


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        pytest.param(call, fault, marks=[] if fault in IN_SHORT[call] else pytest.mark.long)
        for call, faults in AGAIN.items()
        for fault in faults
    ],
)
def test_what_passes_is_not_noticed(proxy, hurt, call, fault):
    proxy.arm(fault, 1 if "hold" in str(fault) else 2)
    assert CALLS[call](hurt) == EXPECTED[call]
    assert proxy.hurt >= 1


@pytest.mark.long_after(5)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", [500, 503, 429, "close", "hold"])
def test_what_stays_is_an_error_in_bounded_time(proxy, hurt, call, fault):
    proxy.arm(fault)
    began = time.monotonic()
    with pytest.raises(EngineUnavailableError, match=r"s3://archives/\d+") as caught:
        CALLS[call](hurt)
    assert time.monotonic() - began < BOUND_S
    assert proxy.server.storage["secret_access_key"] not in str(caught.value)
    assert caught.value.__cause__ is None
    proxy.disarm()
    assert CALLS[call](hurt) == EXPECTED[call]


@pytest.mark.parametrize("call", ["read", "read_part", "list"])
def test_answers_that_break_off(proxy, hurt, call):
    proxy.arm("truncate")
    with pytest.raises(EngineUnavailableError, match="closed within the answer"):
        CALLS[call](hurt)


@pytest.mark.parametrize("call", ["read", "read_part", "list"])
def test_answers_that_are_slow(proxy, hurt, call):
    """Each byte comes in time, the whole answer does not."""
    proxy.arm("drip")
    began = time.monotonic()
    with pytest.raises(EngineUnavailableError, match="no complete answer in time"):
        CALLS[call](hurt)
    assert time.monotonic() - began < BOUND_S


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (403, AccessDeniedError, "HTTP 403; check the credentials"),
        (401, AccessDeniedError, "HTTP 401; check the credentials"),
        (301, InvalidOptionError, "the bucket is in another region; set AWS_REGION"),
    ],
)
def test_what_another_try_does_not_mend(proxy, hurt, call, status, error, message):
    proxy.arm(status)
    with pytest.raises(error, match=message):
        CALLS[call](hurt)
    assert proxy.hurt == 1


def test_a_server_that_does_not_listen(proxy):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EngineUnavailableError, match="Connection refused; check the network"):
            snapkv.open_archive("s3://bucket/x", storage=proxy.storage | {"endpoint": endpoint})


# --- lost answers ---

LOST = ["lose", "lose 503", "lose hold"]


@pytest.mark.parametrize("lost", LOST)
def test_a_put_whose_answer_was_lost_is_ours(proxy, direct, hurt, lost):
    proxy.arm(lost, 1, when=lambda method, path: method == "PUT")
    assert hurt.put_new("a/2", b"mine")
    assert proxy.hurt == 1
    assert direct.read("a/2") == b"mine"


@pytest.mark.parametrize("lost", LOST)
def test_another_writers_file_is_not_ours(proxy, direct, hurt, lost):
    direct.put_new("a/2", b"another writer's")
    proxy.arm(lost, 1, when=lambda method, path: method == "PUT")
    assert not hurt.put_new("a/2", b"mine")
    assert direct.read("a/2") == b"another writer's"


def test_a_put_of_which_nothing_is_known_is_an_error(proxy, direct, hurt):
    """It was applied, but the server is down since."""
    proxy.arm("lose")
    with pytest.raises(EngineUnavailableError):
        hurt.put_new("a/2", b"mine")
    assert direct.read("a/2") == b"mine"
    proxy.disarm()
    assert hurt.put_new("a/2", b"mine"), "the same bytes are those of before"


@pytest.mark.parametrize("lost", LOST)
def test_two_writers_never_both_publish(proxy, direct, hurt, lost):
    """Not even the same manifest, with the same files."""
    assert publish(direct, manifest(1))
    same = manifest(2, delta(6, 7), delta(6, 7, "log"))
    assert publish(direct, same)
    proxy.arm(lost, 1, when=lambda method, path: method == "PUT")
    assert not publish(hurt, same)
    assert publish(hurt, manifest(3, delta(6, 7), delta(6, 7, "log")))
    assert newest(direct).number == 3


def test_of_eight_that_lose_answers_one_publishes(proxy, direct):
    proxy.arm("lose 503", 8, when=lambda method, path: method == "PUT" and "_manifest" in path)
    writers = [open_files(direct.url, proxy.storage) for _ in range(8)]
    begin, done, same = threading.Barrier(8), [], manifest(1)

    def put(files):
        begin.wait(BOUND_S)
        done.append(publish(files, same))

    threads = [threading.Thread(target=put, args=(files,)) for files in writers]
    for each in threads:
        each.start()
    for each in threads:
        each.join(3 * BOUND_S)
    assert sorted(done) == [False] * 7 + [True]


def test_a_conflict_is_tried_again(proxy, direct, hurt):
    """S3 answers 409 while another request for the same name is under way."""
    proxy.arm(409, 2, when=lambda method, path: method == "PUT")
    assert hurt.put_new("a/2", b"mine")
    proxy.arm(409, when=lambda method, path: method == "PUT")
    with pytest.raises(EngineUnavailableError, match="5 tries conflicted"):
        hurt.put_new("a/4", b"mine")


def test_a_server_that_overwrites_is_found_out(proxy, direct):
    proxy.overwrites = True
    files = open_files(direct.url, proxy.storage)
    with pytest.raises(NotSupportedError, match="ignores 'If-None-Match"):
        publish(files, manifest(1))


# --- a recorder ---

embedded = pytest.mark.parametrize("place", ["memory"], indirect=True)


@pytest.mark.long_after(1)
@embedded
@pytest.mark.parametrize("fault", ["close", "lose"])
def test_a_recorder_goes_on_whatever_request_failed(store, s3, proxy, fault):
    """The same recorder, and a new one."""
    for after in range(40):
        url = s3.new_url()
        recording = Recorder(store, open_files(url, proxy.storage | {"max_retries": 0}))
        store.save("a", b"%d" % after)
        recording.catch_up()
        store.save("b", b"%d" % after)
        proxy.arm(fault, 3, after=after)
        try:
            recording.catch_up()
        except EngineUnavailableError:
            failed = True
        else:
            failed = False
        hurt = proxy.hurt
        proxy.disarm()
        store.save("c", b"%d" % after)
        recording.catch_up()
        recording.writer.tidy()
        assert_recorded(store, open_files(url, s3.storage))
        with snapkv.open_archive(url, storage=s3.storage) as alone:
            assert list(alone.commits()) == list(store.commits())
            assert dict(alone.at().items()) == dict(store.at().items())
        if not hurt:
            assert after == 5, "there were that many requests to hurt"
            return
        assert failed or fault == "lose"
    raise AssertionError("a flush has that many requests?")


@embedded
def test_a_recorder_whose_manifest_another_one_published(store, s3, proxy):
    """Its answer is lost for good, and before it asks again, another recorder takes over."""
    url = s3.new_url()
    first = Recorder(store, open_files(url, proxy.storage))
    store.save("a", b"1")
    first.catch_up()
    store.save("a", b"2")
    proxy.arm(503, when=lambda method, path: "_manifest" in path)
    with pytest.raises(EngineUnavailableError):
        first.catch_up()
    proxy.disarm()
    second = Recorder(store, open_files(url, s3.storage))
    second.catch_up()
    with pytest.raises(ArchiveTakenError):
        first.catch_up()


@embedded
def test_the_requests_of_a_flush(store, s3, proxy, monkeypatch):
    """docs/archive_places.md lists them; manifests that were replaced an hour ago are deleted."""
    monkeypatch.setattr(manifests, "GRACE_S", LONG_OVER)
    recording = Recorder(store, open_files(s3.new_url(), proxy.storage))
    for n in range(10):
        store.save("a", b"%d" % n)
        recording.catch_up()
    proxy.seen.clear()
    store.save("a", b"the newest")
    recording.catch_up()
    methods = sorted({"POST": "DELETE"}.get(method, method) for method, path in proxy.seen)
    assert methods == ["DELETE"] * 2 + ["GET"] + ["PUT"] * 4
