"""Three captures replicate the store while it is written, two of them are killed, the ring changes.

    the first third     is in the store when the captures start
    up to one half      is written, then the capture that leads is killed, and more is written;
                        later it is started again
    two thirds          the ring changes, and another capture is killed while more is written
    nine tenths         the store and the captures' records are recorded, and compacted
    the rest            is written after that

What the tour saw is kept as `Sighting`s, to ask for later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import snapkv
from cdcmeta.generations import Generation
from snapkv.times import PHYSICAL_MS_MAX
from system.everything.captures import LABELS, Fleet
from system.everything.filling import LOG, Filler
from system.everything.place import CAPTURES, DOCUMENTS, STORE, Place

ARCHIVE, MIRROR, DATABASES, ROWS = "archive", "mirror", "databases", "rows"
"""The changefeeds."""
RANGES = 4

Say = Callable[[str], None]


class Sighting(NamedTuple):
    """Which capture had each table at a moment, by changefeed and table, as it was seen then."""

    label: str
    ts: int
    captures: dict[tuple[str, str], str]


@dataclass(slots=True)
class Story:
    """What happened, filled while it does."""

    sightings: list[Sighting] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    """The names under which they were registered."""
    generation: Generation | None = None
    """The one that began when the ring changed; None if no gap between commits was long enough."""
    compacted_ts: int = 0
    """Before it, the store has no history of its own."""


class Replication:
    """Runs the story; `before_compaction` is called when the store still has all its history."""

    def __init__(self, place: Place, filler: Filler, clock: snapkv.ManualClock, say: Say) -> None:
        self._place, self._filler, self._clock, self._say = place, filler, clock, say
        self.story = Story()

    def run(self, fleet: Fleet, before_compaction: Callable[[int], None]) -> None:
        """Write the whole history, replicate it, and wait until all sinks have it."""
        steps = len(self._filler.history.steps)
        self._filler.write(max(1, steps // 3))
        self._start(fleet)
        led = self._write_and_kill(fleet, steps // 2, steps * 3 // 5, Fleet.leader)
        fleet.start(led)
        self._change_ring(fleet, steps * 2 // 3)
        self._write_and_kill(fleet, steps * 3 // 4, steps * 9 // 10, Fleet.holder)
        before_compaction(self._filler.done)
        self._compact()
        self._filler.write(steps)
        self._catch_up(fleet)
        self._sight(fleet, "at the end")
        self._record()

    def _start(self, fleet: Fleet) -> None:
        """Create the changefeeds, and start the captures."""
        url, prefixes = self._place.store_url, self._filler.history.prefixes
        names = [each.name for each in self._filler.history.clones]
        now = self._filler.store.resolved()
        replicas, mirror = f"record+archive:{self._place.replicas}", self._place.mirror_url
        create = partial(fleet.feeds.create, source_name=STORE)
        create(ARCHIVE, url, replicas, prefixes, start=1)  # with all history
        create = partial(create, start=now, with_state=True)
        create(MIRROR, url, mirror, prefixes)
        create(DATABASES, url, mirror, databases=names, sink_name=DOCUMENTS)
        create(ROWS, url, f"jsonl:{self._place.rows}", log=LOG, ranges=RANGES)
        for label in LABELS:
            fleet.start(label)
        fleet.wait(fleet.complete, "three captures register, and one leads")
        self._settle(fleet, "after the start")
        tables = len(self.story.sightings[-1].captures)
        self._say(f"{len(LABELS)} captures share {tables} tables of 4 changefeeds")

    def _write_and_kill(
        self, fleet: Fleet, first: int, last: int, choose: Callable[[Fleet], str | None]
    ) -> str:
        """Kill a capture between two parts of the history; wait until the other two have it all.

        Return its label.
        """
        fleet.wait(fleet.complete, "all captures are registered, and one leads")
        self._filler.write(first)
        label = choose(fleet) or fleet.holder()
        leads = ", which led," if fleet.leader() == label else ""
        killed = fleet.kill(label)
        self.story.killed.append(killed)
        self._filler.write(last)
        fleet.wait(lambda: killed not in fleet.feeds.captures(), "the killed one's session ends")
        again = " again" if any(label in each.label for each in self.story.sightings) else ""
        self._settle(fleet, f"after {label} was killed{again}")
        self._say(f"{label}{leads} was killed at commit {first:,}; the other two took over")
        return label

    def _change_ring(self, fleet: Fleet, near: int) -> None:
        """Make the second generation between two steps, near a position."""
        at = self._filler.gap(near)
        if at is None:
            self._say("the ring did not change: no two commits are a second apart")
            return
        self._filler.write(at)
        self.story.generation = made = self._filler.change_ring()
        self._say(f"the ring changed at commit {at:,}, and has {made.streams} streams")

    def _settle(self, fleet: Fleet, label: str) -> None:
        self._catch_up(fleet)
        self._sight(fleet, label)

    def _catch_up(self, fleet: Fleet) -> None:
        """Wait until live captures have all tables, and all sinks what is in the store."""
        newest = self._filler.store.resolved()
        fleet.wait(fleet.placed, "live captures get all tables")
        fleet.wait(lambda: fleet.reached(newest), "all sinks get what the store has")

    def _sight(self, fleet: Fleet, label: str) -> None:
        """Look which capture has which table, at one moment of the captures' store."""

        def is_still() -> bool:
            before, found = fleet.timestamp(), fleet.places()
            if fleet.timestamp() != before:
                return False
            self.story.sightings.append(Sighting(label, before, found))
            return True

        fleet.wait(is_still, "the captures' records do not change for a moment")

    def _compact(self) -> None:
        """Record everything, then remove the store's history; in etcd the captures' goes, too."""
        self._record()
        newest = self._filler.store.resolved()
        with self._place.open_store() as store:  # by the machine's clock, to which git is the past
            done = store.compact(newest)
        self.story.compacted_ts = done.earliest
        self._say(f"recorded, and compacted up to {snapkv.format_time(done.earliest)}")

    def _record(self) -> None:
        """Copy what is new in both stores into archives."""
        place = self._place
        options = {"clock": self._clock, "max_clock_skew": PHYSICAL_MS_MAX // 1_000}
        into = str(place.recorded)
        snapkv.record(place.store_url, into=into, name=STORE, options=options).catch_up()
        into = str(place.recorded_captures)
        snapkv.record(place.captures_url, into=into, name=CAPTURES).catch_up()
