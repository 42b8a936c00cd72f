"""Clients that are slow, silent or many, and the end of a server."""

import asyncio
import socket
import threading
import time

import httpx
import pytest
from starlette.responses import PlainTextResponse, StreamingResponse

from snapkv.web import HOST, ClientLimits

from .conftest import WAIT_S, until

pytestmark = pytest.mark.slow

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


def hello(listener):
    return PlainTextResponse("hello")


def endless(listener):
    async def pieces():
        while True:
            yield b"x" * 65_536
            await asyncio.sleep(0)  # or it never ends once the client is gone

    async def app(scope, receive, send):
        await StreamingResponse(pieces())(scope, receive, send)

    return app


def is_closed_to(client: socket.socket) -> bool:
    time.sleep(0.05)  # slower than it needs to be
    try:
        client.sendall(b"X")
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("first", [b"", HEAD + b"\r\n"])
def test_a_head_that_comes_byte_by_byte(serve, first):
    """Each byte is in time, all of them are not; also in a second request."""
    served = serve(hello, limits=ClientLimits(head_s=0.4))
    with served.connected() as client:
        if first:
            client.sendall(first)
            assert client.recv(4_096).endswith(b"hello")
        until(lambda: is_closed_to(client), "it stays open")


def test_silent_clients_do_not_keep_their_places(serve):
    served = serve(hello, limits=ClientLimits(head_s=0.4, connections=4))
    silent = [served.connected() for _ in range(8)]
    try:
        for client in silent:
            client.settimeout(WAIT_S)
            assert client.recv(1) == b""  # the server closes the connection
        assert served.http.get("/").text == "hello"
    finally:
        for client in silent:
            client.close()


def test_one_client_too_many_is_answered(serve):
    served = serve(endless, limits=ClientLimits(connections=2))
    with served.http.stream("GET", "/") as first:
        assert first.status_code == 200
        until(lambda: len(served.server.server_state.connections) == 1, "it is not connected")
        with served.connected():
            until(lambda: len(served.server.server_state.connections) == 2, "it is not connected")
            assert httpx.get(served.server.url, timeout=WAIT_S).status_code == 503


def test_an_answer_that_the_client_does_not_read(serve):
    served = serve(endless, limits=ClientLimits(unread_s=0.3))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect((HOST, served.server.port))
        client.sendall(HEAD + b"\r\n")
        assert client.recv(1)
        until(lambda: served.idle, "its place is kept")


def test_a_slow_reader_gets_more(serve):
    """It takes longer than it may read nothing, and reads a little all the time."""
    served = serve(endless, limits=ClientLimits(unread_s=0.5))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.settimeout(WAIT_S)
        client.connect((HOST, served.server.port))
        client.sendall(HEAD + b"\r\n")
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert client.recv(1 << 18)
            time.sleep(0.05)


@pytest.mark.parametrize(
    "large", [b"X-Large: " + b"x" * 1_000_000, b"X: y\r\n" * 100_000], ids=["long", "many"]
)
def test_a_head_that_is_too_large(serve, large):
    assert b"hello" not in serve(hello).sent(HEAD + large)


def test_what_is_not_http(serve):
    assert serve(hello).sent(b"\x16\x03\x01\x02\x00\x01").startswith(b"HTTP/1.1 400 ")


def test_its_end_does_not_wait_for_slow_readers(serve, caplog, capfd):
    served = serve(endless, limits=ClientLimits(stop_s=0.3))
    with served.connected() as client:
        client.sendall(HEAD + b"\r\n")
        assert client.recv(1)
        served.stop()
    assert served.idle
    assert not [each for each in caplog.records if each.exc_info]
    assert "Traceback" not in capfd.readouterr().err


def test_its_end_ends_what_would_never_end(serve):
    """The end of the stream arrives: it is not broken off."""
    ended, streaming = asyncio.Event(), threading.Event()

    def app(listener):
        async def pieces():
            yield b"first\n"
            streaming.set()
            await ended.wait()
            yield b"last\n"

        async def stream(scope, receive, send):
            await StreamingResponse(pieces())(scope, receive, send)

        return stream

    served = serve(app, stopping=ended.set)
    with served.http.stream("GET", "/") as answer:
        assert streaming.wait(WAIT_S)
        served.server.stop()
        assert answer.read() == b"first\nlast\n"
