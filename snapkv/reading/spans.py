"""Ranges of stored keys, and how users write these keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from snapkv.layout import Keyspace, prefix_end
from snapkv.reading import arrow
from snapkv.reading.arrow import Schema
from snapkv.reading.reader import Reader

T = TypeVar("T")


class Span(NamedTuple):
    """A range [start, end) of stored keys of one kind, and how users write these keys."""

    space: Keyspace
    start: bytes
    end: bytes
    text: bool

    def schema(self, schema: Schema) -> Schema:
        """Return a schema with keys as this range has them."""
        return schema if self.text else arrow.keyed_by_bytes(schema)


def span_of(space: Keyspace, prefix: Any) -> Span:
    """Return the range of all keys with a prefix (None: all), which read as users write them."""
    return Span(space, *space.range_of(space.whole if prefix is None else prefix), space.text)


def everything(reader: Reader) -> Span:
    """Return the range of all keys of a store, spaces included."""
    layout = reader.layout
    return Span(layout.data, layout.data.prefix, prefix_end(layout.spaces), True)


def chunks(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield rows in lists of at most a size."""
    rows = iter(rows)
    while some := list(islice(rows, size)):
        yield some
