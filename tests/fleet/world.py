"""Three servers, four members on them, and what writes to them: stores, strangers, and rounds."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from etcd_server import EtcdServer, GatewayError, eventually

import snapkv
from snapkv.errors import SnapKVError

from .oracle import History, Recording

WAIT_S = 60.0
PAUSE_S = 0.01
"""Between two looks at a file that grows."""
KEYS = 25
TICK_S = 0.1


class Place(NamedTuple):
    """A member: the number of its server, and the prefix that is observed there, if it is one."""

    server: int
    prefix: str | None = None


PLACES = {
    "orders": Place(0),
    "plans": Place(1),
    "registry": Place(2, "/registry/"),
    "edge": Place(0, "/edge/"),
}
"""Two stores, and two prefixes that other programs write, one of them beside a store."""


class World:
    """Three servers that `etcdctl` watches."""

    def __init__(self, servers: list[EtcdServer], folder: Path, recordings: list[Recording]):
        self.servers, self.folder, self._recordings = servers, folder, recordings

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        """What `snapkv.fleet` takes."""
        return {
            name: {"url": self.servers[place.server].url}
            | ({} if place.prefix is None else {"prefix": place.prefix})
            for name, place in PLACES.items()
        }

    def on(self, server: int) -> list[str]:
        """Return the members on a server."""
        return sorted(name for name, place in PLACES.items() if place.server == server)

    def histories(self) -> dict[str, History]:
        """Return what each member has had, up to now."""
        events = [recording.events() for recording in self._recordings]
        return {
            name: History(events[place.server], place.prefix)
            for name, place in sorted(PLACES.items())
        }


@contextmanager
def made_world(folder: Path) -> Iterator[World]:
    """Start three servers and record what they do."""
    with ExitStack() as stack:
        servers = [stack.enter_context(EtcdServer(folder / f"etcd{n}")) for n in range(3)]
        recordings = [stack.enter_context(Recording(server, folder)) for server in servers]
        yield World(servers, folder, recordings)


# --- writing ---


class Writer(threading.Thread):
    """Does something again and again, however that ends, until it is stopped."""

    def __init__(self, act: Callable[[random.Random, int], object], seed: object, pause_s: float):
        super().__init__(daemon=True)
        self._act, self._rng, self._pause_s = act, random.Random(repr(seed)), pause_s
        self._ending = threading.Event()
        self.done = 0

    def run(self) -> None:
        number = 0
        while not self._ending.wait(self._rng.random() * self._pause_s):
            number += 1
            with contextlib.suppress(SnapKVError, OSError, GatewayError):
                self._act(self._rng, number)
                self.done += 1

    def stop(self) -> None:
        """End it, and wait for that."""
        self._ending.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "a writer hangs"


def store_writer(store: Any, name: str) -> Callable[[random.Random, int], object]:
    """Return what commits to a store: puts and removals, or a tick."""

    def act(rng: random.Random, number: int) -> None:
        keys = rng.sample(range(KEYS), rng.randrange(4))
        puts, deletes = {}, []
        for key in keys:
            if rng.random() < 0.75:
                puts[f"k{key:02}"] = b"%s %d" % (name.encode(), number)
            else:
                deletes.append(f"k{key:02}")
        store.commit(puts=puts, deletes=deletes, timeout=3.0)

    return act


def strange_writer(server: EtcdServer, prefix: str) -> Callable[[random.Random, int], object]:
    """Return what puts and removes keys below a prefix, past all of snapkv."""

    def act(rng: random.Random, number: int) -> None:
        key = f"{prefix}k{rng.randrange(KEYS):02}".encode()
        if rng.random() < 0.75:
            server.gateway.put(key, b"%d" % number)
        else:
            server.gateway.delete(key)

    return act


class Writing:
    """Writers of all members, and a ticker in rounds; ends with its block."""

    def __init__(self, world: World, seed: object) -> None:
        self.world, self._seed = world, seed
        self.rounds: list[Any] = []
        self._ticking = threading.Event()

    def __enter__(self) -> Writing:
        self._stack = stack = ExitStack()
        self._fleet = stack.enter_context(snapkv.fleet.open(self.world.members))
        self.ticker = stack.enter_context(self._fleet.ticker())
        self.round()  # makes the stores
        self.writers = []
        for name, place in PLACES.items():
            server = self.world.servers[place.server]
            for n in range(2):
                if place.prefix is None:
                    store = stack.enter_context(snapkv.open(server.url, create=False))
                    act = store_writer(store, f"writer {n}")
                else:
                    act = strange_writer(server, place.prefix)
                self.writers.append(Writer(act, (self._seed, name, n), 0.05))
        self._clock = threading.Thread(target=self._tick, daemon=True)
        for thread in [*self.writers, self._clock]:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.stop()
        finally:
            self._stack.close()

    def stop(self) -> None:
        """End the writers, then the ticker; may be repeated."""
        for writer in self.writers:
            writer.stop()
        self._ticking.set()
        self._clock.join(WAIT_S)
        assert not self._clock.is_alive(), "the ticker hangs"

    def round(self) -> Any:
        """Tick all members at one timestamp; return that round."""
        self.rounds.append(self.ticker.tick(timeout=1.0))
        return self.rounds[-1]

    def last_round(self) -> int:
        """Return the timestamp of a round that has ticked all members, after the end."""
        self.stop()

        def ticked() -> int | None:
            found = self.round()
            return found.timestamp if set(found.ticked) == set(PLACES) else None

        return eventually(ticked, "a round of all members", wait_s=WAIT_S)

    def _tick(self) -> None:
        while not self._ticking.wait(TICK_S):
            self.round()


# --- reading, in another process ---


class Readers:
    """The process of `reader.py`, and the lines that it has printed; ends with its block."""

    def __init__(self, world: World, *, since: int, timeout: float, seed: object) -> None:
        self._file = world.folder / "read.json"
        self._errors = world.folder / "reader.log"
        settings = {"members": world.members, "since": since, "timeout": timeout}
        settings["seed"] = repr(seed)
        program = Path(__file__).with_name("reader.py")
        with self._file.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, str(program), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                text=True,
            )
        self._read_to = 0
        self.lines: list[dict[str, Any]] = []

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the lines printed since the last call."""
        with self._file.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        found = [json.loads(line) for line in whole.splitlines()]
        self.lines += found
        return found

    def wait_for(self, wanted: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """Return the first line from now on that is wanted."""

        def found() -> dict[str, Any] | None:
            assert self._process.poll() is None, self._errors.read_text()[-3_000:]
            line = next((line for line in self.new_lines() if wanted(line)), None)
            if line is None:
                time.sleep(PAUSE_S)
            return line

        return eventually(found, what, wait_s=WAIT_S)

    def end(self, timestamp: int) -> list[dict[str, Any]]:
        """Let it read up to a timestamp and end; return all lines."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"end {timestamp}\n")
        self._process.stdin.flush()
        assert self._process.wait(WAIT_S) == 0, self._errors.read_text()[-3_000:]
        self.new_lines()
        assert self.lines[-1]["kind"] == "end", self._errors.read_text()[-3_000:]
        return self.lines
