"""Requests of the pages: the store, the fields of the URL, the time of lanes, pages of names."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, islice
from typing import Generic, TypeVar

from cdcmeta.ui.svg import LaneSpan
from snapkv import CompactedError, SnapshotKV, When
from snapkv.errors import InvalidOptionError
from snapkv.times import physical_ms
from snapkv.ui import Context

T = TypeVar("T")
DIGITS_MAX = 20
SHARED_OPTIONS = ("--store", "--name")
"""The options that `snapkv` and `cdcmeta` both have."""


def store_of(c: Context) -> SnapshotKV:
    """Return the store. Raises `InvalidOptionError` for the keys of other programs."""
    if c.source.store is None:
        raise InvalidOptionError(
            "this page shows keys of other programs, and these views are of a store: open it "
            "without --observe"
        )
    return c.source.store


def needed(c: Context, name: str) -> str:
    """Return a field of the URL. Raises `InvalidOptionError` without it."""
    if not c.state[name]:
        raise InvalidOptionError(f"the URL of this page needs {name}=")
    return c.state[name]


def integer(c: Context, name: str) -> int | None:
    """Return a field of the URL as an integer, None without it. Raises `InvalidOptionError`."""
    text = c.state[name]
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX):
        raise InvalidOptionError(f"{name}={text[:40]!r} is not an integer")
    return int(text)


def looks_longer(c: Context) -> bool:
    """Return whether a link asked for what takes longer."""
    return c.state["look"] == "longer"


def live_or_past(c: Context) -> When | None:
    """Return the moment, None for now; of an archive alone its newest one: it has no present."""
    return c.source.timestamp(None) if c.at is None and c.source.frozen else c.at


def time_of_moment(c: Context) -> int:
    """Return the timestamp of the moment, also of now."""
    return c.source.timestamp(c.at)


def span_of(c: Context) -> LaneSpan:
    """Return the time of lanes, which is the time of the time bar."""
    return LaneSpan(c.bar.start_ms, c.bar.end_ms, physical_ms(time_of_moment(c)))


def command(c: Context, *words: str) -> str:
    """Return the line of the command `cdcmeta` that shows the same; "" if no line can."""
    options: Sequence[str] = c.source.words
    if set(options[::2]) - set(SHARED_OPTIONS):
        return ""
    return shlex.join(["cdcmeta", *words, *options])


# --- pages of what has a name ---


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A page of a listing by name. The next one begins at the name `start`, None at the end."""

    rows: list[T]
    start: str | None


def listed(names: Iterator[str], limit: int, row: Callable[[str], T]) -> Listed[T]:
    """Return a page of the first names, with the row that `row` returns of each."""
    found = list(islice(names, limit + 1))
    return Listed([row(each) for each in found[:limit]], next(iter(found[limit:]), None))


def space_names(store: SnapshotKV, prefix: str, start: str, when: When | None) -> Iterator[str]:
    """Yield the names after a prefix of spaces at a moment, from a name on; in stored order.

    One round trip for each name, also for names before `start`.
    """
    names = (name.removeprefix(prefix) for name in store.spaces(prefix, when))
    return dropwhile(lambda name: bool(start) and _stored(name) < _stored(start), names)


def time_of(store: SnapshotKV, revision: int) -> int | None:
    """Return the timestamp of a revision's commit, None if it was compacted; one round trip."""
    try:
        return store.timestamp_of(f"rev:{revision}")
    except CompactedError:
        return None


def _stored(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F") + "/"
