"""The bytes of a store: its keys, the value of the timestamp key, the format record.

Layout of a store named N (vectors in `snapkv/DESIGN.md` and `tests/unit/test_records.py`):

    N/data/<utf-8 text>          users' keys
    N/space/<name>/<bytes>       byte-keyed spaces; `%` and `/` of a name are %-escaped
    N/live/...                   leased keys, not part of time travel
    N/sys/ts                     be64(timestamp) + msgpack map: the time line
    N/sys/format                 msgpack map: format number, random store id
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, AnyStr, NamedTuple, NoReturn

import msgpack
from msgpack import UnpackException

from snapkv.base.arguments import check_text, wrong_type
from snapkv.base.text import common_head
from snapkv.errors import (
    ArchiveError,
    CorruptStoreError,
    FormatError,
    InvalidKeyError,
    InvalidOptionError,
)
from snapkv.model import Meta, Scalar

FORMAT = 1
NOTE_BYTES_MAX = 4_096
META_BYTES_MAX = 4_096
WRITER_BYTES_MAX = 256
NAME_BYTES_MAX = 128

_RESERVED = {"data", "space", "live", "sys"}
_BE64 = struct.Struct(">Q")
_MALFORMED = (struct.error, ValueError, LookupError, TypeError, AttributeError, UnpackException)


class Mark(NamedTuple):
    """One version of the timestamp key: a moment of the store's time line.

    `ordinal` counts the versions from 1; number 1 is the store's creation, at timestamp 0.
    """

    timestamp: int
    revision: int
    ordinal: int


ROUND_META = "fleet_"
"""The beginning of names in the meta of ticks that make a round (`snapkv.fleet.tick_rounds`)."""
CREATION_ORDINAL = 1
"""The ordinal of a store's creation, which is not a commit."""


@dataclass(frozen=True, slots=True)
class StampRecord:
    """The value of the timestamp key: a commit's timestamp, nonce, writer, note and meta.

    A fence has `fence_of` instead: it proves that the commit with that nonce is dead. `ahead` is
    how far the timestamp is ahead of its writer's clock, if at least a millisecond (`Pace`). What
    was recorded from another engine has its `source`: the revision there, and the commit's ordinal.
    `began` is the first revision of a recorded commit's writes, if that is not its own (0).
    `positions` are how far each part of its source is recorded, if that has several.
    """

    timestamp: int
    nonce: bytes = b""
    writer: str = ""
    note: str | None = None
    fence_of: bytes | None = None
    ahead: int = 0
    source: tuple[int, int] | None = None
    meta: Meta | None = None
    began: int = 0
    positions: Mapping[str, int] | None = None

    @property
    def says_nothing(self) -> bool:
        """Whether it has no note, no meta but that of a round of ticks, and is not a fence."""
        return self.note is None and self.fence_of is None and is_of_round(self.meta)

    @property
    def source_revision(self) -> int | None:
        """The revision that was recorded; None for a commit of the store itself.

        The parts of a first state are of no revision: their source's is 0.
        """
        return (self.source[0] or None) if self.source else None

    @property
    def meta_json(self) -> str | None:
        """The meta as JSON text, as tables have it."""
        return None if self.meta is None else self.meta.to_json()

    def encode(self) -> bytes:
        """Return be64(timestamp) and a msgpack map of the short names n, w, m, d, f, a, s, b, p."""
        fields: dict[str, Any] = {"n": self.nonce, "w": self.writer}
        if self.note is not None:
            fields["m"] = self.note
        if self.meta is not None:
            fields["d"] = dict(self.meta)
        if self.fence_of is not None:
            fields["f"] = self.fence_of
        if self.ahead:
            fields["a"] = self.ahead
        if self.source is not None:
            fields["s"] = self.source
        if self.began:
            fields["b"] = self.began
        if self.positions is not None:
            fields["p"] = self.positions
        packed: bytes = msgpack.Packer().pack(fields)  # as `packb`, without its own call
        return _BE64.pack(self.timestamp) + packed

    @classmethod
    def decode(cls, value: bytes) -> StampRecord:
        """Read a value of the timestamp key; unknown fields are ignored.

        Raises `CorruptStoreError` if it is not valid.
        """
        try:
            (timestamp,) = _BE64.unpack_from(value)
            fields = msgpack.unpackb(value[8:])
            ahead, note, fence = int(fields.get("a", 0)), fields.get("m"), fields.get("f")
            pair = fields.get("s")
            source = None if pair is None else (int(pair[0]), int(pair[1]))
            meta = None if "d" not in fields else _meta_of(fields["d"])
            nonce, writer, began = fields["n"], fields["w"], int(fields.get("b", 0))
            positions = fields.get("p")
            return cls(timestamp, nonce, writer, note, fence, ahead, source, meta, began, positions)
        except _MALFORMED as e:
            raise CorruptStoreError(
                f"the timestamp key has an invalid stamp: {value[:40]!r}"
            ) from e


def is_of_round(meta: Mapping[str, Scalar] | None) -> bool:
    """Return whether a meta is none, or has nothing but the names of a fleet's rounds of ticks.

    >>> is_of_round(None), is_of_round({"fleet_round": 2}), is_of_round({"request": "r-17"})
    (True, True, False)
    """
    return meta is None or all(name.startswith(ROUND_META) for name in meta)


def pack_meta(meta: Mapping[str, Scalar]) -> bytes:
    """Return the msgpack map of a meta; two that are stored alike have the same bytes."""
    packed: bytes = msgpack.packb(dict(sorted(meta.items())))
    return packed


def unpack_meta(packed: bytes) -> Meta:
    """Return a meta as readers get it: of the plain types of msgpack, whatever was packed."""
    return _meta_of(msgpack.unpackb(packed))


def _meta_of(found: object) -> Meta:
    """Return a map of msgpack as a meta; raises `TypeError` if it is none."""
    if not isinstance(found, dict):
        raise TypeError("meta is a map")
    if not all(isinstance(k, str) and isinstance(v, Scalar) for k, v in found.items()):
        raise TypeError("meta has names and scalars")
    return Meta(found)


be64 = _BE64.pack
"""Returns the 8 bytes of a timestamp that the guard of a commit compares."""


def stamp_of(value: bytes) -> int:
    """Return only the timestamp of a timestamp key's value (the hot path of lookups)."""
    try:
        return _BE64.unpack_from(value)[0]  # type: ignore[no-any-return]
    except struct.error as e:
        raise CorruptStoreError(f"the timestamp key has an invalid stamp: {value[:40]!r}") from e


def stamps_of(values: Sequence[bytes]) -> list[int]:
    """Return only the timestamps of many values of the timestamp key."""
    try:
        return list(chain.from_iterable(map(_BE64.unpack_from, values)))
    except struct.error as e:
        shortest = min(values, key=len)
        raise CorruptStoreError(f"the timestamp key has an invalid stamp: {shortest[:40]!r}") from e


@dataclass(frozen=True, slots=True)
class FormatRecord:
    """The value of the format key: the format number and the store's id."""

    store_id: bytes
    format: int = FORMAT

    def encode(self) -> bytes:
        """Return the msgpack map of the record."""
        packed: bytes = msgpack.packb({"format": self.format, "id": self.store_id})
        return packed

    @classmethod
    def decode(cls, value: bytes) -> FormatRecord:
        """Read a format record; raises `FormatError` if this version cannot read it."""
        try:
            fields = msgpack.unpackb(value)
            found, store_id = fields["format"], fields["id"]
        except (ValueError, KeyError, TypeError, UnpackException) as e:
            raise CorruptStoreError(f"the format key has an invalid record: {value[:40]!r}") from e
        if found != FORMAT:
            raise FormatError("the store", found, FORMAT)
        return cls(store_id, found)


class SourceId(NamedTuple):
    """Whose history is recorded: a store, or observed keys, which other programs write.

    `id`, `name` and `created` (the revision that created the timestamp key) are the store's. For
    observed keys, `id` is random, and `cluster` is the id of the engine's cluster.
    """

    id: bytes
    name: str
    created: int
    observed: Selection | None = None
    cluster: int = 0

    def check_follows(self, known: SourceId, place: str) -> None:
        """Raise `ArchiveError` unless the record of `known` in a place can continue with this.

        Some of the observed keys have to be the same: otherwise the place is likely a mistake.
        """
        same = self == known
        if self.observed is not None and known.observed is not None:
            same = self._replace(observed=known.observed) == known
            if same and not any(map(self.observed.has_some, known.observed.prefixes)):
                raise ArchiveError(
                    f"{place} is the record of another prefix: it observes {known.observed}, and "
                    f"none of that is in {self.observed}: observe some of it, or record into "
                    "another place"
                )
        if not same:
            raise ArchiveError(
                f"{place} is the record of another source: {known.name!r}, id {known.id.hex()}: "
                "record into another place"
            )

    def encode(self) -> bytes:
        """Return the msgpack list of it.

        One prefix is the fourth member. Several, or exceptions, are the sixth and seventh, which
        programs that know only one prefix reject.
        """
        observed, fields = self.observed, [*self]
        if observed is not None:
            fields[3:] = observed.only, self.cluster, *(() if observed.is_one else observed)
        packed: bytes = msgpack.packb(fields)
        return packed

    @classmethod
    def decode(cls, value: bytes) -> SourceId:
        """Read what `encode` returns; raises `CorruptStoreError` if it is not valid."""
        try:
            id_, name, created, prefix, cluster, *selected = msgpack.unpackb(value)
            if selected:
                prefixes, excluded = selected
                observed: Selection | None = Selection(tuple(prefixes), tuple(excluded))
            else:
                observed = None if prefix is None else Selection((prefix,))
            return cls(id_, name, created, observed, cluster)
        except _MALFORMED as e:
            raise CorruptStoreError(f"the source key does not name a source: {value!r}") from e


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of a store named `name`, a text of parts joined by `/`, none of them reserved.

    `root` is the prefix of everything in the store, `ts` the timestamp key, `format` the format
    key, `part` the key of a recorded commit that is not whole yet, `spaces` the prefix of all
    spaces. `data` are the users' keys; `live` are the leased keys, which time travel leaves out.

    >>> Layout("default").ts
    b'default/sys/ts'
    """

    name: str
    root: bytes = field(init=False, repr=False, compare=False)
    ts: bytes = field(init=False, repr=False, compare=False)
    format: bytes = field(init=False, repr=False, compare=False)
    part: bytes = field(init=False, repr=False, compare=False)
    spaces: bytes = field(init=False, repr=False, compare=False)
    data: Keyspace = field(init=False, repr=False, compare=False)
    live: Keyspace = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_text("a store's name", self.name)
        names = self.name.removeprefix("/").split("/")
        if not all(names) or _RESERVED & set(names) or "\0" in self.name:
            raise InvalidOptionError(
                f"name {self.name!r}: use parts joined by '/', none empty, "
                f"none of {', '.join(sorted(_RESERVED))}"
            )
        if len(encode_text(self.name, "name")) > NAME_BYTES_MAX:
            raise InvalidOptionError(f"a store's name has at most {NAME_BYTES_MAX} bytes")
        root = self.name.encode() + b"/"
        parts = {
            "root": root,
            "ts": root + b"sys/ts",
            "format": root + b"sys/format",
            "part": root + b"sys/part",
            "spaces": root + b"space/",
            "data": Keyspace(root + b"data/", text=True),
            "live": Keyspace(root + b"live/", text=False),
        }
        for name, value in parts.items():  # once: each commit and read needs some
            object.__setattr__(self, name, value)

    def space(self, name: str) -> Keyspace:
        """Return the byte-keyed space of that name; `a/b` and `a` do not overlap."""
        check_text("a space's name", name)
        if not name:
            raise InvalidKeyError("a space needs a name", name)
        return _space(self.spaces, name)


@dataclass(frozen=True, slots=True)
class Keyspace:
    """Keys below a prefix of the engine: users' keys to stored keys, and back."""

    prefix: bytes
    text: bool

    def encode(self, key: str | bytes) -> bytes:
        """Return the stored form of a key; raises `InvalidKeyError` or `InvalidTypeError`."""
        if type(key) is str and key and self.text and key.isascii():  # a hot path
            return self.prefix + key.encode()
        if type(key) is bytes and key and not self.text:
            return self.prefix + key
        if not key and isinstance(key, str | bytes):
            raise InvalidKeyError("a key is not empty", key)
        return self.prefix + self._raw(key, "key")

    def decode(self, stored: bytes) -> Any:
        """Return the key as its user wrote it (str or bytes)."""
        raw = stored[len(self.prefix) :]
        return raw.decode() if self.text else raw

    def decode_all(self, stored: Iterable[bytes]) -> list[Any]:
        """Return keys as their user wrote them: for each the same as `decode`."""
        start = len(self.prefix)
        if self.text:
            return [raw[start:].decode() for raw in stored]
        return [raw[start:] for raw in stored]

    def range_of(self, prefix: str | bytes) -> tuple[bytes, bytes]:
        """Return [start, end) of all keys with a prefix, exact to the byte; "" is all of them."""
        start = self.prefix + self._raw(prefix, "prefix")
        return start, prefix_end(start)

    @property
    def default_prefix(self) -> Any:
        """The prefix of a caller that gives none, which all keys have: "" or b""."""
        return "" if self.text else b""

    def _raw(self, key: str | bytes, what: str) -> bytes:
        if self.text:
            return encode_text(key, what)
        if not isinstance(key, bytes):
            raise wrong_type(what, "bytes", key)
        return key


FIRST_KEY = b"\0"
"""The smallest key: engines take neither an empty key nor a range that begins with one."""
LAST_END = b"\0"
"""The end of a range that has no end."""


@dataclass(frozen=True, slots=True)
class RawKeyspace(Keyspace):
    r"""All keys of an engine below a prefix, which is a part of the key that users read and write.

    With a `selection`, only its keys; the prefix is the one that all of them have. As text, bytes
    that are not valid UTF-8 are escaped, as Python's `surrogateescape` does.

    >>> keys = RawKeyspace(b"/registry/", text=True)
    >>> keys.decode(b"/registry/\xff"), keys.encode("/registry/\udcff")
    ('/registry/\udcff', b'/registry/\xff')
    """

    selection: Selection | None = None

    def encode(self, key: str | bytes) -> bytes:
        """Return the stored form of a key; raises `InvalidKeyError` or `InvalidTypeError`."""
        if not key and isinstance(key, str | bytes):
            raise InvalidKeyError("a key is not empty", key)
        stored = self._inside(key, "key")
        if self.selection is not None and not self.selection.has(stored):
            self._fail(key, "key")
        return stored

    def decode(self, stored: bytes) -> Any:
        """Return the key as its user wrote it (str or bytes)."""
        return stored.decode(errors="surrogateescape") if self.text else stored

    def decode_all(self, stored: Iterable[bytes]) -> list[Any]:
        """Return keys as their user wrote them."""
        return list(map(self.decode, stored))

    def range_of(self, prefix: str | bytes) -> tuple[bytes, bytes]:
        """Return [start, end) of all keys with a prefix, which itself begins with `self.prefix`."""
        start = self._inside(prefix, "prefix")
        if self.selection is not None and not self.selection.has_some(start):
            self._fail(prefix, "prefix")
        return start or FIRST_KEY, prefix_end(start)

    @property
    def default_prefix(self) -> Any:
        """The prefix of a caller that gives none, which all keys have."""
        return self.decode(self.prefix)

    @property
    def facts(self) -> dict[str, Any]:
        """The prefix, or the prefixes and the exceptions, for people."""
        if self.selection is None:
            return {"prefix": self.default_prefix}
        prefixes, excluded = map(self.decode_all, self.selection)
        return {"prefixes": prefixes, "except": excluded}

    def _inside(self, key: str | bytes, what: str) -> bytes:
        stored = raw_key(key, what, text=self.text)
        if not stored.startswith(self.prefix):
            self._fail(key, what)
        return stored

    def _fail(self, key: str | bytes, what: str) -> NoReturn:
        observed = f"prefix {self.default_prefix!r}"
        if self.selection is not None:
            observed = f"keys: {self.selection}"
        raise InvalidKeyError(f"{what} {key!r} is outside of the observed {observed}", key)


class Selection(NamedTuple):
    """Keys of an engine: all that begin with one of some prefixes, and not with an exception.

    `selection_of` makes one: sorted, and no prefix and no exception begins with another one.

    >>> some = Selection((b"/registry/",), (b"/registry/events/",))
    >>> some.has(b"/registry/pods/a"), some.has(b"/registry/events/a")
    (True, False)
    """

    prefixes: tuple[bytes, ...]
    excluded: tuple[bytes, ...] = ()

    @property
    def is_one(self) -> bool:
        """Whether it is one prefix, without an exception."""
        return len(self.prefixes) == 1 and not self.excluded

    @property
    def only(self) -> bytes | None:
        """The prefix, if it is one without an exception."""
        return self.prefixes[0] if self.is_one else None

    @property
    def hull(self) -> bytes:
        """The longest prefix that all its keys have."""
        first, last = self.prefixes[0], self.prefixes[-1]
        return first[: common_head(first, last)]

    def has(self, key: bytes) -> bool:
        """Return whether a key is one of them."""
        return key.startswith(self.prefixes) and not key.startswith(self.excluded)

    def has_some(self, prefix: bytes) -> bool:
        """Return whether keys with a prefix can be among them."""
        return self.has(prefix) or any(each.startswith(prefix) for each in self.prefixes)

    def ranges(self) -> list[tuple[bytes, bytes]]:
        r"""Return them as ranges [start, end), in order.

        >>> Selection((b"a/", b"c"), (b"a/b",)).ranges()
        [(b'a/', b'a/b'), (b'a/c', b'a0'), (b'c', b'd')]
        """
        found = []
        for prefix in self.prefixes:
            start, end = prefix or FIRST_KEY, prefix_end(prefix)
            for excluded in self.excluded:
                if not excluded.startswith(prefix):
                    continue
                if start < excluded:
                    found.append((start, excluded))
                start = prefix_end(excluded)
                if start == LAST_END:
                    break
            else:
                if start < end or end == LAST_END:
                    found.append((start, end))
        return found

    def __str__(self) -> str:
        """Return it for messages, such as `'/registry/' except '/registry/events/'`."""
        lists = [
            " and ".join(repr(each.decode(errors="surrogateescape")) for each in some)
            for some in self
            if some
        ]
        return " except ".join(lists)


CLUSTER = Selection((b"kubernetes:",))
"""In the identity of a record, what is observed of a Kubernetes cluster through its API."""
OBSERVES = "observes "
"""The beginning of the note of a commit in which a record begins to observe other keys."""
Prefixes = str | bytes | Collection[str] | Collection[bytes]
"""A prefix, or several."""


def selection_of(given: object, exclude: object, what: str) -> tuple[Selection, bool]:
    """Return the keys that prefixes select, and whether the prefixes are text.

    `what` is the name of the argument `given`.

    >>> selection_of(["/a/", "/a/b/", "/c/"], "/c/d/", "prefix")
    (Selection(prefixes=(b'/a/', b'/c/'), excluded=(b'/c/d/',)), True)

    Raises `InvalidTypeError`, `InvalidKeyError`, `InvalidOptionError`.
    """
    wanted, exceptions = _several(given, what), _several(exclude, "exclude")
    if not wanted:
        raise InvalidOptionError(f"{what} is an empty list: name a prefix, '' for all keys")
    text = isinstance(wanted[0], str)
    prefixes = [raw_key(each, what, text=text) for each in wanted]
    excluded = [raw_key(each, "exclude", text=text) for each in exceptions]
    for shown, each in zip(exceptions, excluded, strict=True):
        if any(prefix.startswith(each) for prefix in prefixes):
            raise InvalidOptionError(
                f"the exception {shown!r} leaves no keys of an observed prefix: leave one of the "
                "two out"
            )
        if not each.startswith(tuple(prefixes)):
            raise InvalidOptionError(
                f"the exception {shown!r} is outside of the observed keys, "
                f"{Selection(outermost(prefixes))}: name one that begins with an observed prefix"
            )
    return Selection(outermost(prefixes), outermost(excluded)), text


def _several(given: object, what: str) -> list[object]:
    if isinstance(given, str | bytes):
        return [given]
    if not isinstance(given, Collection):
        raise wrong_type(what, "a prefix as str or bytes, or a list of them", given)
    return list(given)


def outermost(prefixes: Iterable[AnyStr]) -> tuple[AnyStr, ...]:
    """Return prefixes in order; one that begins with another one is left out."""
    found: list[AnyStr] = []
    for each in sorted(prefixes):
        if not (found and each.startswith(found[-1])):
            found.append(each)
    return tuple(found)


def raw_key(key: object, what: str, *, text: bool) -> bytes:
    """Return the bytes of a key or prefix, given as a str (`text`) or as bytes."""
    if not isinstance(key, str if text else bytes):
        raise wrong_type(what, "a str" if text else "bytes", key)
    if isinstance(key, bytes):
        return key
    assert isinstance(key, str)
    try:
        return key.encode(errors="surrogateescape")
    except UnicodeEncodeError as e:
        raise InvalidKeyError(f"{what} {key!r} cannot be encoded as bytes", key) from e


@lru_cache(maxsize=256)
def _space(prefix: bytes, name: str) -> Keyspace:
    return Keyspace(prefix + stored_space_name(name) + b"/", text=False)


def stored_space_name(name: str) -> bytes:
    """Return a space's name, or the beginning of one, as it is stored below `N/space/`.

    >>> stored_space_name("changes/db")
    b'changes%2Fdb'
    """
    check_text("a space's name", name)
    return encode_text(name.replace("%", "%25").replace("/", "%2F"), "space name")


def space_name(relative: bytes) -> str:
    """Return the name of the space that a key below `N/space/` belongs to.

    >>> space_name(b"changes%2Fdb/key")
    'changes/db'
    """
    return relative.partition(b"/")[0].decode().replace("%2F", "/").replace("%25", "%")


def encode_text(text: object, what: str) -> bytes:
    """Return UTF-8 of a text; raises a typed error for anything else (lone surrogates too)."""
    if not isinstance(text, str):
        raise wrong_type(what, "a str", text)
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise InvalidKeyError(f"{what} {text!r} is not valid UTF-8", text) from e


def source_key(ts: bytes) -> bytes:
    """Return the key that says what a record records, from the timestamp key of its store.

    >>> source_key(b"default/sys/ts")
    b'default/sys/source'
    """
    return ts.removesuffix(b"ts") + b"source"


def prefix_end(prefix: bytes) -> bytes:
    r"""Return the smallest bytes above everything that starts with `prefix` (etcd's rule).

    >>> prefix_end(b"a/"), prefix_end(b"a\xff")
    (b'a0', b'b')

    A prefix of 0xff bytes only has no end; then it returns `LAST_END`: "to the last key".
    """
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return LAST_END
    return stripped[:-1] + bytes([stripped[-1] + 1])
