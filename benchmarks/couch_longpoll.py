"""How long does a change take to 500 clients that wait for it over HTTP, beside a single one?"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack

from benchmarks.harness import Row, median_ratio, quantile, report, show
from benchmarks.servers import cdcmeta_server

CLIENTS = (1, 500)
ROUNDS = 40
WARMUP = 3
SETTLE_S = 0.05
"""Between the last client's hearing that it waits and the commit."""


def main() -> None:
    """Commit one document again and again while clients wait; measure until each has its page."""
    latencies = _delivered()
    floor = [statistics.median(each) for each in latencies[CLIENTS[0]]]
    rows, notes = [], []
    for clients, rounds in latencies.items():
        times = [latency for one in rounds for latency in one]
        name = "1 client (floor)" if clients == 1 else f"{clients} clients"
        median, p99 = statistics.median(times), quantile(times, 0.99)
        ratio = median_ratio([statistics.median(each) for each in rounds], floor)
        rows.append(Row(name, round(median * 1e6, 1), round(p99 * 1e6, 1), ratio))
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
        "A server, its clients and the writer are three processes. The one client and the many "
        "clients each have a server of their own, and take turns. The stores are durable, on lmdb. "
        + " ".join(notes),
    )


class Crowd:
    """Some clients that wait, and the server that they ask."""

    def __init__(self, clients: int, stack: ExitStack) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        port = stack.enter_context(cdcmeta_server(folder))
        self._server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        stack.callback(self._server.close)
        _request(self._server, "PUT", "/db")
        command = [sys.executable, "-m", "benchmarks.longpollers"]
        words = [str(port), "db", str(clients), str(WARMUP + ROUNDS)]
        self._clients = stack.enter_context(
            subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(self._clients.terminate)
        self._sent: list[float] = []

    def commit(self) -> None:
        """Wait until all wait, commit, and wait until all have asked again, but the last time."""
        assert self._clients.stdout is not None
        if not self._sent:
            self._waiting()
        time.sleep(SETTLE_S)
        self._sent.append(time.monotonic())
        _request(self._server, "PUT", f"/db/d{len(self._sent)}")
        if len(self._sent) < WARMUP + ROUNDS:
            self._waiting()

    def latencies(self) -> list[list[float]]:
        """Return for each commit the seconds until each client had it."""
        assert self._clients.stdout is not None
        told = json.loads(self._clients.stdout.readline())
        rounds = [[own[i] - began for own in told] for i, began in enumerate(self._sent)]
        return rounds[WARMUP:]

    def _waiting(self) -> None:
        assert self._clients.stdout is not None
        if self._clients.stdout.readline() != "waiting\n":
            raise ConnectionError("the clients ended early")


def _delivered() -> dict[int, list[list[float]]]:
    """Let the crowds take turns: a commit to one, then a commit to the other."""
    with ExitStack() as stack:
        crowds = {clients: Crowd(clients, stack) for clients in CLIENTS}
        for round_ in range(WARMUP + ROUNDS):
            show(round_, WARMUP + ROUNDS)
            for crowd in crowds.values() if round_ % 2 else reversed(crowds.values()):
                crowd.commit()
        return {clients: crowd.latencies() for clients, crowd in crowds.items()}


def _request(server: http.client.HTTPConnection, method: str, path: str) -> None:
    server.request(method, path, body=b"{}")
    answer = server.getresponse()
    answer.read()
    if answer.status != 201:
        raise ConnectionError(f"{method} {path}: {answer.status}")
