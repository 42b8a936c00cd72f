"""How fast is `cdcmeta serve` beside express-pouchdb, both durable, over the same connections?"""

from __future__ import annotations

import json
import os
import selectors
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

from benchmarks.harness import Rival, Row, measure, quantile, report, show
from benchmarks.loopback import Connection, all_at_once, request
from benchmarks.servers import cdcmeta_server, express_server

DOCS = 10_000
SINGLES, PARALLEL = 500, 16
BURST, BURSTS = 160, 10
PAGES, BULKS = 10, {1_000: 6, 10_000: 2, 100_000: 1}
LONGPOLLS = 200
SETTLE_S = 0.005
"""Between a waiting client's request and the write: it has to be waiting."""

FLOOR, OURS, AS_IT_COMES = "express-pouchdb (floor)", "cdcmeta serve", "express-pouchdb, no fsync"


class Server:
    """One server, with the connections that ask it."""

    def __init__(self, name: str, port: int, stack: ExitStack) -> None:
        self.name = name
        self.all = [stack.enter_context(Connection(port)) for _ in range(PARALLEL)]
        self.one, self.other = self.all[:2]
        self._names = count()
        self.one.ask(request("PUT", "/db"))
        self.one.ask(request("PUT", "/many"))
        for at in range(0, DOCS, 1_000):
            docs = [{"_id": _id(n), **document(n)} for n in range(at, at + 1_000)]
            self.one.ask(request("POST", "/many/_bulk_docs", {"docs": docs}))

    def new(self) -> str:
        """Make a database, and return its name."""
        name = f"db{next(self._names)}"
        self.one.ask(request("PUT", f"/{name}"))
        return name


def main(*wanted: str) -> None:
    """Run both in turn; with words only the questions that contain one, which are printed."""
    tables = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ports = {
            FLOOR: stack.enter_context(express_server(f"{folder}/synced", "sync")),
            OURS: stack.enter_context(cdcmeta_server(folder)),
            AS_IT_COMES: stack.enter_context(express_server(f"{folder}/unsynced", "nosync")),
        }
        servers = [Server(name, port, stack) for name, port in ports.items()]
        for title, measured in _questions(servers[:2], servers):
            if not wanted or any(word in title for word in wanted):
                tables[title] = measured()
                for row in tables[title]:
                    told = f"{row.median_us:12,} {row.p99_us:12,} {row.ratio}"
                    print(f"{title:40} {row.rival:26} {told}", file=sys.stderr)
    notes = (
        "Both wait for the disk before they acknowledge: lmdb with durability=sync, and LevelDB "
        "with `sync: true` in every batch, which PouchDB does not ask for (`no fsync` is "
        "express-pouchdb as it comes: what it acknowledged, a power loss can take). PouchDB 9.0.0, "
        "express-pouchdb 4.2.0, Node.js; loopback, kept alive, "
        "one client of bare sockets; documents of about 300 bytes, {} in the bulk of 100,000. "
        "The longpoll is the time from the write's acknowledgement to the whole answer of a client "
        "that waits; below 0 it had the answer first. Load averages at the end (1, 5, 15 minutes): "
        f"{', '.join(f'{load:.1f}' for load in os.getloadavg())}."
    )
    if not wanted:
        report("couch_express", "How fast is cdcmeta serve beside express-pouchdb?", tables, notes)


def _questions(
    both: list[Server], writers: list[Server]
) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    for connections in (1, PARALLEL):
        yield f"a PUT, {connections} at once", lambda n=connections: _singles(writers, _put, n)
    for connections in (1, PARALLEL):
        yield f"a GET, {connections} at once", lambda n=connections: _singles(both, _get, n)
    for title, path in {
        "_changes with documents": "_changes?include_docs=true",
        "_changes": "_changes",
        "_all_docs with documents": "_all_docs?include_docs=true",
        "_all_docs": "_all_docs",
    }.items():
        yield f"{title}, of {DOCS:,}", lambda path=path: _pages(both, path)
    yield "a longpoll, after the acknowledgement", lambda: _longpolls(both)
    for size, rounds in BULKS.items():
        yield f"_bulk_docs of {size:,}", lambda s=size, r=rounds: _bulks(both, s, r)


def document(number: int) -> dict[str, object]:
    columns = [{"name": f"column_{n}", "type": "bigint", "v": number} for n in range(6)]
    return {"columns": columns, "version": number}


def _id(number: int) -> str:
    return f"table-{number:06d}"


def _put(number: int) -> bytes:
    return request("PUT", f"/db/{_id(number)}", document(number))


def _get(number: int) -> bytes:
    return request("GET", f"/many/{_id(number % DOCS)}")


def _singles(servers: list[Server], ask: Callable[[int], bytes], parallel: int) -> list[Row]:
    """Time single requests, or bursts of them over several connections."""
    size = 1 if parallel == 1 else BURST
    offset = 10**5 * parallel

    def doing(server: Server) -> Callable[[int], None]:
        if parallel == 1:
            return lambda i: server.one.ask(ask(offset + i)) and None

        def burst(i: int) -> None:
            numbers = range(offset + i * BURST, offset + (i + 1) * BURST)
            all_at_once(server.all, map(ask, numbers))

        return burst

    rivals = [Rival(server.name, doing(server)) for server in servers]
    rows = measure(
        rivals,
        rounds=SINGLES if parallel == 1 else BURSTS,
        warmup=20 if parallel == 1 else 2,
        cpu=False,
    )
    return [row.per(size) for row in rows]


def _pages(servers: list[Server], path: str) -> list[Row]:
    asked = request("GET", f"/many/{path}")

    def reading(server: Server) -> Callable[[int], None]:
        def run(i: int) -> None:
            server.one.ask(asked)

        found = json.loads(server.one.ask(asked))
        assert len(found.get("rows", found.get("results"))) == DOCS
        return run

    return measure([Rival(s.name, reading(s)) for s in servers], rounds=PAGES, warmup=2, cpu=False)


def _longpolls(servers: list[Server]) -> list[Row]:
    took: dict[str, list[float]] = {server.name: [] for server in servers}
    feeds = {server.name: f"/{server.new()}" for server in servers}
    since = dict.fromkeys(feeds, "0")
    for i in range(LONGPOLLS):
        show(i, LONGPOLLS)
        for server in servers:
            feed, after = feeds[server.name], since[server.name]
            server.other.send(request("GET", f"{feed}/_changes?feed=longpoll&since={after}"))
            time.sleep(SETTLE_S)
            server.one.send(request("PUT", f"{feed}/d{i}", document(i)))
            acknowledged, told, found = _both(server)
            took[server.name].append((told - acknowledged) * 1e6)
            since[server.name] = json.loads(found)["last_seq"]
    floor = quantile(took[servers[0].name], 0.5)  # single ones may be below 0: no ratio by round
    return [
        Row(
            name,
            round(quantile(each, 0.5), 1),
            round(quantile(each, 0.99), 1),
            round(quantile(each, 0.5) / floor, 2),
        )
        for name, each in took.items()
    ]


def _both(server: Server) -> tuple[float, float, bytes]:
    """Return when the write was acknowledged, when the feed was answered, and with what."""
    at: dict[Connection, tuple[float, bytes]] = {}
    with selectors.DefaultSelector() as ready:
        for connection in (server.one, server.other):
            ready.register(connection.socket, selectors.EVENT_READ, connection)
        while len(at) < 2:
            for key, _ in ready.select():
                if (body := key.data.more()) is not None:
                    at[key.data] = time.perf_counter(), body
    return at[server.one][0], at[server.other][0], at[server.other][1]


def _bulks(servers: list[Server], size: int, rounds: int) -> list[Row]:
    asked = [
        {"_id": _id(n)} if size == 100_000 else {"_id": _id(n), **document(n)} for n in range(size)
    ]
    raw = json.dumps({"docs": asked}, separators=(",", ":")).encode()

    def writing(server: Server) -> Callable[[int], None]:
        names = [server.new() for _ in range(rounds)]

        def run(i: int) -> None:
            head = f"POST /{names[i]}/_bulk_docs HTTP/1.1\r\nHost: localhost\r\n"
            kind = f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
            assert server.one.ask((head + kind).encode() + raw).count(b'"ok":true') == size

        return run

    return measure([Rival(s.name, writing(s)) for s in servers], rounds=rounds, warmup=0, cpu=False)
