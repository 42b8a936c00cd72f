"""A capture: a process that replicates tables of changefeeds, and schedules them while it leads."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cdcmeta.arguments import check_store
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.work_limits import Limits
from cdcmeta.scheduler.executors.sinks.called import Function
from cdcmeta.scheduler.runtime import records
from cdcmeta.scheduler.runtime.gauges import CaptureStatus
from cdcmeta.scheduler.runtime.registration import Life
from cdcmeta.scheduler.runtime.stores_and_sinks import Stores
from cdcmeta.scheduler.transport.contract import Post
from snapkv import SnapKVError, SnapshotKV
from snapkv.base.waiting import StopEvent, monotonic, pause, pause_unless

log = logging.getLogger("cdcmeta.scheduler")

TICK_S = 0.05
TTL_S = 10.0
RETRY_S = 1.0
DRAIN_S = 30.0


class Capture:
    """Replicates tables until it is stopped; start as many as you like, on any machine.

    It registers with a session, takes part in the election of the owner, and schedules all
    changefeeds while it leads. It keeps what `docs/scheduler_core.md` lists under
    "What you promise".
    If its session ends, it stops its tables and registers anew. If a sink hangs until its session
    ends, it ends the process, with the exit code 75.

    `post` carries messages; `functions` has the functions that sinks `call:NAME` mean, by name.

    >>> import threading, snapkv
    >>> from cdcmeta.scheduler.runtime import Capture
    >>> from cdcmeta.scheduler.transport.local import LocalNetwork
    >>> with snapkv.open("memory:") as store:
    ...     capture = Capture(store, LocalNetwork().post("c1"), label="c1")
    ...     capture.start()
    ...     capture.stop(drain=False)
    """

    def __init__(
        self,
        store: SnapshotKV,
        post: Post,
        *,
        label: str,
        cluster: str = "default",
        store_url: str | None = None,
        store_name: str = "default",
        ttl: float = TTL_S,
        limits: Limits | None = None,
        functions: Mapping[str, Function] | None = None,
        tick_s: float = TICK_S,
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        """Prepare a capture; nothing is written. Raises `InvalidArgumentError`.

        `store_url` is what the store was opened with, so that changefeeds may name it as well.
        """
        check_store(store)
        records.check_name("a capture", label)
        records.check_name("a cluster", cluster)
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidArgumentError(f"limits= takes Limits(), not {limits!r}")
        self._store, self._post, self.cluster, self.label = store, post, cluster, label
        self._ttl_s, self._limits = ttl, limits or Limits()
        self._functions, self._tick_s = dict(functions or {}), tick_s
        self._end_process = end_process
        self._stores = Stores(store, store_url, store_name)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._drain_s = DRAIN_S
        self.life: Life | None = None
        """The present registration; None before the first and between two."""
        self.error: BaseException | None = None
        """Why the thread of `start` ended."""

    @property
    def status(self) -> CaptureStatus | None:
        """How it was up to two seconds ago, for monitors; None while it is not registered."""
        life = self.life
        return None if life is None else life.status

    # --- in a thread of its own ---

    def start(self) -> None:
        """Run in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name="cdcmeta-capture", daemon=True)
        self._thread.start()

    def stop(self, *, drain: bool = True, timeout: float = DRAIN_S) -> None:
        """Let other captures take the tables over, for `timeout` seconds at most; then end."""
        self._drain_s = timeout if drain else 0.0
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._run_until(self._stop, lambda: self._drain_s)  # `stop` sets it
        except BaseException as e:
            log.exception("capture %s ended", self.label)
            self.error = e

    # --- in the caller's thread ---

    def run(self, stop: StopEvent, *, drain_s: float = DRAIN_S) -> None:
        """Run until `stop` is set; then hand the tables over, for `drain_s` seconds at most.

        A signal handler may set `stop`. A store that does not answer is waited for. Raises errors
        that do not pass.
        """
        self._run_until(stop, lambda: drain_s)

    def _run_until(self, stop: StopEvent, drain_s: Callable[[], float]) -> None:
        try:
            while not stop.is_set():
                try:
                    life = self._register()
                except SnapKVError as e:
                    log.warning("capture %s cannot register: %s", self.label, e)
                    pause_unless(stop, RETRY_S)
                    continue
                self.life = life
                try:
                    self._live(life, stop, drain_s)
                finally:
                    life.close()
                    self.life = None
        finally:
            self._stores.close()
            self._post.close()

    def _register(self) -> Life:
        return Life(
            self._store,
            self.cluster,
            self.label,
            self._ttl_s,
            self._limits,
            self._post,
            self._stores,
            self._functions,
            self._end_process,
        )

    def _live(self, life: Life, stop: StopEvent, drain_s: Callable[[], float]) -> None:
        until: float | None = None
        while life.is_alive:
            began = monotonic()
            if stop.is_set():
                until = began + drain_s() if until is None else until
                if began >= until:
                    return
                life.leave()
                if life.has_left:
                    return
            life.tick(int(began * 1e6))
            pause(max(0.0, self._tick_s - (monotonic() - began)))
        log.warning("capture %s lost its session", life.name)
