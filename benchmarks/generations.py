"""What do CDC generations cost: a stream of a write, a million at once, a large one kept?"""

import random
import resource
import subprocess
import sys
from bisect import bisect_left

import mmh3
import numpy as np

import snapkv
from benchmarks.harness import Rival, Row, measure, report
from benchmarks.servers import DURABLE, server_facts
from cdcmeta.generations import GenerationLog, Generations, Sharding, Topology, murmur3_tokens
from cdcmeta.generations.tokens import TOKEN_MAX, TOKEN_MIN
from snapkv import SystemClock, pack

RANGES, SHARDS, GENERATIONS = 25_600, 64, 5
MANY = 1_000_000
PART_BYTES = 1_000_000
RNG = random.Random(7)


def main() -> None:
    """Look up, hash and keep what 100 nodes of 256 vnodes and 64 shards have."""
    if sys.argv[-1] in ("lmdb", "etcd"):
        print(_peak_of(sys.argv[-1]))
        return
    ring = {RNG.randint(TOKEN_MIN, TOKEN_MAX): Sharding(SHARDS) for _ in range(RANGES)}
    topology = Topology.make(ring)
    tables = {
        f"the stream of a write, {RANGES:,} ranges, {GENERATIONS} generations": _scalar(topology),
        f"the streams of {MANY:,} writes": _batch(topology),
        f"the tokens of {MANY:,} keys of 16 bytes": _tokens(),
    }
    peaks = []
    for name, opened in DURABLE.items():
        with opened() as store:
            tables[f"a generation of {topology.stream_count:,} streams, {name}"] = _kept(
                store, ring
            )
        peaks.append(f"{_peak(name):,} MB with {name}")
    notes = (
        f"{server_facts()} mmh3 hashes with plain Murmur3, which differs in the tail only. Kept: "
        "made, stored, switched to and loaded, against the same bytes written in the same parts, "
        f"and listed. Peak memory of a process that does it once: {', '.join(peaks)}."
    )
    report("generations", "What do CDC generations cost?", tables, notes)


def _held(topology: Topology) -> tuple[Generations, int]:
    """Return five generations, of which the second operates, and its time."""
    now = SystemClock().now_ms()
    generations = Generations()
    for n in range(-1, GENERATIONS - 1):
        generations.insert(pack(now + n * 3_600_000), topology)
    return generations, pack(now)


def _scalar(topology: Topology) -> list[Row]:
    generations, now = _held(topology)
    tokens = [RNG.randint(TOKEN_MIN, TOKEN_MAX) for _ in range(100_000)]
    ends = topology.ends
    rivals = [
        Rival("one bisect over the ends (floor)", lambda i: bisect_left(ends, tokens[i % 100_000])),
        Rival("stream", lambda i: generations.stream(now, tokens[i % 100_000])),
    ]
    return measure(rivals, rounds=60, block=10_000, warmup=12)


def _batch(topology: Topology) -> list[Row]:
    generations, now = _held(topology)
    tokens = np.random.default_rng(7).integers(TOKEN_MIN, TOKEN_MAX, MANY)
    stamps = np.full(MANY, now, np.uint64)
    ends = np.array(topology.ends)
    rivals = [
        Rival("searchsorted over the ends (floor)", lambda _: np.searchsorted(ends, tokens)),
        Rival("streams", lambda _: generations.streams(stamps, tokens)),
    ]
    return measure(rivals, rounds=15)


def _tokens() -> list[Row]:
    keys = [RNG.randbytes(16) for _ in range(MANY)]
    hash64 = mmh3.hash64
    rivals = [
        Rival("mmh3 for each key (floor)", lambda _: [hash64(key)[0] for key in keys]),
        Rival("murmur3_tokens", lambda _: murmur3_tokens(keys)),
    ]
    return measure(rivals, rounds=15)


def _kept(store: snapkv.SnapshotKV, ring: dict[int, Sharding]) -> list[Row]:
    log = GenerationLog(store, propagation_delay=0.0, leeway=0.0)
    rows = list(Topology.make(ring).rows())
    bare = store.space("bare")

    def by_hand(i: int) -> None:
        part: dict[bytes, bytes] = {}
        for key, value in rows:
            part[b"%d/" % i + key] = value
            if len(part) * len(value) >= PART_BYTES:
                bare.commit(puts=part)
                part = {}
        bare.commit(puts=part)
        assert sum(1 for _ in bare.at().items(b"%d/" % i)) == len(rows)

    def kept(i: int) -> None:
        assert log.topology(log.make(ring)).stream_count == RANGES * SHARDS

    return measure(
        [Rival("the same bytes (floor)", by_hand), Rival("kept", kept)], rounds=5, warmup=1
    )


def _peak(name: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.generations", name],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


def _peak_of(name: str) -> int:
    ring = {RNG.randint(TOKEN_MIN, TOKEN_MAX): Sharding(SHARDS) for _ in range(RANGES)}
    with DURABLE[name]() as store:
        log = GenerationLog(store, propagation_delay=0.0, leeway=0.0)
        log.topology(log.make(ring))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024


if __name__ == "__main__":
    main()
