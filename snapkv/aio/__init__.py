"""Stores for asyncio: the names of `snapkv`, awaited.

    import snapkv.aio

    async with snapkv.aio.open("etcd://localhost:2379") as store:
        timestamp = await store.save("schema/users", b"id int")
        async for changes in store.watch("schema/", since=timestamp):
            ...

A store belongs to the loop in which it was opened, and to its process: open it after a fork.
"""

from snapkv.aio.coordination import Election, Leaders, LeasedKey, Live, LiveWatch, Session
from snapkv.aio.opening import observe, open
from snapkv.aio.reads import Observed
from snapkv.aio.snapshot import Snapshot
from snapkv.aio.store import SnapshotKV, Space
from snapkv.aio.watch import Watch

__all__ = [
    "Election",
    "Leaders",
    "LeasedKey",
    "Live",
    "LiveWatch",
    "Observed",
    "Session",
    "Snapshot",
    "SnapshotKV",
    "Space",
    "Watch",
    "observe",
    "open",
]
