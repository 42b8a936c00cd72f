"""Moments of a fleet as Arrow tables. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from snapkv.archive.whole import COLUMNS, Read, states
from snapkv.errors import SnapKVError
from snapkv.fleet.archive_batches import Pair, merged
from snapkv.fleet.member import named
from snapkv.fleet.pin import Pin
from snapkv.layout import encode_text
from snapkv.reading.arrow import SNAPSHOT, Table

MEMBER = pa.field("member", pa.string(), nullable=False)


def fleet_table(pins: Iterable[Pin], prefix: str | None) -> Table:
    """Return the keys of members as one table, with a column `member` before.

    Small archives are read as wholes, a batch at a time.
    """
    stored = encode_text("" if prefix is None else prefix, "prefix")

    def merge(pairs: Sequence[Pair], archives: Sequence[Read]) -> Table:
        rows = states(archives, stored)
        names = pa.array([pin.connection.name for pin, _ in pairs])
        found = rows.select(COLUMNS).rename_columns(SNAPSHOT.names).cast(SNAPSHOT)
        return found.add_column(0, MEMBER, names.take(rows["archive"]))

    parts = [pa.schema([MEMBER, *SNAPSHOT]).empty_table()]
    pairs = [(pin, pin) for pin in pins if pin.connection.member.may_have(prefix)]
    for some, table in merged(pairs, merge):
        parts += [_opened(pin, prefix) for pin, _ in some] if table is None else [table]
    return pa.concat_tables(parts)


def _opened(pin: Pin, prefix: str | None) -> Table:
    """Return the keys of a member by its snapshot; errors name it."""
    name, snapshot = pin.connection.name, pin.snapshot()
    if snapshot is None:
        return pa.schema([MEMBER, *SNAPSHOT]).empty_table()
    try:
        found = snapshot.to_arrow(pin.connection.member.longer(prefix))
    except SnapKVError as e:
        raise named(e, name)  # noqa: B904
    return found.add_column(0, MEMBER, pa.repeat(pa.scalar(name), found.num_rows))
