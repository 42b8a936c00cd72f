"""The versions of a deployment that a real API server stored, and the events of its audit log."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from snapkv import ManualClock, SnapshotKV
from snapkv.times import physical_ms, resolve

VECTORS = Path(__file__).parents[1] / "vectors" / "kubernetes" / "who.jsonl"
KEY = "/registry/deployments/shop/cart"
CREATED, IMAGE, SCALED, PATCHED, REMOVED = 1707, 1720, 1731, 1755, 1774
"""The revisions that kubectl made."""


class Made(NamedTuple):
    """A version and the event that made it."""

    revision: int
    time: str
    value: bytes | None
    audit: dict[str, Any]


@cache
def versions() -> dict[int, Made]:
    """Return the versions by their revisions, oldest first."""
    found = map(json.loads, VECTORS.read_text().splitlines())
    return {
        each["revision"]: Made(
            each["revision"],
            each["time"],
            each["value"] and base64.b64decode(each["value"]),
            each["audit"],
        )
        for each in found
    }


def audit_log(
    path: Path, *, level: str = "RequestResponse", revisions: dict[int, int] | None = None
) -> Path:
    """Write the audit log of the versions; at level Metadata events have no objects.

    `revisions` are other ones than those of the API server.
    """
    events = [dict(each.audit, level=level) for each in versions().values()]
    for event in events if revisions else ():
        made = event["responseObject"]
        if version := made["metadata"].get("resourceVersion"):
            metadata = {**made["metadata"], "resourceVersion": str(revisions[int(version)])}
            event["responseObject"] = {**made, "metadata": metadata}
    for event in events if level == "Metadata" else ():
        event.pop("responseObject")
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def kept(store: SnapshotKV, clock: ManualClock) -> dict[int, int]:
    """Save the versions at their times, without a writer; return their revisions there."""
    found = {}
    for each in versions().values():
        clock.advance(physical_ms(resolve(each.time, 0)) - clock.now_ms())
        puts = {} if each.value is None else {KEY: each.value}
        made = store.commit(puts=puts, deletes=[] if puts else [KEY])
        found[each.revision] = made.revision
    return found
