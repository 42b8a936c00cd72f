r"""The contract of an engine: etcd's semantics, cut to what snapkv uses.

Nouns: a *revision* counts writing transactions; a *KeyValue* is one version of a key; a `Txn`
is `If compare Then success Else failure`, nested where one list is not enough; a `Watcher`
replays and follows events. Engines know nothing of timestamps.

Rules every engine keeps (the conformance suite holds each of them against all engines):

* A new engine is at revision 1. A transaction that changes something raises the revision by
  one, and all its changes carry that revision; one that changes nothing (deleting absent keys,
  reading) does not.
* Compares see the state before the transaction, in nested transactions too. A VALUE compare
  on a missing key is false, whatever the operator; the others compare with 0.
* A list of operations may not put a key twice, or put a key that it also deletes
  (`ValueError`; a caller's bug, checked before anything is written).
* The ranges of a transaction read the newest state (`ValueError` for one with a revision): etcd
  before 3.7 lets its members diverge otherwise.
* Reading at revision r (0 = newest) needs compacted <= r <= current: otherwise
  `CompactedError` (unit "revision") or `FutureRevisionError`.
* `version` counts the puts since the key was created; a delete ends it.
* A range is [key, range_end); an empty `range_end` means the one key, b"\\0" means "to the end".
* A read is a consistent snapshot; its answers are in ascending key order.
* A lease that is revoked, or not kept alive for its time, ends: its keys are removed in one
  revision of its own. After that no read, compare or keep-alive finds it alive, and watchers
  are told without anybody writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from snapkv.engine.columns import Columns as Columns
from snapkv.engine.columns import Pairs as Pairs
from snapkv.engine.columns import Versions as Versions
from snapkv.engine.limits import Limits as Limits

ALL_KEYS_END = b"\0"
"""As `range_end`: every key from `key` on."""
REVISION_MAX = (1 << 63) - 1
"""The largest revision that a caller can name: etcd's are signed."""


class KeyValue(NamedTuple):
    """One version of a key."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


class Range(NamedTuple):
    """A read of a key or a range, at a revision (0 = newest).

    `count_only` returns no keys; `keys_only` empty values; `limit` (0 = none) cuts the answer.
    """

    key: bytes
    range_end: bytes = b""
    revision: int = 0
    limit: int = 0
    keys_only: bool = False
    count_only: bool = False


class Put(NamedTuple):
    """A write of a key; `prev_kv` asks for what was there.

    With a `lease` the key vanishes when that ends; without one it is detached from any.
    """

    key: bytes
    value: bytes
    prev_kv: bool = False
    lease: int = 0


class Delete(NamedTuple):
    """A removal of a key or a range."""

    key: bytes
    range_end: bytes = b""


class Target(Enum):
    """What of a key a compare looks at."""

    VALUE = "value"
    CREATE = "create"
    MOD = "mod"
    VERSION = "version"


class Compare(NamedTuple):
    """`target of key` `op` `operand`; op is one of = != < >; bytes compare as bytes."""

    key: bytes
    target: Target
    op: str
    operand: bytes | int


class Txn(NamedTuple):
    """If all of `compare` hold Then `success` Else `failure`; lists run as one transaction."""

    compare: tuple[Compare, ...] = ()
    success: tuple[Op, ...] = ()
    failure: tuple[Op, ...] = ()


Op = Range | Put | Delete | Txn


class RangeResult(NamedTuple):
    """Answer of a `Range`: `count` is the whole range's, whatever the limit."""

    kvs: list[KeyValue]
    count: int  # type: ignore[assignment]  # etcd's word; nobody counts in this tuple
    more: bool = False


class PutResult(NamedTuple):
    """Answer of a `Put`: the pair before it, when asked for and there was one."""

    prev: KeyValue | None = None


class DeleteResult(NamedTuple):
    """Answer of a `Delete`: how many keys it removed."""

    deleted: int


class Header(NamedTuple):
    """What comes with every answer: the engine's newest revision, and which engine it is."""

    revision: int
    cluster: int


class TxnResult(NamedTuple):
    """Answer of a `Txn`: which branch ran, and its operations' answers, in order.

    `header` of a nested transaction is that of the whole.
    """

    header: Header
    succeeded: bool
    results: tuple[Result, ...]


Result = RangeResult | PutResult | DeleteResult | TxnResult


class ReadResult(NamedTuple):
    """Answers of a read-only transaction, in the order of the ranges."""

    header: Header
    results: list[RangeResult]


class GetResult(NamedTuple):
    """Answer of a point read: the version of the key, None where it is absent."""

    header: Header
    kv: KeyValue | None


def one_of(answer: ReadResult) -> GetResult:
    """Return the answer to a read of one key as that of a point read."""
    kvs = answer.results[0].kvs
    return GetResult(answer.header, kvs[0] if kvs else None)


class Event(NamedTuple):
    """A change of a key; a removal has an empty value, `version` 0 and `create_revision` 0."""

    kv: KeyValue
    is_delete: bool


class WatchBatch(NamedTuple):
    """All events of one revision, in key order; without events: none up to `revision`."""

    revision: int
    events: tuple[Event, ...]


class Watcher(Protocol):
    """A stream of events, from one thread at a time.

    `reopened` counts how often it lost its server and found one again: what is there may be another
    history, restored from a backup, which only who knows marks can tell. 0 in embedded engines.
    """

    @property
    def reopened(self) -> int:
        """How often the server was lost and found again."""
        ...

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch; None when `timeout` seconds (None: no bound) brought nothing.

        Revisions rise strictly among batches with events. A batch without events tells progress,
        at most once per progress made; embedded engines give it with `timeout=0` too, others have
        to ask their server, which they do while somebody waits. Raises `CompactedError` (unit
        "revision") when what comes next was compacted; `StoreClosedError` after `close()`, also
        of the engine, from any thread.
        """
        ...

    def close(self) -> None:
        """End the stream, also for a thread that waits in `next`."""
        ...


class Piece(NamedTuple):
    """A part of a range, [key, range_end); about how many keys a scan of it meets."""

    key: bytes
    range_end: bytes
    rows: int


class Reads(Protocol):
    """Reading."""

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision (0 = newest): the short path of most reads.

        It returns and raises what `read` of that one key does, by fewer steps.
        """
        ...

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one consistent state, in one round trip.

        Ranges at revisions may take several, where one request takes no more. With `serializable`
        an answer at an old revision may come from any copy. Retried inside; raises
        `EngineUnavailableError` once `timeout` seconds are over.
        """
        ...

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return versions of a key in force at a revision (not 0) and before, newest first.

        They follow each other without a gap, back to the key's creation at most: `limit` of them,
        or fewer where a remote engine would have to ask again; none where the key is absent.
        """
        ...

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield a range in pages, ascending, all at one revision (not 0), at a bounded memory."""
        ...

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield what `scan` does as keys and values alone: the short path of listings."""
        ...

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield what `scan` does as columns, which readers of very many keys want; needs pyarrow.

        The keys' leases are not among them.
        """
        ...

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[Piece]:
        """Cut a range into pieces of about `rows` keys each, for readers that work side by side.

        They come in order and without gaps: the first begins at `key`, each next one where the one
        before ends, the last ends at `range_end`. A range without keys gives no pieces, or such
        that hold nothing. At a revision (not 0); costs less than a scan, not nothing. Raises
        `ValueError` unless `rows` is at least 1.
        """
        ...


class Writes(Protocol):
    """Writing, for the committer alone."""

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        """Send one transaction, once, and return its answer.

        `prepare` is called once, with the newest version of the key `peek` when the engine can
        hold the state still until the answer (embedded engines, which call it inside their write
        lock), otherwise with None. What it raises passes through and nothing is written.

        Raises `Refused` when nothing of it was or ever will be applied; whatever else comes up
        after `prepare` returned, `OutcomeUnknown` first of all, leaves the outcome open.
        """
        ...

    def check_limits(self, txn: Txn) -> int:
        """Return a transaction's size in bytes, as it counts against `Limits.request_bytes`.

        Raises `CommitTooLargeError` when the engine would not take it.
        """
        ...


class Watches(Protocol):
    """Following."""

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> Watcher:
        """Return a watcher of [key, range_end) from `start_revision` on, inclusive.

        `CompactedError` comes from its `next` when the start is below the compacted revision.
        """
        ...


class Compacts(Protocol):
    """Forgetting."""

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Make everything before the state at `revision` unreadable, and free its space.

        Space is freed in bounded batches; `batches` bounds their number in this call (None: all),
        a later call goes on. `timeout` bounds each wait for other writers in seconds (None: the
        engine's own bound); `EngineBusyError` then. `CompactedError` when it is compacted already
        beyond `revision`; compacting to the compacted revision again only goes on with freeing;
        `FutureRevisionError` when `revision` is newer than the newest.
        """
        ...

    def compacted_revision(self) -> int:
        """Return the oldest readable revision; 0 when nothing was ever compacted."""
        ...


class Lease(NamedTuple):
    """A right that ends by itself: keys put under it vanish `ttl_s` seconds after the last sign."""

    id: int
    ttl_s: float


class Leases(Protocol):
    """Keys that vanish when nobody keeps them alive."""

    def grant(self, ttl_s: float, *, timeout: float | None = None) -> Lease:
        """Return a new lease of at least `ttl_s` seconds; the engine may make it longer.

        Raises `EngineUnavailableError` once `timeout` seconds are over; a lease that was made
        without an answer ends by itself.
        """
        ...

    def keep_alive(self, lease: int, *, timeout: float | None = None) -> float:
        """Start a lease's time anew; return its seconds, counted from before this call at least.

        Raises `LeaseNotFoundError` when it has ended.
        """
        ...

    def revoke(self, lease: int, *, timeout: float | None = None) -> None:
        """End a lease and remove its keys, in one revision; one that has ended is fine."""
        ...


class Engine(Reads, Writes, Watches, Compacts, Leases, Protocol):
    """All of it, and the life of the engine."""

    url: str
    limits: Limits
    remote: bool
    """Whether the other side may be exchanged while nobody looks."""

    def close(self) -> None:
        """Free what the engine holds; calling it twice is fine, using it then is an error."""
        ...

    def server_time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        """Return (milliseconds since 1970, uncertainty) of the server's clock; None: there is none.

        Of an engine that processes of one machine share, it is the machine's clock.

        With `fresh` the clock is looked at again, which may take a second; otherwise no waiting.
        """
        ...

    def info(self) -> dict[str, int | str]:
        """Return facts about the engine for people: sizes, durability, versions. No secrets."""
        ...

    def check(self) -> list[str]:
        """Return every broken rule of what is stored, as texts; an empty list when all is well."""
        ...


def in_range(key: bytes, start: bytes, range_end: bytes) -> bool:
    """Return whether `key` lies in [start, range_end), by the rules of `range_end`."""
    if not range_end:
        return key == start
    return key >= start and (range_end == ALL_KEYS_END or key < range_end)
