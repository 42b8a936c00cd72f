"""One caller's part of a commit: checked, in stored keys, and as a nested transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from snapkv.committer.intervals import Interval, cut, merge, point
from snapkv.engine.contract import (
    REVISION_MAX,
    Compare,
    Delete,
    KeyValue,
    Limits,
    Op,
    Put,
    Range,
    RangeResult,
    Target,
    Txn,
)
from snapkv.errors import (
    CommitTooLargeError,
    DuplicateKeyError,
    InvalidOptionError,
    InvalidTypeError,
)
from snapkv.layout import NOTE_BYTES_MAX, Keyspace, Layout, encode_text
from snapkv.model import AtRevision, Guard, HeadAt, Held, Ops, SpaceOps


@dataclass(frozen=True, slots=True)
class Check:
    """A guard with the key it looks at, as stored: that of one space or another."""

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
        """Return None if the guard holds, else at which revision its key was last written.

        `seen` is a read of the key; 0 stands for an absent one.
        """
        kv = seen.kvs[0] if seen.kvs else KeyValue(self.key, b"", 0, 0, 0)
        compare = self.compare
        compared = kv.mod_revision if compare.target is Target.MOD else kv.create_revision
        return None if compared == compare.operand else kv.mod_revision


@dataclass(frozen=True, slots=True)
class Part:
    """What one caller's operations write, remove and look at; all in stored keys.

    `removed` is merged and never covers a key of `puts`.
    """

    puts: dict[bytes, bytes]
    removed: list[Interval]
    checks: tuple[Check, ...]
    note: str | None

    @property
    def rides_alone(self) -> bool:
        """Whether a guard looks at the head of the store, which every part moves."""
        return bool(self.checks) and any(isinstance(c.guard, HeadAt) for c in self.checks)

    def txn(self, budget: int | None) -> Txn:
        """Return the nested transaction: If guards Then writes Else what the guards look at.

        `budget` is what `guards_max` returns. The order of the writes does not matter, for no two
        touch the same key.

        Raises `CommitTooLargeError` when guards or writes need more lists than the engine nests.
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


def guards_max(limits: Limits, parts_max: int) -> int | None:
    """Return how long a part's own lists may be, what the list around them leaves; None: any."""
    return None if limits.ops_per_list is None else limits.ops_per_list - 1 - parts_max


def nest(ops: tuple[Op, ...], budget: int) -> tuple[Op, ...]:
    """Return `ops` as lists of transactions, so that no path holds more than `budget` operations.

    etcd gives a nested list what the lists around it left, so the best split into depth d uses
    budget / d at each level. Raises `CommitTooLargeError` beyond depth 3, about (budget / 3)^3.

    >>> len(nest(tuple(Delete(bytes([i])) for i in range(200)), 126))
    50
    """
    if len(ops) <= budget:
        return ops
    for depth in (2, 3):
        fan = budget // depth
        if fan**depth >= len(ops):
            size = -(-len(ops) // fan)
            chunks = [ops[at : at + size] for at in range(0, len(ops), size)]
            return tuple(Txn(success=nest(chunk, budget - len(chunks))) for chunk in chunks)
    raise CommitTooLargeError("the number of operations", len(ops), (budget // 3) ** 3)


def compile_part(ops: Ops, layout: Layout) -> Part:
    """Check operations and translate them to stored keys; O(n log n).

    Raises `InvalidKeyError`, `InvalidTypeError`, `InvalidOptionError` (the note).
    """
    if not isinstance(ops, Ops):
        raise InvalidTypeError(f"commit needs Ops, not {type(ops).__name__}")
    if ops.note is not None:
        _check_note(ops.note)
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
        removed = cut(merge(removed), sorted(puts))
    return Part(puts, removed, tuple(checks), ops.note)


def pairs(items: object) -> Iterable[tuple[Any, Any]]:
    """Return the pairs of a mapping or of an iterable of pairs.

    Raises `InvalidTypeError` when it is neither.
    """
    if type(items) is dict or (type(items) is not tuple and isinstance(items, Mapping)):
        return items.items()
    try:
        given = iter(items)  # type: ignore[call-overload]
    except TypeError:
        raise InvalidTypeError(f"puts are a mapping, not {type(items).__name__}") from None
    listed: list[Any] = list(given)  # what it raises is its own error
    for item in listed:
        if not isinstance(item, tuple) or len(item) != 2:
            raise InvalidTypeError(f"puts are a mapping or pairs, but hold {item!r}")
    return listed


def _add(
    space: Keyspace,
    ops: Ops | SpaceOps,
    layout: Layout,
    puts: dict[bytes, bytes],
    removed: list[Interval],
    checks: list[Check],
) -> None:
    for key, value in pairs(ops.puts):
        stored = space.encode(key)
        if not isinstance(value, bytes):
            raise InvalidTypeError(f"value of {key!r} is {type(value).__name__}, not bytes")
        if stored in puts:
            raise DuplicateKeyError(key)
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
    """Return the items of an iterable; `InvalidTypeError` for a text, bytes, or what is none."""
    if isinstance(items, str | bytes):
        raise InvalidTypeError(f"{what} is an iterable of keys, not one {type(items).__name__}")
    try:
        given = iter(items)
    except TypeError:
        raise InvalidTypeError(f"{what} is an iterable, not {type(items).__name__}") from None
    return list(given)  # what it raises is its own error


def compile_check(guard: object, space: Keyspace, layout: Layout) -> Check:
    """Check a guard and translate its key, which is one of `space`, to the stored one."""
    if not isinstance(guard, Guard):
        raise InvalidTypeError(f"a guard is AtRevision, Absent, HeadAt or Held, not {guard!r}")
    if isinstance(guard, AtRevision | HeadAt | Held):
        revision: object = guard.revision
        if isinstance(revision, bool) or not isinstance(revision, int):
            raise InvalidTypeError(f"a revision is an int, not {type(revision).__name__}")
        if not 1 <= revision <= REVISION_MAX:
            raise InvalidOptionError(f"a guard's revision is in 1 to 2^63 - 1, not {revision}")
    match guard:
        case HeadAt():
            return Check(guard, layout.ts)
        case Held():
            return Check(guard, layout.live.encode(guard.key))
        case _:
            return Check(guard, space.encode(guard.key))


def _check_note(note: object) -> None:
    size = len(encode_text(note, "note"))
    if size > NOTE_BYTES_MAX:
        raise CommitTooLargeError("the note in bytes", size, NOTE_BYTES_MAX)
