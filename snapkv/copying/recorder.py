"""The recorder: copies a source's history into a target, once or for as long as it runs."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from snapkv.base.waiting import StopEvent, monotonic, pause_unless
from snapkv.clock import HybridClock, SystemClock
from snapkv.copying.opening import open_recording
from snapkv.copying.options import RecordOptions
from snapkv.copying.run import WAIT_S, Recording
from snapkv.copying.status import RecordStatus, Report
from snapkv.errors import (
    EngineBusyError,
    EngineUnavailableError,
    NoSpaceError,
    SessionLostError,
)
from snapkv.hooks import Notifier, RecordEvent, StoreLabel, checked_hooks
from snapkv.reading.deadline import check_wait

RETRY_S = 1.0
REPORT_S = 1.0
TEND_S = 60.0
LATER = (EngineUnavailableError, EngineBusyError, SessionLostError, NoSpaceError)
"""What passes: the recorder begins again from what is durable."""


class Recorder:
    """Records a source, from `snapkv.record()`: once with `catch_up`, or until an event with `run`.

    Use it from one thread. It opens its source and target when it runs, and closes them when it
    returns.
    """

    def __init__(self, options: RecordOptions, report: Report | None = None) -> None:
        self.options, self.status = options, RecordStatus()
        self._report = report or (lambda status: None)
        self._reported = 0.0
        self._clock = HybridClock(options.clock or SystemClock())
        self._notify = Notifier(checked_hooks(options.hooks), StoreLabel(options.url, options.name))

    def catch_up(self, *, timeout: float | None = None) -> int:
        """Record all that exists now, durably; return the timestamp of the newest commit.

        `timeout` bounds the wait for another recorder that leads, in seconds; None waits for ever.
        Raises `EngineBusyError` after it, and the errors of `run`, also errors that pass.
        """
        check_wait(timeout)
        until = None if timeout is None else monotonic() + timeout

        def standby() -> bool:
            self._tell("standby")
            return until is None or monotonic() < until

        with ExitStack() as stack:
            recording = open_recording(self.options, self.status, self._clock, stack, standby)
            self._tell("recording")
            recording.catch_up(self._tell_now_and_then)
            self._tend(recording)
            self._tell("recording")
        return self.status.recorded

    def run(self, stop: StopEvent) -> None:
        """Record until `stop` is set; report failures that pass, and try again after them.

        What was read is durable on return. Raises `StoreRestoredError` if the source was set back,
        `ArchiveTakenError` if another recorder writes to the archive, `ArchiveError`,
        `AccessDeniedError`, and other errors that do not pass.
        """
        while not stop.is_set():
            try:
                with ExitStack() as stack:
                    self._run(stop, stack)
            except LATER as e:
                if stop.is_set() and self.status.state in ("starting", "standby"):
                    return
                self.status.error = e
                self._tell("waiting")
                if stop.is_set():
                    raise
                pause_unless(stop, RETRY_S)

    def _run(self, stop: StopEvent, stack: ExitStack) -> None:
        def standby() -> bool:
            self._tell("standby")
            return not stop.is_set()

        recording = open_recording(self.options, self.status, self._clock, stack, standby)
        self.status.error = None
        self._tell("recording")
        tended = monotonic()
        try:
            while not stop.is_set():
                recording.take(WAIT_S)
                self._tell_now_and_then()
                if monotonic() - tended >= TEND_S:
                    self._tend(recording)
                    tended = monotonic()
        except LATER:
            with suppress(*LATER):  # the target may still answer
                recording.flush()
            raise
        recording.flush()
        self._tell("recording")

    def _tend(self, recording: Recording) -> None:
        keep = self.options.keep_ms
        recording.tend(None if keep is None else self._clock.now_ms() - keep)

    def _tell(self, state: str) -> None:
        self.status.state = state
        self._reported = monotonic()
        self._report(self.status)
        self._notify(self._event())

    def _event(self) -> RecordEvent:
        status = self.status
        return RecordEvent(
            self._notify.store,
            self.options.place,
            status.state,
            status.commits,
            status.changes,
            len(status.gaps),
            status.recorded,
            status.lag_s(self._clock.now_ms()),
            status.bytes,
        )

    def _tell_now_and_then(self) -> None:
        if monotonic() - self._reported >= REPORT_S:
            self._tell(self.status.state)
