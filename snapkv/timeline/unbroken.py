"""A watcher that goes on only in the history it began in."""

from __future__ import annotations

from collections.abc import Callable

from snapkv.clock import monotonic
from snapkv.engine.contract import WatchBatch, Watcher
from snapkv.errors import CompactedError, EngineUnavailableError

LOOK_S = 5.0
"""While nothing comes, it is looked this often whether the stream was opened anew."""


class Unbroken:
    """Passes on what a watcher brings, once that is known to follow what it brought before.

    A stream that is opened anew goes on at a revision, and in a restored engine that is somewhere
    else. So `check` is called first, which raises `StoreRestoredError` then: after the stream was
    opened anew, when the time line noticed a restore (`epoch` moved), and with the first batch
    of a `remote` one, which nobody knows the time of opening of. A batch waits for its check.
    """

    def __init__(
        self,
        watcher: Watcher,
        *,
        check: Callable[[], None],
        epoch: Callable[[], int],
        remote: bool,
    ) -> None:
        self._watcher, self._check, self._epoch, self._remote = watcher, check, epoch, remote
        self._checked = watcher.reopened, epoch()
        self._fresh = remote
        self._held: WatchBatch | None = None

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch as a watcher does; a round trip more after it was opened anew.

        Raises what `check` raises, too.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self._held is None:
                self._held = self._take(timeout, deadline)
            self._look()
            batch, self._held = self._held, None
            if batch is not None or not self._remote:
                return batch
            if deadline is not None and monotonic() >= deadline:
                return None

    def close(self) -> None:
        """End the stream."""
        self._watcher.close()

    def _take(self, timeout: float | None, deadline: float | None) -> WatchBatch | None:
        """Wait for a batch; in slices, where the other side may be exchanged meanwhile."""
        if self._remote:
            timeout = LOOK_S if deadline is None else min(LOOK_S, max(0.0, deadline - monotonic()))
        try:
            return self._watcher.next(timeout)
        except CompactedError:
            self._look()  # of a restored engine it would be said wrongly
            raise

    def _look(self) -> None:
        first = self._fresh and self._held is not None
        now = self._watcher.reopened, self._epoch()
        if now == self._checked and not first:
            return
        try:
            self._check()
        except EngineUnavailableError:
            if self._held is None:
                return  # nothing is given yet: the next look will do
            raise
        self._checked = now
        self._fresh = self._fresh and not first
