"""Writers whose clocks are apart: as far as documented they write, further they wait."""

import threading

import pytest

from cdcmeta.generations import (
    CdcLog,
    GenerationLog,
    Generations,
    Sharding,
    Topology,
    murmur3_token,
)
from snapkv import ManualClock, pack
from snapkv.base.waiting import monotonic, pause

from .refused import is_invalid_time

pytestmark = pytest.mark.slow

START_MS = 1_700_000_000_000
RING = {-100: Sharding(2), 100: Sharding(3)}
DELAY_S, LEEWAY_S = 10.0, 1.0


@pytest.fixture
def pair(place):
    """Return a function that makes a log of rows by a clock so many seconds ahead."""
    clocks = [ManualClock(START_MS), ManualClock(START_MS)]
    stores = [place.open(clock=clock) for clock in clocks]
    logs = [GenerationLog(each, propagation_delay=DELAY_S, leeway=LEEWAY_S) for each in stores]
    logs[0].make(RING)
    members = [
        log.member(generations=Generations(clock=clock, leeway=LEEWAY_S))
        for log, clock in zip(logs, clocks, strict=True)
    ]
    yield [CdcLog(*each) for each in zip(stores, members, strict=True)], clocks, logs[0]
    for member in members:
        member.close()


def test_a_writer_behind_writes_in_the_time_of_the_store(pair):
    """Ten seconds behind one that writes on and on: no clock to wait for would ever come."""
    (behind, ahead), clocks, log = pair
    clocks[1].advance(10_000)
    for n in range(5):
        clocks[1].advance(100)
        newest = ahead.write(b"a%d" % n, b"v")
        row = behind.write(b"b%d" % n, b"v", timeout=3)
        assert row.timestamp > newest.timestamp > pack(START_MS + 10_000)
        assert row.stream == log.topology(log.generations()[0]).stream_for(murmur3_token(row.key))


def test_further_apart_than_documented_it_waits_until_it_is_not(pair):
    (behind, ahead), clocks, _ = pair
    clocks[1].advance(30_000)
    newest = ahead.write(b"a", b"v")
    began = monotonic()
    with is_invalid_time("future"):
        behind.write(b"b", b"v", timeout=0.4)
    assert monotonic() - began >= 0.4
    found = []
    thread = threading.Thread(target=lambda: found.append(behind.write(b"b", b"v", timeout=60)))
    thread.start()
    for _ in range(10):
        pause(0.02)  # while its clock stands still it goes on to wait
        assert not found
    clocks[0].advance(10_001)  # twenty seconds behind, and that is allowed
    thread.join(60)
    assert found[0].timestamp > newest.timestamp


def test_one_alone_waits_for_the_leeway(place):
    """Nothing guards its commits, so a generation it has not heard of could be missed."""
    clocks = [ManualClock(START_MS), ManualClock(START_MS + 10_000)]
    stores = [place.open(clock=clock) for clock in clocks]
    generations = Generations(clock=clocks[0], leeway=LEEWAY_S)
    generations.insert(pack(START_MS), Topology.make(RING))
    rows = CdcLog(stores[0], generations)
    stores[1].save("k", b"v")
    with is_invalid_time("future"):
        rows.write(b"b", b"v", timeout=0.5)
    timer = threading.Timer(0.2, clocks[0].advance, [9_500])
    timer.start()
    assert rows.write(b"b", b"v", timeout=60).timestamp > pack(START_MS + 10_000)
    timer.join()
