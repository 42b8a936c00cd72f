"""New etcd servers at hand: each test gets one that nobody has written to."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from etcd_server.node import EtcdServer
from etcd_server.processes import WAIT_S

_shared: list[EtcdPool] = []


def shared_pool() -> EtcdPool:
    """Return the pool of all tests of this process; `close_shared_pool` ends it."""
    if not _shared:
        _shared.append(EtcdPool(Path(tempfile.mkdtemp(prefix="snapkv-etcd-"))))
    return _shared[0]


def close_shared_pool() -> None:
    """End the shared pool, if there is one, and remove its folder."""
    for pool in _shared:
        pool.close()
        shutil.rmtree(pool.folder, ignore_errors=True)
    _shared.clear()


class EtcdPool:
    """Keeps `spares` new servers running in `folder`; all have the same flags.

    One that waits costs as much in ten seconds as to start another one.
    The first `take` starts the pool; `close` ends it and every server it made.
    """

    def __init__(self, folder: Path, *, spares: int = 1, flags: Sequence[str] = ()) -> None:
        self.folder, self._spares, self._flags = folder, spares, flags
        self._numbers = itertools.count()
        self._ready: deque[EtcdServer] = deque()
        self._taken: set[EtcdServer] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._maker: threading.Thread | None = None

    @contextmanager
    def taken(self) -> Iterator[EtcdServer]:
        """Lend a new server to a block; it is killed at its end."""
        server = self.take()
        try:
            yield server
        finally:
            self.give_back(server)

    def take(self) -> EtcdServer:
        """Return a new server at revision 1; the caller gives it back."""
        with self._changed:
            assert not self._closed, "the pool is closed"
            if self._maker is None:
                self._maker = threading.Thread(target=self._make, name="etcd-pool", daemon=True)
                self._maker.start()
            came = self._changed.wait_for(lambda: self._ready or self._error, WAIT_S)
            if self._error is not None:
                raise AssertionError("the pool cannot start etcd") from self._error
            assert came, f"no new etcd in {WAIT_S:.0f} s"
            server = self._ready.popleft()
            self._taken.add(server)
            self._changed.notify_all()
        return server

    def give_back(self, server: EtcdServer) -> None:
        """Kill a server and remove all of it: nobody gets it a second time."""
        server.close()
        shutil.rmtree(server.folder, ignore_errors=True)
        with self._changed:
            self._taken.discard(server)

    def close(self) -> None:
        """End the pool; twice is fine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._maker is not None:
            self._maker.join(2 * WAIT_S)
            assert not self._maker.is_alive(), "the maker of servers hangs"
        for server in [*self._ready, *self._taken]:
            self.give_back(server)
        self._ready.clear()

    def _make(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or len(self._ready) < self._spares)
                if self._closed:
                    return
            server = EtcdServer(self.folder / f"etcd{next(self._numbers)}", flags=self._flags)
            try:
                server.start()
            except BaseException as e:
                server.close()
                with self._changed:
                    self._error = e
                    self._changed.notify_all()
                return
            with self._changed:
                self._ready.append(server)
                self._changed.notify_all()
