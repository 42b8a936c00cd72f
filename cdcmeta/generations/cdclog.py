"""A table with a log of its changes: each commit writes rows and their log rows, or neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import snapkv
from cdcmeta import errors
from cdcmeta.argument_checks import check_seconds, check_store, checked_name
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations import log_rows
from cdcmeta.generations.generation_layout import unchanged
from cdcmeta.generations.known_generations import Generations
from cdcmeta.generations.log_member import Member
from cdcmeta.generations.log_rows import LogRow, Operation
from cdcmeta.generations.streams import StreamId
from cdcmeta.generations.tokens import murmur3_token
from snapkv import Entry, Ops, Snapshot, SnapshotKV, SpaceOps, Stamp, When
from snapkv.base.waiting import monotonic, pause
from snapkv.errors import CorruptStoreError
from snapkv.model import Guard
from snapkv.times import LOGICAL_BITS, dated
from snapkv.tuples import Versionstamp, pack

TIMEOUT_S = 10.0
COMMIT_S_MAX = 60.0
"""The longest timeout that a store accepts for one commit."""
FUTURE_POLL_S = 0.25
"""The pause between two tries of a write that is ahead of this clock, in seconds."""
ROWS_MAX = 1 << 16
"""The most log rows of one commit: their number in it has 16 bits."""


Streams: TypeAlias = Member | Generations
"""What returns the stream of a write: a member of a log, or the generations of one process."""
BOUND = pack(("generations",))


class RowChange(NamedTuple):
    """A row to write, or to remove (None), and the row before.

    `before` is None without a row before, or if it was not read.
    """

    key: bytes
    token: int
    value: bytes | None
    before: Entry | None


class CdcLog:
    """A table with a log of its changes, spread over the streams of the generations.

    A log row's stream is chosen inside the commit, by the commit's timestamp. With a `Member` the
    newest generation also guards the commit, so no row gets a stream of another one. Safe for
    threads.
    """

    def __init__(
        self,
        store: SnapshotKV,
        streams: Streams,
        name: str = "default",
        *,
        preimage: bool = False,
        postimage: bool = False,
    ) -> None:
        """No round trip. Raises `InvalidArgumentError`, `snapkv.errors.InvalidKeyError` (name).

        The store must be the member's: the guards of commits are in it.

        With `preimage` the row before a change, if any, is logged before the change: it is read
        first, and guards the commit. Then inserts differ from updates; without `preimage` all are
        updates. With `postimage` the row after the change is logged after it. Use the same values
        for all writers of a table.
        """
        checked_name("a log's name", name)
        check_store(store)
        if not callable(getattr(streams, "stream", None)):
            raise InvalidArgumentError(
                f"streams are a Member or Generations, not {type(streams).__name__}"
            )
        if streams.store is not None and streams.store is not store:
            raise InvalidArgumentError("store must be the store of the member's generations")
        self.store, self.name, self._streams = store, name, streams
        self._preimage, self._postimage = preimage, postimage
        self._space = store.space(f"cdc/{name}")
        self._bound_to: str | None = None

    def write(
        self,
        key: bytes,
        value: bytes | None,
        *,
        timeout: float = TIMEOUT_S,
        note: str | None = None,
    ) -> LogRow:
        """Write a row, or remove it (None), and its log row, in one commit; return the log row.

        While the current generation is not known here, the write waits for it. Raises
        `GenerationUnavailableError` when `timeout` seconds are over, and `InvalidWriteTimeError`
        when the store's newest commit is then still further ahead of this clock than clocks may be
        apart: two propagation delays for a member, else the leeway. Raises `InvalidArgumentError`
        if the table's streams are of another log, and what `SnapshotKV.commit` raises. After an
        unknown outcome (`snapkv.CommitUnknownError`) call `resolve`.
        """
        return _change_of(self.write_batch([(key, value)], timeout=timeout, note=note))

    def write_batch(
        self,
        changes: Mapping[bytes, bytes | None] | Iterable[tuple[bytes, bytes | None]],
        *,
        timeout: float = TIMEOUT_S,
        note: str | None = None,
    ) -> list[LogRow]:
        """Write several rows, or remove them (None), in one commit; return all its log rows.

        They are in the order of `changes`, each with its images around it. Raises as `write`, and
        `InvalidArgumentError` without changes, or for a key that occurs twice. With `preimage` each
        row is guarded, so `SnapshotKV.guards_max` less two bounds how many (on etcd 93, by its
        defaults): more raise `CommitTooLargeError`.
        """
        check_seconds("timeout", timeout)
        requested, deadline = _checked(changes), monotonic() + timeout
        built: dict[tuple[int, int], list[LogRow]] = {}

        def build(stamp: Stamp) -> Ops:
            guards = self._streams.guards()  # before the stream is chosen
            built[stamp.ts, stamp.batch] = rows = self._logged(stamp, prepared)
            guarded = {name: SpaceOps(guards=each) for name, each in guards.items()}
            return Ops(spaces=merged(binding, guarded, self._ops(prepared, rows)), note=note)

        pending: errors.GenerationUnavailableError | errors.InvalidWriteTimeError | None = None
        while True:
            binding = self._binding(self._streams.log)
            prepared = self._read_before(requested)
            is_overtaken = False
            try:
                left = min(COMMIT_S_MAX, max(0.001, deadline - monotonic()))
                commit = self.store.commit(build, timeout=left)
                return built[commit.ts, commit.batch]
            except errors.MemberLostError:
                raise  # waiting does not help
            except (errors.GenerationUnavailableError, errors.InvalidWriteTimeError) as e:
                if e.reason == "past":
                    raise
                pending = e
            except snapkv.ConflictError as e:
                pending, is_overtaken = None, self._is_overtaken(e, prepared)
            except snapkv.CommitTimeoutError as e:
                if pending is not None:
                    raise pending from e  # the reason why the time passed
                raise
            if (left := deadline - monotonic()) <= 0:
                raise pending or snapkv.CommitTimeoutError(
                    "other writers committed first until the timeout"
                )
            if not is_overtaken:
                self._wait(pending, left)

    def resolve(
        self, error: snapkv.CommitUnknownError, *, timeout: float = TIMEOUT_S
    ) -> LogRow | None:
        """Return the row of a write of unknown outcome; None if it did not and will not happen.

        In any process: the error can be pickled. Costs a watch of the commit, and
        `SnapshotKV.resolve`. Raises as that, `CompactedError` if the commit's history is gone, and
        `InvalidArgumentError` if it wrote nothing to this log.
        """
        rows = self.resolve_batch(error, timeout=timeout)
        return None if rows is None else _change_of(rows)

    def resolve_batch(
        self, error: snapkv.CommitUnknownError, *, timeout: float = TIMEOUT_S
    ) -> list[LogRow] | None:
        """Return all log rows of a `write_batch`; as `resolve`."""
        check_seconds("timeout", timeout)
        if not isinstance(error, snapkv.CommitUnknownError):
            raise InvalidArgumentError(f"error is a CommitUnknownError, not {error!r}")
        ts, deadline = error.timestamp, monotonic() + timeout
        left = min(COMMIT_S_MAX, timeout)
        try:
            if self.store.resolve(ts, error.nonce, guards=error.guards, timeout=left) is None:
                return None
        except snapkv.ConflictError:
            return None  # other calls of its group were committed, this one was not
        left = max(0.0, deadline - monotonic())
        with self._space.watch(since=ts - 1, timeout=left) as watch:
            changes = next(watch, None)  # the committed changes come, even without time left
        found = [
            log_rows.row_of(change.key, change.value)
            for change in changes or ()
            if change.value is not None
            and change.key.startswith((log_rows.ROW_PREFIX, log_rows.OLD_PREFIX))
        ]
        rows = sorted(row for row in found if row.stamp[:2] == (ts, error.batch))
        if not rows:
            raise InvalidArgumentError(f"commit {dated(ts)} wrote nothing to this log")
        return rows

    def bind(self, log: str) -> None:
        """Record that the table's streams are of the generation log in a space, if not recorded.

        The first write with a member does it, too. Raises `InvalidArgumentError`.
        """
        while spaces := self._binding(log):
            with suppress(snapkv.ConflictError):  # another process recorded first: check its log
                self.store.commit(lambda _, spaces=spaces: Ops(spaces=spaces))  # type: ignore[misc]

    def get(self, key: bytes, when: When | None = None) -> bytes | None:
        """Return a row, now or at a time; None without one."""
        if not isinstance(key, bytes):
            raise InvalidArgumentError("keys and values are bytes")
        (found,) = self._space.entries_of([log_rows.base_key(key)], when)
        return None if found is None else found.value

    def read(self, stream: StreamId, begin: When, end: When | None = None) -> list[LogRow]:
        """Return a stream's log rows in (begin, end], oldest first; without an end all of them.

        A round trip for the present, and one for each page of the rows of all streams in its slot.
        Raises `InvalidArgumentError` for anything but a `StreamId`.
        """
        if not isinstance(stream, StreamId):
            raise InvalidArgumentError(f"a stream is a StreamId, not {stream!r}")
        snapshot = self._space.at()
        until = snapshot.timestamp if end is None else self._space.timestamp_of(end)
        since = self._space.timestamp_of(begin)
        spans = (
            log_rows.old_span_of(stream, since, until),
            log_rows.span_of(log_rows.slot_of(stream), since, until),
        )
        items = (item for span in spans for item in snapshot.items(start=span[0], end=span[1]))
        return sorted(
            row for row in (log_rows.row_of(*item) for item in items) if row.stream == stream
        )

    def trim(self, until: When, *, unread: bool = False) -> int:
        """Remove the log rows up to a time; return how many. The table's rows stay.

        Without `unread` it keeps rows that a registered consumer has not passed; with `unread` a
        consumer that lost rows raises `LogTrimmedError`. In commits of a thousand rows; the next
        call continues an interrupted one. `GenerationLog.expire` calls it.
        """
        time = self._space.timestamp_of(until)
        return log_rows.trim(self.store, self.name, self._recorded_log(), time, unread=unread)

    def upgrade(self) -> int:
        """Move log rows of an older version to where they are read; return how many.

        `StreamConsumer` and `trim` call it. Stop all writers of the older version before.
        """
        return log_rows.upgrade(self._space)

    def at(self, when: When | None = None) -> Snapshot[bytes]:
        """Return a snapshot of the table and its log."""
        return self._space.at(when)

    # --- helpers ---

    def _binding(self, log: str | None) -> dict[str, SpaceOps]:
        """Return the operations that record the table's generation log, by space.

        They are part of the table's first commit; None needs none, and a recorded log needs no
        more. One round trip until then. Raises `InvalidArgumentError` if another log is recorded.
        """
        if log is None or log == self._bound_to:
            return {}
        found = self._recorded_log()
        if found is None:
            return {
                self._space.name: SpaceOps({BOUND: log.encode()}, guards=[snapkv.Absent(BOUND)]),
                log: SpaceOps({layout.table_key(self.name): b""}),
            }
        if found != log:
            raise InvalidArgumentError(
                f"the streams of table {self.name!r} are of {found!r}, not of {log!r}: open it "
                "with that log of generations"
            )
        self._bound_to = log
        return {}

    def _recorded_log(self) -> str | None:
        """Return the space of the table's generation log, None if not recorded."""
        (found,) = self._space.entries_of([BOUND])
        try:
            return None if found is None else found.value.decode()
        except UnicodeDecodeError as e:
            raise CorruptStoreError(f"not the name of a generation log: {found!r}") from e

    def _read_before(self, changes: Sequence[RowChange]) -> Sequence[RowChange]:
        """Return changes with the rows before them; one round trip, none without `preimage`."""
        if not self._preimage:
            return changes
        entries = self._space.entries_of([log_rows.base_key(change.key) for change in changes])
        return [
            change._replace(before=entry) for change, entry in zip(changes, entries, strict=True)
        ]

    def _logged(self, stamp: Stamp, changes: Sequence[RowChange]) -> list[LogRow]:
        rows: list[LogRow] = []
        counts: Counter[StreamId] = Counter()
        for change in changes:
            stream = self._streams.stream_of_commit(stamp.ts, change.token)
            for operation, value in self._steps(change):
                place = Versionstamp(stamp.ts, stamp.batch, len(rows))
                number = counts[stream]
                counts[stream] = number + 1
                rows.append(LogRow(place, stream, change.key, value, operation, number, False))
        return [
            replace(row, end_of_batch=row.batch_seq_no == counts[row.stream] - 1) for row in rows
        ]

    def _steps(self, change: RowChange) -> Iterator[tuple[Operation, bytes | None]]:
        """Yield the operations and values to log for a change, in order."""
        if change.before is not None:
            yield Operation.PREIMAGE, change.before.value
        if change.value is None:
            yield Operation.ROW_DELETE, None
            return
        is_new = self._preimage and change.before is None
        yield Operation.INSERT if is_new else Operation.UPDATE, change.value
        if self._postimage:
            yield Operation.POSTIMAGE, change.value

    def _ops(self, changes: Sequence[RowChange], rows: Sequence[LogRow]) -> dict[str, SpaceOps]:
        keys = {log_rows.base_key(change.key): change for change in changes}
        puts = {key: change.value for key, change in keys.items() if change.value is not None}
        deletes = [key for key, change in keys.items() if change.value is None]
        guards: list[Guard] = []
        if self._preimage:
            for key, (_, _, _, before) in keys.items():
                guards.append(unchanged(key, 0 if before is None else before.revision))
        return {self._space.name: SpaceOps(puts | log_rows.encoded(rows), deletes, guards=guards)}

    def _is_overtaken(self, error: snapkv.ConflictError, changes: Sequence[RowChange]) -> bool:
        """Return whether another commit has written one of the rows since they were read here."""
        keys = {log_rows.base_key(change.key) for change in changes}
        return any(getattr(guard, "key", None) in keys for guard, _ in error.failed)

    def _wait(
        self,
        pending: errors.GenerationUnavailableError | errors.InvalidWriteTimeError | None,
        left_s: float,
    ) -> None:
        """Wait before a write is tried again: for new generations, or for this clock."""
        if isinstance(pending, errors.InvalidWriteTimeError):
            missing_ms = (pending.ts - pending.limit >> LOGICAL_BITS) + 1
            pause(min(left_s, missing_ms / 1_000, FUTURE_POLL_S))
        else:
            self._streams.catch_up(left_s)


def _checked(changes: object) -> list[RowChange]:
    """Return changes with their tokens. Raises `InvalidArgumentError`."""
    try:
        pairs = changes.items() if isinstance(changes, Mapping) else changes
        found = [(key, value) for key, value in pairs]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as e:
        raise InvalidArgumentError(f"changes are a mapping or pairs: {e}") from e
    for key, value in found:
        if not isinstance(key, bytes) or not isinstance(value, bytes | None):
            raise InvalidArgumentError("keys and values are bytes")
    if not 1 <= len(found) <= ROWS_MAX // 3:
        raise InvalidArgumentError(
            f"one commit writes 1 to {ROWS_MAX // 3:,} rows, not {len(found):,}"
        )
    if len({key for key, _ in found}) < len(found):
        raise InvalidArgumentError("a commit writes each row once: a key occurs twice")
    return [RowChange(key, murmur3_token(key), value, None) for key, value in found]


def _change_of(rows: Sequence[LogRow]) -> LogRow:
    """Return the first row that is not an image."""
    return next(row for row in rows if row.operation not in log_rows.IMAGES)


def merged(*parts: Mapping[str, SpaceOps]) -> dict[str, SpaceOps]:
    """Return the operations of several mappings, by space, for one commit."""
    found: dict[str, SpaceOps] = {}
    for part in parts:
        for name, ops in part.items():
            had = found.get(name, SpaceOps())
            puts, deletes = {**had.puts, **ops.puts}, [*had.deletes, *ops.deletes]
            found[name] = SpaceOps(puts, deletes, guards=[*had.guards, *ops.guards])
    return found
