"""Messages as bytes: msgpack arrays, the first member of which is the version of the format.

    [1, kind, [sender, to, owner_revision, capture_epoch, changefeed_epoch], body]

The bodies are in `cdcmeta/DESIGN.md`, with their bytes. Reading is strict: what is not exactly of
the shape is refused, before anything believes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from cdcmeta.errors import InvalidMessageError, UnsupportedMessageError
from cdcmeta.scheduler.messages import (
    Announce,
    Barrier,
    Body,
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Sync,
)
from cdcmeta.scheduler.states import Progress, TableState, TableStatus, Token
from cdcmeta.scheduler.tasks import AddRequest, RemoveRequest, Request

VERSION = 1
MESSAGE_BYTES_MAX = 64 << 20
INTEGER_MAX = (1 << 63) - 1

_STATES = {state.value: state for state in TableState}


def encode(envelope: Envelope) -> bytes:
    """Return a message as bytes. O(size).

    Raises `InvalidMessageError` for what msgpack has no bytes for, and for more than
    `MESSAGE_BYTES_MAX` of them.

    >>> from cdcmeta.scheduler import encoding, messages
    >>> header = messages.Header("owner", "c1", 9, 3, 0)
    >>> raw = encoding.encode(messages.Envelope(header, messages.Announce("1")))
    >>> encoding.decode(raw).body
    Announce(version='1')
    """
    header, body = envelope
    kind = _KINDS.get(type(body))
    if kind is None:
        raise InvalidMessageError(f"{type(body).__name__} is no message")
    number, packed, _ = kind
    try:
        raw: bytes = msgpack.packb([VERSION, number, list(header), packed(body)])
    except (TypeError, ValueError, OverflowError) as e:
        raise InvalidMessageError(f"a message that cannot be encoded: {e}") from e
    if len(raw) > MESSAGE_BYTES_MAX:
        raise InvalidMessageError(
            f"a message of {len(raw):,} bytes, more than {MESSAGE_BYTES_MAX:,}"
        )
    return raw


def decode(raw: bytes) -> Envelope:
    """Return the message that bytes hold. O(size).

    Raises `UnsupportedMessageError` for a version or kind of message that is not known here, and
    `InvalidMessageError` for what is none.
    """
    if len(raw) > MESSAGE_BYTES_MAX:
        raise InvalidMessageError(
            f"a message of {len(raw):,} bytes, more than {MESSAGE_BYTES_MAX:,}"
        )
    try:
        whole = msgpack.unpackb(raw, use_list=False, strict_map_key=False)
    except Exception as e:  # msgpack raises a dozen kinds
        raise InvalidMessageError(f"no msgpack: {e}") from e
    if type(whole) is not tuple or not whole or type(whole[0]) is not int:
        raise InvalidMessageError("no array that begins with a version")
    if whole[0] != VERSION:
        raise UnsupportedMessageError(f"version {whole[0]} of messages; this reads {VERSION}")
    _, number, header, body = _array(whole, 4, "a message")
    if type(number) is not int or number not in _READERS:
        raise UnsupportedMessageError(f"a message of kind {number!r}")
    return Envelope(_header(header), _READERS[number](body))


# --- parts; each refuses what is not of its shape ---


def _array(value: Any, length: int, what: str) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) != length:
        raise InvalidMessageError(f"{what} is an array of {length}, not {_told(value)}")
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise InvalidMessageError(f"{what} is a text, not {_told(value)}")
    return value


def _name(value: Any, what: str) -> str:
    if not _text(value, what):
        raise InvalidMessageError(f"{what} is empty")
    return str(value)


def _integer(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= INTEGER_MAX:
        raise InvalidMessageError(f"{what} is an integer from 0 to 2^63-1, not {_told(value)}")
    return value


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise InvalidMessageError(f"{what} is true or false, not {_told(value)}")
    return value


def _list(value: Any, each: Callable[[Any], Any], what: str) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise InvalidMessageError(f"{what} is an array, not {_told(value)}")
    return tuple([each(member) for member in value])


def _told(value: Any) -> str:
    return repr(value)[:60]


def _header(value: Any) -> Header:
    sender, to, *numbers = _array(value, 5, "a header")
    return Header(
        _name(sender, "a sender"),
        _name(to, "a receiver"),
        *(_integer(number, "a revision or epoch") for number in numbers),
    )


def _token(owner: Any, number: Any) -> Token:
    return Token(_integer(owner, "a token's owner"), _integer(number, "a token's number"))


def _progress(value: Any) -> Progress:
    members = _array(value, 3, "progress")
    return Progress(*(_integer(member, "a timestamp") for member in members))


def _pack_status(status: TableStatus) -> list[Any]:
    table, token, state, progress = status
    return [table, *token, state.value, *progress]


def _status(value: Any) -> TableStatus:
    table, owner, number, state, *progress = _array(value, 7, "a status")
    if type(state) is not int or state not in _STATES:
        raise InvalidMessageError(f"no state of a table: {_told(state)}")
    token, known = _token(owner, number), _progress(tuple(progress))
    return TableStatus(_name(table, "a table"), token, _STATES[state], known)


def _asked(value: Any) -> tuple[str, Token]:
    table, owner, number = _array(value, 3, "a table asked about")
    return _name(table, "a table"), _token(owner, number)


def _barrier(value: Any) -> Barrier:
    everywhere, tables = _array(value, 2, "a barrier")
    return Barrier(_integer(everywhere, "a barrier"), _list(tables, _table_barrier, "barriers"))


def _table_barrier(value: Any) -> tuple[str, int]:
    table, timestamp = _array(value, 2, "the barrier of a table")
    return _name(table, "a table"), _integer(timestamp, "a barrier")


def _pack_request(request: Request) -> list[Any]:
    if isinstance(request, AddRequest):
        return [request.table, *request.token, list(request.progress), request.is_prepare]
    return [request.table, *request.token]


def _request(value: Any) -> Request:
    if type(value) is tuple and len(value) == 3:
        table, owner, number = value
        return RemoveRequest(_name(table, "a table"), _token(owner, number))
    table, owner, number, progress, is_prepare = _array(value, 5, "a request")
    token, start = _token(owner, number), _progress(progress)
    return AddRequest(_name(table, "a table"), token, start, _flag(is_prepare, "is_prepare"))


def _sync(value: Any) -> Sync:
    version, tables, is_stopping = _array(value, 3, "a sync")
    statuses = _list(tables, _status, "tables")
    return Sync(_text(version, "a version"), statuses, _flag(is_stopping, "is_stopping"))


def _heartbeat(value: Any) -> Heartbeat:
    tables, barrier, is_stopping, number = _array(value, 4, "a heartbeat")
    asked, leaves = _list(tables, _asked, "tables"), _flag(is_stopping, "is_stopping")
    return Heartbeat(asked, _barrier(barrier), leaves, _integer(number, "a round"))


def _heartbeat_response(value: Any) -> HeartbeatResponse:
    tables, is_stopping = _array(value, 2, "a response to a heartbeat")
    statuses = _list(tables, _status, "tables")
    return HeartbeatResponse(statuses, _flag(is_stopping, "is_stopping"))


def _pack_heartbeat(body: Heartbeat) -> list[Any]:
    asked = [[table, *token] for table, token in body.tables]
    everywhere, tables = body.barrier
    bounds = [everywhere, [list(each) for each in tables]]
    return [asked, bounds, body.is_stopping, body.number]


_KINDS: dict[type, tuple[int, Callable[[Any], Any], Callable[[Any], Body]]] = {
    Announce: (
        1,
        lambda body: body.version,
        lambda value: Announce(_text(value, "a version")),
    ),
    Sync: (
        2,
        lambda body: [body.version, [_pack_status(s) for s in body.tables], body.is_stopping],
        _sync,
    ),
    Heartbeat: (3, _pack_heartbeat, _heartbeat),
    HeartbeatResponse: (
        4,
        lambda body: [[_pack_status(s) for s in body.tables], body.is_stopping],
        _heartbeat_response,
    ),
    DispatchTable: (
        5,
        lambda body: _pack_request(body.request),
        lambda value: DispatchTable(_request(value)),
    ),
    DispatchTableResponse: (
        6,
        lambda body: _pack_status(body.status),
        lambda value: DispatchTableResponse(_status(value)),
    ),
}
_READERS = {number: reader for number, _, reader in _KINDS.values()}
