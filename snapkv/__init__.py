"""Time travel over key-value metadata: read, list, diff, watch and restore any moment.

A *store* (`SnapshotKV`, from `open`) holds text keys and byte values. Each change is a *commit*:
it carries a *timestamp* in the same transaction, under a guard that keeps timestamps and the
engine's *revisions* in one order. So every time names exactly one revision, and `at(time)` gives
a *snapshot*: a read-only mapping of everything as it was then.

    with snapkv.open("lmdb:./meta") as store:
        store.save("schema/users", b"v1")
        before = store.resolved()
        store.commit(puts={"schema/users": b"v2"}, note="add column")
        store.load("schema/users", before)          # b"v1"
        list(store.diff(before, None))              # what changed since
        list(store.history("schema/users"))         # its versions: writer, time, note
        store.restore(before)                       # one commit undoes it

Caveats. Times come from the committing process's clock: they order commits always, but mean
wall-clock time only as far as clocks agree. A moment newer than the newest commit is not final.
History lasts until `compact()` or `retain=` removes it.

Reading the source: `docs/architecture.md` has the floors and six walks. `engine.contract` is the
contract below, `committer` writes, `timeline` finds the revision of a time, `reading` reads it, and
`store` joins them.
"""

import logging

from snapkv import fleet
from snapkv.base.version import __version__
from snapkv.clock import Clock, ManualClock, SystemClock, commit_after
from snapkv.coordination.election import Election, Leader
from snapkv.coordination.leased_keys import LeasedKey, Live, LiveChange, LiveItems, LiveWatch
from snapkv.coordination.session import Session, SessionInfo
from snapkv.copying import record
from snapkv.copying.import_prefix import ImportResult, import_prefix
from snapkv.copying.record_options import RecordStatus
from snapkv.errors import (
    ClockSkewError,
    ClockWarning,
    CommitTimeoutError,
    CommitTooLargeError,
    CommitUnknownError,
    CompactedError,
    ConflictError,
    DecodeError,
    KeyNotFoundError,
    MembersBehindError,
    NotObservedError,
    ReadTimeoutError,
    RevertConflictError,
    SessionLostError,
    SnapKVError,
)
from snapkv.hooks import Hooks
from snapkv.model import (
    Absent,
    AtRevision,
    Change,
    Changes,
    Commit,
    Compaction,
    Difference,
    Entry,
    HeadAt,
    Held,
    Ops,
    Reverted,
    SpaceOps,
    Stamp,
    Updated,
    Version,
)
from snapkv.reading.observed_prefix import Observed
from snapkv.reading.snapshot import Snapshot
from snapkv.reading.watches import Watch
from snapkv.store.diagnostics import Health, Stats
from snapkv.store.open import from_etcd3, observe, open, open_archive, open_on
from snapkv.store.store import SnapshotKV
from snapkv.store.writes import Space
from snapkv.times import When, format_time, pack, to_datetime

__all__ = [
    "Absent",
    "AtRevision",
    "Change",
    "Changes",
    "Clock",
    "ClockSkewError",
    "ClockWarning",
    "Commit",
    "CommitTimeoutError",
    "CommitTooLargeError",
    "CommitUnknownError",
    "CompactedError",
    "Compaction",
    "ConflictError",
    "DecodeError",
    "Difference",
    "Election",
    "Entry",
    "HeadAt",
    "Health",
    "Held",
    "Hooks",
    "ImportResult",
    "KeyNotFoundError",
    "Leader",
    "LeasedKey",
    "Live",
    "LiveChange",
    "LiveItems",
    "LiveWatch",
    "ManualClock",
    "MembersBehindError",
    "NotObservedError",
    "Observed",
    "Ops",
    "ReadTimeoutError",
    "RecordStatus",
    "RevertConflictError",
    "Reverted",
    "Session",
    "SessionInfo",
    "SessionLostError",
    "SnapKVError",
    "Snapshot",
    "SnapshotKV",
    "Space",
    "SpaceOps",
    "Stamp",
    "Stats",
    "SystemClock",
    "Updated",
    "Version",
    "Watch",
    "When",
    "__version__",
    "commit_after",
    "fleet",
    "format_time",
    "from_etcd3",
    "import_prefix",
    "observe",
    "open",
    "open_archive",
    "open_on",
    "pack",
    "record",
    "to_datetime",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet unless the service logs


def __dir__() -> list[str]:
    return [*__all__]
