"""The contents of a generation log: its generations, the switch under way, topologies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cdcmeta.errors import CorruptTopologyError, GenerationNotFoundError
from cdcmeta.generations.log import layout
from cdcmeta.generations.log.layout import Aborted, Generation, Switch
from cdcmeta.generations.model.streams import StreamId
from cdcmeta.generations.model.topology import Topology
from snapkv import Absent, AtRevision, Entry, Snapshot, Space, When
from snapkv.model import Guard


@dataclass(frozen=True, slots=True)
class State:
    """The state at one revision: the newest generation's time, and the switch under way."""

    snapshot: Snapshot[bytes]
    head: int
    head_revision: int
    switch: Switch | None
    switch_revision: int
    aborted: Aborted | None

    def guards(self) -> list[Guard]:
        """Return guards that hold while the newest generation and the switch are unchanged."""
        return [
            unchanged(layout.HEAD, self.head_revision),
            unchanged(layout.SWITCH, self.switch_revision),
        ]


class TableRow(NamedTuple):
    """A row of ScyllaDB's table for clients."""

    time: int
    streams: list[StreamId]
    expired: int | None


def read_state(space: Space, as_of: When | None = None) -> State:
    """Return the newest state, or that of a time; one or two round trips."""
    snapshot = space.at(as_of)
    head, switch, aborted = snapshot.entries_of([layout.HEAD, layout.SWITCH, layout.ABORTED])
    return State(
        snapshot,
        layout.number_of(head.value) if head else 0,
        revision_of(head),
        layout.decode(Switch, switch.value) if switch else None,
        revision_of(switch),
        layout.decode(Aborted, aborted.value) if aborted else None,
    )


def generations_at(snapshot: Snapshot[bytes]) -> list[Generation]:
    """Return the generations listed at a moment, oldest first."""
    items = snapshot.items(layout.GENERATION_PREFIX)
    return [layout.generation_of(key, value) for key, value in items]


def topology_at(snapshot: Snapshot[bytes], generation: Generation | Switch) -> Topology:
    """Return the topology of a generation, or of a switch under way; one listing.

    Raises `GenerationNotFoundError` if its rows were removed, `CorruptTopologyError`.
    """
    prefix = layout.rows_prefix(generation.id)
    rows = [(layout.end_of(prefix, key), value) for key, value in snapshot.items(prefix)]
    if not rows:
        raise GenerationNotFoundError(f"generation {generation.id.hex()} no longer has rows")
    topology = Topology.of_rows(rows)
    found, wanted = (len(topology), topology.stream_count), (generation.ranges, generation.streams)
    if found != wanted:
        raise CorruptTopologyError(f"the rows have {found} ranges and streams, not {wanted}")
    return topology


class Listing:
    """The reading half of a log: all generations, the one at a time, the next, its streams."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def generations(self, *, as_of: When | None = None) -> list[Generation]:
        """Return the generations listed now or at a time, oldest first."""
        return generations_at(self._space.at(as_of))

    def at(self, when: When | None = None, *, revision: int | None = None) -> Snapshot[bytes]:
        """Return a snapshot of the log at a time or a revision."""
        return self._space.at(when, revision=revision)

    def timestamp_of(self, when: When) -> int:
        """Return the timestamp of a time, by the store's clock."""
        return self._space.timestamp_of(when)

    def operating_at(self, when: When) -> Generation | None:
        """Return the generation that operates at a time; None before the first remaining one."""
        time = self._space.timestamp_of(when)
        return next((each for each in reversed(self.generations()) if each.time <= time), None)

    def next_after(self, when: When) -> Generation | None:
        """Return the first generation that begins after a time, None if none exists yet."""
        time = self._space.timestamp_of(when)
        return next((each for each in self.generations() if each.time > time), None)

    def topology(self, generation: Generation, *, as_of: When | None = None) -> Topology:
        """Return a generation's ranges and streams, as they are stored now or at a time.

        One listing. Raises `GenerationNotFoundError` after it was removed, `CorruptTopologyError`.
        """
        return topology_at(self._space.at(as_of), generation)

    def streams_of(self, generation: Generation) -> list[StreamId]:
        """Return a generation's streams in the order of the ring; raises as `topology`."""
        return [StreamId(bytes(raw)) for raw in self.topology(generation).ids]

    def table(self) -> Iterator[TableRow]:
        """Yield a row for each generation, newest first, as for ScyllaDB's clients."""
        for each in reversed(self.generations()):
            yield TableRow(each.time, self.streams_of(each), each.expired)


def revision_of(entry: Entry | None) -> int:
    """Return the revision of an entry, 0 for none."""
    return 0 if entry is None else entry.revision


def unchanged(key: bytes, revision: int) -> Guard:
    """Return the guard that a key is unchanged since it was read: at a revision, 0: absent."""
    return AtRevision(key, revision) if revision else Absent(key)
