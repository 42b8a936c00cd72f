"""Rules for callers: limits, no key written twice, pieces of one row, an order, valid leases."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from snapkv.base.arguments import check_int, check_seconds
from snapkv.engine.contract import Delete, EngineLimits, Op, Put, Range, Txn, in_range
from snapkv.errors import CommitTooLargeError

OP_OVERHEAD_BYTES = 32
"""The bytes of an operation beside its keys and values, rounded up (etcd's messages need less)."""


SHOWN_BYTES = 120
"""The most bytes of a key that an error shows."""


def shown_key(key: bytes) -> str:
    """Return a stored key for an error: a long one is cut.

    >>> shown_key(b"default/data/a"), shown_key(b"n" * 500)[-15:]
    ("b'default/data/a'", '... (500 bytes)')
    """
    return repr(key) if len(key) <= SHOWN_BYTES else f"{key[:SHOWN_BYTES]!r}... ({len(key)} bytes)"


def op_bytes(op: Op) -> int:
    """Return the size of an operation as it counts against `EngineLimits.request_bytes`."""
    if isinstance(op, Txn):
        return measure(op)[0]
    rest = op.value if isinstance(op, Put) else op.range_end
    return OP_OVERHEAD_BYTES + len(op.key) + len(rest)


def blamed(what: str, txn: Txn, below: bytes = b"") -> str:
    """Return the measure of an error for a transaction that is too large, in bytes.

    It names the key, without the prefix `below`, if one key or value takes most of the transaction.

    >>> blamed("the request", Txn(success=(Put(b"a/large", bytes(2_000)), Put(b"b", b""))))
    "the request in bytes, of which the value of b'a/large' takes 2,000,"
    """
    parts = ((max(op[:2], key=len), op) for op in _puts(txn))
    part, largest = max(parts, key=lambda pair: len(pair[0]), default=(b"", Put(b"", b"")))
    if 2 * len(part) < measure(txn)[0]:
        return f"{what} in bytes"
    which = "key" if part is largest.key else "the value of"
    key = shown_key(largest.key.removeprefix(below))
    return f"{what} in bytes, of which {which} {key} takes {len(part):,},"


def _puts(txn: Txn) -> Iterator[Put]:
    for op in (*txn.success, *txn.failure):
        if isinstance(op, Txn):
            yield from _puts(op)
        elif isinstance(op, Put):
            yield op


def measure(txn: Txn) -> tuple[int, int]:
    """Return the size of `txn`, as `op_bytes`, and the length of its longest key; O(operations)."""
    size, longest = OP_OVERHEAD_BYTES * (1 + len(txn.compare)), 0
    for compare in txn.compare:
        operand = len(compare.operand) if isinstance(compare.operand, bytes) else 8
        length = len(compare.key)
        size += length + operand
        longest = length if length > longest else longest
    for ops in (txn.success, txn.failure):
        for op in ops:
            if isinstance(op, Txn):
                inner, length = measure(op)
                size += inner
            else:
                length = len(op.key)
                rest = op.value if isinstance(op, Put) else op.range_end
                size += OP_OVERHEAD_BYTES + length + len(rest)  # here, not by a call
            longest = length if length > longest else longest
    return size, longest


def check_limits(txn: Txn, limits: EngineLimits) -> int:
    """Return the size of `txn` in bytes; O(operations).

    Raises `CommitTooLargeError` when it breaks one of `limits`.
    """
    size, longest = measure(txn)
    if size > limits.request_bytes:
        raise CommitTooLargeError(blamed("the request", txn), size, limits.request_bytes)
    # No value is larger than the request, and no list longer than the request has room for.
    is_small = longest <= limits.key_bytes and size <= limits.value_bytes
    is_short = limits.ops_per_list is None or size <= OP_OVERHEAD_BYTES * limits.ops_per_list
    if not (is_small and is_short):
        _check_lists(txn, limits, 0)
    return size


def _check_lists(txn: Txn, limits: EngineLimits, used: int) -> None:
    """Check a transaction inside lists of `used` operations, which count against its limit."""
    for ops in (txn.success, txn.failure):
        longest = used + max(len(ops), len(txn.compare))
        if limits.ops_per_list is not None and longest > limits.ops_per_list:
            raise CommitTooLargeError("the number of operations", longest, limits.ops_per_list)
        for op in ops:
            if isinstance(op, Txn):
                _check_lists(op, limits, used + len(ops))
            elif len(op.key) > limits.key_bytes:
                what = f"key {shown_key(op.key)} in bytes"
                raise CommitTooLargeError(what, len(op.key), limits.key_bytes)
            elif isinstance(op, Put) and len(op.value) > limits.value_bytes:
                what = f"the value of {shown_key(op.key)} in bytes"
                raise CommitTooLargeError(what, len(op.value), limits.value_bytes)


def check_distinct(txn: Txn) -> None:
    """Raise `ValueError` if `txn` could write a key twice, or reads at an old revision.

    The keys put in one list must differ, nested lists included; but the two branches of a nested
    transaction may put the same keys. No delete range may cover a put. Deletes may overlap.
    O(n log n). Source of the rule: etcd's `checkIntervals`.
    """
    for ops in (txn.success, txn.failure):
        _check_writes(ops)


def _check_writes(ops: Sequence[Op]) -> tuple[set[bytes], list[tuple[bytes, bytes]]]:
    puts: set[bytes] = set()
    deletes: list[tuple[bytes, bytes]] = []
    for op in ops:
        if isinstance(op, Put):
            if op.key in puts:
                raise ValueError(f"duplicate key in one transaction: {op.key!r}")
            puts.add(op.key)
        elif isinstance(op, Delete):
            deletes.append((op.key, op.range_end))
        elif isinstance(op, Range) and op.revision:
            raise ValueError("ranges of a transaction read the newest state: leave out revision")
        elif isinstance(op, Txn):
            branches = [_check_writes(op.success), _check_writes(op.failure)]
            more = branches[0][0] | branches[1][0]
            if twice := puts & more:
                raise ValueError(f"duplicate key in one transaction: {min(twice)!r}")
            puts |= more
            deletes += branches[0][1] + branches[1][1]
    if deletes:
        _check_cover(sorted(puts), deletes)
    return puts, deletes


def _check_cover(puts: list[bytes], deletes: list[tuple[bytes, bytes]]) -> None:
    for key, end in deletes:
        at = bisect_left(puts, key)
        if at < len(puts) and in_range(puts[at], key, end):
            raise ValueError(f"key {puts[at]!r} is put and deleted in one transaction")


def check_piece_rows(rows: int) -> None:
    """Raise `ValueError` unless pieces have at least one row."""
    if rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")


# --- leases ---

TTL_SECONDS_MAX = 9_000_000_000
"""The limit of etcd; in nanoseconds it fits into 63 bits."""
ID_MAX = (1 << 63) - 1

_random = random.SystemRandom()


def ttl_ns_of(ttl_s: float) -> int:
    """Return a time to live in nanoseconds, rounded up.

    Raises `InvalidTypeError`, `InvalidOptionError`.
    """
    check_seconds("ttl_s", ttl_s, above=0, most=TTL_SECONDS_MAX)
    return math.ceil(ttl_s * 1_000_000_000)


def new_id(is_taken: Callable[[int], object]) -> int:
    """Return a new random id that is not taken: positive, 63 bits."""
    while is_taken(lease := _random.randint(1, ID_MAX)):
        pass
    return lease


def is_id(lease: int) -> bool:
    """Return whether an integer may be a lease's id; raises `InvalidTypeError`."""
    check_int("lease", lease)
    return 0 < lease <= ID_MAX
