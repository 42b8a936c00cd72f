"""Moments of a fleet as Arrow tables. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from snapkv.errors import SnapKVError
from snapkv.fleet.member import named
from snapkv.reading.arrow import SNAPSHOT, Table
from snapkv.reading.snapshot import Snapshot

MEMBER = pa.field("member", pa.string(), nullable=False)


def fleet_table(snapshots: Iterable[tuple[str, Snapshot[str]]], prefix: str | None) -> Table:
    """Return the keys of members' snapshots as one table, with a column `member` before."""
    parts: list[Any] = []
    for name, snapshot in snapshots:
        try:
            table = snapshot.to_arrow(prefix)
        except SnapKVError as e:
            raise named(e, name)  # noqa: B904
        members = pa.repeat(pa.scalar(name), table.num_rows)
        parts.append(table.add_column(0, MEMBER, members))
    return pa.concat_tables(parts) if parts else pa.schema([MEMBER, *SNAPSHOT]).empty_table()
