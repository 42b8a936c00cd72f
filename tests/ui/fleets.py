"""A fleet on disk: two stores, one that joined later, archives, and servers that do not answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive.histories import recorder
from store.engines import START_MS

import snapkv
from snapkv import ManualClock
from snapkv.times import physical_ms

from .histories import write

NOBODY = "etcd://127.0.0.1:1"
TIMEOUT_S = 1.0
COMMITS = 12
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
STORES = ("eu", "us", "later")
MADE = (*STORES, "old", "kept")
ANSWER = [*STORES, "old"]
"""The members that answer; `away` does not, and of `kept` only an archive."""


@dataclass
class Shop:
    """Where the members are, and the timestamps of all commits, in order."""

    folder: Path
    members: dict[str, Any]
    stamps: list[int]
    now_ms: int

    @property
    def begun(self) -> int:
        """The time of the first commit of the last member to have one; others come after it."""
        return self.stamps[len(MADE) - 1]

    def open(self, **options: Any) -> snapkv.fleet.Fleet:
        """Open the fleet, an hour after its last commit."""
        return snapkv.fleet.open(
            self.members, timeout=TIMEOUT_S, clock=ManualClock(self.now_ms), **options
        )

    def store(self, name: str) -> snapkv.SnapshotKV:
        """Open one store, as a program of its own does."""
        return snapkv.open(f"lmdb:{self.folder / name}", clock=ManualClock(self.now_ms))


def made_shop(folder: Path, seed: int) -> Shop:
    """Write random histories of the same keys on all members."""
    rng, stamps, clock = random.Random(seed), list[int](), ManualClock(START_MS)
    for name in MADE:
        clock.set(START_MS + rng.randrange(MINUTE_MS))
        url = f"lmdb:{folder / name}"
        with snapkv.open(url, clock=clock, durability="none", writer="ann") as store:
            image = b'{"tag": "%s", "replicas": 3}' % (b"1.1" if name == "us" else b"1.0")
            stamps.append(store.commit(puts={"image": image, f"only/{name}": b"1"}).ts)
            clock.set(START_MS + MINUTE_MS)
            stamps += write(store, clock, rng, COMMITS)
            if name == "eu":
                stamps.append(store.save("image", b'{"tag": "1.0", "replicas": 4}'))
            if name in ("old", "kept"):
                recorder(store, folder / f"{name}-archive").catch_up()
    stamps.sort()
    members = {
        "eu": f"lmdb:{folder / 'eu'}",
        "us": f"lmdb:{folder / 'us'}",
        "later": {"url": f"lmdb:{folder / 'later'}", "joined": stamps[len(stamps) // 2]},
        "old": f"archive:{folder / 'old-archive'}",
        "kept": {"url": NOBODY, "archive": str(folder / "kept-archive")},
        "away": NOBODY,
    }
    return Shop(folder, members, stamps, physical_ms(stamps[-1]) + HOUR_MS)
