"""The translation between the contract's values and etcd's messages, both ways."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from snapkv.engine import contract
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.errors import EngineUnavailableError

_OPERATORS = {
    "=": pb.Compare.EQUAL,
    "!=": pb.Compare.NOT_EQUAL,
    "<": pb.Compare.LESS,
    ">": pb.Compare.GREATER,
}
_TARGETS = {
    contract.Target.VALUE: (pb.Compare.VALUE, "value"),
    contract.Target.CREATE: (pb.Compare.CREATE, "create_revision"),
    contract.Target.MOD: (pb.Compare.MOD, "mod_revision"),
    contract.Target.VERSION: (pb.Compare.VERSION, "version"),
}


def range_request(wanted: contract.Range, serializable: bool = False) -> pb.RangeRequest:
    """Return a range as a message."""
    return pb.RangeRequest(
        key=wanted.key,
        range_end=wanted.range_end,
        revision=wanted.revision,
        limit=wanted.limit,
        keys_only=wanted.keys_only,
        count_only=wanted.count_only,
        serializable=serializable,
    )


def ranges_request(ranges: Sequence[contract.Range], serializable: bool) -> pb.TxnRequest:
    """Return several ranges as one read-only transaction."""
    return pb.TxnRequest(
        success=[pb.RequestOp(request_range=range_request(r, serializable)) for r in ranges]
    )


def txn_request(txn: contract.Txn) -> pb.TxnRequest:
    """Return a transaction as a message."""
    return pb.TxnRequest(
        compare=map(_compare, txn.compare),
        success=map(_request_op, txn.success),
        failure=map(_request_op, txn.failure),
    )


def _compare(compare: contract.Compare) -> pb.Compare:
    target, field = _TARGETS[compare.target]
    assert compare.operand is not None, compare  # would be sent as 0, which is an absent key
    operand: Any = {field: compare.operand}
    result = _OPERATORS[compare.op]
    return pb.Compare(result=result, target=target, key=compare.key, **operand)


def _request_op(op: contract.Op) -> pb.RequestOp:
    if isinstance(op, contract.Put):
        put = pb.PutRequest(key=op.key, value=op.value, prev_kv=op.prev_kv, lease=op.lease)
        return pb.RequestOp(request_put=put)
    if isinstance(op, contract.Delete):
        delete = pb.DeleteRangeRequest(key=op.key, range_end=op.range_end)
        return pb.RequestOp(request_delete_range=delete)
    if isinstance(op, contract.Range):
        return pb.RequestOp(request_range=range_request(op))
    return pb.RequestOp(request_txn=txn_request(op))


def header_of(header: pb.ResponseHeader) -> contract.Header:
    """Return the header of an answer."""
    return contract.Header(header.revision, header.cluster_id)


def key_values(kvs: Iterable[pb.KeyValue]) -> list[contract.KeyValue]:
    """Return versions of keys; most of what a scan costs here, 0.7 us for each."""
    new, kind = tuple.__new__, contract.KeyValue  # a fifth less than calling KeyValue
    return [
        new(kind, (kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease))
        for kv in kvs
    ]


def range_result(answer: pb.RangeResponse) -> contract.RangeResult:
    """Return the answer of a range."""
    return contract.RangeResult(key_values(answer.kvs), answer.count, answer.more)


def read_result(answer: pb.TxnResponse, expected: int) -> contract.ReadResult:
    """Return the answers of a read-only transaction."""
    results = [range_result(op.response_range) for op in answer.responses]
    if len(results) != expected:
        raise EngineUnavailableError(
            f"the server's answer is incomplete: {len(results)} results of {expected}"
        )
    return contract.ReadResult(header_of(answer.header), results)


def txn_result(answer: pb.TxnResponse, header: contract.Header | None = None) -> contract.TxnResult:
    """Return the answer of a transaction; nested ones get the header of the whole."""
    header = header or header_of(answer.header)
    results = tuple(_result(op, header) for op in answer.responses)
    return contract.TxnResult(header, answer.succeeded, results)


def _result(op: pb.ResponseOp, header: contract.Header) -> contract.Result:
    if op.HasField("response_range"):
        return range_result(op.response_range)
    if op.HasField("response_put"):
        put = op.response_put
        return contract.PutResult(key_values([put.prev_kv])[0] if put.HasField("prev_kv") else None)
    if op.HasField("response_delete_range"):
        return contract.DeleteResult(op.response_delete_range.deleted)
    return txn_result(op.response_txn, header)


def event_of(event: pb.Event) -> contract.KeyEvent:
    """Return a change of a key; a removal has a key and a revision, whatever the server sends."""
    if event.type == pb.Event.DELETE:
        kv = contract.KeyValue(event.kv.key, b"", 0, event.kv.mod_revision, 0)
        return contract.KeyEvent(kv, True)
    return contract.KeyEvent(key_values([event.kv])[0], False)


def leases_in(txn: contract.Txn) -> set[int]:
    """Return the leases that a transaction puts keys under."""
    found: set[int] = set()
    for op in txn.success + txn.failure:
        if isinstance(op, contract.Put) and op.lease:
            found.add(op.lease)
        elif isinstance(op, contract.Txn):
            found |= leases_in(op)
    return found
