"""An HTTP proxy in front of an object store, which a test arms with faults."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from object_server.server import S3Server

HOLD_S = 60.0
DRIP_S = 0.6
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}

When = Callable[[str, str], bool]
Answer = tuple[int, list[tuple[str, str]], bytes]


class S3Proxy:
    """Passes requests to a server; `arm` says what happens to the next ones.

    Faults: a status such as 503 (the server does not get the request); "close" (neither, and no
    answer); "hold" (never an answer); "truncate" (half of the answer's body); "drip" (the body, a
    byte each `DRIP_S`); and with the request applied: "lose" (no answer), "lose 503" (that status),
    "lose hold" (never an answer).
    """

    def __init__(self, server: S3Server) -> None:
        self.server = server
        self.seen: list[tuple[str, str]] = []
        """The requests, with their method and path."""
        self.hurt = 0
        self.overwrites = False
        """Whether puts lose their `If-None-Match`, as on servers that do not know it."""
        self._fault: int | str | None = None
        self._times, self._after = 0, 0
        self._when: When = lambda method, path: True
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def __enter__(self) -> S3Proxy:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def storage(self) -> dict[str, Any]:
        """Options for archives behind this proxy, which wait for seconds only."""
        endpoint = f"http://127.0.0.1:{self._http.server_address[1]}"
        return self.server.storage | {
            "endpoint": endpoint,
            "timeout": 1,
            "retry_timeout": 2,
            "max_retries": 2,
        }

    def arm(
        self, fault: int | str, times: int = 1 << 30, *, after: int = 0, when: When | None = None
    ) -> None:
        """Hurt the next requests, past the first `after` ones, so many times."""
        with self._lock:
            self._fault, self._times, self._after = fault, times, after
            self._when = when or (lambda method, path: True)
            self.hurt = 0

    def disarm(self) -> None:
        """Hurt no more requests."""
        self.arm(0, 0)

    def _fault_for(self, method: str, path: str) -> int | str | None:
        with self._lock:
            self.seen.append((method, path))
            if not self._when(method, path) or not self._times:
                return None
            if self._after:
                self._after -= 1
                return None
            self._times -= 1
            self.hurt += 1
            return self._fault

    def _pass_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=HOLD_S)
        try:
            headers = {k.lower(): v for k, v in handler.headers.items()}
            if self.overwrites:
                headers.pop("if-none-match", None)
            upstream.request(handler.command, handler.path, body, headers)
            answer = upstream.getresponse()
            kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in HOP_BY_HOP]
            return answer.status, kept, answer.read()
        finally:
            upstream.close()

    def _handler(proxy) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                self.close_connection = True
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                fault = proxy._fault_for(self.command, self.path)
                if isinstance(fault, int):
                    self.answer((fault, [], b""))
                elif fault == "hold":
                    proxy._ended.wait(HOLD_S)
                elif fault != "close":
                    self.answer_hurt(fault, proxy._pass_on(self, body))

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def answer_hurt(self, fault: str | None, answer: Answer) -> None:
                if fault == "lose hold":
                    proxy._ended.wait(HOLD_S)
                elif fault == "lose 503":
                    self.answer((503, [], b""))
                elif fault != "lose":
                    self.answer(answer, fault)

            def answer(self, answer: Answer, fault: str | None = None) -> None:
                status, headers, body = answer
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                if fault == "drip":
                    self.drip(body)
                elif self.command != "HEAD":
                    self.wfile.write(body[: len(body) // 2] if fault == "truncate" else body)

            def drip(self, body: bytes) -> None:
                for byte in body:
                    if proxy._ended.wait(DRIP_S):
                        return
                    try:
                        self.wfile.write(bytes([byte]))
                    except OSError:
                        return  # the client waits no longer

            def log_message(self, *args: object) -> None:
                pass

        return Handler
