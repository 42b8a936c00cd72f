"""Many small archives read as wholes, a batch in each of some threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from snapkv.errors import FileMissingError, SnapKVError
from snapkv.fleet.member import named, naming
from snapkv.fleet.pin import Pin
from snapkv.layout import encode_text

if TYPE_CHECKING:
    from concurrent.futures import Future

    from snapkv.archive.small_archives import ArchiveRows, SmallArchive
    from snapkv.reading.arrow import Table

Found = TypeVar("Found")
Pair = tuple[Pin, Pin]
"""A member at two moments, or twice at one."""
Merge = Callable[[Sequence[Pair], "Sequence[ArchiveRows]"], Found]
Some = tuple[Sequence[Pair], Found | None]

THREADS = min(8, os.cpu_count() or 1)
"""The threads that read archives: reading Parquet and merging rows is work for the CPU."""
AHEAD = 2
"""The number of batches that each thread reads ahead."""
BATCH = 16
"""The most archives in one batch; a batch has fewer if all threads have work then."""
FILES_BYTES = 4 << 20
"""The bytes of files after which no more archives are added to a batch."""
BYTES_MAX = 64 << 20
"""The bytes of rows after which no more archives are added; files may have compressed them well."""


def merged(pairs: Sequence[Pair], merge: Merge[Found]) -> Iterator[Some[Found]]:
    """Yield members, in order, with what a function makes of the rows of some archives at a time.

    A member that has to be opened is yielded with None. The function is called in threads. Errors
    name their member.
    """
    from concurrent.futures import ThreadPoolExecutor

    ahead: deque[Future[list[Some[Found]]]] = deque()
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="snapkv fleet files")
    try:
        for batch in _batches(pairs):
            ahead.append(pool.submit(_merged, batch, merge))
            if len(ahead) >= THREADS * AHEAD:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _batches(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """Part members into batches, which are read ahead: batches of large archives are short."""
    most = max(1, min(BATCH, -(-len(pairs) // THREADS)))
    batch: list[Pair] = []
    size = 0
    for pair in pairs:
        shared = _shared_archive(pair)
        batch.append(pair)
        size += 0 if shared is None else shared.size
        if len(batch) == most or size >= FILES_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _merged(batch: Sequence[Pair], merge: Merge[Found]) -> list[Some[Found]]:
    """Read a batch, and merge what lies side by side in it."""
    found: list[Some[Found]] = []
    some: list[Pair] = []
    archives: list[ArchiveRows] = []
    size = 0
    for pair in batch:
        read = _read(pair)
        if some and (read is None or size >= BYTES_MAX):
            found.append((some, merge(some, archives)))
            some, archives, size = [], [], 0
        if read is None:
            found.append(([pair], None))
        else:
            some.append(pair)
            archives.append(read)
            size += read.nbytes
    if some:
        found.append((some, merge(some, archives)))
    return found


def _read(pair: Pair) -> ArchiveRows | None:
    """Return the rows of an archive; None if the member has to be opened."""
    shared = _shared_archive(pair)
    if shared is None:
        return None
    low, high = sorted(pin.timestamp for pin in pair)
    try:
        return shared.read(low, high)
    except FileMissingError:  # merged into another one meanwhile: an open archive looks again
        return None
    except SnapKVError as e:
        raise named(e, pair[0].connection.name)  # noqa: B904


def _shared_archive(pair: Pair) -> SmallArchive | None:
    """Return the archive that both moments show; None if there is none, or another manifest."""
    a, b = pair
    return a.small_archive if a.small_archive is b.small_archive else None


# --- moments as Arrow tables; needs pyarrow ---


def fleet_table(pins: Iterable[Pin], prefix: str | None) -> Table:
    """Return the keys of members as one table, with a column `member` before.

    Small archives are read as wholes, a batch at a time.
    """
    import pyarrow as pa

    from snapkv.archive.small_archives import COLUMNS, states
    from snapkv.reading.arrow import SNAPSHOT

    member = pa.field("member", pa.string(), nullable=False)
    stored = encode_text("" if prefix is None else prefix, "prefix")

    def merge(pairs: Sequence[Pair], archives: Sequence[ArchiveRows]) -> Table:
        rows = states(archives, stored)
        names = pa.array([pin.connection.name for pin, _ in pairs])
        found = rows.select(COLUMNS).rename_columns(SNAPSHOT.names).cast(SNAPSHOT)
        return found.add_column(0, member, names.take(rows["archive"]))

    def open_table(pin: Pin) -> Table:
        name, snapshot = pin.connection.name, pin.snapshot()
        if snapshot is None:
            return SNAPSHOT.empty_table()
        with naming(name):
            return snapshot.to_arrow(pin.connection.member.longer(prefix))

    parts = [pa.schema([member, *SNAPSHOT]).empty_table()]
    pairs = [(pin, pin) for pin in pins if pin.connection.member.may_have(prefix)]
    for some, table in merged(pairs, merge):
        if table is not None:
            parts.append(table)
            continue
        for pin, _ in some:
            rows = open_table(pin)
            names = pa.repeat(pa.scalar(pin.connection.name), rows.num_rows)
            parts.append(rows.add_column(0, member, names))
    return pa.concat_tables(parts)
