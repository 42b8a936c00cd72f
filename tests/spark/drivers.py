"""Processes with streaming queries, to be killed: `stream_driver.py`, from outside."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from etcd_server import eventually
from etcd_server.processes import keeper
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

WAIT_S = 900
TRIES = 3
PAUSE_S = 0.1
"""Between the commits of a writer that goes on: drivers keep pace with it, also slow ones."""
DRIVER = Path(__file__).with_name("stream_driver.py")


class Stream(NamedTuple):
    """A query: the URL of its store, the folder of its batches, and its name in the driver."""

    url: str
    folder: Path
    name: str

    def batches(self) -> dict[int, list[list]]:
        """The rows of each batch, as often as it came."""
        found: dict[int, list[list]] = {}
        for path in sorted((self.folder / "batches").glob("*.json")):
            rows = [tuple(row) for row in json.loads(path.read_text())]
            found.setdefault(int(path.name[:5]), []).append(rows)
        return found

    def numbers(self) -> list[int]:
        """The number of each batch so far."""
        return [int(path.name[:5]) for path in (self.folder / "batches").glob("*.json")]

    def start(self) -> dict[str, Any]:
        """The offset that the checkpoint begins with."""
        log = (self.folder / "checkpoint" / "offsets" / "0").read_text().splitlines()
        return json.loads(log[-1])


class Drivers:
    """Processes with all of the queries, one after the other, on the same checkpoints.

    All of them get ready at once, for that takes most of their time.
    """

    def __init__(self, folder: Path, streams: Sequence[Stream]) -> None:
        java = f"SPARK_SUBMIT_OPTS={os.environ['SPARK_SUBMIT_OPTS']}"  # the keeper's are older
        self.command = ["env", java, sys.executable, str(DRIVER), str(folder)]
        self.words = [str(word) for stream in streams for word in stream]
        self.folder, self.streams = folder, streams
        for stream in streams:
            (stream.folder / "batches").mkdir(parents=True)

    def __enter__(self):
        logs = [(n, self.folder / f"log-{n}") for n in "01"]
        self.children = [keeper.start([*self.command, n, *self.words], log) for n, log in logs]
        return self

    def __exit__(self, *error) -> None:
        for child in self.children:
            keeper.end(child, grace_s=0)

    def begin(self, number: int):
        (self.folder / f"begin-{number}").touch()
        return self.children[number]

    def wait(self, child, condition, what: str) -> None:
        def met() -> bool:
            return condition() or child.poll() is not None

        try:
            eventually(met, what, wait_s=WAIT_S)
        except AssertionError as e:
            raise AssertionError(f"{e}; newest batches {self.newest()}; {self.logs()}") from None
        assert condition(), f"a driver ended: {self.logs()}"

    def logs(self) -> list[str]:
        return [path.read_text()[-6_000:] for path in sorted(self.folder.glob("log-*"))]

    def newest(self) -> list[int]:
        """The number of each query's newest batch."""
        return [max(stream.numbers(), default=-1) for stream in self.streams]

    def killed_in_a_batch(self, stop_writing: Callable[[], None]) -> list[int]:
        """Kill the first driver while each query is in a batch, and let the second one finish.

        Return those batches.
        """
        (self.folder / "hold").touch()
        child = self.begin(0)
        held = [stream.folder / "held" for stream in self.streams]
        self.wait(child, lambda: all(p.exists() for p in held), "batches to be in their middle")
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(WAIT_S)
        (self.folder / "hold").unlink()
        killed = self.newest()

        child = self.begin(1)
        self.wait(
            child,
            lambda: all(new > old for new, old in zip(self.newest(), killed, strict=True)),
            "batches to go on",
        )
        stop_writing()
        (self.folder / "finish").touch()
        self.wait(child, lambda: child.poll() == 0, "the queries to finish")
        return killed


def ended(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that brings what there is, and return it at its end.

    It is started again if Spark gave a Python process up as too slow: Spark waits ten seconds for
    the connection of one, which a busy machine may need. Raises what else it ended with.
    """
    for left in reversed(range(TRIES)):
        query = start()
        try:
            assert query.awaitTermination(WAIT_S)
            break
        except StreamingQueryException as e:
            if "failed to connect back" not in str(e) or not left:
                raise
        finally:
            query.stop()
    return query


@contextmanager
def going_on(write: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Write again and again beside the test; give what ends that."""
    told_to_stop = threading.Event()
    failed = []

    def going() -> None:
        try:
            while not told_to_stop.wait(PAUSE_S):
                write()
        except BaseException as e:
            failed.append(e)

    def stop() -> None:
        told_to_stop.set()
        thread.join(WAIT_S)

    thread = threading.Thread(target=going)
    thread.start()
    try:
        yield stop
    finally:
        stop()
        assert failed == [], "the writer failed, so the test waited in vain"
