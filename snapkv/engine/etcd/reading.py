"""Reading a cluster: one key, ranges of one state, listings in bounded ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from snapkv.engine.contract import (
    Columns,
    GetResult,
    KeyValue,
    Limits,
    Pairs,
    Piece,
    Range,
    RangeResult,
    ReadResult,
    Versions,
    one_of,
)
from snapkv.engine.etcd import codec
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.compaction import CompactionPoint
from snapkv.engine.etcd.connection import Connection
from snapkv.engine.etcd.error_texts import COMPACTED, OversizedAnswerError
from snapkv.engine.etcd.grpc_client import RANGE, TXN, CallFailed
from snapkv.engine.etcd.ranges import RangeSplitter
from snapkv.engine.etcd.scan import PageSize, Scan
from snapkv.engine.rules import check_piece_rows, shown_key
from snapkv.engine.scanned import Scanned, versions_of
from snapkv.errors import (
    CompactedError,
    FutureRevisionError,
    InvalidKeyError,
    NotSupportedError,
    StoreClosedError,
)

KEY_BYTES_MAX = 64 << 10
OPS_MAX = 128
"""The server's default of --max-txn-ops."""


class EtcdReads(Scanned):
    """The part of the etcd engine that reads."""

    limits: Limits
    _home: bytes
    _connection: Connection
    _compaction: CompactionPoint
    _page_size: PageSize
    _closed: bool

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the engine was closed")

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision; one round trip."""
        if self._closed or len(key) > KEY_BYTES_MAX:
            return one_of(self.read([Range(key, revision=revision)]))
        try:
            answer = self._connection.read(RANGE, pb.RangeRequest(key=key, revision=revision))
        except CallFailed:  # a revision that cannot be read: `read` finds out which can
            return one_of(self.read([Range(key, revision=revision)]))
        kvs = codec.key_values(answer.kvs)
        return GetResult(codec.header_of(answer.header), kvs[0] if kvs else None)

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one state; one round trip, about 1 us for a row.

        Several round trips if the server does not take it as one request; then all ranges but one
        must have revisions. Raises `InvalidKeyError` otherwise, and for a key too long
        for any request.
        """
        self._check_open()
        if not self.limits.reads_together([key + end for key, end, *_ in ranges], beside=0):
            parts = self._fitting(ranges)
            if len(parts) > 1:
                return self._in_parts(parts, serializable, timeout)
        try:
            return self._read(ranges, serializable, timeout)
        except (OversizedAnswerError, NotSupportedError) as e:
            if len(ranges) == 1 or not all(wanted.revision for wanted in ranges):
                raise
            step = len(ranges) // 2 if isinstance(e, OversizedAnswerError) else 1
            pieces = [ranges[at : at + step] for at in range(0, len(ranges), step)]
            return self._in_parts(pieces, serializable, timeout)
        except CallFailed as e:
            if e.text.startswith(COMPACTED):
                raise self._compacted_error(ranges) from e
            if not serializable:
                raise self._future_error(ranges) from e
        return self.read(ranges, timeout=timeout)  # that member lags behind

    def _read(
        self, ranges: Sequence[Range], serializable: bool, timeout: float | None
    ) -> ReadResult:
        if len(ranges) == 1:
            request = codec.range_request(ranges[0], serializable)
            answer = self._connection.read(RANGE, request, timeout)
            return ReadResult(codec.header_of(answer.header), [codec.range_result(answer)])
        txn = codec.ranges_request(ranges, serializable)
        return codec.read_result(self._connection.read(TXN, txn, timeout), len(ranges))

    def _in_parts(
        self, parts: Sequence[Sequence[Range]], serializable: bool, timeout: float | None
    ) -> ReadResult:
        """Answer parts of the ranges one after another."""
        answers = [self.read(part, serializable=serializable, timeout=timeout) for part in parts]
        results = [result for answer in answers for result in answer.results]
        return ReadResult(answers[-1].header, results)

    def _fitting(self, ranges: Sequence[Range]) -> list[list[Range]]:
        """Cut ranges into requests that the server takes."""
        if sum(wanted.revision <= 0 for wanted in ranges) > 1 < len(ranges):
            raise InvalidKeyError(
                "keys of the newest state must fit into one request; these are too many or too long"
            )
        parts: list[list[Range]] = []
        for wanted in ranges:
            keys = [key + end for key, end, *_ in (*(parts[-1] if parts else ()), wanted)]
            if not self.limits.reads_together(keys[-1:], beside=0):
                raise InvalidKeyError(
                    f"key {shown_key(wanted.key)} is too long for any request", wanted.key
                )
            if not parts or not self.limits.reads_together(keys, beside=0):
                parts.append([])
            parts[-1].append(wanted)
        return parts

    def compacted_revision(self, *, timeout: float | None = None) -> int:
        """Return the oldest readable revision, 0 before any compaction; 1 to 3 round trips."""
        self._check_open()
        return self._compaction.find(timeout)

    def _compacted_error(self, ranges: Sequence[Range]) -> CompactedError:
        asked = min(wanted.revision for wanted in ranges if wanted.revision)
        return CompactedError(asked, self.compacted_revision() or None, unit="revision")

    def _future_error(self, ranges: Sequence[Range]) -> FutureRevisionError:
        newest = self._read([Range(self._home, count_only=True)], False, None).header.revision
        return FutureRevisionError(max(wanted.revision for wanted in ranges), newest)

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return the versions of a key at a revision and the 127 before it; one round trip."""
        first = max(1, revision - min(limit, OPS_MAX) + 1)
        try:
            answers = self._ask([Range(key, revision=at) for at in range(revision, first - 1, -1)])
        except CompactedError:  # of the older ones: one is enough
            answers = self._ask([Range(key, revision=revision)])
        found: list[KeyValue] = []
        for answer in answers:
            if not answer.kvs or (found and answer.kvs[0].version > found[-1].version):
                break
            if not found or answer.kvs[0].version < found[-1].version:
                found.append(answer.kvs[0])
        return versions_of(found)

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield pages of about 4 MiB from bounded ranges; a round trip each, a few to cut them."""
        return map(codec.key_values, self._pages(key, range_end, revision, keys_only))

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield the same as keys and values, made of the messages without an object a key."""
        for page in self._pages(key, range_end, revision, keys_only):
            yield Pairs([kv.key for kv in page], [] if keys_only else [kv.value for kv in page])

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield the same as columns of Arrow."""
        from snapkv.engine.arrow import columns_in

        return columns_in(self._pages(key, range_end, revision, keys_only))

    def _pages(
        self, key: bytes, range_end: bytes, revision: int, keys_only: bool
    ) -> Iterator[list[pb.KeyValue]]:
        scan = Scan(self._page, self._ask, revision, keys_only, self._page_size)
        return scan.pages(key, range_end)

    def _page(self, wanted: Range) -> pb.RangeResponse:
        """Answer a range at an old revision, from any member unless that lags behind."""
        self._check_open()
        if not self.limits.reads_together([wanted.key + wanted.range_end], beside=0):
            self._fitting([wanted])  # raises
        try:
            return self._connection.read(RANGE, codec.range_request(wanted, serializable=True))
        except CallFailed as e:
            if e.text.startswith(COMPACTED):
                raise self._compacted_error([wanted]) from e
        try:
            return self._connection.read(RANGE, codec.range_request(wanted))
        except CallFailed as e:
            if e.text.startswith(COMPACTED):
                raise self._compacted_error([wanted]) from e
            raise self._future_error([wanted]) from e

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[Piece]:
        """Cut a range by counting; none has more than twice `rows` keys.

        One round trip if the range stays whole, else about one for each byte that all keys
        share, and the server's time for counting: 2 to 4 times that of counting all keys.
        """
        check_piece_rows(rows)
        return RangeSplitter(self._ask, revision, rows).pieces(key, range_end)

    def _ask(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at an old revision, from any member."""
        return list(self.read(ranges, serializable=True).results)
