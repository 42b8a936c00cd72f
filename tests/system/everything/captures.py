"""Captures as processes, which the tour kills and starts; each runs `cdcmeta capture`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import TracebackType

from cdcmeta.scheduler.runtime import Changefeeds
from cdcmeta.scheduler.runtime.capture import HUNG_EXIT
from cdcmeta.scheduler.runtime.changefeed_records import capture_of, space_of
from snapkv import SnapshotKV
from snapkv.base.waiting import monotonic, pause
from snapkv.cli.exits import AdvisedError, Exit
from system.everything.place import CAPTURES, Place

LABELS = ("c1", "c2", "c3")
TTL_S = 3
"""How long the tables of a killed capture wait for another one, but for a second of grace."""
DRAIN_S = 0
"""At the end no capture takes the tables over."""
END_S, WAIT_S, LOOK_S = 20.0, 120.0, 0.05
LOG_SHOWN = 400


class Fleet:
    """The processes of captures; leaving the block ends all of them."""

    def __init__(self, place: Place, store: SnapshotKV) -> None:
        self._place = place
        self._logs = place.folder / "logs"
        self._logs.mkdir()
        self._store = store
        self.feeds = Changefeeds(store)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def start(self, label: str) -> None:
        """Start a capture; it needs a second until it registers."""
        words = [sys.executable, "-m", "cdcmeta", "capture", "--store", self._place.captures_url]
        words += ["--name", CAPTURES, "--label", label, "--ttl", str(TTL_S)]
        words += ["--drain", str(DRAIN_S), "--verbose"]
        with (self._logs / f"{label}.log").open("ab") as log:
            self._processes[label] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends the tour, which ends them
            )

    def kill(self, label: str) -> str:
        """End a capture with SIGKILL, in the midst of what it does; return its registered name."""
        named = {said.label: name for name, said in self.feeds.captures().items()}
        process = self._processes.pop(label)
        process.kill()
        process.wait()
        return named[label]

    def leader(self) -> str | None:
        """Return the label of the capture that schedules, None without one."""
        found = self._store.election(space_of("default")).leader()
        said = found and self.feeds.captures().get(capture_of(found.value.decode()))
        return said.label if said and said.label in self._processes else None

    def complete(self) -> bool:
        """Return whether all captures are registered, and one of them leads."""
        return len(self.feeds.captures()) == len(LABELS) and self.leader() is not None

    def holder(self) -> str:
        """Return the label of the capture with the most tables, other than the leader if any."""
        leader, alive = self.leader(), self.feeds.captures()
        labels = [alive[name].label for name in self.places().values() if name in alive]
        counted = {label: labels.count(label) for label in self._processes}
        return max(counted, key=lambda label: (label != leader, counted[label]))

    def timestamp(self) -> int:
        """Return the timestamp of the newest commit of the captures' store."""
        return self._store.resolved()

    def places(self) -> dict[tuple[str, str], str]:
        """Return the name of the capture of each placed table, by changefeed and table."""
        return {
            (feed.id, each.table): each.capture or ""
            for feed in self.feeds.list()
            for each in self.feeds.places(feed.id)
        }

    def placed(self) -> bool:
        """Return whether a live capture has each table."""
        found, alive = self.places(), self.feeds.captures()
        tables = [(feed.id, table) for feed in self.feeds.list() for table in feed.tables()]
        return all(found.get(table) in alive for table in tables)

    def reached(self, timestamp: int) -> bool:
        """Return whether everything up to a timestamp of the histories is in all sinks."""
        return all(self._checkpoint(feed.id) >= timestamp for feed in self.feeds.list())

    def wait(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds; the bound begins anew whenever a sink has got further.

        Starts a capture that has ended itself. Raises `AdvisedError`.
        """
        deadline, progress = monotonic() + WAIT_S, self._progress()
        while not is_so():
            self._supervise()
            if (now := self._progress()) != progress:
                deadline, progress = monotonic() + WAIT_S, now
            if monotonic() > deadline:
                raise AdvisedError(
                    f"{what}: this did not happen in {WAIT_S:.0f} s",
                    f"The captures' logs are in {self._logs}",
                    Exit.LATER,
                )
            pause(LOOK_S)

    def _progress(self) -> list[int]:
        return [self._checkpoint(feed.id) for feed in self.feeds.list()]

    def _checkpoint(self, id: str) -> int:
        return self.feeds.checkpoint(id).checkpoint

    def _supervise(self) -> None:
        """Start captures that hung; raise `AdvisedError` for one that ended otherwise."""
        for label, process in list(self._processes.items()):
            code = process.poll()
            if code == HUNG_EXIT:
                self.start(label)
            elif code is not None:
                log = (self._logs / f"{label}.log").read_text(errors="replace")
                raise AdvisedError(
                    f"the capture {label} ended with code {code}: {log[-LOG_SHOWN:].strip()}",
                    f"Its log is {self._logs / f'{label}.log'}",
                    Exit.LATER,
                )
