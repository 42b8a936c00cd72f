"""The values of the API: commits, entries, changes, guards, operations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from snapkv.errors import dated

R = TypeVar("R")
K = TypeVar("K", str, bytes)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    V = DefaultingTypeVar("V", default=bytes)
    """The type of values: bytes, unless a codec decodes them."""
else:
    V = TypeVar("V")


class KeysAndValues(Generic[K, V]):
    """The base of classes that are generic in the types of keys and of values.

    The second is bytes where it is left out: `Change[str]` is `Change[str, bytes]`.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # defaults of type variables came with Python 3.13

        def __class_getitem__(cls, given: Any) -> Any:
            """Return the class for types of keys and values."""
            types = given if isinstance(given, tuple) else (given,)
            left_out = len(cls.__parameters__) - len(types)
            return super().__class_getitem__((*types, *[bytes] * left_out))


# --- in notebooks ---

ROWS_MAX = 50
"""The most rows of a table in a notebook."""
CELL_CHARS_MAX = 200
"""The most characters of a cell of such a table."""


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> str:
    """Return the first rows as a table of HTML, with escaped and shortened texts."""
    from html import escape

    def cell(name: str, value: object) -> str:
        text = "" if value is None else value
        if not isinstance(text, str):
            text = "".join(islice(_pieces(value), CELL_CHARS_MAX + 1))
        if isinstance(value, bytes):
            text = value[: 4 * CELL_CHARS_MAX].decode(errors="backslashreplace")
        elif name == "ts" and isinstance(value, int):
            text = dated(value)
        if not (text := text[: CELL_CHARS_MAX + 1]).isprintable():
            text = repr(text)[1:-1]
        cut = f"{text[:CELL_CHARS_MAX]}…" if len(text) > CELL_CHARS_MAX else text
        return f"<td style='text-align: left'>{escape(cut)}</td>"

    shown = list(islice(rows, ROWS_MAX + 1))
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    body = ["".join(map(cell, columns, each)) for each in shown[:ROWS_MAX]]
    more = "<p>and more</p>" if len(shown) > ROWS_MAX else ""
    lines = "".join(f"<tr>{each}</tr>" for each in body)
    above = f"<p>{escape(title)}</p>" if title else ""
    return f"{above}<table><tr>{head}</tr>{lines}</table>{more}"


def _pieces(value: object) -> Iterator[str]:
    """Yield what `str` of a value says, of lists and dicts piece by piece: they may be huge."""
    if type(value) not in (list, dict):
        yield repr(value[: CELL_CHARS_MAX + 1]) if isinstance(value, str | bytes) else str(value)
        return
    yield "{" if isinstance(value, dict) else "["
    for number, each in enumerate(cast(Iterable[object], value)):
        if number:
            yield ", "
        yield from _pieces(each)
        if isinstance(value, dict):
            yield ": "
            yield from _pieces(value[each])
    yield "}" if isinstance(value, dict) else "]"


class NotebookTable:
    """The base of values that a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]  # a dataclass
        return html_table(names, [[getattr(self, name) for name in names]])


class NotebookRows(Iterator[R]):
    """An iterator of values; a notebook shows the first ones, and they are still iterated over."""

    def __init__(self, what: str, found: Iterator[R]) -> None:
        self._what, self._found, self._is_begun = what, found, False

    def __iter__(self) -> Iterator[R]:
        self._is_begun = True
        return self._found

    def __next__(self) -> R:
        return next(self._found)

    def __repr__(self) -> str:
        return f"<{self._what}: iterate over it, or make a list of it>"

    def _repr_html_(self) -> str | None:
        if self._is_begun:  # a loop has the iterator, and would lose these rows
            return None
        first = list(islice(self._found, ROWS_MAX + 1))
        self._found = chain(first, self._found)
        if not first:
            return None
        names = [each.name for each in fields(first[0])]  # type: ignore[arg-type]  # a dataclass
        return html_table(names, [[getattr(each, name) for name in names] for each in first])


# --- commits, versions, changes ---

Scalar = str | int | float | bool | None
"""A value in the meta of a commit: what JSON has beside lists and objects."""


class Meta(Mapping[str, Scalar]):
    """Facts about a commit, such as the request that it serves: names and scalars, sorted by name.

    A read-only mapping, which compares as a dict, and can be hashed and pickled.

    >>> meta = Meta({"ticket": 4, "request": "r-17"})
    >>> meta["ticket"], meta == {"request": "r-17", "ticket": 4}
    (4, True)
    >>> meta.to_json()
    '{"request": "r-17", "ticket": 4}'
    """

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, Scalar]) -> None:
        self._facts = dict(sorted(facts.items()))

    def __getitem__(self, name: str) -> Scalar:
        return self._facts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __hash__(self) -> int:
        return hash(tuple(self._facts.items()))

    def __repr__(self) -> str:
        return f"Meta({self._facts!r})"

    def to_json(self) -> str:
        """Return the meta as the text of a JSON object, on one line."""
        return json.dumps(self._facts, ensure_ascii=False)


class Stamp(NamedTuple):
    """The identity of a commit before it is sent: its timestamp and its index in the group."""

    ts: int
    batch: int


@dataclass(frozen=True, slots=True)
class Commit(NotebookTable):
    """One commit, identified by (`ts`, `batch`); `revision` is the engine's.

    Commits of one group share `ts` and `revision`; the log shows them as one, with batch 0. A write
    by another program, seen in an observed prefix, has its own revision, the `ts` of the first tick
    at or after it, and None for `writer`, `note` and `meta`. `source_revision` is the revision in
    the engine from which `snapkv record` took the commit, None for other commits.
    """

    ts: int
    batch: int
    revision: int
    writer: str | None
    note: str | None = None
    source_revision: int | None = None
    meta: Meta | None = None


class Entry(NamedTuple, Generic[V]):
    """A key's value at a moment: when it was last written, created, and how often since."""

    value: V
    revision: int
    created: int
    version: int


@dataclass(frozen=True, slots=True)
class Version(NotebookTable, Generic[V]):
    """One version of a key: `value` is None if the key was removed.

    `ts`, `writer`, `note` and `meta` are None for a version older than the compaction point whose
    commit was compacted. `source_revision` is that of the commit.
    """

    ts: int | None
    revision: int
    value: V | None
    writer: str | None
    note: str | None = None
    meta: Meta | None = None
    source_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Difference(NotebookTable, KeysAndValues[K, V]):
    """A key that differs between two moments; None means absent."""

    key: K
    before: V | None
    after: V | None


@dataclass(frozen=True, slots=True)
class Change(NotebookTable, KeysAndValues[K, V]):
    """What a commit did to a key: its new value, None for a removal.

    `commit` has its time, writer, note and meta, as `history` returns them.
    """

    key: K
    value: V | None
    commit: Commit = field(repr=False)


@dataclass(frozen=True, slots=True)
class Changes(KeysAndValues[K, V]):
    """One commit with its changes, in key order; or all observed changes that one tick stamps.

    Observed changes are in the order of their revisions, then of keys: each write between two
    ticks is included, with a commit of its own (`change.commit`). `commit` is then the newest of
    these, and has no writer, note and meta if there are several. All of them carry `commit.ts`,
    so a watch that goes on after it misses and repeats nothing.
    """

    commit: Commit
    changes: tuple[Change[K, V], ...]

    def __iter__(self) -> Iterator[Change[K, V]]:
        return iter(self.changes)

    def _repr_html_(self) -> str:
        rows = [(each.key, each.value) for each in self.changes]
        return self.commit._repr_html_() + html_table(["key", "value"], rows)


@dataclass(frozen=True, slots=True)
class Updated(Generic[V]):
    """The result of `update`: the key's value now, None if the key is absent.

    `commit` is None if the function changed nothing. `tries` counts the calls of the function.
    """

    value: V | None
    commit: Commit | None
    tries: int


class Reverted(NamedTuple):
    """The result of `revert`: what it changed, in bytes, whatever the codec.

    `commit` is None if it changed nothing, and for `dry_run`. `conflicts` maps each key that
    changed again later, in key order, to the newest commit that changed it.
    """

    commit: Commit | None
    changes: tuple[Difference[str], ...]
    conflicts: dict[str, Commit]


@dataclass(frozen=True, slots=True)
class AtRevision:
    """Guard: the key was last written at exactly this revision (`Entry.revision`)."""

    key: str | bytes
    revision: int

    def __str__(self) -> str:
        return f"{self.key!r} at revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Absent:
    """Guard: the key does not exist."""

    key: str | bytes

    def __str__(self) -> str:
        return f"{self.key!r} absent"


@dataclass(frozen=True, slots=True)
class HeadAt:
    """Guard: no commit of the store is newer than this revision."""

    revision: int

    def __str__(self) -> str:
        return f"head at revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Held:
    """Guard: a session or a leadership still holds, from `Session.guard` or `Election.guard`.

    `key` is its leased key (below `N/live/`), `revision` the one that made it.
    """

    key: bytes
    revision: int

    def __str__(self) -> str:
        return f"{self.key!r} held since revision {self.revision}"


Guard = AtRevision | Absent | HeadAt | Held


@dataclass(frozen=True, slots=True)
class SpaceOps:
    """Operations on one byte-keyed space, as part of `Ops`."""

    puts: Mapping[bytes, bytes] = field(default_factory=dict)
    deletes: Iterable[bytes] = ()
    delete_prefixes: Iterable[bytes] = ()
    guards: Iterable[Guard] = ()


@dataclass(frozen=True, slots=True)
class Ops:
    """The operations of one commit, returned by the function in `commit(build)`.

    Removals come first, then saves: a key that is saved is never removed by the same commit.
    `spaces` maps names of spaces to their operations in the same commit. `writer`, if it is not
    None, takes the place of the store's writer; `note` and `meta` are kept in the commit log.
    """

    puts: Mapping[str, bytes] = field(default_factory=dict)
    deletes: Iterable[str] = ()
    delete_prefixes: Iterable[str] = ()
    guards: Iterable[Guard] = ()
    note: str | None = None
    spaces: Mapping[str, SpaceOps] = field(default_factory=dict)
    writer: str | None = None
    meta: Mapping[str, Scalar] | None = None


Build = Callable[[Stamp], Ops]
"""The argument of `commit(build)`: a pure function, called again for every new timestamp."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of `compact()`: history before `earliest` (at `revision`) is removed.

    `waits_for` names the recording that has not copied more yet, if that is why more remains.
    """

    revision: int
    earliest: int
    waits_for: str | None = None
