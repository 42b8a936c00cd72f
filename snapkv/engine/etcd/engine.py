"""The engine that `etcd://...` names: the contract over one cluster."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from snapkv import errors
from snapkv.base.concurrency import THREADS, here
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import bounded, monotonic
from snapkv.engine.bulk_reads import EngineBase, versions_of
from snapkv.engine.contract import (
    Columns,
    EngineLimits,
    GetResult,
    KeyValue,
    Lease,
    Pairs,
    Range,
    RangePiece,
    RangeResult,
    ReadResult,
    Refused,
    Txn,
    TxnResult,
    Versions,
    one_of,
)
from snapkv.engine.etcd import codec, kine
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.cluster_client import READ_TIMEOUT_S, TRY_S, ClusterClient, OnFailover
from snapkv.engine.etcd.endpoint import AnyStream, Endpoint, endpoints_of, warn_of_plain_password
from snapkv.engine.etcd.error_texts import COMPACTED, OversizedAnswerError
from snapkv.engine.etcd.grpc_client import (
    COMPACT,
    GRANT,
    KEEP_ALIVE,
    RANGE,
    REVOKE,
    TXN,
    CallFailed,
    ended_watch,
    is_socket,
)
from snapkv.engine.etcd.options import OPS_MAX, EtcdOptions
from snapkv.engine.etcd.point_reads import PointReads
from snapkv.engine.etcd.scan import PAGE_BYTES, PageSize, RangeSplitter, Scan
from snapkv.engine.etcd.security import Credentials, Security
from snapkv.engine.etcd.server import ServerClock
from snapkv.engine.etcd.watch_stream import EtcdWatcher, WatchReader
from snapkv.engine.request_checks import (
    blamed,
    check_distinct,
    check_piece_rows,
    is_id,
    shown_key,
    ttl_ns_of,
)

# --- the compacted revision: etcd has no call for it, but two whose answers show it ---


class CompactionPoint:
    """The compacted revision, found without an administrator's rights.

    Two reads confirm the remembered one, in a restored cluster, too: one at it, one before it.
    After it has moved, a watch from there finds the new one: the server cancels the watch with the
    answer. The reads come first, because a watch on readable history makes the server search it.
    """

    def __init__(self, connection: ClusterClient, home: bytes) -> None:
        self._connection, self._home = connection, home
        self._known = 0

    def find(self, timeout: float | None = None) -> int:
        """Return the compacted revision, 0 when nothing ever was; 1 to 3 round trips.

        Raises `EngineUnavailableError` after `timeout` seconds.
        """
        bound_s = bounded(READ_TIMEOUT_S if timeout is None else timeout)
        deadline, point, confirmed = monotonic() + bound_s, self._known, False
        while True:
            if self._is_compacted(point or 1, deadline):
                point, confirmed = self._from_watch(point or 1, deadline), True
            elif point <= 1 or confirmed or self._is_compacted(point - 1, deadline):
                self._known = point
                return point
            else:
                point = 0  # the revision before it can be read: the engine went back in time
            if monotonic() >= deadline:
                raise errors.EngineUnavailableError(
                    f"the compacted revision changed at each look for {bound_s:g} s"
                )

    def _is_compacted(self, revision: int, deadline: float) -> bool:
        """Return whether a revision was compacted; False for one in the future."""
        request = pb.RangeRequest(key=self._home, revision=revision, count_only=True)
        try:
            self._connection.read(RANGE, request, max(0.001, deadline - monotonic()))
        except CallFailed as e:
            return e.text.startswith(COMPACTED)
        return False

    def _from_watch(self, revision: int, deadline: float) -> int:
        """Return the compacted revision that the server sends when it cancels a watch."""
        create = pb.WatchCreateRequest(key=self._home, start_revision=revision)
        request, tries = pb.WatchRequest(create_request=create), 0
        while True:
            try:
                return self._asked(request, min(TRY_S, max(0.001, deadline - monotonic())))
            except CallFailed as e:
                failure = e
            tries += 1
            self._connection.wait_before(tries, deadline)
            if monotonic() >= deadline:
                raise errors.EngineUnavailableError(
                    f"the server did not return its compacted revision: {failure}"
                ) from failure

    def _asked(self, request: pb.WatchRequest, timeout: float) -> int:
        open_watch = self._connection.watch(request, timeout)
        try:
            found = _compacted_in(open_watch.stream)
        except CallFailed as e:
            self._connection.broken(open_watch, e, renew=False)
            open_watch.stream.cancel()
            raise
        except BaseException:  # to cancel takes a lock that this may have left taken
            open_watch.endpoint.interrupted(open_watch.stream)
            raise
        open_watch.stream.cancel()  # now: what gRPC's thread ends later may hang the process's end
        return found


def _compacted_in(stream: AnyStream) -> int:
    for answer in stream:
        if answer.compact_revision:
            return answer.compact_revision
        if answer.canceled:
            raise ended_watch(answer.cancel_reason)
    raise CallFailed("UNAVAILABLE", "the stream ended")


# --- engine ---

KEY_BYTES_MAX = 64 << 10


class EtcdEngine(EngineBase):
    """Metadata in an etcd cluster; safe for threads and forks.

    `home` is a key that the user may read: the engine's own requests read it.
    """

    remote = True

    def __init__(
        self,
        connection: ClusterClient,
        *,
        url: str,
        home: bytes,
        server: ServerClock,
        options: EtcdOptions,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._page_size = PageSize(page_bytes)
        self.url, self._home = url, home
        self.limits = EngineLimits(
            key_bytes=KEY_BYTES_MAX,
            value_bytes=options.max_request_bytes,
            request_bytes=options.max_request_bytes,
            ops_per_list=options.max_txn_ops,
        )
        self._connection, self._server = connection, server
        self._compaction = CompactionPoint(connection, home)
        self._watchers: weakref.WeakSet[EtcdWatcher] = weakref.WeakSet()
        self._closed, self._lock = False, threading.Lock()
        if here() is not THREADS:
            reads = PointReads(self.get, self.read, options.max_txn_ops)
            self.get = reads.get  # type: ignore[method-assign]
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks, also of what has no hook of its own."""
        self._lock = threading.Lock()
        self._server.after_fork()

    def report_failovers(self, on_failover: OnFailover) -> None:
        """Call a function when another endpoint of the cluster answers than before."""
        self._connection.failovers.on_failover = on_failover

    def _check_open(self) -> None:
        if self._closed:
            raise errors.StoreClosedError("the engine was closed")

    # --- reading: one key, ranges of one state, listings in bounded ranges ---

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

        Several round trips if the server does not take it as one request: `InvalidKeyError` if two
        ranges have no revision then, and for a key that is too long for any request.
        """
        self._check_open()
        if not self.limits.reads_together([key + end for key, end, *_ in ranges], beside=0):
            parts = self._fitting(ranges)
            if len(parts) > 1:
                return self._in_parts(parts, serializable, timeout)
        at_revisions = all(wanted.revision for wanted in ranges)
        if self._connection.is_kine and len(ranges) > 1 and at_revisions:
            return self._in_parts([[wanted] for wanted in ranges], False, timeout)
        try:
            return self._read(ranges, serializable, timeout)
        except (OversizedAnswerError, errors.NotSupportedError) as e:
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
            request = self._range_request(ranges[0], serializable)
            answer = self._connection.read(RANGE, request, timeout)
            return ReadResult(codec.header_of(answer.header), [codec.range_result(answer)])
        txn = codec.ranges_request(ranges, serializable)
        return codec.read_result(self._connection.read(TXN, txn, timeout), len(ranges))

    def _range_request(self, wanted: Range, serializable: bool) -> pb.RangeRequest:
        if self._connection.is_kine:
            return kine.range_request(wanted)
        return codec.range_request(wanted, serializable)

    def _in_parts(
        self, parts: Sequence[Sequence[Range]], serializable: bool, timeout: float | None
    ) -> ReadResult:
        answers = [self.read(part, serializable=serializable, timeout=timeout) for part in parts]
        results = [result for answer in answers for result in answer.results]
        return ReadResult(answers[-1].header, results)

    def _fitting(self, ranges: Sequence[Range]) -> list[list[Range]]:
        """Cut ranges into requests that the server takes."""
        if sum(wanted.revision <= 0 for wanted in ranges) > 1 < len(ranges):
            raise errors.InvalidKeyError(
                "keys of the newest state must fit into one request; these are too many or too long"
            )
        parts: list[list[Range]] = []
        for wanted in ranges:
            keys = [key + end for key, end, *_ in (*(parts[-1] if parts else ()), wanted)]
            if not self.limits.reads_together(keys[-1:], beside=0):
                raise errors.InvalidKeyError(
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

    def _compacted_error(self, ranges: Sequence[Range]) -> errors.CompactedError:
        asked = min(wanted.revision for wanted in ranges if wanted.revision)
        return errors.CompactedError(asked, self.compacted_revision() or None, unit="revision")

    def _future_error(self, ranges: Sequence[Range]) -> errors.FutureRevisionError:
        newest = self._read([Range(self._home, count_only=True)], False, None).header.revision
        return errors.FutureRevisionError(max(wanted.revision for wanted in ranges), newest)

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return the versions of a key at a revision and the 127 before it; one round trip."""
        first = max(1, revision - min(limit, OPS_MAX) + 1)
        try:
            answers = self._ask([Range(key, revision=at) for at in range(revision, first - 1, -1)])
        except errors.CompactedError:  # of the older ones: one is enough
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
        from snapkv.engine.version_columns import columns_in

        return columns_in(self._pages(key, range_end, revision, keys_only))

    def _pages(
        self, key: bytes, range_end: bytes, revision: int, keys_only: bool
    ) -> Iterator[list[pb.KeyValue]]:
        scan = Scan(self._page, self._ask, revision, keys_only, self._page_size)
        if not self._connection.is_kine:
            return scan.pages(key, range_end)
        listed = kine.listed_ranges(key, range_end)
        return chain.from_iterable(scan.pages(*each) for each in listed)

    def _page(self, wanted: Range) -> pb.RangeResponse:
        """Answer a range at an old revision, from any member unless that lags behind."""
        self._check_open()
        if not self.limits.reads_together([wanted.key + wanted.range_end], beside=0):
            self._fitting([wanted])  # raises
        for serializable in (True, False):
            try:
                return self._connection.read(RANGE, self._range_request(wanted, serializable))
            except CallFailed as e:
                if e.text.startswith(COMPACTED):
                    raise self._compacted_error([wanted]) from e
                failure = e
        raise self._future_error([wanted]) from failure

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[RangePiece]:
        """Cut a range by counting, in 2 to 4 times of what the server takes to count all keys.

        No piece has more than twice `rows` keys. About a round trip for each byte that all share.
        """
        check_piece_rows(rows)
        return RangeSplitter(self._ask, revision, rows).pieces(key, range_end)

    def _ask(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at an old revision, from any member."""
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
        except errors.SnapKVError as e:
            raise Refused(e) from e
        txn = prepare(None)
        try:
            self.check_limits(txn)
            check_distinct(txn)
        except errors.SnapKVError as e:
            raise Refused(e) from e
        request = codec.txn_request(txn)
        try:
            answer = self._connection.send(TXN, request, max(0.001, deadline - monotonic()))
        except Refused as e:
            if isinstance(e.error, errors.LeaseNotFoundError):
                raise Refused(
                    errors.LeaseNotFoundError(max(codec.leases_in(txn), default=0))
                ) from e
            if isinstance(e.error, errors.CommitTooLargeError):
                what = e.error.what.replace("the request in bytes", blamed("the request", txn), 1)
                raise Refused(errors.CommitTooLargeError(what, e.error.size, e.error.limit)) from e
            raise
        except errors.StoreClosedError as e:  # before it was sent, or after a refusal
            raise Refused(e) from e
        return codec.txn_result(answer)

    # --- watching ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> EtcdWatcher:
        """Return a watcher of a range; a stream and two threads of its own."""
        self._check_open()
        trusts_answers = self._server.tells_progress_truly
        reader = WatchReader(self._connection, key, range_end, start_revision, trusts_answers)
        watcher = EtcdWatcher(reader, self._home)
        with self._lock:
            closed = self._closed
            self._watchers.add(watcher)
        if closed:  # by another thread, just now
            watcher.close()
        return watcher

    # --- compaction ---

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Compact the whole cluster; needs the role root. The server frees space by itself."""
        self._check_open()
        try:
            self._connection.read(COMPACT, pb.CompactionRequest(revision=revision), timeout)
        except CallFailed as e:
            if not e.text.startswith(COMPACTED):
                raise self._future_error([Range(self._home, revision=revision)]) from e
            compacted = self.compacted_revision(timeout=timeout)
            if revision < compacted:
                raise errors.CompactedError(revision, compacted, unit="revision") from e

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
            raise errors.LeaseNotFoundError(lease)
        request = pb.LeaseKeepAliveRequest(ID=lease)
        answer = self._connection.read(KEEP_ALIVE, request, timeout)
        if answer.TTL <= 0:
            raise errors.LeaseNotFoundError(lease)
        return float(answer.TTL)

    def revoke(self, lease: int, *, timeout: float | None = None) -> None:
        """End a lease and remove its keys."""
        self._check_open()
        if not is_id(lease):
            return
        with contextlib.suppress(errors.LeaseNotFoundError):
            self._connection.read(REVOKE, pb.LeaseRevokeRequest(ID=lease), timeout)

    # --- the rest ---

    def server_time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        """Return the server's clock, to about half a second; None if it is unknown."""
        return self._server.time_ms(fresh=fresh)

    def info(self) -> dict[str, int | str]:
        """Return endpoints, version, cluster, revisions and sizes; three round trips and more.

        Sizes are of a server's file, with all that is in it; the user may lack the right to them.
        """
        header = self.read([Range(self._home, count_only=True)]).header
        sizes = dict[str, int | str]()
        with contextlib.suppress(CallFailed):
            found = self._connection.status()
            sizes = {"bytes": found.dbSize, "used_bytes": found.dbSizeInUse}
        return {
            "engine": "etcd",
            "endpoints": ", ".join(self._connection.addresses),
            "version": self._server.version or "unknown",
            "cluster": f"{header.cluster:x}",
            "revision": header.revision,
            "compacted_revision": self.compacted_revision(),
            **{name: size for name, size in sizes.items() if size},
        }

    def check(self) -> list[str]:
        """Return the problems that the cluster reports."""
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


def open_etcd(url: str, *, home: bytes = b"\0", **options: Any) -> EtcdEngine:
    """Return the engine of an `etcd://` URL. One plain request; it connects when it is used.

    `options` are as in `EtcdOptions`. Raises `InvalidOptionError`, `InvalidTypeError`; warns
    with `ServerWarning`, also when a password goes beyond this machine without TLS.
    """
    given = EtcdOptions(**options)
    security = Security.of(given.tls, given.ca_cert, given.cert, given.key)
    endpoints = [Endpoint.at(address, security) for address in endpoints_of(url)]
    login = Credentials.of(given.user, given.password)
    warn_of_plain_password(endpoints_of(url), login, tls=security.tls)
    connection = ClusterClient(endpoints, login)
    server = ServerClock(
        lambda: connection.addresses,
        security.context(),
        connection.server_version,
        lambda: not connection.is_kine and not all(map(is_socket, connection.addresses)),
    )
    server.look()
    return EtcdEngine(connection, url=url, home=home, server=server, options=given)
