"""How long does a change take to 500 clients that wait for it over HTTP, beside a single one?"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.harness import Row, quantile, report, show
from benchmarks.servers import cdcmeta_server

CLIENTS = (1, 500)
ROUNDS = 40
WARMUP = 3
SETTLE_S = 0.05
"""Between the last client's hearing that it waits and the commit."""


def main() -> None:
    """Commit one document again and again while clients wait; measure until each has its page."""
    latencies = {clients: _delivered(clients) for clients in CLIENTS}
    floor = statistics.median(_all(latencies[CLIENTS[0]]))
    rows, notes = [], []
    for clients, rounds in latencies.items():
        times = _all(rounds)
        name = "1 client (floor)" if clients == 1 else f"{clients} clients"
        median, p99 = statistics.median(times), quantile(times, 0.99)
        rows.append(
            Row(name, round(median * 1e6, 1), round(p99 * 1e6, 1), round(median / floor, 2))
        )
        each = sorted(statistics.median(own) for own in zip(*rounds, strict=True))
        notes.append(
            f"{name}: the last one of a round was told after {max(times) * 1e3:,.1f} ms at worst; "
            f"by its own median the slowest client took {each[-1] * 1e3:,.1f} ms, the fastest "
            f"{each[0] * 1e3:,.1f} ms."
        )
    report(
        "couch_longpoll",
        "How long does a change take to clients that wait for it over HTTP?",
        {f"from sending the PUT to the whole page, {ROUNDS} commits": rows},
        "The server, the clients (all in one process) and who commits are three processes; the "
        "store is a durable lmdb. " + " ".join(notes),
    )


def _all(rounds: list[list[float]]) -> list[float]:
    return [latency for one in rounds for latency in one]


def _delivered(clients: int) -> list[list[float]]:
    """Return for each commit the seconds until each client had it."""
    with tempfile.TemporaryDirectory() as folder, cdcmeta_server(folder) as port:
        server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        _request(server, "PUT", "/db")
        command = [sys.executable, "-m", "benchmarks.longpollers"]
        words = [str(port), "db", str(clients), str(WARMUP + ROUNDS)]
        sent = []
        with subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True) as crowd:
            assert crowd.stdout is not None
            for i in range(WARMUP + ROUNDS):
                show(i, WARMUP + ROUNDS)
                if crowd.stdout.readline() != "waiting\n":
                    raise ConnectionError("the clients ended early")
                time.sleep(SETTLE_S)
                sent.append(time.monotonic())
                _request(server, "PUT", f"/db/d{i}")
            told = json.loads(crowd.stdout.readline())
        server.close()
    rounds = [[own[i] - began for own in told] for i, began in enumerate(sent)]
    return rounds[WARMUP:]


def _request(server: http.client.HTTPConnection, method: str, path: str) -> None:
    server.request(method, path, body=b"{}")
    answer = server.getresponse()
    answer.read()
    if answer.status != 201:
        raise ConnectionError(f"{method} {path}: {answer.status}")
