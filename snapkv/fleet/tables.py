"""Moments of a fleet as Arrow tables. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from snapkv.errors import SnapKVError
from snapkv.fleet.bulk import states
from snapkv.fleet.member import named
from snapkv.fleet.pin import Pin
from snapkv.layout import encode_text
from snapkv.reading.arrow import SNAPSHOT, Table

MEMBER = pa.field("member", pa.string(), nullable=False)


def fleet_table(pins: Iterable[Pin], prefix: str | None) -> Table:
    """Return the keys of members as one table, with a column `member` before.

    Small archives are read as wholes, some at a time.
    """
    parts: list[Any] = []
    stored = encode_text("" if prefix is None else prefix, "prefix")
    pins = [pin for pin in pins if pin.connection.member.may_have(prefix)]
    for pin, found in states(pins, stored):
        own = pin.connection.member.longer(prefix)
        table = _opened(pin, own) if found is None else _cast(found)
        if table is None:
            continue
        members = pa.repeat(pa.scalar(pin.connection.name), table.num_rows)
        parts.append(table.add_column(0, MEMBER, members))
    return pa.concat_tables(parts) if parts else pa.schema([MEMBER, *SNAPSHOT]).empty_table()


def _opened(pin: Pin, prefix: str | None) -> Any:
    snapshot = pin.snapshot()
    if snapshot is None:
        return None
    try:
        return snapshot.to_arrow(prefix)
    except SnapKVError as e:
        raise named(e, pin.connection.name)  # noqa: B904


def _cast(found: Any) -> Any:
    """Return the rows of an archive as those of a snapshot."""
    return found.rename_columns(
        ["key", "value", "create_version", "mod_version", "key_version"]
    ).cast(SNAPSHOT)
