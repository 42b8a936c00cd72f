"""Servers that speak etcd's protocol and are not etcds: what they reject is reported at once."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from etcd_engines import get, opened, put, within
from etcd_server import eventually

import snapkv
import snapkv.aio
from snapkv.engine.contract import OutcomeUnknown, Range
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.errors import (
    AccessDeniedError,
    CorruptStoreError,
    EngineUnavailableError,
    NotSupportedError,
    SnapKVError,
    StoreNotFoundError,
)

pytestmark = pytest.mark.slow

WAIT_S = 10.0
SOON_S = 1.0
INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNSUPPORTED = "etcdserver: unsupported operations in txn request"
SQL_ERROR = 'ERROR: invalid byte sequence for encoding "UTF8": 0xff (SQLSTATE 22021)'
"""What kine 0.17.5 on PostgreSQL 15 answers to a read of the key ff 00."""
KEYS = {f"/registry/pods/{n:03}".encode(): b"pod %d" % n for n in range(40)}


class Kine:
    """As much of etcd's protocol as kine 0.17 has, and its refusals; `requests` are the methods."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.rejects: bytes | None = None  # a key that its database rejects
        self._log: list[pb.Event] = []  # that of revision n is number n - 1
        self._watches: list[queue.SimpleQueue[pb.WatchResponse | None]] = []
        self._lock = threading.Lock()
        for key, value in KEYS.items():
            self.put(key, value)

    def header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(revision=len(self._log))  # its cluster has the id 0

    def put(self, key: bytes, value: bytes) -> int:
        """Write a key; return the revision."""
        with self._lock:
            revision = len(self._log) + 1
            kv = pb.KeyValue(key=key, value=value, create_revision=revision, mod_revision=revision)
            self._log.append(pb.Event(kv=kv))
            for answers in self._watches:
                answers.put(pb.WatchResponse(header=self.header(), events=[pb.Event(kv=kv)]))
        return revision

    def Range(self, request: pb.RangeRequest, context: grpc.ServicerContext) -> pb.RangeResponse:
        if request.serializable:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "serializable is not implemented by kine")
        if request.key == self.rejects:
            context.abort(grpc.StatusCode.UNKNOWN, SQL_ERROR)
        state = {e.kv.key: e.kv for e in self._log[: request.revision or len(self._log)]}
        end = request.range_end or request.key + b"\0"
        found = [state[k] for k in sorted(state) if request.key <= k and (k < end or end == b"\0")]
        shown = found[: request.limit or len(found)]
        more = len(shown) < len(found)
        if request.count_only:
            shown, more = [], False
        return pb.RangeResponse(header=self.header(), kvs=shown, count=len(found), more=more)

    def Txn(self, request: pb.TxnRequest, context: grpc.ServicerContext) -> None:
        context.abort(INVALID, UNSUPPORTED)

    def Watch(
        self, requests: Iterator[pb.WatchRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.WatchResponse]:
        answers: queue.SimpleQueue[pb.WatchResponse | None] = queue.SimpleQueue()
        context.add_callback(lambda: answers.put(None))
        first = next(requests).create_request.start_revision
        with self._lock:
            answers.put(pb.WatchResponse(header=self.header(), created=True))
            if missed := self._log[first - 1 :]:
                answers.put(pb.WatchResponse(header=self.header(), events=missed))
            self._watches.append(answers)

        def progress() -> None:
            with suppress(grpc.RpcError):  # the client has gone
                for _ in requests:
                    answers.put(pb.WatchResponse(header=self.header(), watch_id=-1))

        threading.Thread(target=progress, daemon=True).start()
        while (answer := answers.get()) is not None:
            yield answer

    def handlers(self) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
        """The services by name, with their methods."""

        def unary(method: Any, request: Any) -> grpc.RpcMethodHandler:
            def call(asked: Any, context: grpc.ServicerContext) -> Any:
                self.requests.append(method.__name__)
                return method(asked, context)

            return grpc.unary_unary_rpc_method_handler(
                call, request.FromString, lambda answer: answer.SerializeToString()
            )

        watch = grpc.stream_stream_rpc_method_handler(
            self.Watch, pb.WatchRequest.FromString, pb.WatchResponse.SerializeToString
        )
        calls = {"Range": unary(self.Range, pb.RangeRequest), "Txn": unary(self.Txn, pb.TxnRequest)}
        return {"KV": calls, "Watch": {"Watch": watch}}


@contextmanager
def served(handlers: dict[str, dict[str, grpc.RpcMethodHandler]]) -> Iterator[str]:
    """Serve methods in a block; the URL for etcd's clients."""
    server = grpc.server(ThreadPoolExecutor(16))
    port = server.add_insecure_port("127.0.0.1:0")
    for service, methods in handlers.items():
        handler = grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", methods)
        server.add_generic_rpc_handlers((handler,))
    server.start()
    try:
        yield f"etcd://127.0.0.1:{port}"
    finally:
        server.stop(None).wait(WAIT_S)


@pytest.fixture
def kine() -> Kine:
    return Kine()


@pytest.fixture
def url(kine: Kine) -> Iterator[str]:
    with served(kine.handlers()) as url:
        yield url


# --- kine -------------------------------------------------------------------------------------


@pytest.mark.parametrize("create", [True, False])
def test_a_store_is_refused_at_once_and_the_error_says_what_works(
    kine: Kine, url: str, create: bool
) -> None:
    with (
        within(SOON_S),
        pytest.raises(NotSupportedError, match=r"not an etcd.*--observe") as raised,
    ):
        snapkv.open(url, create=create)
    assert UNSUPPORTED in str(raised.value)
    assert kine.requests == ["Txn"]
    with within(SOON_S), pytest.raises(NotSupportedError, match="not an etcd"):
        asyncio.run(opened_in_a_loop(url))


async def opened_in_a_loop(url: str) -> None:
    async with await snapkv.aio.open(url):
        pass


def test_a_transaction_is_refused_at_once(kine: Kine, url: str) -> None:
    with opened(url) as engine, within(SOON_S):
        with pytest.raises(SnapKVError, match=UNSUPPORTED):
            put(engine, b"k", b"v")
        assert kine.requests.count("Txn") == 1


def test_several_ranges_of_an_old_revision_are_read_one_by_one(url: str) -> None:
    with opened(url) as engine:
        keys = list(KEYS)[:3]
        found = engine.read([Range(key, revision=len(KEYS)) for key in keys], serializable=True)
        assert [result.kvs[0].value for result in found.results] == [KEYS[key] for key in keys]
        engine._page_size.page_bytes = 1  # so that a scan cuts its range
        pages = list(engine.scan(b"/registry/", b"/registry0", revision=len(KEYS)))
        assert len(pages) > 2
        assert {kv.key: kv.value for page in pages for kv in page} == KEYS


def test_its_keys_are_recorded(kine: Kine, url: str, tmp_path: Path) -> None:
    into = f"lmdb:{tmp_path}/copy"
    recorder = snapkv.record(url, into=into, observe="/registry/", every="100ms")
    stop = threading.Event()
    running = threading.Thread(target=recorder.run, args=(stop,))
    running.start()
    try:
        eventually(lambda: recorder.status.recorded_revision >= len(KEYS), "a first state")
        newest = kine.put(b"/registry/pods/000", b"changed")
        eventually(lambda: recorder.status.recorded_revision >= newest, "a change")
    finally:
        stop.set()
        running.join(WAIT_S)
    with snapkv.open(into, create=False) as store:
        assert dict(store.at().items()) == {
            key.decode(): value
            for key, value in (KEYS | {b"/registry/pods/000": b"changed"}).items()
        }
        assert [version.value for version in store.history("/registry/pods/000")] == [
            KEYS[b"/registry/pods/000"],
            b"changed",
        ]


def test_its_keys_are_imported(url: str) -> None:
    with snapkv.open("memory:") as store:
        assert snapkv.import_prefix(store, url, "/registry/").saved == len(KEYS)
        assert {key.encode(): value for key, value in store.at().items()} == KEYS


def test_recording_into_it_is_refused_before_anything_is_written(kine: Kine, url: str) -> None:
    with within(SOON_S), pytest.raises(NotSupportedError, match="not an etcd"):
        snapkv.record(url, into=url, into_name="copy", observe="/registry/").catch_up()
    assert len(kine._log) == len(KEYS)


def test_one_on_a_database_that_shows_changes_out_of_order_is_refused(
    kine: Kine, url: str, tmp_path: Path
) -> None:
    kine.rejects = b"\xff\0"
    recorder = snapkv.record(url, into=f"lmdb:{tmp_path}/copy", observe="/registry/")
    refused = pytest.raises(NotSupportedError, match=r"another database than SQLite.*22021")
    with within(SOON_S), refused:
        recorder.catch_up()
    assert not (tmp_path / "copy").exists()
    with snapkv.open("memory:") as store, within(SOON_S), refused:
        snapkv.import_prefix(store, url, "/registry/")


# --- recordings that cannot begin -------------------------------------------------------------


def test_a_source_that_cannot_be_observed_leaves_no_target(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    denied = {"KV": {"Range": refusing(grpc.StatusCode.PERMISSION_DENIED, "not yours")}}
    with served(denied) as url, within(SOON_S):
        recorder = snapkv.record(url, into=f"lmdb:{copy}", observe="/registry/")
        with pytest.raises(AccessDeniedError, match="not yours"):
            recorder.catch_up()
    assert not copy.exists()


def test_a_source_that_does_not_exist_leaves_no_target(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with pytest.raises(StoreNotFoundError):
        snapkv.record(f"lmdb:{tmp_path}/none", into=f"lmdb:{copy}").catch_up()
    assert not copy.exists()


# --- any server ---------------------------------------------------------------------------------


def refusing(code: grpc.StatusCode, text: str) -> grpc.RpcMethodHandler:
    """A method that rejects each request."""

    def call(request: bytes, context: grpc.ServicerContext) -> None:
        context.abort(code, text)

    return grpc.unary_unary_rpc_method_handler(call)


REJECTED: dict[grpc.StatusCode, type[SnapKVError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: NotSupportedError,
    grpc.StatusCode.NOT_FOUND: NotSupportedError,
    grpc.StatusCode.ALREADY_EXISTS: NotSupportedError,
    grpc.StatusCode.FAILED_PRECONDITION: NotSupportedError,
    grpc.StatusCode.OUT_OF_RANGE: NotSupportedError,
    grpc.StatusCode.DATA_LOSS: CorruptStoreError,
    grpc.StatusCode.UNIMPLEMENTED: EngineUnavailableError,
    grpc.StatusCode.PERMISSION_DENIED: AccessDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: AccessDeniedError,
}


@pytest.mark.parametrize(("code", "error"), REJECTED.items(), ids=lambda each: str(each))
def test_a_rejected_read_has_the_text_of_the_server_at_once(
    code: grpc.StatusCode, error: type[SnapKVError]
) -> None:
    methods = dict.fromkeys(("Range", "Txn"), refusing(code, "a text of its own"))
    with served({"KV": methods}) as url:
        with within(SOON_S), pytest.raises(error, match="a text of its own"):
            snapkv.open(url)
        both = f"{url},{url.removeprefix('etcd://').replace('127.0.0.1', 'localhost')}"
        with opened(both) as engine, within(SOON_S), pytest.raises(error, match="its own"):
            get(engine, b"k")


def test_a_rejected_write_may_have_been_applied_but_is_not_repeated(kine: Kine) -> None:
    handlers = kine.handlers()
    handlers["KV"]["Txn"] = refusing(INVALID, "a text of its own")
    with served(handlers) as url, opened(url) as engine, within(SOON_S):
        with pytest.raises(OutcomeUnknown) as raised:
            put(engine, b"k", b"v")
        assert (raised.value.retry, raised.value.answered) == (False, True)
        assert isinstance(raised.value.cause, NotSupportedError)


@pytest.mark.parametrize("in_loop", [False, True])
def test_an_answer_that_is_not_a_message_is_reported_at_once(in_loop: bool) -> None:
    garbled = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\xff" * 9)
    handlers = {"KV": dict.fromkeys(("Range", "Txn"), garbled)}
    raised = pytest.raises(EngineUnavailableError, match="not an etcd")
    with served(handlers) as url, within(SOON_S), raised:
        asyncio.run(opened_in_a_loop(url)) if in_loop else snapkv.open(url)


def test_a_watch_that_is_rejected_ends_with_the_text_of_the_server(kine: Kine) -> None:
    reason = "rpc error: code = InvalidArgument desc = no such option"

    def cancelled(requests: Any, context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:
        yield pb.WatchResponse(created=True, canceled=True, cancel_reason=reason)

    handlers = kine.handlers()
    handlers["Watch"]["Watch"] = grpc.stream_stream_rpc_method_handler(
        cancelled, pb.WatchRequest.FromString, pb.WatchResponse.SerializeToString
    )
    with served(handlers) as url, opened(url) as engine, within(SOON_S):
        watcher = engine.watch(b"a", b"b", start_revision=1)
        with pytest.raises(NotSupportedError, match="no such option"):
            watcher.next(WAIT_S)


def test_a_server_of_another_protocol_is_named_before_the_deadline() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            with pytest.raises(EngineUnavailableError, match="is not an etcd, or it wants TLS"):
                snapkv.open(f"etcd://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            serving.join()
