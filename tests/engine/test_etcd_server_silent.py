"""Servers that say little of themselves, or too slowly: what is warned of, and when it ends."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from etcd_engines import opened
from etcd_server import EtcdServer, eventually
from etcd_server.node import free_port

import snapkv
from snapkv.base.waiting import monotonic
from snapkv.engine.etcd import server as server_module
from snapkv.engine.etcd.server import (
    EXCHANGE_S,
    OPENING_S,
    SAMPLE_AGAIN_S,
    TIMEOUT_S,
    Sample,
    ServerClock,
    fetch,
)
from snapkv.errors import ServerWarning, StoreClosedError

pytestmark = pytest.mark.slow


@contextmanager
def nothing_new() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# --- one exchange has an end ----------------------------------------------------------------


class Trickling:
    """Answers with a byte now and then, for ever: `ended` when the other side has had enough."""

    def __init__(self, text: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._text = text
        self._stop, self.ended = threading.Event(), threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with link:
                self._trickle(link)
            self.ended.set()

    def _trickle(self, link: socket.socket) -> None:
        try:
            link.sendall(self._text)
            while not self._stop.wait(TIMEOUT_S / 4):
                link.sendall(b"x")
        except OSError:
            pass

    def close(self) -> None:
        self._stop.set()
        self._listener.close()


@pytest.fixture(params=[b"", b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def trickling(request: pytest.FixtureRequest) -> Iterator[Trickling]:
    """In the first line, the headers, the body."""
    server = Trickling(request.param)
    yield server
    server.close()


@pytest.mark.long_after(1)
def test_an_answer_that_trickles_is_given_up(trickling: Trickling) -> None:
    began = monotonic()
    complaints = ServerClock(lambda: (trickling.endpoint,), None).complaints()
    assert monotonic() - began < EXCHANGE_S + 1.0
    assert len(complaints) == 1
    assert trickling.endpoint in complaints[0]
    assert trickling.ended.wait(10.0), "the connection stays open"


@pytest.mark.long_after(1)
def test_a_look_at_what_trickles_ends(trickling: Trickling) -> None:
    server = ServerClock(lambda: (trickling.endpoint,), None)
    began = monotonic()
    server.look()
    assert monotonic() - began < OPENING_S + 1.0
    eventually(lambda: not server._looking.is_alive(), "the look to end", wait_s=EXCHANGE_S)


def test_an_answer_without_a_length_that_stalls_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "TIMEOUT_S", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ThreadPoolExecutor(1) as pool,
    ):
        listener.settimeout(10.0)
        asked = pool.submit(fetch, f"127.0.0.1:{listener.getsockname()[1]}", None, "/version")
        link, _ = listener.accept()
        with link:
            link.sendall(b"HTTP/1.1 200 OK\r\n\r\nx")
            error = asked.exception(10.0)  # its traceback keeps all that the exchange had
            assert isinstance(error, TimeoutError)
            link.settimeout(10.0)
            while link.recv(1 << 16):
                pass


def test_a_name_that_is_never_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def hangs(*_: object, **__: object) -> None:
        go.wait(30.0)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    monkeypatch.setattr(server_module, "EXCHANGE_S", 0.2)
    began = monotonic()
    with pytest.raises(OSError, match="no complete answer"):
        fetch("nowhere.example:1", None, "/version")
    assert monotonic() - began < 2.0
    go.set()


# --- a server without HTTP ------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A server whose port for clients speaks gRPC only."""
    other = f"127.0.0.1:{free_port()}"
    flags = [f"--listen-client-http-urls=http://{other}"]
    server = EtcdServer(tmp_path_factory.mktemp("grpc"), flags=flags)
    server.start(wait=False)

    def is_healthy() -> bool:
        try:
            return b'"true"' in fetch(other, None, "/health").body
        except OSError:
            return False

    eventually(is_healthy, "the server")
    yield server
    server.close()


def test_a_port_without_http(without_http: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "advice_on", lambda version: f"advice on {version}")
    began = monotonic()
    with pytest.warns(ServerWarning) as warned:
        store = snapkv.open(without_http.url)
    assert monotonic() - began < 1.0
    with store:
        told = sorted(str(warning.message) for warning in warned)
        version = store.info()["engine"]["version"]
        assert version != "unknown"
        assert told[0] == f"advice on {version}"
        assert "shows no clock" in told[1]
        assert len(told) == 2
        with nothing_new():
            store.save("a", b"1")
            store._core.engine._server._next_at = 0.0
            store.save("a", b"2")


def test_nobody_there_is_no_server_without_a_clock() -> None:
    with nothing_new(), opened("etcd://127.0.0.1:1") as engine:
        assert engine.server_time_ms() is None


@pytest.mark.parametrize("answer", [None, ""])
def test_what_may_be_no_etcd(answer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is one, the first commit shows."""
    now = [1_000.0]
    monkeypatch.setattr(server_module, "monotonic", lambda: now[0])
    answers = [answer]
    server = ServerClock(lambda: ("127.0.0.1:1",), None, lambda: answers[0])
    with nothing_new():
        server.look()
    answers[0] = ""
    now[0] += SAMPLE_AGAIN_S
    with pytest.warns(ServerWarning, match="shows no clock") as warned:
        assert server.time_ms(fresh=True) is None
    assert len(warned) == 1
    with nothing_new():
        assert server.time_ms(fresh=True) is None


def test_asking_a_closed_connection() -> None:
    def closed() -> str:
        raise StoreClosedError("the engine was closed")

    with nothing_new():
        server = ServerClock(lambda: ("127.0.0.1:1",), None, closed)
        server.look()
        assert server.version is None


def test_no_addresses_but_a_version() -> None:
    """As for an etcd3 client over TLS."""
    asked = []
    server = ServerClock(lambda: (), None, lambda: asked.append(1) or "3.5.1")
    with pytest.warns(ServerWarning) as warned:
        server.look()
    assert [("corrupt" in str(w.message), "no clock" in str(w.message)) for w in warned] == [
        (True, False),
        (False, True),
    ]
    assert len(asked) == 1
    server._next_at = 0.0
    with nothing_new():
        assert server.time_ms(fresh=True) is None
    assert len(asked) == 1


# --- looks that come late -------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The first look ends with the event: endpoints that are asked before take their time."""
    go = threading.Event()

    def waits(*_: object) -> Sample:
        go.wait(30.0)
        return Sample(monotonic(), 1_000, 500, "3.5.1")

    monkeypatch.setattr(server_module, "sample", waits)
    monkeypatch.setattr(server_module, "OPENING_S", 0.1)
    yield go
    go.set()


def test_a_late_look_is_warned_of_later(late: threading.Event) -> None:
    server = ServerClock(lambda: ("anywhere:1",), None)
    with nothing_new():
        server.look()
        assert server.time_ms() is None
    late.set()
    server._looking.join(10.0)
    with pytest.warns(ServerWarning, match="3\\.5\\.1 is known to corrupt") as warned:
        assert server.time_ms() is not None
    assert len(warned) == 1
    with nothing_new():
        assert server.time_ms() is not None


def test_a_late_look_and_grpc_in_time(late: threading.Event) -> None:
    server = ServerClock(lambda: ("anywhere:1",), None, lambda: "3.5.2")
    with pytest.warns(ServerWarning, match="3\\.5\\.2 is known to corrupt") as warned:
        server.look()
    assert len(warned) == 1, "whether there is a clock is not known yet"
    late.set()
    server._looking.join(10.0)
    with nothing_new():
        assert server.time_ms() is not None
