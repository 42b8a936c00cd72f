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

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from cdcmeta.generations.model.streams import StreamId, ring_bytes
from cdcmeta.generations.model.tokens import murmur3_token
from snapkv.errors import CorruptStoreError, FormatError
from snapkv.times import TIMESTAMP_MAX
from snapkv.tuples import Versionstamp, pack, unpack

FORMAT, OLD_FORMAT = 1, 0
ROW, OLD_ROW = "row", "log"
ROW_PREFIX, OLD_PREFIX = pack((ROW,)), pack((OLD_ROW,))
SLOT_BITS = 6
STAMP_BYTES = 12
SLOTS = 1 << SLOT_BITS
"""Parts of the ring: a window reads all of them in one round trip, a worker only its own."""

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
    return tuple(row_key(slot, _first_behind(each)) for each in (begin, end))  # type: ignore[return-value]


def old_span_of(stream: StreamId, begin: int, end: int) -> tuple[bytes, bytes]:
    """Return the range of keys of a stream's log rows of an older version, in (begin, end]."""
    keys = (pack((OLD_ROW, stream.ring_key, _first_behind(each))) for each in (begin, end))
    return tuple(keys)  # type: ignore[return-value]


def encoded(rows: Iterable[LogRow]) -> dict[bytes, bytes]:
    """Return the keys and values of log rows."""
    return {row_key(slot_of(row.stream), row.stamp): _value_of(row) for row in rows}


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


def _value_of(row: LogRow) -> bytes:
    facts = int(row.operation), row.batch_seq_no, row.end_of_batch, row.key, row.value
    return msgpack.packb((FORMAT, row.stream.ring_key, *facts))  # type: ignore[no-any-return]


def _first_behind(time: int) -> Versionstamp:
    return Versionstamp(min(time + 1, TIMESTAMP_MAX))
