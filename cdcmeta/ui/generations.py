"""Generations as rings over time: which tokens each range has, and how many streams."""

from __future__ import annotations

from collections.abc import Sequence

from cdcmeta.errors import GenerationNotFoundError
from cdcmeta.generations import Generation, GenerationLog
from cdcmeta.generations.log.listing import topology_at
from cdcmeta.generations.model.topology import Topology
from snapkv.ui.contributed import (
    Asked,
    Cell,
    Part,
    Ring,
    Rings,
    Section,
    Table,
    Time,
)

RINGS_MAX = 12
PARTS_MAX = 512
"""A ring with more ranges is drawn with neighbours joined."""
TOKENS = 1 << 64
LOWEST = -(1 << 63)


def generation_sections(asked: Asked) -> Sequence[Section]:
    """Return the generations of each log at the moment: the newest as rings, all in a table."""
    sections: list[Section] = []
    for space in asked.spaces:
        if not space.startswith("generations/"):
            continue
        log = GenerationLog(asked.store, space.removeprefix("generations/"))
        found = log.generations(as_of=asked.at)
        snapshot = log.at(asked.at)
        rings = []
        for each in found[-RINGS_MAX:]:
            try:
                rings.append(ring_of(each, topology_at(snapshot, each)))
            except GenerationNotFoundError:  # its rows were removed, as old ones' are
                rings.append(Ring("its rows were removed", [], each.time))
        rows: list[list[Cell]] = [
            [
                *(Time(each.time), each.id.hex(), each.ranges, each.streams, Time(each.made)),
                Time(each.expired) if each.expired else "",
            ]
            for each in reversed(found)
        ]
        columns = ("Operates from", "Id", "Ranges", "Streams", "Made", "Superseded")
        sections += [Rings(f"Rings of {log.name}", rings), Table("Generations", columns, rows)]
    return sections


def ring_of(generation: Generation, topology: Topology) -> Ring:
    """Return a generation's ring: each range as large as its tokens, coloured by its streams."""
    shares = [(int(end) - LOWEST) / TOKENS for end in topology.ends]
    step = -(-len(shares) // PARTS_MAX)
    ends = shares[::step] if len(shares) > 1 else [0.0]
    parts = []
    for number, start in enumerate(ends):
        end = ends[(number + 1) % len(ends)]
        end += 1.0 if end <= start else 0.0
        parts.append(Part(start, end, f"{(end - start):.1%} of the tokens", number % 8))
    label = f"{generation.ranges:,} ranges, {generation.streams:,} streams"
    return Ring(label, parts, generation.time)
