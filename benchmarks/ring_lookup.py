"""What does a lookup in the ring cost beside a bisection of a flat list?"""

from bisect import bisect_right

from benchmarks.harness import Rival, measure, report, seeded
from snapkv.layout import Mark
from snapkv.timeline import Ring

LOOKUPS = 20_000


def main() -> None:
    """Look up random times in a full ring that has wrapped half-way round."""
    rng, slots = seeded("ring_lookup"), 1_024
    ring, timestamp = Ring(slots), 0
    flat: list[tuple[int, int]] = []
    for ordinal in range(1, slots + slots // 2 + 1):
        timestamp += rng.randint(1, 1 << 30)
        ring.append(Mark(timestamp, ordinal * 3, ordinal))
        flat.append((timestamp, ordinal * 3))
    flat = flat[-slots:]
    timestamps, revisions = [t for t, _ in flat], [r for _, r in flat]
    wanted = [rng.randint(timestamps[0], timestamps[-1]) for _ in range(LOOKUPS)]

    def bisect_flat(i: int) -> int:
        return revisions[bisect_right(timestamps, wanted[i % LOOKUPS]) - 1]

    def walk_back(i: int) -> int:
        time, at = wanted[i % LOOKUPS], slots - 1
        while timestamps[at] > time:
            at -= 1
        return revisions[at]

    def revision_in_ring(i: int) -> int:
        return ring.revision_at(wanted[i % LOOKUPS])

    def mark_in_ring(i: int) -> object:
        return ring.find(wanted[i % LOOKUPS])

    for i in range(200):
        found = ring.find(wanted[i])
        assert found is not None
        assert found.revision == revision_in_ring(i) == bisect_flat(i) == walk_back(i)
    rivals = [
        Rival("bisect on a flat list (floor)", bisect_flat),
        Rival("Ring.revision_at, what a load asks", revision_in_ring),
        Rival("Ring.find, a mark", mark_in_ring),
        Rival("walk back from the newest", walk_back),
    ]
    rows = measure(rivals, rounds=200, block=200)
    report("ring_lookup", "What does a lookup in the ring cost?", {"1,024 slots": rows})
