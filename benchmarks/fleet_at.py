"""What does one moment of 16 members cost beside a load from each of them?"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack

import snapkv
from benchmarks.harness import Rival, measure, report, seeded

MEMBERS, KEYS, COMMITS, LOADS = 16, 200, 2_000, 4_000


def main() -> None:
    """Read a key of all members at random recent times, by a fleet and by single loads."""
    rng = seeded("fleet_at")
    keys = [f"key/{n:04}" for n in range(KEYS)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores = {
            f"m{n:02}": stack.enter_context(snapkv.open(f"lmdb:{folder}/{n}", durability="none"))
            for n in range(MEMBERS)
        }
        stamps = []
        for at in range(COMMITS):
            for store in stores.values():
                stamps.append(store.save(keys[at % KEYS], rng.randbytes(100)))
        fleet = stack.enter_context(snapkv.fleet.open(stores))
        times = [ts for ts in stamps[len(stamps) // 2 :] if ts <= fleet.resolved()]
        asked = [(rng.choice(keys), rng.choice(times)) for _ in range(LOADS)]

        def single(i: int) -> dict[str, bytes]:
            key, ts = asked[i % LOADS]
            return {name: store.load(key, ts) for name, store in stores.items()}

        def everywhere(i: int) -> dict[str, bytes]:
            key, ts = asked[i % LOADS]
            return fleet.at(ts).everywhere(key)

        def one(i: int) -> bytes:
            key, ts = asked[i % LOADS]
            return fleet.at(ts)["m07", key]

        for i in range(LOADS):
            assert single(i) == everywhere(i)
            assert one(i) == single(i)["m07"]
        rivals = [
            Rival("16 single loads (floor)", single),
            Rival("fleet.at, and the key of all members", everywhere),
            Rival("fleet.at, and the key of one member", one),
        ]
        rows = measure(rivals, rounds=300, block=20)
    notes = (
        f"{MEMBERS} lmdb stores of {KEYS} keys and {COMMITS:,} commits each, in one process. One "
        "operation reads one key at one of the newer half of all times."
    )
    table = f"a key of {MEMBERS} members at a time"
    report("fleet_at", "What does a moment of a fleet cost?", {table: rows}, notes)


if __name__ == "__main__":
    main()
