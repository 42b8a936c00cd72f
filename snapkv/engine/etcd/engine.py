"""The engine that `etcd://...` names: the contract over one cluster."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

from snapkv.clock import monotonic
from snapkv.engine.base import (
    GetResult,
    KeyValue,
    Lease,
    Limits,
    Piece,
    Range,
    RangeResult,
    ReadResult,
    Txn,
    TxnResult,
    Versions,
    one_of,
)
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd import wire
from snapkv.engine.etcd.address import (
    Login,
    Security,
    endpoints_of,
    warn_of_plain_password,
)
from snapkv.engine.etcd.compacted import CompactionPoint
from snapkv.engine.etcd.connection import Connection
from snapkv.engine.etcd.cutter import Cutter
from snapkv.engine.etcd.endpoint import Endpoint
from snapkv.engine.etcd.refusals import COMPACTED, OversizedAnswerError
from snapkv.engine.etcd.rpc import COMPACT, GRANT, KEEP_ALIVE, RANGE, REVOKE, TXN, CallFailed
from snapkv.engine.etcd.scan import PAGE_BYTES, PageSize, Scan
from snapkv.engine.etcd.server import Server
from snapkv.engine.etcd.watcher import EtcdWatcher
from snapkv.engine.leases import is_id, ttl_ns_of
from snapkv.engine.rules import check_distinct, check_limits, check_piece_rows
from snapkv.engine.scanned import Scanned, versions_of
from snapkv.errors import (
    CompactedError,
    FutureRevisionError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    LeaseNotFoundError,
    Refused,
    SnapKVError,
    StoreClosedError,
)
from snapkv.forks import renew_in_children

KEY_BYTES_MAX = 64 << 10
REQUEST_BYTES_MAX = 1_572_864
OPS_MAX = 128
"""The server's defaults of --max-request-bytes and --max-txn-ops."""


class EtcdEngine(Scanned):
    """Metadata in an etcd cluster; safe for threads and forks.

    `home` is a key that the user may read: the engine's own questions are about it.
    """

    remote = True

    def __init__(
        self,
        connection: Connection,
        *,
        url: str,
        home: bytes,
        server: Server,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        max_txn_ops: int = OPS_MAX,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._page_size = PageSize(page_bytes)
        self.url, self._home = url, home
        self.limits = Limits(
            key_bytes=KEY_BYTES_MAX,
            value_bytes=max_request_bytes,
            request_bytes=max_request_bytes,
            ops_per_list=max_txn_ops,
        )
        self._connection, self._server = connection, server
        self._compaction = CompactionPoint(connection, home)
        self._watchers: weakref.WeakSet[EtcdWatcher] = weakref.WeakSet()
        self._closed, self._lock = False, threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks, also of what has no hook of its own."""
        self._lock = threading.Lock()
        self._server.after_fork()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the engine was closed")

    # --- reading ---

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision; one round trip."""
        if self._closed or len(key) > KEY_BYTES_MAX:
            return one_of(self.read([Range(key, revision=revision)]))
        try:
            answer = self._connection.read(RANGE, pb.RangeRequest(key=key, revision=revision))
        except CallFailed:  # a revision that is not held: `read` finds out which are
            return one_of(self.read([Range(key, revision=revision)]))
        kvs = wire.key_values(answer.kvs)
        return GetResult(wire.header_of(answer.header), kvs[0] if kvs else None)

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one state; one round trip, about 1 us for a row.

        More than one for what is larger than the server takes; then all but one must be at
        revisions. Raises `InvalidKeyError` for others, and for keys that fit into no request.
        """
        self._check_open()
        if not self.limits.reads_together([key + end for key, end, *_ in ranges], beside=0):
            parts = self._fitting(ranges)
            if len(parts) > 1:
                answers = [
                    self.read(part, serializable=serializable, timeout=timeout) for part in parts
                ]
                results = [result for answer in answers for result in answer.results]
                return ReadResult(answers[-1].header, results)
        try:
            return self._read(ranges, serializable, timeout)
        except OversizedAnswerError:
            if len(ranges) == 1 or not all(wanted.revision for wanted in ranges):
                raise
            half = len(ranges) // 2
            halves = [self.read(some, timeout=timeout) for some in (ranges[:half], ranges[half:])]
            return ReadResult(halves[1].header, [*halves[0].results, *halves[1].results])
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
            request = wire.range_request(ranges[0], serializable)
            answer = self._connection.read(RANGE, request, timeout)
            return ReadResult(wire.header_of(answer.header), [wire.range_result(answer)])
        txn = wire.ranges_request(ranges, serializable)
        return wire.read_result(self._connection.read(TXN, txn, timeout), len(ranges))

    def _fitting(self, ranges: Sequence[Range]) -> list[list[Range]]:
        """Cut ranges into requests that the server takes."""
        if sum(wanted.revision <= 0 for wanted in ranges) > 1 < len(ranges):
            raise InvalidKeyError("keys of now are read together, and these are too many or long")
        parts: list[list[Range]] = []
        for wanted in ranges:
            keys = [key + end for key, end, *_ in (*(parts[-1] if parts else ()), wanted)]
            if not self.limits.reads_together(keys[-1:], beside=0):
                raise InvalidKeyError(f"a key of {len(wanted.key):,} bytes is longer than any")
            if not parts or not self.limits.reads_together(keys, beside=0):
                parts.append([])
            parts[-1].append(wanted)
        return parts

    def _compacted_error(self, ranges: Sequence[Range]) -> CompactedError:
        asked = min(wanted.revision for wanted in ranges if wanted.revision)
        return CompactedError(asked, self.compacted_revision() or None, unit="revision")

    def _future_error(self, ranges: Sequence[Range]) -> FutureRevisionError:
        newest = self._read([Range(self._home, count_only=True)], False, None).header.revision
        return FutureRevisionError(max(wanted.revision for wanted in ranges), newest)

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return the versions of a key in force at the 128 newest revisions; one round trip."""
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
        return Scan(self._ask, revision, keys_only, self._page_size).pages(key, range_end)

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[Piece]:
        """Cut a range by counting; none has more than twice `rows` keys.

        One round trip where there is nothing to cut, else about one for each byte that all keys
        share, and the server's time for counting: 2 to 4 times that of counting all keys.
        """
        check_piece_rows(rows)
        return Cutter(self._ask, revision, rows).pieces(key, range_end)

    def _ask(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at an old revision, which any member may do."""
        return list(self.read(ranges, serializable=True).results)

    # --- writing ---

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        """Send one transaction to an endpoint that answers, once."""
        deadline = monotonic() + timeout
        try:
            self._check_open()
            self._connection.ready(self._home, timeout)
        except SnapKVError as e:
            raise Refused(e) from e
        txn = prepare(None)
        try:
            self.check_limits(txn)
            check_distinct(txn)
        except SnapKVError as e:
            raise Refused(e) from e
        request = wire.txn_request(txn)
        try:
            answer = self._connection.send(TXN, request, max(0.001, deadline - monotonic()))
        except Refused as e:
            if isinstance(e.error, LeaseNotFoundError):
                raise Refused(LeaseNotFoundError(max(wire.leases_in(txn), default=0))) from e
            raise
        except StoreClosedError as e:  # before it was sent, or after a refusal
            raise Refused(e) from e
        return wire.txn_result(answer)

    def check_limits(self, txn: Txn) -> int:
        """Return the size of `txn`; raise `CommitTooLargeError` when it is over `limits`."""
        return check_limits(txn, self.limits)

    # --- following ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> EtcdWatcher:
        """Return a watcher of a range; a stream and two threads of its own."""
        self._check_open()
        watcher = EtcdWatcher(
            self._connection,
            self._home,
            key,
            range_end,
            start_revision,
            trusts_answers=self._server.tells_progress_truly,
        )
        with self._lock:
            closed = self._closed
            self._watchers.add(watcher)
        if closed:  # by another thread, just now
            watcher.close()
        return watcher

    # --- forgetting ---

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Compact the whole cluster; the server frees in the background. Needs the role root.

        Nobody else's writing is in the way, so `batches` changes nothing; `timeout` bounds the
        wait for an answer in seconds.
        """
        self._check_open()
        try:
            self._connection.read(COMPACT, pb.CompactionRequest(revision=revision), timeout)
        except CallFailed as e:
            if not e.text.startswith(COMPACTED):
                raise self._future_error([Range(self._home, revision=revision)]) from e
            compacted = self.compacted_revision(timeout=timeout)
            if revision < compacted:
                raise CompactedError(revision, compacted, unit="revision") from e

    def compacted_revision(self, *, timeout: float | None = None) -> int:
        """Return the oldest readable revision, 0 before any compaction; 1 to 3 round trips."""
        self._check_open()
        return self._compaction.find(timeout)

    # --- leases ---

    def grant(self, ttl_s: float, *, timeout: float | None = None) -> Lease:
        """Return a new lease of whole seconds; the server's least is usually 2."""
        self._check_open()
        ttl_s = ttl_ns_of(ttl_s) / 1_000_000_000
        request = pb.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        answer = self._connection.read(GRANT, request, timeout)
        return Lease(answer.ID, float(answer.TTL))

    def keep_alive(self, lease: int, *, timeout: float | None = None) -> float:
        """Start a lease's time anew; return its seconds."""
        self._check_open()
        if not is_id(lease):
            raise LeaseNotFoundError(lease)
        request = pb.LeaseKeepAliveRequest(ID=lease)
        answer = self._connection.read(KEEP_ALIVE, request, timeout)
        if answer.TTL <= 0:
            raise LeaseNotFoundError(lease)
        return float(answer.TTL)

    def revoke(self, lease: int, *, timeout: float | None = None) -> None:
        """End a lease and remove its keys."""
        self._check_open()
        if not is_id(lease):
            return
        with contextlib.suppress(LeaseNotFoundError):
            self._connection.read(REVOKE, pb.LeaseRevokeRequest(ID=lease), timeout)

    # --- the rest ---

    def server_time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        """Return the server's clock, to about half a second; None when it cannot be seen.

        No waiting, but about a second at most with `fresh`, which looks again.
        """
        return self._server.time_ms(fresh=fresh)

    def info(self) -> dict[str, int | str]:
        """Return endpoints, version, cluster and revisions; two round trips and more."""
        header = self.read([Range(self._home, count_only=True)]).header
        return {
            "engine": "etcd",
            "endpoints": ", ".join(self._connection.addresses),
            "version": self._server.version or "unknown",
            "cluster": f"{header.cluster:x}",
            "revision": header.revision,
            "compacted_revision": self.compacted_revision(),
        }

    def check(self) -> list[str]:
        """Return what the cluster says is wrong with it."""
        self._check_open()
        return self._server.complaints()

    def close(self) -> None:
        """End all watchers and connections."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.close()
        self._connection.close()


def open_etcd(
    url: str,
    *,
    home: bytes = b"\0",
    user: str | None = None,
    password: str | None = None,
    tls: bool | None = None,
    ca_cert: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    max_request_bytes: int = REQUEST_BYTES_MAX,
    max_txn_ops: int = OPS_MAX,
) -> EtcdEngine:
    """Return the engine of an `etcd://` URL; one plain request, the rest when it is used.

    Raises `InvalidURLError`, `InvalidOptionError`; warns with `ServerWarning`, and with
    `PlainPasswordWarning` when a password goes beyond this machine without TLS.
    """
    check_number("max_request_bytes", max_request_bytes, 8 << 10)
    check_number("max_txn_ops", max_txn_ops, 48)
    security = Security.of(tls, ca_cert, cert, key)
    endpoints = [Endpoint.at(address, security) for address in endpoints_of(url)]
    login = Login.of(user, password)
    warn_of_plain_password(endpoints_of(url), login, tls=security.tls)
    connection = Connection(endpoints, login)
    server = Server(lambda: connection.addresses, security.context(), connection.server_version)
    server.look()
    return EtcdEngine(
        connection,
        url=url,
        home=home,
        server=server,
        max_request_bytes=max_request_bytes,
        max_txn_ops=max_txn_ops,
    )


def check_number(option: str, value: object, least: int) -> None:
    """Raise a typed error for an option that is no int, or less than it can be."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"{option} is an int, not {type(value).__name__}")
    if value < least:
        raise InvalidOptionError(f"{option} is {value}, the least is {least}")
