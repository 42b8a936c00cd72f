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
        list(store.history("schema/users"))         # who changed it, when, and why
        store.restore(before)                       # one commit undoes it

Caveats. Times come from the committing process's clock: they order commits always, but mean
wall-clock time only as far as clocks agree. A moment newer than the newest commit is not final.
History lasts until `compact()` or `retain=` removes it.

Reading the source: `engine.base` is the contract below, `committer` writes, `timeline` finds the
revision of a time, `snapshot` reads it, `store` joins them.
"""

from snapkv._version import __version__ as __version__
from snapkv.clock import Clock as Clock
from snapkv.clock import ManualClock as ManualClock
from snapkv.clock import SystemClock as SystemClock
from snapkv.coordination.election import Election as Election
from snapkv.coordination.leader import Leader as Leader
from snapkv.coordination.session import Session as Session
from snapkv.coordination.session import SessionInfo as SessionInfo
from snapkv.errors import ClockSkewError as ClockSkewError
from snapkv.errors import ClockWarning as ClockWarning
from snapkv.errors import CommitTimeoutError as CommitTimeoutError
from snapkv.errors import CommitTooLargeError as CommitTooLargeError
from snapkv.errors import CommitUnknownError as CommitUnknownError
from snapkv.errors import CompactedError as CompactedError
from snapkv.errors import ConflictError as ConflictError
from snapkv.errors import KeyNotFoundError as KeyNotFoundError
from snapkv.errors import NotObservedError as NotObservedError
from snapkv.errors import ReadTimeoutError as ReadTimeoutError
from snapkv.errors import SessionLostError as SessionLostError
from snapkv.errors import SnapKVError as SnapKVError
from snapkv.importing.import_prefix import ImportResult as ImportResult
from snapkv.importing.import_prefix import import_prefix as import_prefix
from snapkv.model import Absent as Absent
from snapkv.model import AtRevision as AtRevision
from snapkv.model import Change as Change
from snapkv.model import Changes as Changes
from snapkv.model import Commit as Commit
from snapkv.model import Compaction as Compaction
from snapkv.model import Difference as Difference
from snapkv.model import Entry as Entry
from snapkv.model import HeadAt as HeadAt
from snapkv.model import Held as Held
from snapkv.model import Ops as Ops
from snapkv.model import SpaceOps as SpaceOps
from snapkv.model import Stamp as Stamp
from snapkv.model import Version as Version
from snapkv.observing.observe import Observed as Observed
from snapkv.observing.observe import observe as observe
from snapkv.reading.snapshot import Snapshot as Snapshot
from snapkv.reading.sources import Past as Past
from snapkv.reading.watch import Watch as Watch
from snapkv.store.open import from_etcd3 as from_etcd3
from snapkv.store.open import open as open
from snapkv.store.open import open_on as open_on
from snapkv.store.space import Space as Space
from snapkv.store.store import SnapshotKV as SnapshotKV
from snapkv.times import When as When
from snapkv.times import format_time as format_time
from snapkv.times import pack as pack
from snapkv.times import to_datetime as to_datetime
