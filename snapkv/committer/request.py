"""A request: one timestamp and one nonce, the transaction that is sent, and how to recognize it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from snapkv.committer.operations import Check, Operations
from snapkv.engine.contract import (
    Compare,
    KeyValue,
    Op,
    OutcomeUnknown,
    Put,
    PutResult,
    Range,
    RangeResult,
    Result,
    Target,
    Txn,
    TxnResult,
)
from snapkv.errors import (
    AccessDeniedError,
    CommitTooLargeError,
    CommitUnknownError,
    ConflictError,
    InvalidKeyError,
    LeaseNotFoundError,
    SnapKVError,
    StoreRecreatedError,
)
from snapkv.layout import Mark, StampRecord, be64, stamp_of
from snapkv.times import dated

C = TypeVar("C")
_new = tuple.__new__  # of a named tuple, without the call of its own constructor


class Verdict(Enum):
    """The outcome of a request."""

    LANDED = "landed"
    DEAD = "dead"
    UNDECIDABLE = "undecidable"


@dataclass(slots=True)
class SentRequest:
    """A request once it is on its way: enough for any process to find out its outcome.

    `known_ordinal` is the newest ordinal that its sender knew to be stored when it was sent; 0 if
    that is not remembered. `before` is the newest mark that this process knew then.
    """

    stamp: StampRecord
    created: int
    before: Mark
    known_ordinal: int = 0

    def commit_txn(self, ts_key: bytes, members: Sequence[Txn]) -> Txn:
        """Return the transaction: If guard Then timestamp and members Else read the timestamp.

        With one member the timestamp is written in the member's own branch. If its guards fail,
        nothing is written, and the log holds no commit that never happened. Without guards it
        needs no branch: one flat list is less to send and to run.
        """
        put = Put(ts_key, self.stamp.encode(), prev_kv=True)
        if len(members) == 1:
            compares, success, failure = members[0]
            writes: tuple[Op, ...] = (put, *success)
            if compares:
                writes = (Txn(compares, writes, failure),)
            return Txn(self._guard(ts_key), writes, (Range(ts_key),))
        return Txn(self._guard(ts_key), (put, *members), (Range(ts_key),))

    def fence_txn(self, ts_key: bytes, writer: str) -> Txn:
        """Return the transaction that takes this timestamp away from the request.

        The fence has the commit's nonce in a field of its own. In the field of a commit's nonce,
        a fence that landed would later be mistaken for the commit.
        """
        fence = StampRecord(self.stamp.timestamp, b"", writer, fence_of=self.stamp.nonce)
        put = Put(ts_key, fence.encode(), prev_kv=True)
        return Txn(self._guard(ts_key), (put,), (Range(ts_key),))

    def _guard(self, ts_key: bytes) -> tuple[Compare, ...]:
        return (
            Compare(ts_key, Target.VALUE, "<", be64(self.stamp.timestamp)),
            Compare(ts_key, Target.CREATE, "=", self.created),
        )

    def is_mine(self, stored: StampRecord) -> bool:
        """Return whether a stored stamp belongs to this commit."""
        return (
            stored.timestamp == self.stamp.timestamp
            and stored.fence_of is None
            and stored.nonce == self.stamp.nonce
        )

    def refused_by(self, answer: TxnResult) -> KeyValue:
        """Return the timestamp key that made the guard fail.

        Raises `StoreRecreatedError` if the guard failed for another reason than the timestamp.
        """
        (found,) = answer.results
        stored = self.found_in(found)
        if stored is None:
            raise StoreRecreatedError("the timestamp key went back in time")
        return stored

    def found_in(self, read: Result) -> KeyValue | None:
        """Return the timestamp key that a read found, None while its timestamp is smaller.

        Once it is not smaller the guard is false for ever: the request has landed or is dead.
        Raises `StoreRecreatedError` if another key is in its place.
        """
        assert isinstance(read, RangeResult)
        if not read.kvs or read.kvs[0].create_revision != self.created:
            raise StoreRecreatedError("the timestamp key was deleted or recreated")
        stored = read.kvs[0]
        return stored if stamp_of(stored.value) >= self.stamp.timestamp else None


@dataclass(slots=True, eq=False)
class Request(Generic[C]):
    """The group of calls in one transaction; a call's batch is its index in `calls`.

    `unknown` is what the engine raised instead of an answer.
    """

    sent: SentRequest
    calls: list[C]
    operations: list[Operations]
    unknown: BaseException | None = None

    def checks(self, batch: int) -> tuple[Check, ...]:
        """Return the guards that decide, once the request has landed, whether a member was applied.

        There are none if the member is alone: its timestamp is in the branch of its guards.
        """
        return self.operations[batch].checks if len(self.operations) > 1 else ()

    @property
    def answered(self) -> bool:
        """Whether the engine is done with the request, though its outcome is unknown."""
        return isinstance(self.unknown, OutcomeUnknown) and self.unknown.answered


def marks_of(put: Result, timestamp: int, revision: int) -> tuple[Mark, Mark]:
    """Return the mark that a put of the timestamp key replaced, and the mark of the put."""
    assert isinstance(put, PutResult)
    assert put.prev is not None, "the guard holds only for a key that exists"
    _, value, _, replaced, ordinal, _ = put.prev
    prev = _new(Mark, (stamp_of(value), replaced, ordinal))
    return prev, _new(Mark, (timestamp, revision, ordinal + 1))


# --- outcomes ---

ABOUT_ONE = (AccessDeniedError, CommitTooLargeError, InvalidKeyError, LeaseNotFoundError)
"""The errors with which an engine rejects a whole group although only one member is at fault."""
FailedGuards = list[tuple[Check, int]]
"""Guards that failed, each with the revision at which its key was last written."""


def name_open(error: BaseException, request: Request[Any], batch: int) -> None:
    """Name the commit whose outcome an interrupted caller does not get, in a note and as a cause.

    The cause is the `CommitUnknownError` whose facts `resolve` takes.
    """
    stamp, checks = request.sent.stamp, request.checks(batch)
    error.add_note(f"outcome unknown: commit {dated(stamp.timestamp)}, nonce {stamp.nonce.hex()}")
    error.__cause__ = unknown(request.sent, checks, batch=batch, why="the caller was interrupted")


def failed_guards(ops: Operations, result: object) -> FailedGuards:
    """Return the guards that failed, from the reads of a skipped transaction; none if applied."""
    assert isinstance(result, TxnResult)
    if result.succeeded:
        return []
    failed = []
    for check, seen in zip(ops.checks, result.results, strict=True):
        assert isinstance(seen, RangeResult)
        if (found := check.failed_at(seen)) is not None:
            failed.append((check, found))
    assert failed, "a skipped transaction has a guard that failed"
    return failed


def unknown(
    sent: SentRequest,
    checks: tuple[Check, ...],
    *,
    why: str,
    batch: int = 0,
    may_still_land: bool = True,
) -> CommitUnknownError:
    """Return the error that names a commit of unknown outcome, for `store.resolve`."""
    return CommitUnknownError(
        sent.stamp.timestamp,
        sent.stamp.nonce,
        may_still_land=may_still_land,
        batch=batch,
        guards=checks,
        why=why,
    )


def error_of(
    sent: SentRequest, batch: int, checks: tuple[Check, ...], failed: FailedGuards | None
) -> SnapKVError | None:
    """Return the error of a member whose guards failed, None if it was applied.

    `failed` is None if compaction took the answer.
    """
    if failed is None:
        why = "the history that shows it was compacted"
        return unknown(sent, checks, batch=batch, why=why, may_still_land=False)
    if failed:
        return ConflictError((check.guard, found) for check, found in failed)
    return None
