"""One attempt: one timestamp and nonce, one request, and the judgement of what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from snapkv.committer.operations import Check, Part
from snapkv.engine.contract import (
    Compare,
    Header,
    KeyValue,
    Op,
    Put,
    PutResult,
    Range,
    RangeResult,
    Result,
    Target,
    Txn,
    TxnResult,
)
from snapkv.errors import OutcomeUnknown, StoreRecreatedError
from snapkv.layout import Mark, StampRecord, be64, stamp_of

C = TypeVar("C")


class Verdict(Enum):
    """What became of a request."""

    LANDED = auto()
    DEAD = auto()
    UNDECIDABLE = auto()


class History(Protocol):
    """What the committer asks of the time line."""

    def newest_known(self) -> Mark:
        """Return the newest mark seen so far, without asking the engine."""
        ...

    def find(self, timestamp: int) -> tuple[Mark, StampRecord] | None:
        """Return the commit with exactly this timestamp; `CompactedError` when it is gone."""
        ...

    def oldest(self) -> Mark:
        """Return the oldest mark that compaction left."""
        ...

    def verify(self, mark: Mark) -> None:
        """Raise `StoreRestoredError` when a mark is of another history than the engine holds."""
        ...

    def own(self, prev: Mark, own: Mark, header: Header, before: Mark) -> None:
        """Take in a commit of this process, what it replaced, and what was newest when sent."""
        ...


@dataclass(slots=True)
class Sent:
    """What is known of a request once it is on its way; enough to settle it from anywhere.

    `known_ordinal` is the newest ordinal that stood when it was sent, as far as known; 0 when
    nobody remembers. `before` is the newest mark that this process knew of then.
    """

    stamp: StampRecord
    created: int
    before: Mark
    known_ordinal: int = 0

    def commit_txn(self, ts_key: bytes, parts: Sequence[Txn]) -> Txn:
        """Return the transaction: guard Then timestamp and parts Else read the timestamp.

        A part that rides alone takes the timestamp along into its own branch: when it is skipped,
        nothing is written, and the log tells of no commit that never happened. Without guards it
        needs no branch: one flat list, which is less to send and to run.
        """
        put = Put(ts_key, self.stamp.encode(), prev_kv=True)
        if len(parts) == 1:
            compares, success, failure = parts[0]
            writes: tuple[Op, ...] = (put, *success)
            if compares:
                writes = (Txn(compares, writes, failure),)
            return Txn(self._guard(ts_key), writes, (Range(ts_key),))
        return Txn(self._guard(ts_key), (put, *parts), (Range(ts_key),))

    def fence_txn(self, ts_key: bytes, writer: str) -> Txn:
        """Return the transaction that takes this timestamp away from the request.

        It must not carry the commit's own nonce where a commit has it, or a fence that landed
        would later be taken for the commit.
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
        """Return whether a stored stamp is this very commit."""
        return (
            stored.timestamp == self.stamp.timestamp
            and stored.fence_of is None
            and stored.nonce == self.stamp.nonce
        )

    def refused_by(self, answer: TxnResult) -> KeyValue:
        """Return the timestamp key that refused the guard.

        Raises `StoreRecreatedError` when it refused for another reason than its timestamp.
        """
        (found,) = answer.results
        stored = self.found_in(found)
        if stored is None:
            raise StoreRecreatedError("the timestamp key went back in time")
        return stored

    def found_in(self, looked: Result) -> KeyValue | None:
        """Return the timestamp key that a look found, None while its timestamp is smaller.

        Once it is not smaller the guard is false for ever: the request has landed or is dead.
        Raises `StoreRecreatedError` when another key is in its place.
        """
        assert isinstance(looked, RangeResult)
        if not looked.kvs or looked.kvs[0].create_revision != self.created:
            raise StoreRecreatedError("the timestamp key was deleted or made again")
        stored = looked.kvs[0]
        return stored if stamp_of(stored.value) >= self.stamp.timestamp else None


@dataclass(slots=True, eq=False)
class Attempt(Generic[C]):
    """Calls that ride in one transaction; a call's batch is its place in `calls`.

    `unknown` is what the engine raised in place of an answer.
    """

    sent: Sent
    calls: list[C]
    parts: list[Part]
    unknown: BaseException | None = None

    def checks(self, batch: int) -> tuple[Check, ...]:
        """Return the guards that tell whether a part was applied, once the request has landed.

        None of one that rode alone: its timestamp is in the branch of its guards.
        """
        return self.parts[batch].checks if len(self.parts) > 1 else ()

    @property
    def answered(self) -> bool:
        """Whether the engine is done with the request, though nobody knows what became of it."""
        return isinstance(self.unknown, OutcomeUnknown) and self.unknown.answered


def marks_of(put: Result, timestamp: int, revision: int) -> tuple[Mark, Mark]:
    """Return the mark that a landed put of the timestamp key replaced, and its own."""
    assert isinstance(put, PutResult)
    assert put.prev is not None, "the guard holds only for a key that exists"
    prev = Mark(stamp_of(put.prev.value), put.prev.mod_revision, put.prev.version)
    return prev, Mark(timestamp, revision, prev.ordinal + 1)
