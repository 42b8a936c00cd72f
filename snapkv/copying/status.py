"""The status of a recorder, for people and monitors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from snapkv.engine.contract import KeyValue
from snapkv.errors import SnapKVError
from snapkv.layout import stamp_of
from snapkv.times import physical_ms


@dataclass(slots=True)
class RecordStatus:
    """What a recorder has done.

    `state` is "starting", "standby" (another recorder leads), "recording" or "waiting" (after
    `error`). `recorded` is the timestamp of the newest durable commit, `seen` of the newest one
    that was read; both with the source's revision. `bytes` are not durable yet. `gaps` are notes on
    what compaction took before it was recorded.
    """

    state: str = "starting"
    commits: int = 0
    changes: int = 0
    recorded: int = 0
    recorded_revision: int = 0
    seen: int = 0
    seen_revision: int = 0
    bytes: int = 0
    gaps: list[str] = field(default_factory=list)
    error: SnapKVError | None = None

    def lag_s(self, now_ms: int) -> float:
        """Return how old the newest commit is that is not durable yet; 0.0 if all are."""
        if self.seen <= self.recorded:
            return 0.0
        return max(0.0, (now_ms - physical_ms(self.seen)) / 1_000)

    def note_seen(self, mark: KeyValue) -> None:
        """Note the newest mark that was read."""
        self.seen, self.seen_revision = stamp_of(mark.value), mark.mod_revision

    def note_recorded(self, mark: KeyValue) -> None:
        """Note the newest mark that is durable."""
        self.recorded, self.recorded_revision = stamp_of(mark.value), mark.mod_revision
        self.bytes = 0


Report = Callable[[RecordStatus], None]
