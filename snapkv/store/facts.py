"""Facts about a store and its engine, as `SnapshotKV.info` returns them."""

from __future__ import annotations

from typing import Any

from snapkv.store.core import Core
from snapkv.store.watermarks import watermarks
from snapkv.times import format_time


def facts(core: Core) -> dict[str, Any]:
    """Return facts about an open store; a few round trips."""
    core.check_open()
    head, oldest = core.timeline.head(), core.timeline.oldest()
    return {
        "url": core.url,
        "name": core.layout.name,
        "store_id": core.format.store_id.hex(),
        "format": core.format.format,
        "commits": head.ordinal - 1,
        "newest_timestamp": head.timestamp,
        "newest_revision": head.revision,
        "earliest_timestamp": oldest.timestamp,
        "recordings": {
            each.into: format_time(each.timestamp) for each in watermarks(core.engine, core.layout)
        },
        "ring": f"{len(core.timeline.tracker.ring)} of {core.timeline.tracker.ring.slots}",
        "key_bytes_max": core.engine.limits.key_bytes - len(core.layout.data.prefix),
        "retain_ms": core.retain_ms,
        "retain_error": str(core.retain_error) if core.retain_error else None,
        "engine": core.engine.info(),
    }
