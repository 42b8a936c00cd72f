"""The commits of a store that repeats another history: made in order, each once, of any size.

Steps wait for more steps, `GROUP_S` at most, and become durable together, each in a revision of its
own: to wait for the disk at each would be slow, and would slow other writers to the same disk.
For example, of steps A, B and C in a group, B compares that the key has A's value: if only A was
written when the process or the answer was lost, the key says so, and B is next.

A commit that does not fit into one transaction of the target is made in parts, in the order of its
keys. The last part has the commit's time, writer and note, so from there on the record is as the
source. A part before has one of the timestamps just below and a note, "part 1 of 3 ...", and in the
same transaction `N/sys/part` notes how far it came: a restart continues after that key. For
example, a commit with the timestamp 900, after one with 500:

    part       timestamp key                      sys/part
    a to f     898, "part 1 of 3", source of 500  up to f
    g to p     899, "part 2 of 3", source of 500  up to p
    q to z     900, source of 900                 removed

If the commit before has 899 or 898, so that a part finds no timestamp, it is written without one:
it belongs to the next part that has one, whose stamp names the revision at which such parts began.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import msgpack

from snapkv.base.waiting import monotonic, pause
from snapkv.committer.operations import nest, nested_max
from snapkv.engine.contract import (
    REVISION_MAX,
    Compare,
    Delete,
    KeyValue,
    Op,
    OutcomeUnknown,
    Put,
    Range,
    Refused,
    Target,
    Txn,
)
from snapkv.engine.request_checks import OP_OVERHEAD_BYTES, op_bytes, shown_key
from snapkv.errors import (
    CommitTooLargeError,
    CorruptStoreError,
    EngineBusyError,
    EngineUnavailableError,
    SessionLostError,
)
from snapkv.layout import SourceId, StampRecord, source_key, stamp_of
from snapkv.model import Held
from snapkv.store.store_writer import StoreWriter
from snapkv.times import format_time

SEND_S = 10.0
"""The longest time until one more commit is made, retries included, in seconds."""
RETRY_S = 0.1
PART_BYTES = 4 << 20
PART_OPS = 20_000
"""The bytes and the operations, about, of one part of a state; or less, where the engine takes
less."""
GROUP_COMMITS_MAX = 256  # etcd waits for the disk at each, so there it is 1
GROUP_S = 0.05
"""The most steps in one durable write, and the longest that a step waits for it, in seconds."""
FIXED_OPS = 3
"""The most operations that a transaction has beside the changes."""

Writes = list[Put | Delete]


class CommitPart(NamedTuple):
    """How far a commit of the source is written in parts: the value of `sys/part`.

    `source` is the commit's position, `done` the last key that is written, `number` the parts so
    far; `before` is the last whole commit's value of the timestamp key. `hidden` says that a part
    had no timestamp.
    """

    source: tuple[int, int]
    done: bytes
    number: int
    before: bytes
    hidden: bool

    @classmethod
    def decode(cls, kv: KeyValue) -> CommitPart:
        """Read `sys/part`; raises `CorruptStoreError`."""
        try:
            (revision, ordinal), *rest = msgpack.unpackb(kv.value)
            return cls((revision, ordinal), *rest)
        except (ValueError, TypeError, msgpack.UnpackException) as e:
            raise CorruptStoreError(f"{kv.key!r} does not name a part: {kv.value[:40]!r}") from e


class _Commit(NamedTuple):
    """What becomes one revision of the target; a part has a value of `sys/part`, maybe no stamp."""

    stamp: StampRecord | None
    value: bytes
    ops: Writes
    part: bytes = b""


def guard_of(core: StoreWriter, held: Held) -> Compare:
    """Return the comparison that proves a leadership."""
    return Compare(core.layout.live.encode(held.key), Target.CREATE, "=", held.revision)


class StoreCommits:
    """Makes commits in a store, under a leadership that `guard` proves.

    `head` is the newest version of the timestamp key, `part` the key of a commit that is not whole,
    `pending` the bytes that are not durable yet. `is_moving` is set while commits bring in the keys
    of a source that observes other ones than before.
    """

    def __init__(self, core: StoreWriter, guard: Held) -> None:
        self._core, self._engine, self._layout = core, core.engine, core.layout
        self._guard = guard_of(core, guard)
        self._source_key = source_key(core.layout.ts)
        self.source: SourceId | None = None
        self.is_moving = False
        self._known: SourceId | None = None
        self._group_commits = 1 if core.engine.remote else GROUP_COMMITS_MAX
        self._group_bytes = min(PART_BYTES, core.engine.limits.request_bytes // 2)
        self.head, self.part = self._read_head()
        self._gathered: list[_Commit] = []
        self._settle_at = 0.0
        self.pending = 0

    def known(self) -> SourceId | None:
        """Return the source whose commits these are; one round trip."""
        kv = self._engine.get(self._source_key).kv
        self._known = None if kv is None else SourceId.decode(kv.value)
        return self._known

    def named_at(self) -> int:
        """Return the revision at which the source was named, 0 before; one round trip."""
        kv = self._engine.get(self._source_key).kv
        return 0 if kv is None else kv.mod_revision

    def _named(self) -> SourceId | None:
        """Return the source that the store has to name with the next commit.

        While other keys come in, that is one which observes no keys: a recorder that continues
        after a crash compares the states again.
        """
        source = self.source
        if source is None or source.observed is None or not self.is_moving or source == self._known:
            return source
        return source._replace(observed=source.observed._replace(excluded=(b"",)))

    def add(self, stamp: StampRecord, ops: Writes) -> None:
        """Take a commit, which is made when no more come, or the group is full."""
        self._gather(stamp, ops)
        full = len(self._gathered) >= self._group_commits or self.pending >= self._group_bytes
        if full or self.settle_in() <= 0.0:
            self.settle()

    def settle_in(self) -> float:
        """Return after how many seconds the group has waited for long enough."""
        return max(0.0, self._settle_at - monotonic()) if self._gathered else math.inf

    def settle(self) -> None:
        """Commit what was gathered, whatever the answers are: the head says how much was."""
        deadline = monotonic() + SEND_S
        while self._gathered:
            done = self._sent(deadline)
            for commit in self._gathered[:done]:
                if commit.stamp is not None:
                    self._core.clock.merge(commit.stamp.timestamp)
            del self._gathered[:done]
            if done:
                deadline = monotonic() + SEND_S
            else:
                pause(RETRY_S)
        self.pending = 0

    def write(self, stamp: StampRecord | None, ops: Writes, part: CommitPart | None = None) -> None:
        """Make a commit, or a part of one, durable."""
        if part is None:
            assert stamp is not None, "only a part may have none"
            self._gather(stamp, ops)
        elif stamp is None:
            self._gathered.append(_Commit(None, b"", ops, msgpack.packb(part)))
        else:
            self._gathered.append(self._commit(stamp, ops, msgpack.packb(part)))
        self.settle()

    def _gather(self, stamp: StampRecord, ops: Writes) -> None:
        """Take a commit; those before one that is too large are made first."""
        part = None if self.part is None else CommitPart.decode(self.part)
        if part is not None and part.source == stamp.source:  # it was made in parts up to here
            ops = [op for op in ops if op.key > part.done]
        commit = self._commit(stamp, ops)
        try:
            size = self._size(commit)
        except CommitTooLargeError:
            self.settle()
            commit = self._commit(stamp, self._write_parts(stamp, ops))
            size = self._size(commit)
        if self.pending + size > self._group_bytes:
            self.settle()
        if not self._gathered:
            self._settle_at = monotonic() + GROUP_S
        self._gathered.append(commit)
        self.pending += size

    def _commit(self, stamp: StampRecord, ops: Writes, part: bytes = b"") -> _Commit:
        """Return a commit whose stamp names the parts before it that have none."""
        if self.part is not None and CommitPart.decode(self.part).hidden:
            stamp = replace(stamp, began=self.part.create_revision)
        return _Commit(stamp, stamp.encode(), ops, part)

    def _size(self, commit: _Commit) -> int:
        """Return the bytes of a commit's transaction; raises `CommitTooLargeError`."""
        first = Compare(self.head.key, Target.MOD, "=", self.head.mod_revision)
        return self._engine.check_limits(self._txn(commit, first))

    # --- parts ---

    def parts(self, writes: Iterable[Put | Delete]) -> Iterator[Writes]:
        """Divide writes into parts that each fit into a transaction."""
        most = PART_OPS
        if self._engine.limits.ops_per_list is not None:
            most = min(most, nested_max(self._engine.limits.ops_per_list - FIXED_OPS))
        part: Writes = []
        size = 0
        for write in writes:
            more = op_bytes(write) + OP_OVERHEAD_BYTES
            if part and (len(part) >= most or size + more > self._group_bytes):
                yield part
                part, size = [], 0
            part.append(write)
            size += more
        if part:
            yield part

    def _write_parts(self, stamp: StampRecord, ops: Writes) -> Writes:
        """Write a commit that is too large but for its last part; return what is left of it."""
        before, done, hidden = self.before(), 0, False
        if self.part is not None:
            part = CommitPart.decode(self.part)
            done, hidden = part.number if part.source == stamp.source else 0, part.hidden
        self._check_alone(stamp, ops, before)
        parts = list(self.parts(sorted(ops, key=lambda op: op.key)))
        try:
            value = replace(stamp, began=REVISION_MAX).encode()
            self._size(_Commit(stamp, value, parts[-1] if parts else []))
        except CommitTooLargeError:
            if not parts:  # not even the stamp fits
                raise
            parts.append([])
        position = StampRecord.decode(before).source or (0, 0)
        for number, writes in enumerate(parts[:-1], done + 1):
            at = stamp.timestamp - (done + len(parts) - number)
            shown = None
            if at > stamp_of(self.head.value):
                note = part_note(number, done + len(parts), stamp)
                nonce = os.urandom(8)
                shown = replace(stamp, timestamp=at, nonce=nonce, note=note, source=position)
            hidden = hidden or shown is None
            source = stamp.source or (0, 0)
            self.write(shown, writes, CommitPart(source, writes[-1].key, number, before, hidden))
        return parts[-1]

    def before(self) -> bytes:
        """Return the last whole commit's value of the timestamp key, without what it says."""
        if self.part is not None:
            return CommitPart.decode(self.part).before
        stamp = StampRecord.decode(self.head.value)
        kept = StampRecord(stamp.timestamp, stamp.nonce, source=stamp.source)
        return replace(kept, positions=stamp.positions).encode()

    def _check_alone(self, stamp: StampRecord, ops: Writes, before: bytes) -> None:
        """Raise `CommitTooLargeError`, with the key, for a value that no part has room for."""
        note = part_note(len(ops), len(ops), stamp)
        value = replace(stamp, note=note, began=REVISION_MAX).encode()
        for op in ops:
            part = msgpack.packb(
                CommitPart(stamp.source or (0, 0), op.key, REVISION_MAX, before, True)
            )
            try:
                self._size(_Commit(stamp, value, [op], part))
            except CommitTooLargeError as e:
                if not isinstance(op, Put):  # not even the stamp fits
                    raise
                size = len(op.value)
                room = min(e.limit, self._engine.limits.value_bytes) - (e.size - size)
                key = shown_key(op.key.removeprefix(self._layout.root))
                raise CommitTooLargeError(f"the value of {key} in bytes", size, room) from e

    # --- sending ---

    def _sent(self, deadline: float) -> int:
        """Send what was gathered; return how many commits of it the head says were made."""
        was, left = (self.head, self.part), max(0.01, deadline - monotonic())
        try:
            answers = self._engine.transact_each(self._chained(), timeout=left)
        except Refused as e:
            e.reraise()
        except (OutcomeUnknown, EngineUnavailableError, EngineBusyError) as e:
            failure: Exception | None = e
        else:
            failure = None
            if answers[-1].succeeded:
                return self._advance(len(answers), answers[-1].header.revision)
        if self._engine.get(self._guard.key).kv is None:
            raise SessionLostError(
                f"this recorder of {self._core.url} has lost its lease: another one may write"
            )
        head, part = self._read_head()
        for number, commit in enumerate(self._gathered, 1):
            landed = part if commit.part else head
            if landed is not None and landed.value == (commit.part or commit.value):
                return self._advance(number, landed.mod_revision)
        if (head, part) != was:
            raise EngineBusyError(
                f"{self._core.url} has a commit that this recorder did not see: read it again"
            )
        if failure is not None and monotonic() >= deadline:
            raise EngineUnavailableError(f"no answer in {SEND_S:g} s: {failure}") from failure
        return 0

    def _chained(self) -> list[Txn]:
        """Return transactions of which each compares that the one before it was the last."""
        key, txns = self.head.key, list[Txn]()
        compare = Compare(key, Target.MOD, "=", self.head.mod_revision)
        for commit in self._gathered:
            txns.append(self._txn(commit, compare))
            compare = Compare(key, Target.VALUE, "=", commit.value)
        return txns

    def _txn(self, commit: _Commit, compare: Compare) -> Txn:
        ops: list[Op] = [] if commit.stamp is None else [Put(self.head.key, commit.value)]
        compares = [compare, self._guard]
        if compare.target is Target.MOD:  # the first one that is sent
            source = self._named()
            if source is not None and source != self._known:
                ops.append(Put(self._source_key, source.encode()))
            made = 0 if self.part is None else self.part.mod_revision
            if commit.part or made:
                compares.append(Compare(self._layout.part, Target.MOD, "=", made))
                ops.append(
                    Put(self._layout.part, commit.part)
                    if commit.part
                    else Delete(self._layout.part)
                )
        writes: tuple[Op, ...] = tuple(commit.ops)
        if self._engine.limits.ops_per_list is not None:
            writes = nest(writes, self._engine.limits.ops_per_list - FIXED_OPS)
        return Txn(tuple(compares), (*ops, *writes))

    def _advance(self, number: int, revision: int) -> int:
        """Note that so many of the gathered commits were made, the last one at a revision."""
        commit, head, part = self._gathered[number - 1], self.head, self.part
        self._known = self._named()
        if commit.stamp is not None:
            version = head.version + number
            self.head = head._replace(value=commit.value, mod_revision=revision, version=version)
        self.part = None
        if commit.part:
            created = revision if part is None else part.create_revision
            version = 1 if part is None else part.version + 1
            self.part = KeyValue(self._layout.part, commit.part, created, revision, version)
        return number

    def _read_head(self) -> tuple[KeyValue, KeyValue | None]:
        """Return the timestamp key, and the key of a commit that is not whole; one round trip."""
        wanted = [Range(self._layout.ts), Range(self._layout.part)]
        ts, part = (result.kvs for result in self._engine.read(wanted).results)
        if not ts:
            raise CorruptStoreError(f"store {self._layout.name!r} has lost its timestamp key")
        return ts[0], part[0] if part else None


def part_note(number: int, count: int, stamp: StampRecord) -> str:
    """Return the note of a part of a commit that the target does not take at once."""
    revision = 0 if stamp.source is None else stamp.source[0]
    return (
        f"part {number} of {count}: revision {revision} is larger than a commit may be here; "
        f"it is whole at {format_time(stamp.timestamp)}"
    )
