"""Messages as bytes: msgpack arrays, the first member of which is the version of the format.

    [1, kind, [sender, to, owner_revision, capture_epoch, changefeed_epoch], body]

The bodies are in `cdcmeta/DESIGN.md`, with their bytes. Decoding is strict: it rejects messages
that do not match the format exactly. A message has one encoding, and `encode` rejects what
`decode` would reject: both go through the same readers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import call
from typing import Any, NamedTuple, TypeVar

import msgpack

from cdcmeta.errors import InvalidMessageError
from cdcmeta.scheduler.core.limits import INTEGER_MAX
from cdcmeta.scheduler.core.states import (
    AddRequest,
    Progress,
    RemoveRequest,
    Request,
    Rest,
    TableState,
    TableStatus,
    Token,
)
from cdcmeta.scheduler.protocol import messages

VERSION = 1
MESSAGE_BYTES_MAX = 64 << 20
SHOWN_MAX = 60
"""The most characters of a value that an error message shows."""

_Made = TypeVar("_Made", bound=tuple[Any, ...])
_STATES = {state.value: state for state in TableState}


def encode(envelope: messages.Envelope) -> bytes:
    """Return a message as bytes. O(size).

    Raises `InvalidMessageError` for a message that `decode` would reject or change.

    >>> from cdcmeta.scheduler.protocol import encoding, messages
    >>> header = messages.Header("owner", "c1", 9, 3, 0)
    >>> raw = encoding.encode(messages.Envelope(header, messages.Announce("1")))
    >>> encoding.decode(raw).body
    Announce(version='1')
    """
    try:
        whole = _packed(envelope)
        if _read(whole) != envelope:  # say, a list where a tuple should be
            raise InvalidMessageError("the message would change when it is decoded")
        raw: bytes = msgpack.packb(whole)
    except InvalidMessageError:
        raise
    except (TypeError, ValueError) as e:  # of other parts, or a text that is not UTF-8
        raise InvalidMessageError(f"the message cannot be encoded: {e}") from e
    _check_size(len(raw))
    return raw


def decode(raw: bytes | bytearray | memoryview) -> messages.Envelope:
    """Return the message in bytes. O(size).

    Raises `InvalidMessageError` for invalid bytes, or bytes other than `encode` makes of it;
    its `reason` is `unsupported` for an unknown version or kind of message.
    """
    if not isinstance(raw, bytes | bytearray | memoryview):
        raise InvalidMessageError(f"a message is bytes, not {_shown(raw)}")
    _check_size(raw.nbytes if isinstance(raw, memoryview) else len(raw))
    raw = bytes(raw)
    try:
        whole = msgpack.unpackb(raw, use_list=False, strict_map_key=False)
    except Exception as e:  # msgpack raises a dozen kinds
        raise InvalidMessageError(f"not msgpack: {e}") from e
    if type(whole) is not tuple or not whole or type(whole[0]) is not int:
        raise InvalidMessageError("a message is an array that begins with a version")
    if whole[0] != VERSION:
        message = f"version {whole[0]} of messages; this cdcmeta reads version {VERSION}"
        raise InvalidMessageError(message, "unsupported")
    envelope = _read(whole)
    if msgpack.packb(whole) != raw:  # say, a number of more bytes than it needs
        raise InvalidMessageError("the message has another encoding than encode() makes")
    return envelope


def _check_size(size: int) -> None:
    if size > MESSAGE_BYTES_MAX:
        raise InvalidMessageError(
            f"the message has {size:,} bytes; the limit is {MESSAGE_BYTES_MAX:,}"
        )


def _packed(envelope: messages.Envelope) -> tuple[Any, ...]:
    header, body = envelope
    kind = _KINDS.get(type(body))
    if kind is None:
        raise InvalidMessageError(f"{type(body).__name__} is not a message")
    number, _, _, packers = kind
    members = tuple(map(call, packers, body))
    return VERSION, number, tuple(header), members if len(packers) > 1 else members[0]


def _read(whole: tuple[Any, ...]) -> messages.Envelope:
    _, number, header, body = _array(whole, 4, "a message")
    if type(number) is not int or number not in _READERS:
        raise InvalidMessageError(f"unknown kind of message: {_shown(number)}", "unsupported")
    kind, what, readers = _READERS[number]
    known = _header(header)
    members = _array(body, len(readers), what) if len(readers) > 1 else (body,)
    return messages.Envelope(known, kind(*map(call, readers, members)))


# --- readers of parts; each raises for a part of another form ---


def _array(value: Any, length: int, what: str) -> tuple[Any, ...]:
    if type(value) is not tuple or len(value) != length:
        raise InvalidMessageError(f"{what} is an array of {length}, not {_shown(value)}")
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise InvalidMessageError(f"{what} is a text, not {_shown(value)}")
    return value


def _name(value: Any, what: str) -> str:
    name = _text(value, what)
    if not name:
        raise InvalidMessageError(f"{what} is empty")
    return name


def _integer(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= INTEGER_MAX:
        raise InvalidMessageError(f"{what} is an integer from 0 to 2^63-1, not {_shown(value)}")
    return value


def _check_integers(values: Iterable[Any], what: str) -> None:
    for value in values:
        if type(value) is not int or not 0 <= value <= INTEGER_MAX:
            _integer(value, what)


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise InvalidMessageError(f"{what} is true or false, not {_shown(value)}")
    return value


def _columns(rows: Any, what: str, *numbers: str) -> list[tuple[Any, ...]]:
    """Return rows as columns, for speed: a table, different in each row, then numbers."""
    if type(rows) is not tuple:
        raise InvalidMessageError(f"tables are an array, not {_shown(rows)}")
    for row in rows:
        _array(row, 1 + len(numbers), what)
    columns = list(zip(*rows, strict=True)) or [()] * (1 + len(numbers))
    for table in columns[0]:
        _name(table, "a table")
    if len(set(columns[0])) != len(rows):
        [(twice, _)] = Counter(columns[0]).most_common(1)
        raise InvalidMessageError(f"the table {_shown(twice)} occurs twice")
    for number, column in zip(numbers, columns[1:], strict=True):
        _check_integers(column, number)
    return columns


def _shown(value: Any) -> str:
    """Return a short text of a value; fast even for large values."""
    kind = type(value)
    if kind in (str, bytes):
        return repr(value[:SHOWN_MAX])[:SHOWN_MAX]
    if value is None or kind in (bool, float) or (kind is int and value.bit_length() <= 64):
        return repr(value)
    if kind in (tuple, list, dict):
        return f"a {kind.__name__} of {len(value):,}"
    return f"a value of type {kind.__name__}"


def _header(value: Any) -> messages.Header:
    sender, to, *numbers = _array(value, 5, "a header")
    _name(sender, "a sender")
    _name(to, "a receiver")
    _check_integers(numbers, "a revision or epoch")
    return tuple.__new__(messages.Header, value)


def _token(owner: Any, number: Any) -> Token:
    return Token(_integer(owner, "a token's owner"), _integer(number, "a token's number"))


def _progress(value: Any) -> Progress:
    _check_integers(_array(value, 3, "progress"), "a timestamp")
    return tuple.__new__(Progress, value)


def _pack_status(status: TableStatus) -> tuple[Any, ...]:
    table, (owner, number), state, (checkpoint, resolved, synced) = status
    if type(state) is not TableState:  # other enums and plain integers may be equal
        raise InvalidMessageError(f"not a state of a table: {_shown(state)}")
    return table, owner, number, state.value, checkpoint, resolved, synced


def _statuses(value: Any) -> tuple[TableStatus, ...]:
    tables, owners, numbers, states, *known = _columns(value, "a status", *_STATUS_NUMBERS)
    unknown = set(states) - _STATES.keys()
    if unknown:
        raise InvalidMessageError(f"not a state of a table: {min(unknown)}")
    named = map(_STATES.__getitem__, states)
    tokens, progress = _made(Token, owners, numbers), _made(Progress, *known)
    return tuple(_made(TableStatus, tables, tokens, named, progress))


_STATUS_NUMBERS = ("a token's owner", "a token's number", "a state", *["a timestamp"] * 3)


def _made(kind: type[_Made], *columns: Iterable[Any]) -> Iterator[_Made]:
    """Do the same as `map(kind, *columns)` for a named tuple, in C instead of Python code."""
    return map(partial(tuple.__new__, kind), zip(*columns, strict=True))


def _asked(value: Any) -> tuple[tuple[str, Token], ...]:
    what = "a table asked about"
    tables, owners, numbers = _columns(value, what, "a token's owner", "a token's number")
    return tuple(zip(tables, _made(Token, owners, numbers), strict=True))


def _barrier(value: Any) -> messages.Barrier:
    everywhere, tables = _array(value, 2, "a barrier")
    _columns(tables, "the barrier of a table", "a barrier")
    return messages.Barrier(_integer(everywhere, "a barrier"), tables)


def _pack_barrier(barrier: messages.Barrier) -> tuple[Any, ...]:
    everywhere, tables = barrier
    return everywhere, tuple([(table, timestamp) for table, timestamp in tables])


def _pack_request(request: Request) -> tuple[Any, ...]:
    if isinstance(request, AddRequest):
        return request.table, *request.token, tuple(request.progress), request.is_prepare
    if isinstance(request, RemoveRequest):
        return request.table, *request.token
    raise InvalidMessageError(f"{type(request).__name__} is not a request")


def _request(value: Any) -> Request:
    if type(value) is tuple and len(value) == 3:
        table, owner, number = value
        return RemoveRequest(_name(table, "a table"), _token(owner, number))
    table, owner, number, progress, is_prepare = _array(value, 5, "a request")
    token, start = _token(owner, number), _progress(progress)
    return AddRequest(_name(table, "a table"), token, start, _flag(is_prepare, "is_prepare"))


def _rest(value: Any) -> Rest | None:
    if value is None:
        return None
    progress, size, digest = _array(value, 3, "a rest")
    return Rest(_progress(progress), _integer(size, "a size"), _integer(digest, "a digest"))


class _Field(NamedTuple):
    """How a member of a body is read, and how it is packed."""

    read: Callable[[Any], Any]
    pack: Callable[[Any], Any] = lambda value: value


_VERSION_OF = _Field(partial(_text, what="a version"))
_LEAVES = _Field(partial(_flag, what="is_stopping"))
_LISTED = _Field(_statuses, lambda all: tuple([_pack_status(status) for status in all]))
_ASKED = _Field(_asked, lambda tables: tuple([(table, *token) for table, token in tables]))
_ROUND = _Field(partial(_integer, what="a round"))
_FULL = _Field(partial(_flag, what="is_full"))
_BOUNDS = _Field(_barrier, _pack_barrier)
_REST = _Field(_rest, lambda rest: rest and (tuple(rest.progress), rest.size, rest.digest))

_KINDS: dict[type[Any], tuple[Any, ...]] = {
    kind: (number, what, *zip(*fields, strict=True))
    for number, kind, what, *fields in (
        (1, messages.Announce, "", _VERSION_OF),
        (2, messages.Sync, "a sync", _VERSION_OF, _LISTED, _LEAVES),
        (3, messages.Heartbeat, "a heartbeat", _ASKED, _BOUNDS, _LEAVES, _ROUND, _FULL),
        (4, messages.HeartbeatResponse, "a response to a heartbeat", _LISTED, _LEAVES, _REST),
        (5, messages.DispatchTable, "", _Field(_request, _pack_request)),
        (
            6,
            messages.DispatchTableResponse,
            "",
            _Field(lambda one: _statuses((one,))[0], _pack_status),
        ),
    )
}
"""The number of each kind of body, and its members' readers and packers.

A body is an array of its members, or the only member itself.
"""
_READERS = {number: (kind, *rest[:2]) for kind, (number, *rest) in _KINDS.items()}
