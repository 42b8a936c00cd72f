"""A transaction on the state of an embedded engine; all embedded engines run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, eq, gt, lt, ne
from typing import Any, NamedTuple, Protocol, TypeAlias

from snapkv.engine.contract import (
    Compare,
    Delete,
    DeleteResult,
    Header,
    KeyValue,
    Op,
    Put,
    PutResult,
    Range,
    RangeResult,
    Result,
    Target,
    Txn,
    TxnResult,
)


class WriteState(Protocol):
    """The newest state of an engine, inside its write lock."""

    def newest(self, key: bytes) -> KeyValue | None:
        """Return the key's newest version, None when it does not exist."""

    def range(self, wanted: Range) -> RangeResult:
        """Answer a range of the newest state."""

    def put(self, key: bytes, value: bytes, lease: int) -> KeyValue | None:
        """Write a key, attached to a lease (0: none); return the version before.

        Raises `LeaseNotFoundError` when the lease does not exist: nothing of the transaction may
        then be kept.
        """

    def delete(self, key: bytes, range_end: bytes) -> int:
        """Remove a key or range; return how many keys it removed."""


def apply(txn: Txn, state: WriteState, header: Callable[[], Header]) -> TxnResult:
    """Run `txn`: all compares first, nested ones too, then the chosen branches in order.

    `header` is called after the writes and returns the revision that they made. Raises
    `LeaseNotFoundError` from a put, in the middle of the writes.
    """
    succeeded, ops = _choose(txn, state)
    results = _run(ops, state)
    if _Outcome not in map(type, results):  # nothing was nested
        return _new(TxnResult, (header(), succeeded, tuple(results)))
    return _result(succeeded, results, header())


class _Chosen(NamedTuple):
    """A transaction with its compares decided: whether it succeeded, and the branch to run."""

    succeeded: bool
    ops: Sequence[Op | _Chosen]


class _Outcome(NamedTuple):
    """A nested transaction that ran, without its header."""

    succeeded: bool
    results: _Results


_new = tuple.__new__  # of a named tuple, without the call of its own constructor
_NO_PREV = PutResult()
_Results: TypeAlias = "list[RangeResult | PutResult | DeleteResult | _Outcome]"


def _choose(txn: Txn, state: WriteState) -> tuple[bool, Sequence[Op | _Chosen]]:
    """Return whether the compares of a transaction hold, and the branch to run."""
    succeeded = True
    key, found = None, None
    for compare in txn.compare:
        if compare.key != key:
            key, found = compare.key, state.newest(compare.key)
        if not _holds(compare, found):
            succeeded = False
            break
    ops: Sequence[Op | _Chosen] = txn.success if succeeded else txn.failure
    if Txn in map(type, ops):
        ops = [_Chosen(*_choose(op, state)) if isinstance(op, Txn) else op for op in ops]
    return succeeded, ops


_FIELDS = {
    Target.VALUE._value_: attrgetter("value"),
    Target.CREATE._value_: attrgetter("create_revision"),
    Target.MOD._value_: attrgetter("mod_revision"),
    Target.VERSION._value_: attrgetter("version"),
}
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, "<": lt, ">": gt}
_ABSENT = KeyValue(b"", b"", 0, 0, 0)


def _holds(compare: Compare, found: KeyValue | None) -> bool:
    if compare.op not in _OPERATORS:
        raise ValueError(f"unknown compare operator: {compare.op!r}")
    if found is None and compare.target is Target.VALUE:
        return False
    left = _FIELDS[compare.target._value_](found or _ABSENT)  # the hash of an enum is a call
    return _OPERATORS[compare.op](left, compare.operand)


def _run(ops: Sequence[Op | _Chosen], state: WriteState) -> _Results:
    results: _Results = []
    for op in ops:
        if isinstance(op, Put):
            prev = state.put(op.key, op.value, op.lease)
            results.append(_new(PutResult, (prev,)) if op.prev_kv else _NO_PREV)
        elif isinstance(op, Delete):
            results.append(DeleteResult(state.delete(op.key, op.range_end)))
        elif isinstance(op, Range):
            results.append(state.range(op))
        elif isinstance(op, _Chosen):
            results.append(_Outcome(op.succeeded, _run(op.ops, state)))
        else:  # Txn never gets here: _choose replaced it
            raise AssertionError(op)
    return results


def _result(succeeded: bool, results: _Results, header: Header) -> TxnResult:
    answers: list[Result] = []
    for result in results:
        if isinstance(result, _Outcome):
            answers.append(_result(*result, header))
        else:
            answers.append(result)
    return TxnResult(header, succeeded, tuple(answers))
