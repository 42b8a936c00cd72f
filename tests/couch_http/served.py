"""A real server on a free port of this machine, and clients of it."""

import itertools
import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.couch_http import Limits, Login, Server

WAIT_S = 20.0
"""Longer than anything takes that goes well."""
_numbers = itertools.count()


@dataclass
class Served:
    """A store behind a server in this process."""

    store: snapkv.SnapshotKV
    limits: Limits = field(default_factory=Limits)
    login: Login | None = None
    allow_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()

    def __enter__(self) -> "Served":
        started = threading.Event()
        self.server = Server(
            self.store,
            port=0,
            login=self.login,
            allow_hosts=self.allow_hosts,
            cors_origins=self.cors_origins,
            limits=self.limits,
            ready=started.set,
        )
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        assert started.wait(WAIT_S)
        self.http = httpx.Client(base_url=self.server.url, timeout=WAIT_S)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        self.stop()

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()

    @property
    def wakeups(self):
        return self.server._service.wakeups

    def database(self) -> "Database":
        """Make a database that no other test has."""
        name = f"db-{next(_numbers)}"
        return Database(self, ChangesDB(self.store, name).create())


@dataclass
class Database:
    """A database over HTTP, and beside it as the library has it."""

    served: Served
    lib: ChangesDB

    def __call__(self, method: str, path: str = "", **request) -> httpx.Response:
        url = f"/{self.lib.name.replace('/', '%2F')}{path and '/'}{path}"
        return self.served.http.request(method, url, **request)

    def get(self, path: str = "", headers: dict[str, str] | None = None, **query) -> httpx.Response:
        return self("GET", path, params=query, headers=headers)

    def changes(self, **query) -> dict:
        """Return a page, or a feed that ends by itself."""
        answer = self.get("_changes", **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object, **query) -> httpx.Response:
        return self("POST", path, json=body, params=query)

    @contextmanager
    def feed(self, body: object = None, **query) -> Iterator["Feed"]:
        """Read a feed while it goes on."""
        method = "GET" if body is None else "POST"
        url = f"/{self.lib.name}/_changes"
        with (
            httpx.Client(base_url=self.served.server.url, timeout=WAIT_S) as http,
            http.stream(method, url, params=query, json=body) as answer,
        ):
            feed = Feed(answer)
            yield feed
            feed.leave()


class Feed:
    """What a feed sends, line by line as it comes."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self.answer.iter_lines():
                self._lines.put(line)
        except (httpx.HTTPError, httpx.StreamError):
            pass  # it was left, or broken off
        self._lines.put(None)

    def line(self) -> str | None:
        """Return the next line, None at the end."""
        return self._lines.get(timeout=WAIT_S)

    def row(self) -> dict | None:
        """Return the next row of a continuous feed, None at the end; heartbeats are passed over."""
        while True:
            line = self.line()
            if line is None:
                return None
            if line:
                return json.loads(line)

    def rest(self) -> list[str]:
        """Return all lines up to the end."""
        return list(iter(self.line, None))

    def leave(self) -> None:
        """Hang up."""
        stream = self.answer.extensions["network_stream"].get_extra_info("socket")
        with suppress(OSError):  # the other side was first
            stream.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    told = answer.json()
    assert set(told) == {"error", "reason"}
    return answer.status_code, told["error"], told["reason"]
