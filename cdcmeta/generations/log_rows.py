"""The rows of a table and of its log: their fields, keys and values.

| key | value |
|---|---|
| `("base", token, key)` | the row: the user's bytes |
| `("row", slot, stamp)` | msgpack: 1, stream, operation, batch_seq_no, end_of_batch, key, value |
| `("trimmed", slot)` | the time up to which log rows of a slot were removed |
| `("generations",)` | the space of the log whose generations its streams are of |
| `("log", stream, stamp)` | a log row of an older version: `(0, key, value)` |

Without a value, a log row has nil, and an older one has two elements. Values are not tuples, which
are slow for bytes with many zeros. `token` and `stream` sort in the order of the ring. A slot
is one of 64 equal parts of the ring, that of the stream's token; its rows are in the order of their
commits. `stamp` is the versionstamp of the commit that wrote the row; its last part counts the rows
of that commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

import msgpack

from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.generation_layout import revision_of, unchanged
from cdcmeta.generations.streams import StreamId, ring_bytes
from cdcmeta.generations.tokens import murmur3_token
from snapkv import AtRevision, ConflictError, Entry, Ops, Snapshot, SnapshotKV, Space, SpaceOps
from snapkv.errors import CorruptStoreError, FormatError
from snapkv.model import Guard
from snapkv.times import TIMESTAMP_MAX
from snapkv.tuples import Versionstamp, pack, unpack

FORMAT, OLD_FORMAT = 1, 0
ROW, OLD_ROW = "row", "log"
ROW_PREFIX, OLD_PREFIX = pack((ROW,)), pack((OLD_ROW,))
SLOT_BITS = 6
STAMP_BYTES = 12
SLOTS = 1 << SLOT_BITS
"""The parts of the ring: a window reads all of them in one round trip, a worker only its own."""

_STARTS = [pack((ROW, slot, Versionstamp(0)))[:-STAMP_BYTES] for slot in range(SLOTS)]


class Operation(IntEnum):
    """The kind of a log row: the codes of ScyllaDB that a key and its value can have."""

    PREIMAGE = 0
    UPDATE = 1
    INSERT = 2
    ROW_DELETE = 3
    POSTIMAGE = 9


_OPERATIONS = {int(each): each for each in Operation}
IMAGES = (Operation.PREIMAGE, Operation.POSTIMAGE)


@dataclass(frozen=True, slots=True, order=True)
class LogRow:
    """A logged change, or the row before or after it.

    `value` is None for a removed row. `batch_seq_no` counts the rows of one commit in one stream
    from 0; `end_of_batch` is true for the last of them.
    """

    stamp: Versionstamp
    stream: StreamId
    key: bytes
    value: bytes | None
    operation: Operation = Operation.UPDATE
    batch_seq_no: int = 0
    end_of_batch: bool = True

    @property
    def timestamp(self) -> int:
        """The timestamp of its commit."""
        return self.stamp.version

    def facts(self) -> dict[str, Any]:
        """Return what JSON has of it beside its key and value."""
        return {
            "operation": self.operation.name.lower(),
            "stream": str(self.stream),
            "batch_seq_no": self.batch_seq_no,
            "end_of_batch": self.end_of_batch,
        }


def slot_of(stream: StreamId) -> int:
    """Return the slot of a stream, counted from 0."""
    return stream.ring_key[0] >> 8 - SLOT_BITS


def base_key(key: bytes) -> bytes:
    """Return the key of a table's row."""
    return pack(("base", ring_bytes(murmur3_token(key)), key))


def row_key(slot: int, stamp: Versionstamp) -> bytes:
    """Return the key of a log row."""
    return _STARTS[slot] + bytes(stamp)


def span_of(slot: int, begin: int, end: int) -> tuple[bytes, bytes]:
    """Return the range of keys of a slot's log rows in (begin, end]."""
    return tuple(row_key(slot, _first_after(each)) for each in (begin, end))  # type: ignore[return-value]


def old_span_of(stream: StreamId, begin: int, end: int) -> tuple[bytes, bytes]:
    """Return the range of keys of a stream's log rows of an older version, in (begin, end]."""
    keys = (pack((OLD_ROW, stream.ring_key, _first_after(each))) for each in (begin, end))
    return tuple(keys)  # type: ignore[return-value]


def encoded(rows: Iterable[LogRow]) -> dict[bytes, bytes]:
    """Return the keys and values of log rows."""
    found: dict[bytes, bytes] = {}
    for row in rows:
        facts = int(row.operation), row.batch_seq_no, row.end_of_batch, row.key, row.value
        value = msgpack.packb((FORMAT, row.stream.ring_key, *facts))
        found[row_key(slot_of(row.stream), row.stamp)] = value
    return found


def row_of(key: bytes, raw: bytes) -> LogRow:
    """Return the log row of a key and its value, of this version or an older one.

    Raises `CorruptStoreError`, `FormatError`.
    """
    try:
        if key.startswith(OLD_PREFIX):
            return _old_row(key, raw)
        stamp = Versionstamp.from_bytes(key[-STAMP_BYTES:])
        format, *fields = msgpack.unpackb(raw)
        if format != FORMAT:
            raise FormatError("the log row", format, FORMAT)
        ring_key, operation, number, is_end, written, value = fields
        stream = StreamId.of_ring_key(ring_key)
        if key[:-STAMP_BYTES] != _STARTS[slot_of(stream)]:
            raise ValueError(f"stream {stream} is not of this slot")
        if not (type(written) is bytes and (value is None or type(value) is bytes)):
            raise ValueError("its key or value is not bytes")
        return LogRow(stamp, stream, written, value, _OPERATIONS[operation], number, is_end)
    except FormatError:
        raise
    except (KeyError, ValueError, TypeError) as e:
        raise CorruptStoreError(f"the log row {key.hex()} is not valid: {e}") from e


def _old_row(key: bytes, raw: bytes) -> LogRow:
    _, ring_key, stamp = unpack(key)
    if not isinstance(stamp, Versionstamp):
        raise ValueError("its key does not end with a versionstamp")
    format, written, *value = unpack(raw)
    if format != OLD_FORMAT:
        raise ValueError(f"format {format}, not {OLD_FORMAT}")
    stream = StreamId.of_ring_key(ring_key)
    if not value:
        return LogRow(stamp, stream, written, None, Operation.ROW_DELETE)
    return LogRow(stamp, stream, written, value[0])


def _first_after(time: int) -> Versionstamp:
    return Versionstamp(min(time + 1, TIMESTAMP_MAX))


# --- trimming and moving rows ---

ROWS_AT_ONCE = 1_000
"""The rows that one commit removes: about 100 kB in etcd's request, of 1.5 MiB."""
OLD_ROWS_AT_ONCE = 64
"""The rows that one commit moves: each has a guard, and etcd takes 95 guards."""
OLD_BYTES_AT_ONCE = 256 << 10
"""The bytes of rows after which a commit that moves rows ends; etcd's requests have 1.5 MiB."""
TRIES = 50
"""The most conflicts with other processes before the error is raised."""
TRIMMED_PREFIX = pack(("trimmed",))


def trim(store: SnapshotKV, table: str, log: str | None, until: int, *, unread: bool) -> int:
    """Remove a table's log rows up to a time; return how many.

    `log` is the space of its generation log, None without one. Without `unread` it keeps rows that
    a registered consumer has not passed. In commits of a bounded size, each of which records what
    it removed; the next call continues an interrupted one. Raises `snapkv.ConflictError` after too
    many conflicts.
    """
    space = store.space(f"cdc/{table}")
    upgrade(space)
    removed = 0
    for left in reversed(range(TRIES)):
        snapshot = space.at()
        last, guarded = until, dict[str, SpaceOps]()
        if log is not None and not unread:
            last, guard = _passed(store.space(log).at(revision=snapshot.revision), table, until)
            guarded[log] = SpaceOps(guards=[guard])
        trimmed = dict(snapshot.entries(TRIMMED_PREFIX))
        revisions = {key: revision_of(entry) for key, entry in trimmed.items()}
        try:
            for keys, newest in _batches(snapshot, trimmed_at(snapshot), last):
                puts = {pack(("trimmed", slot)): layout.number(ts) for slot, ts in newest.items()}
                guards: list[Guard] = [unchanged(key, revisions.get(key, 0)) for key in puts]
                own = {space.name: SpaceOps(puts, keys, guards=guards)}
                done = store.commit(lambda _, spaces=guarded | own: Ops(spaces=spaces))  # type: ignore[misc]
                revisions |= dict.fromkeys(puts, done.revision)
                removed += len(keys)
        except ConflictError:  # another process trims, too, or a consumer was registered
            if not left:
                raise
            continue
        break
    return removed


def _passed(state: Snapshot[bytes], table: str, until: int) -> tuple[int, Guard]:
    """Return the time that all consumers have passed, and the guard that none is registered."""
    consumers = layout.consumers_at(state).items()
    positions = [each.position for id, each in consumers if id.table in (None, table)]
    (count,) = state.entries_of([layout.CONSUMERS])
    return min([until, *positions]), unchanged(layout.CONSUMERS, revision_of(count))


def trimmed_at(snapshot: Snapshot[bytes]) -> dict[int, int]:
    """Return for each trimmed slot the time of its last removed row."""
    items = snapshot.items(TRIMMED_PREFIX)
    return {unpack(key)[1]: layout.number_of(value) for key, value in items}


def upgrade(space: Space) -> int:
    """Move log rows of an older version, stored by stream, to their slots; return how many.

    In commits of a bounded size; each row exactly once, even if several processes do it. Without
    such rows it costs one round trip.
    """
    moved = lost = 0
    first: bytes | None = None
    while True:
        entries = space.at().entries(OLD_PREFIX)
        batch = list(_to_move(entries))
        if batch and batch[0][0] != first:
            first, lost = batch[0][0], 0
        try:
            while batch:
                space.commit(
                    puts=encoded(row_of(key, entry.value) for key, entry in batch),
                    deletes=[key for key, _ in batch],
                    guards=[AtRevision(key, entry.revision) for key, entry in batch],
                )
                moved += len(batch)
                batch = list(_to_move(entries))
        except ConflictError:
            # another process moves them, too: only attempts without progress count
            lost += 1
            if lost == TRIES:
                raise
            continue
        return moved


def _to_move(entries: Iterator[tuple[bytes, Entry]]) -> Iterator[tuple[bytes, Entry]]:
    """Yield the rows that one commit moves: at least one, if any is left."""
    size = 0
    for key, entry in islice(entries, OLD_ROWS_AT_ONCE):
        yield key, entry
        size += len(key) + len(entry.value)
        if size >= OLD_BYTES_AT_ONCE:
            return


def _batches(
    snapshot: Snapshot[bytes], trimmed: dict[int, int], last: int
) -> Iterator[tuple[list[bytes], dict[int, int]]]:
    """Yield keys of rows up to a time, with the newest time of each slot among them."""
    keys: list[bytes] = []
    newest: dict[int, int] = {}
    for slot in range(SLOTS):
        # Two removals may have divided the rows of one commit, so the last time is read again.
        start, end = span_of(slot, max(0, trimmed.get(slot, 0) - 1), last)
        for key in snapshot.keys(start=start, end=end):
            keys.append(key)
            newest[slot] = Versionstamp.from_bytes(key[-STAMP_BYTES:]).version
            if len(keys) == ROWS_AT_ONCE:
                yield keys, newest
                keys, newest = [], {}
    if keys:
        yield keys, newest
