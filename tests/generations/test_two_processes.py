"""Two processes that write on a real etcd while generations come, and one of them is killed."""

import subprocess
import sys

import pytest
from store.engines import ENGINES, Place

import snapkv
from cdcmeta.generations import CdcLog, GenerationLog, Sharding, StreamConsumer, murmur3_token
from snapkv import pack
from snapkv.base.waiting import monotonic, pause

pytestmark = pytest.mark.slow

WAIT_S = 60
RINGS = [{0: Sharding(2)}, {0: Sharding(2), 1 << 62: Sharding(3)}, {5: Sharding(1)}]

WRITER = """
import sys
import snapkv
from cdcmeta.generations import CdcLog, GenerationLog
with snapkv.open(sys.argv[1]) as store:
    log = GenerationLog(store, propagation_delay=0.0, leeway=0.5)
    with log.member(sys.argv[2], ttl=2.0) as member:
        rows = CdcLog(store, member)
        print("ready", flush=True)
        for n in range(10**6):
            row = rows.write(b"%s/%d" % (sys.argv[2].encode(), n % 30), b"%d" % n, timeout=60.0)
            print(row.timestamp, row.value.decode(), flush=True)
"""


@pytest.fixture
def url(tmp_path):
    with Place(ENGINES["etcd"], tmp_path) as place:
        yield place.url


@pytest.fixture
def started(url, tmp_path):
    running = []

    def start(name):
        with (tmp_path / name).open("w") as out:
            words = [sys.executable, "-c", WRITER, url, name]
            running.append(subprocess.Popen(words, stdout=out))
        return running[-1], tmp_path / name

    yield start
    for process in running:
        process.kill()
        process.wait(WAIT_S)


def lines_of(file):
    """Return the whole lines after the first."""
    return file.read_text().split("\n")[1:-1]


def until(holds):
    deadline = monotonic() + WAIT_S
    while not holds():
        assert monotonic() < deadline
        pause(0.01)


def test_no_row_in_a_wrong_stream_and_none_lost(url, started):
    with snapkv.open(url) as store:
        log = GenerationLog(store, propagation_delay=0.0, leeway=0.5)
        log.make(RINGS[0])
        (killed, its_file), (other, other_file) = started("killed"), started("other")
        until(lambda: all(len(lines_of(file)) > 20 for file in (its_file, other_file)))
        for ring in RINGS[1:]:
            made = log.make(ring, timeout=WAIT_S)
            until(lambda made=made: store.resolved() > made.time + pack(300))
            killed.kill()  # in the first round
            killed.wait(WAIT_S)
        last = len(lines_of(other_file))
        until(lambda: len(lines_of(other_file)) > last + 20)
        other.kill()
        other.wait(WAIT_S)
        with log.member("reader") as member:
            rows = CdcLog(store, member)
            consumer = StreamConsumer(log, rows, "reader")
            found = [row for window in consumer for row in window.rows]
    with snapkv.open(url) as store:
        log = GenerationLog(store)
        topologies = {each.time: log.topology(each) for each in log.generations()}
    told = {tuple(line.split()) for file in (its_file, other_file) for line in lines_of(file)}
    logged = [(str(row.timestamp), row.value.decode()) for row in found]
    assert told <= set(logged)
    assert len(set(logged)) == len(logged) <= len(told) + 2, "what was killed may have one more"
    own = [max(time for time in topologies if time <= row.timestamp) for row in found]
    assert set(own) == set(topologies)
    for row, time in zip(found, own, strict=True):
        assert topologies[time].stream_for(murmur3_token(row.key)) == row.stream
