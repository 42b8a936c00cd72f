"""A real kine on SQLite: etcd's protocol, as k3s has it, where tools/kubernetes/build made one."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from types import TracebackType

import grpc
import pytest

from etcd_server.processes import eventually, free_port, keeper

BUILT = Path(__file__).resolve().parents[2] / "build" / "kubernetes" / "kine"
STOP_S = 5.0

needs_kine = pytest.mark.skipif(
    not os.access(BUILT, os.X_OK),
    reason="no kine: tools/kubernetes/build build/kubernetes kine makes one, with Go",
)

Row = tuple[str, int, bytes | None]
"""A change of a key: its name, its revision, and its value; None for a removal."""


class KineServer:
    """kine in a process of its own, on a database in `folder`; it runs inside a block.

    It listens on a socket with `socket`, else on a port. `database` is a URL as kine takes it.
    """

    def __init__(self, folder: Path, *, socket: bool = False, database: str | None = None) -> None:
        self._file, self._log = folder / "kine.db", folder / "kine.log"
        self.address = f"unix://{folder}/kine.sock" if socket else f"127.0.0.1:{free_port()}"
        options = "_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate"
        self._database = database or f"sqlite://{self._file}?{options}&cache=shared"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What `snapkv.record` takes."""
        return f"etcd://{self.address}"

    def __enter__(self) -> KineServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        listen = self.address if self.address.startswith("unix:") else f"tcp://{self.address}"
        words = ["--listen-address", listen, "--endpoint", self._database]
        self._child = keeper.start([str(BUILT), "--metrics-bind-address", "0", *words], self._log)
        eventually(self._is_ready, "kine to start")

    def _is_ready(self) -> bool:
        assert self._child is not None
        assert self._child.poll() is None, self._log.read_text()[-2_000:]
        target = self.address.replace("unix://", "unix:")
        with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                grpc.channel_ready_future(channel).result(0.2)
            except grpc.FutureTimeoutError:
                return False
        return True

    def kill(self) -> None:
        """Kill the process."""
        if self._child is not None:
            keeper.end(self._child, grace_s=0)
            self._child = None

    def rows(self, after: int = 0) -> list[Row]:
        """Return the changes behind a revision, in order, straight from the database."""
        with closing(sqlite3.connect(self._file)) as database:
            found = database.execute(
                "SELECT name, id, CASE deleted WHEN 0 THEN COALESCE(value, x'') END FROM kine "
                "WHERE id > ? ORDER BY id",
                (after,),
            )
            return list(found)
