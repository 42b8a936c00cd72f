"""One caller's operations: checked, translated to stored keys, and as a nested transaction."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapkv.base.arguments import check_int, wrong_type
from snapkv.engine.contract import (
    REVISION_MAX,
    Compare,
    Delete,
    EngineLimits,
    KeyValue,
    Op,
    Put,
    Range,
    RangeResult,
    Target,
    Txn,
)
from snapkv.errors import CommitTooLargeError, InvalidKeyError, InvalidOptionError, InvalidTypeError
from snapkv.layout import (
    META_BYTES_MAX,
    NOTE_BYTES_MAX,
    WRITER_BYTES_MAX,
    Keyspace,
    Layout,
    encode_text,
    pack_meta,
    unpack_meta,
)
from snapkv.model import AtRevision, Guard, HeadAt, Held, Meta, Ops, SpaceOps

# --- what a commit says of itself: its writer, its note and its meta ---

META_FACTS_MAX = 64
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1
"""The integers that msgpack has."""


def check_note(note: object) -> None:
    """Raise a typed error for a note that is not text or is too long."""
    size = len(encode_text(note, "note"))
    if size > NOTE_BYTES_MAX:
        raise CommitTooLargeError("the note in bytes", size, NOTE_BYTES_MAX)


def check_writer(writer: object, *, may_be_empty: bool = False) -> None:
    """Raise a typed error for a writer that is not text, is empty or is too long."""
    size = len(encode_text(writer, "writer"))
    if size > WRITER_BYTES_MAX:
        raise InvalidOptionError(f"writer has more than {WRITER_BYTES_MAX} bytes")
    if not size and not may_be_empty:
        raise InvalidOptionError(
            "writer is empty: pass a name, or leave it out for the writer of the store"
        )


def checked_meta(meta: object) -> Meta | None:
    """Return a meta as it is stored, None for an empty one; raise a typed error for a wrong one.

    >>> checked_meta({"request": "r-17", "ticket": 4})
    Meta({'request': 'r-17', 'ticket': 4})
    >>> checked_meta({"request": b"r-17"})
    Traceback (most recent call last):
    snapkv.errors.InvalidTypeError: meta 'request' must be a scalar of JSON, not bytes
    """
    if not isinstance(meta, Mapping):
        raise wrong_type("meta", "a mapping of names to scalars of JSON", meta)
    facts = dict(meta)
    if len(facts) > META_FACTS_MAX:
        raise CommitTooLargeError("the number of facts in meta", len(facts), META_FACTS_MAX)
    for name, value in facts.items():
        _check_fact(name, value)
    packed = pack_meta(facts)
    if len(packed) > META_BYTES_MAX:
        raise CommitTooLargeError("meta in bytes", len(packed), META_BYTES_MAX)
    return unpack_meta(packed) if facts else None


def _check_fact(name: object, value: object) -> None:
    if not encode_text(name, "a name in meta"):
        raise InvalidKeyError("a name in meta is not empty", name)
    what = f"meta {name!r}"
    match value:
        case str():
            encode_text(value, what)
        case bool() | None:
            pass
        case int():
            if not INT_MIN <= value <= INT_MAX:
                raise InvalidOptionError(f"{what} does not fit into 64 bits; pass it as text")
        case float():
            if not math.isfinite(value):
                raise InvalidOptionError(f"{what} is {value}, which JSON does not have")
        case _:
            raise wrong_type(what, "a scalar of JSON", value)


# --- half-open ranges of bytes: merging them, cutting keys out of them, asking what they cover ---

Interval = tuple[bytes, bytes]
"""[start, end), never empty."""


def point(key: bytes) -> Interval:
    """Return the range that holds one key only."""
    return key, key + b"\0"


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same set of keys as sorted, separate ranges; O(n log n).

    >>> merge([(b"a", b"c"), (b"b", b"d"), (b"x", b"y")])
    [(b'a', b'd'), (b'x', b'y')]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def without_keys(intervals: Sequence[Interval], keys: Sequence[bytes]) -> list[Interval]:
    r"""Return merged `intervals` without the sorted `keys`; O(n + m log m).

    >>> without_keys([(b"a/", b"a0")], [b"a/new"])
    [(b'a/', b'a/new'), (b'a/new\x00', b'a0')]
    """
    left: list[Interval] = []
    for start, end in intervals:
        for key in keys[bisect_left(keys, start) : bisect_left(keys, end)]:
            if start < key:
                left.append((start, key))
            start = key + b"\0"
        if start < end:
            left.append((start, end))
    return left


def covers(intervals: Sequence[Interval], key: bytes) -> bool:
    """Return whether merged `intervals` hold `key`; O(log n)."""
    at = bisect_right(intervals, key, key=lambda interval: interval[0])
    return at > 0 and key < intervals[at - 1][1]


def overlap(a: Sequence[Interval], b: Sequence[Interval]) -> bool:
    """Return whether two merged lists share a key; O(len(a) log len(b))."""
    for start, end in a:
        at = bisect_left(b, end, key=lambda interval: interval[0])
        if at > 0 and b[at - 1][1] > start:
            return True
    return False


# --- operations ---

NEST_DEPTH = 3
"""The most levels of lists in a transaction."""


@dataclass(frozen=True, slots=True)
class Check:
    """A guard with the stored key that it checks, in one of the store's spaces."""

    guard: Guard
    key: bytes

    def __str__(self) -> str:
        return str(self.guard)

    @property
    def compare(self) -> Compare:
        """The guard as the engine checks it."""
        match self.guard:
            case AtRevision(revision=revision) | HeadAt(revision=revision):
                return Compare(self.key, Target.MOD, "=", revision)
            case Held(revision=revision):
                return Compare(self.key, Target.CREATE, "=", revision)
            case _:
                return Compare(self.key, Target.CREATE, "=", 0)

    def failed_at(self, seen: RangeResult) -> int | None:
        """Return None if the guard holds, else the revision at which its key was last written.

        `seen` is a read of the key. The revision is 0 if the key is absent.
        """
        kv = seen.kvs[0] if seen.kvs else KeyValue(self.key, b"", 0, 0, 0)
        compare = self.compare
        compared = kv.mod_revision if compare.target is Target.MOD else kv.create_revision
        return None if compared == compare.operand else kv.mod_revision


@dataclass(frozen=True, slots=True)
class Operations:
    """What one caller writes, removes and checks, in stored keys, and what the stamp says of it.

    `removed` is merged and never covers a key of `puts`.
    """

    puts: dict[bytes, bytes]
    removed: list[Interval]
    checks: tuple[Check, ...]
    note: str | None
    writer: str
    meta: Meta | None

    @property
    def checks_head(self) -> bool:
        """Whether a guard checks the head of the store, which every commit moves."""
        return bool(self.checks) and any(isinstance(c.guard, HeadAt) for c in self.checks)

    def txn(self, budget: int | None) -> Txn:
        """Return the nested transaction: If guards Then writes Else read the guards' keys.

        `budget` is what `guards_max` returns. The order of the writes does not matter, because no
        two write the same key.

        Raises `CommitTooLargeError` if guards or writes need more lists than the engine nests.
        """
        compares: list[Compare] = []
        seen: list[Op] = []
        for check in self.checks:
            compares.append(check.compare)
            seen.append(Range(check.key, keys_only=True))
        listed: list[Op] = []
        for start, end in self.removed:
            listed.append(Delete(start) if end == start + b"\0" else Delete(start, end))
        for key, value in self.puts.items():
            listed.append(Put(key, value))
        writes = tuple(listed)
        if budget is not None:
            if len(compares) > budget:
                raise CommitTooLargeError("the number of guards", len(compares), budget)
            writes = nest(writes, budget)
        return Txn(tuple(compares), writes, tuple(seen))


def guards_max(limits: EngineLimits, members_max: int) -> int | None:
    """Return how long a member's own lists may be beside the group's list; None: any length."""
    return None if limits.ops_per_list is None else limits.ops_per_list - 1 - members_max


def nested_max(budget: int) -> int:
    """Return the most operations that `nest` takes for a budget."""
    most: int = (budget // NEST_DEPTH) ** NEST_DEPTH
    return most


def nest(ops: tuple[Op, ...], budget: int) -> tuple[Op, ...]:
    """Return `ops` as lists of transactions, so that no path holds more than `budget` operations.

    In etcd the lists on a path share one budget, so the best split into depth d uses
    budget / d at each level. Raises `CommitTooLargeError` beyond `nested_max`.

    >>> len(nest(tuple(Delete(bytes([i])) for i in range(200)), 126))
    50
    """
    if len(ops) <= budget:
        return ops
    for depth in range(2, NEST_DEPTH + 1):
        fan = budget // depth
        if fan**depth >= len(ops):
            size = -(-len(ops) // fan)
            chunks = [ops[at : at + size] for at in range(0, len(ops), size)]
            return tuple(Txn(success=nest(chunk, budget - len(chunks))) for chunk in chunks)
    raise CommitTooLargeError("the number of operations", len(ops), nested_max(budget))


def compile_operations(ops: Ops, layout: Layout, writer: str = "") -> Operations:
    """Check operations and translate them to stored keys; O(n log n).

    `writer` is the writer of operations that name none. Raises `InvalidKeyError`,
    `InvalidTypeError`, `InvalidOptionError` (writer, meta), `CommitTooLargeError` (note, meta).
    """
    if not isinstance(ops, Ops):
        raise wrong_type("what is committed", "Ops", ops)
    if ops.note is not None:
        check_note(ops.note)
    if ops.writer is not None:
        check_writer(ops.writer)
        writer = ops.writer
    meta = None if ops.meta is None else checked_meta(ops.meta)
    puts: dict[bytes, bytes] = {}
    removed: list[Interval] = []
    checks: list[Check] = []
    _add(layout.data, ops, layout, puts, removed, checks)
    if type(ops.spaces) is not dict and not isinstance(ops.spaces, Mapping):
        raise InvalidTypeError(f"spaces are a mapping, not {type(ops.spaces).__name__}")
    for name, space_ops in ops.spaces.items():
        if not isinstance(space_ops, SpaceOps):
            raise InvalidTypeError(f"a space needs SpaceOps, not {type(space_ops).__name__}")
        _add(layout.space(name), space_ops, layout, puts, removed, checks)
    if removed:
        removed = without_keys(merge(removed), sorted(puts))
    return Operations(puts, removed, tuple(checks), ops.note, writer, meta)


def pairs(items: object) -> Iterable[tuple[Any, Any]]:
    """Return the pairs of a mapping or of an iterable of pairs.

    Raises `InvalidTypeError` if it is neither.
    """
    if type(items) is dict or (type(items) is not tuple and isinstance(items, Mapping)):
        return items.items()
    try:
        items_read = iter(items)  # type: ignore[call-overload]
    except TypeError:
        raise wrong_type("puts", "a mapping or (key, value) pairs", items) from None
    listed: list[Any] = list(items_read)  # what the iterable raises passes through
    for item in listed:
        if not isinstance(item, tuple) or len(item) != 2:
            raise InvalidTypeError(
                f"puts must be a mapping or (key, value) pairs, but hold {item!r}"
            )
    return listed


def _add(
    space: Keyspace,
    ops: Ops | SpaceOps,
    layout: Layout,
    puts: dict[bytes, bytes],
    removed: list[Interval],
    checks: list[Check],
) -> None:
    for key, value in ops.puts.items() if type(ops.puts) is dict else pairs(ops.puts):
        stored = space.encode(key)
        if not isinstance(value, bytes):
            raise wrong_type(f"the value of {key!r}", "bytes", value)
        if stored in puts:
            raise InvalidKeyError(f"key {key!r} is saved twice in one commit", key)
        puts[stored] = value
    if type(ops.deletes) is not tuple or ops.deletes:
        removed += [point(space.encode(key)) for key in listed(ops.deletes, "deletes")]
    if type(ops.delete_prefixes) is not tuple or ops.delete_prefixes:
        prefixes = listed(ops.delete_prefixes, "delete_prefixes")
        removed += [space.range_of(prefix) for prefix in prefixes]
    if type(ops.guards) is not tuple or ops.guards:
        for guard in listed(ops.guards, "guards"):
            checks.append(compile_check(guard, space, layout))


def listed(items: Iterable[object], what: str) -> list[Any]:
    """Return the items of an iterable; `InvalidTypeError` for a str, bytes, or a non-iterable."""
    if isinstance(items, str | bytes):
        raise wrong_type(what, "an iterable of keys", items)
    try:
        items_read = iter(items)
    except TypeError:
        raise wrong_type(what, "an iterable of keys", items) from None
    return list(items_read)  # what the iterable raises passes through


def compile_check(guard: object, space: Keyspace, layout: Layout) -> Check:
    """Check a guard and translate its key in `space` to the stored key."""
    if not isinstance(guard, Guard):
        raise InvalidTypeError(f"a guard is AtRevision, Absent, HeadAt or Held, not {guard!r}")
    if isinstance(guard, AtRevision | HeadAt | Held):
        check_int("a guard's revision", guard.revision, 1, REVISION_MAX)
    match guard:
        case HeadAt():
            return Check(guard, layout.ts)
        case Held():
            return Check(guard, layout.live.encode(guard.key))
        case _:
            return Check(guard, space.encode(guard.key))
