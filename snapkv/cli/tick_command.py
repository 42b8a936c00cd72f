"""The command tick: one tick, or a ticker that stamps the writes of other programs."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any

from snapkv.base.waiting import monotonic
from snapkv.cli.commands import option
from snapkv.cli.exits import CommandError, Exit, code_of, message_of
from snapkv.cli.formats import counted, time_text
from snapkv.cli.server_options import MetricsOption, metrics_served
from snapkv.cli.store_options import CountOption, StoreOptions, takes
from snapkv.cli.terminal import report, report_error, status_line
from snapkv.errors import SnapKVError
from snapkv.model import Commit
from snapkv.store.store import SnapshotKV
from snapkv.times import duration_ms

# --- ticker ---

PERIOD_MS_MIN = 100
WAIT_S_MAX = 3_600.0
"""The longest single wait, in seconds; a longer one is several of these."""

EveryOption = Annotated[
    str | None, option("--every DURATION", "Tick this often, until Ctrl-C or SIGTERM.")
]
QuietOption = Annotated[bool, option("--quiet -q", "Print no times.")]


@takes("writer", "force_fork", "raw")
def tick(
    options: StoreOptions,
    every: EveryOption = None,
    count: CountOption = None,
    quiet: QuietOption = False,
    metrics: MetricsOption = None,
) -> None:
    """Commit nothing but a time, and print it.

    With --every it ticks until Ctrl-C or SIGTERM, so that the writes of other programs to the same
    engine get timestamps. It reports when ticks fail, retries, and reports when they succeed again.
    Otherwise it prints nothing, except with --json a line for each tick. Creates the store if it
    does not exist.
    """
    out, period_s = options.output, period(every)
    if every is None or period_s is None:
        if count is not None or metrics is not None:
            option = "--count" if metrics is None else "--metrics"
            raise CommandError(f"{option} needs --every")
        with options.open_store(create=True) as kv:
            commit = kv.tick()
        if not quiet:
            out.committed(commit)
        return
    with Stop() as stop, ExitStack() as stack:
        hooks, _ = stack.enter_context(metrics_served(metrics))
        shown = stack.enter_context(status_line(shown=not (quiet or options.structured)))

        def connect() -> SnapshotKV:
            return stack.enter_context(options.open_store(create=True, silent=True, hooks=hooks))

        def on_tick(ticker: RegularTicker, commit: Commit) -> None:
            if options.structured and not quiet:
                out.committed(commit, flush=True)
            newest = time_text(commit.ts, raw=options.raw)
            shown(f"ticking every {every}: {counted(ticker.ticks, 'tick')}, the newest at {newest}")

        RegularTicker(connect, on_tick).run(period_s, count, stop)


def period(every: str | None) -> float | None:
    """Return the seconds of --every; None without it."""
    if every is None:
        return None
    period_ms = duration_ms(every)
    if period_ms < PERIOD_MS_MIN:
        raise CommandError(f"--every takes {PERIOD_MS_MIN}ms at least")
    return period_ms / 1_000


class Stop:
    """Catches SIGINT and SIGTERM while the block runs in the main thread, and ends waits.

    A second signal has its usual effect, and an ignored signal stays ignored. The interpreter
    writes to a pipe when a signal comes. A Python handler alone would not do: it runs only when
    the main thread does, so a signal just before a wait, or to another thread, would not end it.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self._ear, self._mouth = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(self._mouth, False)
        self._mouth_before = signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        self._forget()
        signal.set_wakeup_fd(self._mouth_before)
        os.close(self._mouth)
        os.close(self._ear)

    def wait(self, seconds: float) -> None:
        """Return after some seconds, or at once when the end is wanted."""
        until = monotonic() + seconds
        while not self.wanted and (left := until - monotonic()) > 0:
            if select.select([self._ear], [], [], min(left, WAIT_S_MAX))[0]:
                os.read(self._ear, 4096)  # another signal's byte must not wake it for ever

    def is_set(self) -> bool:
        """Return whether the end is wanted, as `threading.Event`."""
        return self.wanted

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        self._forget()

    def _forget(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


@dataclass(slots=True)
class RegularTicker:
    """Ticks at regular times, also after failures; calls `on_tick` after each tick."""

    connect: Callable[[], SnapshotKV]
    on_tick: Callable[[RegularTicker, Commit], None]
    store: SnapshotKV | None = None
    ticks: int = 0
    failed: int = 0
    """The number of ticks in a row that have failed, up to now."""

    def run(self, every_s: float, count: int | None, stop: Stop) -> None:
        """Tick `count` times (None: for ever), the first at once, until the end is wanted."""
        for _ in beats(every_s, count, stop):
            self._try(stop)

    def _try(self, stop: Stop) -> None:
        """Tick; report the begin and the end of a series of temporary failures."""
        try:
            if self.store is None:
                self.store = self.connect()
            commit = self.store.tick()
        except SnapKVError as e:
            if code_of(e) not in (Exit.LATER, Exit.UNKNOWN):
                raise
            if not self.failed:
                report_error(f"{message_of(e)}{'' if stop.wanted else '; it goes on trying'}")
            self.failed += 1
            return
        if self.failed:
            report(f"snapkv: ticks again, after {counted(self.failed, 'tick')} that failed")
        self.ticks, self.failed = self.ticks + 1, 0
        self.on_tick(self, commit)


def beats(every_s: float, count: int | None, stop: Stop) -> Iterator[None]:
    """Yield at regular times, `count` times (None: for ever), at once first, until the end."""
    began, number = monotonic(), 0
    while not stop.wanted and (count is None or number < count):
        yield
        number += 1
        if count is None or number < count:
            now = monotonic()
            stop.wait(next_beat(began, every_s, now) - now)


def next_beat(began: float, every: float, now: float) -> float:
    """Return the next of the times began, began + every, ... that is not over; none is caught up.

    >>> next_beat(10.0, 2.0, 10.5), next_beat(10.0, 2.0, 15.0), next_beat(10.0, 2.0, 12.0)
    (12.0, 16.0, 14.0)
    """
    return began + every * ((now - began) // every + 1)
