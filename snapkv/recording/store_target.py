"""Another store as the place of a recording: each commit is repeated there, with its own time.

The target's timestamp key carries the position: the revision and ordinal of the source's commit,
written in the same transaction. Each transaction compares that the key is as this recorder left
it, and that its leadership holds. So nothing is recorded twice, wherever a process ends.

Steps wait for more steps, `GROUP_S` at most, and become durable together, each in a revision of its
own: to wait for the disk at each would be slow, and would slow those who write to the same disk.
For example, of steps A, B and C in a group, B compares that the key has A's value: if only A was
written when the process or the answer was lost, the key says so, and B is next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgpack

from snapkv.clock import monotonic, pause
from snapkv.engine.contract import (
    Compare,
    Delete,
    Event,
    KeyValue,
    Op,
    Put,
    Range,
    Target,
    Txn,
)
from snapkv.engine.errors import OutcomeUnknown, Refused
from snapkv.errors import (
    ArchiveError,
    CorruptStoreError,
    EngineBusyError,
    EngineUnavailableError,
    SessionLostError,
    SnapKVError,
)
from snapkv.layout import CREATION_ORDINAL, Layout, SourceId, StampRecord, prefix_end, stamp_of
from snapkv.model import Held
from snapkv.recording.gaps import Pages, differences, gap_note
from snapkv.recording.sources import Step
from snapkv.store.core import Core
from snapkv.times import end_of_ms

SEND_S = 10.0
"""How long it may take until one more commit is made, retries included."""
RETRY_S = 0.1
PART_BYTES = 4 << 20
PART_OPS = 20_000
"""A state is written in parts of about so much, or of what the engine takes."""
GROUP_STEPS = 256  # etcd waits for the disk at each, so there it is 1
GROUP_S = 0.05
"""So many steps at most become durable together, and none waits for longer."""
BEFORE_MARK = 1 << 17
"""The parts of a state have timestamps from so far before its mark's on: half a millisecond."""


class _Commit(NamedTuple):
    """What becomes one revision of the target: a new value of its timestamp key, and changes."""

    stamp: StampRecord
    value: bytes
    ops: list[Op]


class StoreTarget:
    """A store that repeats the commits of a source; `guard` proves the leadership."""

    is_full = False

    def __init__(self, core: Core, guard: Held) -> None:
        self._core, self._engine, self._layout = core, core.engine, core.layout
        self._guard = Compare(
            core.layout.live.encode(guard.key), Target.CREATE, "=", guard.revision
        )
        self._source_key = core.layout.root + b"sys/source"
        self._source: SourceId | None = None
        self._root_bytes = 0  # of the source's keys
        self._group_steps = 1 if core.engine.remote else GROUP_STEPS
        self._group_bytes = min(PART_BYTES, core.engine.limits.request_bytes // 2)
        self._head = self._read_head()
        self._gathered: list[_Commit] = []
        self._settle_at = 0.0
        self.pending = 0

    # --- what is recorded ---

    def known(self) -> SourceId | None:
        """Return the source that is recorded here; one round trip."""
        kv = self._engine.get(self._source_key).kv
        if kv is None:
            return None
        try:
            return SourceId(*msgpack.unpackb(kv.value))
        except (ValueError, TypeError, msgpack.UnpackException) as e:
            raise CorruptStoreError(f"{self._source_key!r} names no source: {kv.value!r}") from e

    def open(self, identity: SourceId) -> None:
        """Take a source; raises `ArchiveError` if the store holds anything else."""
        known, used = self.known(), self._head.version > CREATION_ORDINAL
        if known is None and used:
            raise ArchiveError(
                f"{self._core.url} has commits of its own: record into a store that has none"
            )
        if known is not None and known != identity:
            raise ArchiveError(
                f"{self._core.url} is the record of another source: {known.name!r}, "
                f"id {known.id.hex()}"
            )
        self._source, self._root_bytes = identity, len(Layout(identity.name).root)

    def last(self) -> KeyValue | None:
        """Return the newest mark of the source that is recorded."""
        stamp, source = StampRecord.decode(self._head.value), self._source
        assert source is not None, "open() comes first"
        if self._head.version > CREATION_ORDINAL and stamp.source is None:
            raise ArchiveError(
                f"{self._core.url} has commits that were not recorded: its history is its own now"
            )
        if stamp.source is None or not stamp.source[0]:
            return None
        revision, ordinal = stamp.source
        key = Layout(source.name).ts
        value = replace(stamp, source=None).encode()
        return KeyValue(key, value, source.created, revision, ordinal)

    # --- recording ---

    def begin(self, mark: KeyValue, state: Pages) -> None:
        """Write a first state in parts; what is older cannot be read afterwards."""
        if mark.version == CREATION_ORDINAL:  # the source has no keys yet, and neither has this
            return
        self._write_differences(mark, state, (0, 0))
        self._write(self._stamp(mark), [])
        self._forget_parts()

    def close_gap(self, last: KeyValue, mark: KeyValue, state: Pages) -> None:
        """Write what differs from a state; a commit before it has the gap's note."""
        position = last.mod_revision, last.version
        if mark.version > last.version + 1:
            timestamp = stamp_of(self._head.value) + 1
            stamp = StampRecord(timestamp, os.urandom(8), note=gap_note(last, mark))
            self._write(replace(stamp, source=position), [])
        self._write_differences(mark, state, position)
        self._write(self._stamp(mark), [])

    def add(self, step: Step) -> None:
        """Take a step, which becomes one commit when no more come, or the group is full."""
        changed = {event.kv.key: event for event in step.events}  # the last change of each key
        self._gather(self._stamp(step.mark), [self._op(event) for event in changed.values()])
        full = len(self._gathered) >= self._group_steps or self.pending >= self._group_bytes
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
                self._core.clock.merge(commit.stamp.timestamp)
            del self._gathered[:done]
            if done:
                deadline = monotonic() + SEND_S
            else:
                pause(RETRY_S)
        self.pending = 0

    def flush(self) -> None:
        """Make all steps durable."""
        self.settle()

    def tend(self, keep_before_ms: int | None) -> None:
        """Compact what is older than a time."""
        if keep_before_ms is not None:
            self._core.compact(end_of_ms(keep_before_ms))

    def close(self) -> None:
        """Do nothing: the store is closed by who opened it."""

    # --- states ---

    def _write_differences(self, mark: KeyValue, state: Pages, position: tuple[int, int]) -> None:
        """Make the target's keys those of a mark, in commits that keep the position."""
        after = ([self._moved(kv) for kv in page] for page in state)
        at = max(stamp_of(self._head.value) + 1, stamp_of(mark.value) - BEFORE_MARK)
        for ops in self._parts(differences(self._present(), after, mark)):
            if at >= stamp_of(mark.value):
                raise ArchiveError("the parts of the state need more timestamps than there are")
            stamp = StampRecord(at, os.urandom(8), note="recording a state", source=position)
            self._write(stamp, ops)
            at += 1

    def _present(self) -> Iterator[Sequence[KeyValue]]:
        layout = self._layout
        recorded = layout.data.prefix, layout.spaces
        whole = layout.root, prefix_end(layout.root)
        for page in self._engine.scan(*whole, revision=self._head.mod_revision):
            yield [kv._replace(mod_revision=0) for kv in page if kv.key.startswith(recorded)]

    def _parts(self, events: Iterator[Event]) -> Iterator[list[Op]]:
        limits = self._engine.limits
        most = min(PART_OPS, (limits.ops_per_list or PART_OPS) - 8)
        part: list[Op] = []
        size = 0
        for key, value, is_delete in ((e.kv.key, e.kv.value, e.is_delete) for e in events):
            if part and (len(part) >= most or size + len(key) + len(value) > self._group_bytes):
                yield part
                part, size = [], 0
            part.append(Delete(key) if is_delete else Put(key, value))
            size += len(key) + len(value) + 64
        if part:
            yield part

    def _forget_parts(self) -> None:
        """Compact away the parts of the first state, if nothing else lives in the engine."""
        root = self._layout.root
        ranges = [Range(b"\0", root, limit=1), Range(prefix_end(root), b"\0", limit=1)]
        if not any(result.kvs for result in self._engine.read(ranges).results):
            self._engine.compact(self._head.mod_revision)

    # --- transactions ---

    def _stamp(self, mark: KeyValue) -> StampRecord:
        stamp = StampRecord.decode(mark.value)
        return replace(stamp, ahead=0, source=(mark.mod_revision, mark.version))

    def _op(self, event: Event) -> Op:
        key = self._layout.root + event.kv.key[self._root_bytes :]
        return Delete(key) if event.is_delete else Put(key, event.kv.value)

    def _moved(self, kv: KeyValue) -> KeyValue:
        return kv._replace(key=self._layout.root + kv.key[self._root_bytes :])

    def _write(self, stamp: StampRecord, ops: list[Op]) -> None:
        self._gather(stamp, ops)
        self.settle()

    def _gather(self, stamp: StampRecord, ops: list[Op]) -> None:
        """Take a commit; those before one that is too large are made first."""
        commit = _Commit(stamp, stamp.encode(), ops)
        first = Compare(self._head.key, Target.MOD, "=", self._head.mod_revision)
        try:
            size = self._engine.check_limits(self._txn(commit, first))
        except SnapKVError:
            self.settle()
            raise
        if self.pending + size > self._group_bytes:
            self.settle()
        if not self._gathered:
            self._settle_at = monotonic() + GROUP_S
        self._gathered.append(commit)
        self.pending += size

    def _sent(self, deadline: float) -> int:
        """Send what was gathered; return how many commits of it the head says were made."""
        was, left = self._head, max(0.01, deadline - monotonic())
        try:
            answers = self._engine.transact_each(self._chained(), timeout=left)
        except Refused as e:
            raise e.error from e
        except (OutcomeUnknown, EngineUnavailableError, EngineBusyError) as e:
            failure: Exception | None = e
        else:
            failure = None
            if answers[-1].succeeded:
                return self._advance(len(answers), answers[-1].header.revision)
        if self._engine.get(self._guard.key).kv is None:
            raise SessionLostError(f"this recorder of {self._core.url} leads no more")
        head = self._read_head()
        for number, commit in enumerate(self._gathered, 1):
            if head.value == commit.value:
                return self._advance(number, head.mod_revision)
        if head != was:
            raise EngineBusyError(
                f"{self._core.url} has a commit that this recorder did not see: read it again"
            )
        if failure is not None and monotonic() >= deadline:
            raise EngineUnavailableError(f"no answer in {SEND_S:g} s: {failure}") from failure
        return 0

    def _chained(self) -> list[Txn]:
        """Return transactions of which each compares that the one before it was the last."""
        key, txns = self._head.key, list[Txn]()
        compare = Compare(key, Target.MOD, "=", self._head.mod_revision)
        for commit in self._gathered:
            txns.append(self._txn(commit, compare))
            compare = Compare(key, Target.VALUE, "=", commit.value)
        return txns

    def _txn(self, commit: _Commit, compare: Compare) -> Txn:
        ops: list[Op] = [Put(self._head.key, commit.value), *commit.ops]
        first = compare.target is Target.MOD and self._head.version == CREATION_ORDINAL
        if first and self._source is not None:
            ops.append(Put(self._source_key, msgpack.packb(self._source)))
        return Txn((compare, self._guard), tuple(ops))

    def _advance(self, number: int, revision: int) -> int:
        """Note that so many of the gathered commits were made, the last one at a revision."""
        value, version = self._gathered[number - 1].value, self._head.version + number
        self._head = self._head._replace(value=value, mod_revision=revision, version=version)
        return number

    def _read_head(self) -> KeyValue:
        kv = self._engine.get(self._layout.ts).kv
        if kv is None:
            raise CorruptStoreError(f"store {self._layout.name!r} has lost its timestamp key")
        return kv
