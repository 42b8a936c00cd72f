"""kill -9 of a real recorder, at random moments: nothing is lost, and nothing comes twice."""

import random
import signal
import threading
import time

import pytest
from archive.histories import Writing, answers
from etcd_server import eventually, shared_pool
from object_server import shared_server
from object_server.server import KEY_ID, SECRET
from sampling import SOAK, first_of

import snapkv

from .recorders import PAUSE_S, WAIT_S, Recorders

pytestmark = pytest.mark.long

KILLS = 12 if SOAK else 3
LONGEST_S = 0.8
"""From the first report of a recorder to its end; it writes files each fifth of a second."""


def s3_environment(server):
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("into", first_of(["folder", "s3"], one_in=2))
def test_killed_at_random_moments(place, store, clock, tmp_path, into):
    seed = random.SystemRandom().getrandbits(32)
    print("seed", seed)
    rng, since = random.Random(seed), store.save("z", b"the first")
    server = shared_server() if into == "s3" else None
    url = server.new_url() if server else str(tmp_path / "archive")
    words = ["--store", place.url, "--into", url, "--flush", "0.2s"]
    recorders = Recorders(words, tmp_path, **(s3_environment(server) if server else {}))
    writing, stop = Writing(place, store, clock, random.Random(seed)), threading.Event()

    def write():
        while not stop.wait(0.03):
            writing.step()

    writer = threading.Thread(target=write)
    recorders.start()
    writer.start()
    try:
        for _ in range(KILLS):
            eventually(
                lambda: time.sleep(PAUSE_S) or "recording" in recorders.states(), wait_s=WAIT_S
            )
            time.sleep(rng.random() * LONGEST_S)  # any moment is good
            recorders.end()
            recorders.start()
        eventually(lambda: time.sleep(PAUSE_S) or recorders.recorded() > 0, wait_s=WAIT_S)
    finally:
        stop.set()
        writer.join(WAIT_S)
        ended = recorders.end(signal.SIGTERM)
    assert ended == 0
    options = {"storage": server.storage} if server else {}
    snapkv.record(place.url, into=url, options=place.kind.options, **options).catch_up(
        timeout=WAIT_S
    )
    with snapkv.open_archive(url, **options) as alone:
        assert answers(alone, since) == answers(store, since)
        assert alone.check().problems == ()


def test_killed_between_the_parts_of_a_commit_in_etcd(tmp_path):
    url = f"lmdb:{tmp_path / 'source'}"
    large = {f"config/{n:05}": b"%0500d" % n for n in range(12_000)}  # ten requests of etcd
    with snapkv.open(url) as store, shared_pool().taken() as target:
        store.save("first", b"1")
        whole = store.commit(puts=large)
        recorders = Recorders(["--store", url, "--into", target.url], tmp_path)
        for parts in (2, 5):
            recorders.start()
            eventually(lambda n=parts: keys_of(target) > n * 800, wait_s=WAIT_S)
            recorders.end()
            assert keys_of(target) < 12_000, "it was killed before the last part"
        snapkv.record(url, into=target.url).catch_up(timeout=WAIT_S)
        with snapkv.open(target.url) as recorded:
            assert dict(recorded.at(whole.ts).items()) == dict(store.at(whole.ts).items())
            assert dict(recorded.at(whole.ts - 100).items()) == {"first": b"1"}
            versions = recorded._core.engine.scan(
                b"default/data/", b"default/data0", revision=recorded.at().revision
            )
            assert {kv.version for page in versions for kv in page} == {1}
            assert recorded.check().problems == ()


def keys_of(server):
    return len(server.gateway.range(b"default/data/", b"default/data0"))
