"""The engine that `etcd://...` names: the contract over one cluster."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

from snapkv.base.arguments import check_int
from snapkv.base.concurrency import THREADS, here
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.engine.contract import Changes, KeyValue, Lease, Limits, Range, Replay, Txn, TxnResult
from snapkv.engine.errors import Refused
from snapkv.engine.etcd import codec
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.etcd.address import endpoints_of
from snapkv.engine.etcd.compaction import CompactionPoint
from snapkv.engine.etcd.connection import Connection
from snapkv.engine.etcd.endpoint import Endpoint
from snapkv.engine.etcd.error_texts import COMPACTED
from snapkv.engine.etcd.failover import OnFailover
from snapkv.engine.etcd.grpc_client import COMPACT, GRANT, KEEP_ALIVE, REVOKE, TXN, CallFailed
from snapkv.engine.etcd.point_reads import PointReads
from snapkv.engine.etcd.reading import KEY_BYTES_MAX, OPS_MAX, EtcdReads
from snapkv.engine.etcd.scan import PAGE_BYTES, PageSize
from snapkv.engine.etcd.security import Login, Security, warn_of_plain_password
from snapkv.engine.etcd.server import Server
from snapkv.engine.etcd.watcher import EtcdWatcher
from snapkv.engine.leases import is_id, ttl_ns_of
from snapkv.engine.replay import changes
from snapkv.engine.rules import blamed, check_distinct, check_limits, one_by_one
from snapkv.errors import (
    CommitTooLargeError,
    CompactedError,
    LeaseNotFoundError,
    SnapKVError,
    StoreClosedError,
)

REQUEST_BYTES_MAX = 1_572_864
"""The server's default of --max-request-bytes."""


class EtcdEngine(EtcdReads):
    """Metadata in an etcd cluster; safe for threads and forks.

    `home` is a key that the user may read: the engine's own requests read it.
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
        if here() is not THREADS:
            reads = PointReads(self.get, self.read, max_txn_ops)
            self.get = reads.get  # type: ignore[method-assign]
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks, also of what has no hook of its own."""
        self._lock = threading.Lock()
        self._server.after_fork()

    def report_failovers(self, on_failover: OnFailover) -> None:
        """Call a function when another endpoint of the cluster answers than before."""
        self._connection.failovers.on_failover = on_failover

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
        request = codec.txn_request(txn)
        try:
            answer = self._connection.send(TXN, request, max(0.001, deadline - monotonic()))
        except Refused as e:
            if isinstance(e.error, LeaseNotFoundError):
                raise Refused(LeaseNotFoundError(max(codec.leases_in(txn), default=0))) from e
            if isinstance(e.error, CommitTooLargeError):
                what = e.error.what.replace("the request in bytes", blamed("the request", txn), 1)
                raise Refused(CommitTooLargeError(what, e.error.size, e.error.limit)) from e
            raise
        except StoreClosedError as e:  # before it was sent, or after a refusal
            raise Refused(e) from e
        return codec.txn_result(answer)

    def transact_each(self, txns: Sequence[Txn], *, timeout: float) -> list[TxnResult]:
        """Send transactions in order, one after the other's answer."""
        return one_by_one(self, txns, timeout)

    def check_limits(self, txn: Txn) -> int:
        """Return the size of `txn`; raise `CommitTooLargeError` when it is over `limits`."""
        return check_limits(txn, self.limits)

    # --- watching ---

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

    def changes(self, wanted: Replay) -> Iterator[Changes]:
        """Yield the events of a watch as columns."""
        return changes(self, wanted)

    # --- compaction ---

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Compact the whole cluster; needs the role root.

        The server frees space in the background, so `batches` has no effect; `timeout` bounds the
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
        """Return the server's clock, to about half a second; None if it is unknown.

        It does not wait, except with `fresh`: that reads the clock again, in about a second at
        most.
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
    """Return the engine of an `etcd://` URL. One plain request; it connects when it is used.

    Raises `InvalidOptionError`; warns with `ServerWarning`, also when a password goes beyond this
    machine without TLS.
    """
    check_int("max_request_bytes", max_request_bytes, 8 << 10)
    check_int("max_txn_ops", max_txn_ops, 48)
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
