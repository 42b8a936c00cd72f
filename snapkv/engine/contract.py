r"""The contract of an engine: the part of etcd's semantics that snapkv uses.

Nouns: a *revision* counts writing transactions; a *KeyValue* is one version of a key; a `Txn`
is `If compare Then success Else failure`, nested where one list is not enough; a `Watcher`
replays old events and waits for new ones. Engines do not use timestamps.

The rules of all engines (the conformance suite tests each rule on each engine):

* A new engine is at revision 1. A transaction that changes a key raises the revision by one, and
  all its changes have that revision; a transaction that changes nothing (it deletes absent keys,
  or only reads) does not.
* Compares read the state before the transaction, in nested transactions too. On a missing key a
  VALUE compare is false, whatever the operator; the other targets compare with 0.
* A list of operations must not put a key twice, or put a key that it also deletes (`ValueError`,
  raised before anything is written).
* The ranges of a transaction read the newest state (`ValueError` for a range with a revision):
  otherwise the members of an etcd before 3.7 may diverge.
* Reading at revision r (0 = newest) needs compacted <= r <= current: otherwise
  `CompactedError` (unit "revision") or `FutureRevisionError`.
* `version` counts the puts since the key was created; a delete ends it.
* A range is [key, range_end); an empty `range_end` means the one key, b"\\0" means "to the end".
* A read is a consistent snapshot; its answers are in ascending key order.
* A lease that is revoked, or not kept alive for its time, ends: its keys are removed in one
  revision of its own. After that no read, compare or keep-alive finds the lease, and watchers get
  the removals even if no process writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from snapkv.errors import SnapKVError, raise_cause

# --- sizes of keys, values and requests ---

READ_BYTES = 256
"""The most bytes that a read takes of a request, beside its key."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits of an engine; None means no limit but memory."""

    key_bytes: int
    value_bytes: int
    request_bytes: int
    ops_per_list: int | None = None

    def reads_together(self, keys: Sequence[bytes], *, beside: int = 2) -> bool:
        """Return whether one request can read these keys and a few short ones."""
        ops = len(keys) + beside
        size = sum(map(len, keys)) + ops * READ_BYTES
        return size <= self.request_bytes and (
            self.ops_per_list is None or ops <= self.ops_per_list
        )


# --- versions of keys, and their events ---


class KeyValue(NamedTuple):
    """One version of a key."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


class KeyEvent(NamedTuple):
    """A change of a key; a removal has an empty value, `version` 0 and `create_revision` 0."""

    kv: KeyValue
    is_delete: bool

    @property
    def existed(self) -> bool:
        """Whether the key existed before."""
        return self.is_delete or self.kv.version > 1


class WatchBatch(NamedTuple):
    """All events of one revision, in key order; without events: none up to `revision`."""

    revision: int
    events: tuple[KeyEvent, ...]


class Watcher(Protocol):
    """A stream of events, from one thread at a time.

    `reopened` counts reconnects before what `next` has returned last: a batch that was received
    before a reconnect is returned with the count of its own stream. After a reconnect the server
    may have been restored from a backup. The engine cannot detect that; callers that hold a mark
    must check it. 0 in embedded engines.
    """

    @property
    def reopened(self) -> int:
        """The number of times that the watcher reconnected before what `next` returned last."""

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch; None when none comes in `timeout` seconds (None: no bound).

        Revisions rise strictly among batches with events. A batch without events reports progress,
        once for each new revision. Embedded engines report it with `timeout=0` too; etcd has to ask
        the server, and does so while a caller waits. Raises `CompactedError` (unit "revision") when
        the next event was compacted; `StoreClosedError` after `close()` of the watcher or of the
        engine, from any thread.
        """

    def close(self) -> None:
        """End the stream, also for a thread that waits in `next`."""


class Replay(NamedTuple):
    """What a range did in the revisions `first` to `last`; `before`: with the values before.

    `range_end` is as in a `Range`. With `keys_only` values may be left out.
    """

    key: bytes
    range_end: bytes
    first: int
    last: int
    keys_only: bool = False
    before: bool = False


# --- answers in bulk: columns of bytes and numbers instead of one object per key ---


class Columns(NamedTuple):
    """Versions of keys in bulk, as columns of Arrow: two of bytes, three of int64."""

    keys: Any
    values: Any
    created: Any
    modified: Any
    version: Any


class ChangeColumns(NamedTuple):
    """What some revisions did, each of them whole, as columns of Arrow, by revision and key.

    The value of a removal is NULL, its version 0; with `keys_only` all values are NULL. `befores`
    has the values before, NULL for a key that did not exist, if they were asked for.
    """

    keys: Any
    values: Any
    revisions: Any
    versions: Any
    befores: Any = None


class Pairs(NamedTuple):
    """Keys in order, and their values; no values with `keys_only`."""

    keys: list[bytes]
    values: list[bytes]


class Versions(NamedTuple):
    """Successive versions of a key since one creation, newest first, as columns.

    `version` is the version number of the newest one. Without versions both numbers are 0.
    """

    revisions: list[int]
    values: list[bytes]
    version: int = 0
    create_revision: int = 0


ALL_KEYS_END = b"\0"
"""The `range_end` of every key from `key` on."""
REVISION_MAX = (1 << 63) - 1
"""The largest revision that a caller can name: etcd's are signed."""
Page = TypeVar("Page")


class Range(NamedTuple):
    """A read of a key or a range, at a revision (0 = newest).

    With `count_only` the answer has no keys, with a `limit` (0 = none) at most so many keys. With
    `keys_only` it has empty values, and leases may be missing: etcd 3.7 returns 0 for them.
    """

    key: bytes
    range_end: bytes = b""
    revision: int = 0
    limit: int = 0
    keys_only: bool = False
    count_only: bool = False


class Put(NamedTuple):
    """A write of a key; `prev_kv` asks for the version before it.

    With a `lease` the key is removed when the lease ends; without, the key has no lease any more.
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
    """The property of a key that a compare reads."""

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
    """Answer of a `Range`: `count` counts the whole range, whatever the limit."""

    kvs: list[KeyValue]
    count: int  # type: ignore[assignment]  # etcd's name; hides tuple.count
    more: bool = False


class PutResult(NamedTuple):
    """Answer of a `Put`: the version before it, if `prev_kv` asked for it and the key existed."""

    prev: KeyValue | None = None


class DeleteResult(NamedTuple):
    """Answer of a `Delete`: how many keys it removed."""

    deleted: int


class Header(NamedTuple):
    """A part of every answer: the engine's newest revision, and an id of the engine."""

    revision: int
    cluster: int


class TxnResult(NamedTuple):
    """Answer of a `Txn`: which branch ran, and the answers of its operations, in order.

    A nested transaction has the `header` of the outer one.
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
    """Return the answer to a read of one key as the answer to a point read."""
    kvs = answer.results[0].kvs
    return GetResult(answer.header, kvs[0] if kvs else None)


class RangePiece(NamedTuple):
    """A part of a range, [key, range_end), and about how many keys a scan of it reads."""

    key: bytes
    range_end: bytes
    rows: int


class Lease(NamedTuple):
    """A lease: its keys are removed `ttl_s` seconds after the last `keep_alive`."""

    id: int
    ttl_s: float


class Engine(Protocol):
    """What an engine does; the rules are above."""

    url: str
    limits: EngineLimits
    remote: bool
    """Whether a server answers, which may be replaced at any time."""

    # --- reading ---

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision (0 = newest): the short path of most reads.

        It returns and raises the same as `read` of that one key, in fewer steps.
        """

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one consistent state, in one round trip.

        Ranges at revisions may take several round trips, if they do not fit into one request. With
        `serializable`, any member may answer at an old revision. The engine retries; it raises
        `EngineUnavailableError` after `timeout` seconds.
        """

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return the version of a key at a revision (not 0) and earlier ones, newest first.

        They are successive, and none is older than the key's creation. Returns at most `limit`, and
        fewer if a remote engine needed another request; none if the key is absent.
        """

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield a range in pages, ascending, all at one revision (not 0), at a bounded memory."""

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield the pages of `scan` as keys and values only: the short path of listings."""

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield the pages of `scan` as columns, without leases; needs pyarrow."""

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[RangePiece]:
        """Cut a range into pieces of about `rows` keys each, for readers that work side by side.

        The pieces are in order and without gaps: the first begins at `key`, each next one where the
        one before ends, the last ends at `range_end`. A range without keys gives no pieces or empty
        ones. At a revision (not 0); cheaper than a scan, but not free. Raises `ValueError` unless
        `rows` is at least 1.
        """

    # --- writing, for the committer alone ---

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        """Send one transaction, once, and return its answer.

        The engine calls `prepare` once: embedded engines inside their write lock, with the newest
        version of the key `peek`; remote engines with None. An error of `prepare` passes through,
        and nothing is written.

        Raises `Refused` when nothing was or ever will be applied. Any other error after `prepare`
        returned, such as `OutcomeUnknown`, leaves the outcome open.
        """

    def transact_each(self, txns: Sequence[Txn], *, timeout: float) -> list[TxnResult]:
        """Send transactions in order, each a revision of its own, until a compare of one fails.

        Embedded engines make them durable together. An error may leave some of the first ones
        applied, and `OutcomeUnknown` the outcome of the next one open.
        """

    def check_limits(self, txn: Txn) -> int:
        """Return a transaction's size in bytes, as it counts against `EngineLimits.request_bytes`.

        Raises `CommitTooLargeError` when it is over the engine's limits.
        """

    # --- watching ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> Watcher:
        """Return a watcher of [key, range_end) from `start_revision` on, inclusive.

        `CompactedError` comes from its `next` when the start is below the compacted revision.
        """

    def changes(self, wanted: Replay) -> Iterator[ChangeColumns]:
        """Yield what some revisions did, as columns, at a bounded memory; needs pyarrow.

        Raises `CompactedError` (unit "revision") if changes, or values before, were compacted.
        """

    # --- compaction ---

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Make everything before the state at `revision` unreadable, and free its space.

        Space is freed in bounded batches; `batches` bounds their number in this call (None: all),
        and a later call continues. Compacting to the compacted revision again only continues to
        free. `timeout` bounds each wait for other writers in seconds (None: the engine's own
        bound). Raises `EngineBusyError` when that wait is over, `CompactedError` when the engine
        is already compacted beyond `revision`, `FutureRevisionError` when `revision` is newer than
        the newest.
        """

    def compacted_revision(self) -> int:
        """Return the oldest readable revision; 0 when nothing was ever compacted."""

    # --- leases: their keys are removed unless the lease is kept alive ---

    def grant(self, ttl_s: float, *, timeout: float | None = None) -> Lease:
        """Return a new lease of at least `ttl_s` seconds; the engine may make it longer.

        Raises `EngineUnavailableError` after `timeout` seconds. If the server granted the lease
        but its answer was lost, the lease ends by itself.
        """

    def keep_alive(self, lease: int, *, timeout: float | None = None) -> float:
        """Restart a lease's time; return its seconds, counted from before this call at least.

        Raises `LeaseNotFoundError` when it has ended.
        """

    def revoke(self, lease: int, *, timeout: float | None = None) -> None:
        """End a lease and remove its keys, in one revision; do nothing if it has ended."""

    # --- the rest ---

    def close(self) -> None:
        """Free the engine's resources; a second call does nothing, any other call then raises."""

    def server_time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        """Return (milliseconds since 1970, uncertainty) of the server's clock; None without one.

        The clock of an embedded engine is the machine's. With `fresh` the engine reads the server's
        clock again, which may take a second; otherwise the call does not wait.
        """

    def info(self) -> dict[str, int | str]:
        """Return facts about the engine for people: sizes, durability, versions. No secrets."""

    def check(self) -> list[str]:
        """Return the problems found in the stored bytes, as texts."""


class PageForm(NamedTuple, Generic[Page]):
    """A form of the pages of a range: the call of an engine for them, and the last key of one.

    `listed(engine, key, range_end, revision=..., keys_only=...)` is `scan`, `pairs` or `columns`.
    """

    listed: Callable[..., Iterator[Page]]
    last_key: Callable[[Page], bytes]


SCAN: PageForm[list[KeyValue]] = PageForm(
    lambda engine, *range_, **at: engine.scan(*range_, **at), lambda page: page[-1].key
)
PAIRS: PageForm[Pairs] = PageForm(
    lambda engine, *range_, **at: engine.pairs(*range_, **at), lambda page: page.keys[-1]
)
COLUMNS: PageForm[Columns] = PageForm(
    lambda engine, *range_, **at: engine.columns(*range_, **at), lambda page: page.keys[-1].as_py()
)


def in_range(key: bytes, start: bytes, range_end: bytes) -> bool:
    """Return whether `key` lies in [start, range_end), by the rules of `range_end`."""
    if not range_end:
        return key == start
    return key >= start and (range_end == ALL_KEYS_END or key < range_end)


# --- errors of `transact` that the committer handles; its callers never get them ---


class Refused(SnapKVError, ConnectionRefusedError):
    """The request was not and never will be applied, because of `error`.

    Callers get `error` alone. A refusal that was raised from it must not become a cause of it: a
    program that follows causes would never come to an end.
    """

    def __init__(self, error: SnapKVError) -> None:
        super().__init__(str(error))
        self.error = error

    def reason(self) -> SnapKVError:
        """Return `error`; if it has no cause of its own, its cause is that of the refusal."""
        error, cause = self.error, self.__cause__
        if error.__cause__ is None and cause is not error:
            error.__cause__ = cause
        return error

    def reraise(self) -> NoReturn:
        """Raise `error`."""
        raise_cause(self.reason())


class OutcomeUnknown(SnapKVError, ConnectionError):
    """The request was sent, and no answer says whether it was applied.

    `retry` says whether a new attempt, under a new timestamp, may succeed once this one is proven
    dead; otherwise the caller gets `cause`. `answered` says that the engine has finished with the
    request: applied or not, it cannot land later, so a read finds out.
    """

    def __init__(
        self, message: str, *, retry: bool, cause: SnapKVError | None = None, answered: bool = False
    ) -> None:
        super().__init__(message)
        self.retry, self.cause, self.answered = retry, cause, answered

    def reraise(self) -> NoReturn:
        """Raise `cause`; without one, raise this."""
        if self.cause is None:
            raise self
        raise self.cause from self
