"""The log of changes: each write puts its base row and a log row under its stream, or neither.

| key | value |
|---|---|
| `("base", token, key)` | the row: the user's bytes |
| `("log", stream, stamp)` | what was written: `(0, key, value)`, or `(0, key)` for a removal |

`token` and `stream` are in the order of the ring, so that a row and its log rows lie in the same
range of it; `stamp` is the versionstamp of the very commit that writes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from cdcmeta.errors import (
    GenerationUnavailableError,
    InvalidArgumentError,
    InvalidStreamIdError,
    MemberLostError,
)
from cdcmeta.generations.metadata import check_seconds
from cdcmeta.generations.streams import StreamId, ring_bytes
from cdcmeta.generations.tokens import murmur3_token
from snapkv import (
    CommitTimeoutError,
    CommitUnknownError,
    ConflictError,
    Ops,
    Snapshot,
    SnapshotKV,
    SpaceOps,
    Stamp,
    When,
)
from snapkv.clock import monotonic
from snapkv.errors import CorruptStoreError
from snapkv.model import Guard
from snapkv.tuples import Versionstamp, pack, unpack

FORMAT = 0
BASE, LOG = "base", "log"
TIMEOUT_S = 10.0
COMMIT_S_MAX = 60.0
"""The longest that a store lets one commit take."""
STREAMS_AT_ONCE = 1_024
"""Streams whose rows are asked for together."""


class Streams(Protocol):
    """Who tells the stream of a write: `Member`, or `Generations` of one process's own."""

    @property
    def store(self) -> SnapshotKV | None:
        """Return the store that its guards are of; None where it has none."""
        ...

    def stream(self, ts: int, token: int) -> StreamId:
        """Return the stream of a write."""
        ...

    def guards(self) -> Mapping[str, list[Guard]]:
        """Return what must hold, by space, when that is committed."""
        ...

    def catch_up(self, timeout: float) -> None:
        """Wait until what was known when a guard failed is known no more."""
        ...


@dataclass(frozen=True, slots=True, order=True)
class LogRow:
    """A change as it was logged; `value` is None where the row was removed."""

    stamp: Versionstamp
    stream: StreamId
    key: bytes
    value: bytes | None

    @property
    def timestamp(self) -> int:
        """The timestamp of the commit that made it."""
        return self.stamp.version


class CdcLog:
    """Rows with a log of their changes, spread over the streams of the generations.

    A log row's stream is chosen inside the commit, by the very timestamp that this gets; with a
    `Member` the commit is also guarded by the newest generation, so it cannot land in a stream of
    another one. Safe for threads.
    """

    def __init__(self, store: SnapshotKV, streams: Streams, name: str = "default") -> None:
        """No round trip. Raises `InvalidArgumentError`, `snapkv.errors.InvalidKeyError` (name).

        The store is the one that the member was made in: what guards its commits is there.
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"a log's name is a text, not {name!r}")
        if streams.store is not None and streams.store is not store:
            raise InvalidArgumentError("a log's rows are in the store of its member's generations")
        self.store, self._streams = store, streams
        self._name = f"cdc/{name}"
        self._space = store.space(self._name)

    def write(
        self,
        key: bytes,
        value: bytes | None,
        *,
        timeout: float = TIMEOUT_S,
        note: str | None = None,
    ) -> LogRow:
        """Write a row, or remove it (None), with its log row; return that. One commit.

        While the generation of now is not known here, the write waits for it. Raises
        `GenerationUnavailableError` (by its kinds, when `timeout` seconds are over),
        `WriteFromPastError` or `WriteFromFutureError` where this clock and the store's differ by
        more than the leeway, and what `SnapshotKV.commit` raises. Of an unknown outcome
        (`snapkv.CommitUnknownError`) `resolve` tells the row.
        """
        if not isinstance(key, bytes) or not isinstance(value, bytes | None):
            raise InvalidArgumentError("keys and values are bytes")
        check_seconds("timeout", timeout)
        token, deadline = murmur3_token(key), monotonic() + timeout
        built: dict[tuple[int, int], LogRow] = {}

        def build(stamp: Stamp) -> Ops:
            guards = self._streams.guards()  # before the stream is asked for
            versionstamp = Versionstamp(stamp.ts, stamp.batch)
            row = LogRow(versionstamp, self._streams.stream(stamp.ts, token), key, value)
            built[stamp.ts, stamp.batch] = row
            spaces = {name: SpaceOps(guards=each) for name, each in guards.items()}
            return Ops(spaces=spaces | {self._name: self._ops(row, token)}, note=note)

        lacking: GenerationUnavailableError | None = None
        while True:
            try:
                left = min(COMMIT_S_MAX, max(0.001, deadline - monotonic()))
                commit = self.store.commit(build, timeout=left)
                return built[commit.ts, commit.batch]
            except MemberLostError:
                raise  # waiting does not help
            except GenerationUnavailableError as e:
                lacking = e
            except ConflictError:
                lacking = None
            except CommitTimeoutError as e:
                if lacking is not None:
                    raise lacking from e  # that is what the time went by with
                raise
            if (left := deadline - monotonic()) <= 0:
                raise lacking or CommitTimeoutError("generations came faster than the write")
            self._streams.catch_up(left)

    def resolve(self, error: CommitUnknownError, *, timeout: float = TIMEOUT_S) -> LogRow | None:
        """Return the row of a write whose outcome was unknown; None if it never will be there.

        From any process: the error can be pickled. A watch of its very commit, and as
        `SnapshotKV.resolve`, which raises what this raises; `CompactedError` when that commit's
        history is gone, `InvalidArgumentError` when it wrote nothing to this log.
        """
        check_seconds("timeout", timeout)
        if not isinstance(error, CommitUnknownError):
            raise InvalidArgumentError(f"a CommitUnknownError is settled, not {error!r}")
        ts, deadline = error.timestamp, monotonic() + timeout
        left = min(COMMIT_S_MAX, timeout)
        try:
            if self.store.resolve(ts, error.nonce, guards=error.guards, timeout=left) is None:
                return None
        except ConflictError:
            return None  # others of its group were committed, this was not
        left = max(0.0, deadline - monotonic())
        with self._space.watch(pack((LOG,)), since=ts - 1, timeout=left) as watch:
            changes = next(watch, None)  # what was committed comes, whatever time is left
        stamp = Versionstamp(ts, error.batch)
        for change in changes or ():
            elements = unpack(change.key)
            if change.value is not None and elements[2:] == (stamp,):
                return _row_of(_stream_of(elements[1]), change.key, change.value)
        raise InvalidArgumentError(f"commit {ts} wrote nothing to this log")

    def get(self, key: bytes, when: When | None = None) -> bytes | None:
        """Return a row, now or as it was; None where there is none."""
        if not isinstance(key, bytes):
            raise InvalidArgumentError("keys and values are bytes")
        (found,) = self._space.entries_of([_base_key(key)], when)
        return None if found is None else found.value

    def read(self, stream: StreamId, begin: When, end: When | None = None) -> list[LogRow]:
        """Return a stream's log rows in (begin, end], oldest first; without an end all of them.

        A round trip for now, and one for the rows. Raises `InvalidArgumentError` for what is no
        `StreamId`.
        """
        if not isinstance(stream, StreamId):
            raise InvalidArgumentError(f"a stream is a StreamId, not {stream!r}")
        snapshot = self._space.at()
        until = snapshot.timestamp if end is None else self._space.timestamp_of(end)
        return list(self.rows(snapshot, [stream], self._space.timestamp_of(begin), until))

    def rows(
        self, snapshot: Snapshot[bytes], streams: Iterable[StreamId], begin: int, end: int
    ) -> Iterator[LogRow]:
        """Yield the rows of streams in (begin, end] as a snapshot of this log has them.

        Stream by stream, each in order. A round trip for each 128 streams.
        """
        wanted: list[StreamId] = []
        for stream in streams:
            wanted.append(stream)
            if len(wanted) == STREAMS_AT_ONCE:
                yield from self._some(snapshot, wanted, begin, end)
                wanted.clear()
        if wanted:
            yield from self._some(snapshot, wanted, begin, end)

    def at(self, when: When | None = None) -> Snapshot[bytes]:
        """Return a moment of this log, for `rows`."""
        return self._space.at(when)

    # --- helpers ---

    def _some(
        self, snapshot: Snapshot[bytes], streams: list[StreamId], begin: int, end: int
    ) -> Iterator[LogRow]:
        ranges = [(_log_key(each, begin + 1), _log_key(each, end + 1)) for each in streams]
        for stream, items in zip(streams, snapshot.items_of(ranges), strict=True):
            for key, value in items:
                yield _row_of(stream, key, value)

    def _ops(self, row: LogRow, token: int) -> SpaceOps:
        base = pack((BASE, ring_bytes(token), row.key))
        logged = (FORMAT, row.key) if row.value is None else (FORMAT, row.key, row.value)
        puts = {pack((LOG, row.stream.ring_key, row.stamp)): pack(logged)}
        if row.value is None:
            return SpaceOps(puts, [base])
        return SpaceOps(puts | {base: row.value})


def _base_key(key: bytes) -> bytes:
    return pack((BASE, ring_bytes(murmur3_token(key)), key))


def _stream_of(ring_key: object) -> StreamId:
    try:
        return StreamId.of_ring_key(ring_key)  # type: ignore[arg-type]
    except InvalidStreamIdError as e:
        raise CorruptStoreError(f"a log row is of no stream: {e}") from e


def _log_key(stream: StreamId, timestamp: int) -> bytes:
    return pack((LOG, stream.ring_key, Versionstamp(min(timestamp, 2**64 - 1))))


def _row_of(stream: StreamId, key: bytes, raw: bytes) -> LogRow:
    try:
        _, _, stamp = unpack(key)
        format, written, *value = unpack(raw)
        if format != FORMAT:
            raise ValueError(f"format {format}, not {FORMAT}")
        return LogRow(stamp, stream, written, value[0] if value else None)
    except (ValueError, TypeError) as e:
        raise CorruptStoreError(f"the log row {key.hex()} cannot be read: {e}") from e
