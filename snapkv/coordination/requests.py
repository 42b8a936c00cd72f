"""Leased keys: their bytes, and requests that are sent again until they are answered.

Keys and values (below the store's `N/live/`, which has no time travel):

| key | value |
|---|---|
| `session/<lease id>` | msgpack map: `w` the writer (text), `v` the user's bytes, `t`, `s` |
| `election/<name>/<lease id>` | the candidate's bytes |
| `key/<UTF-8 text>` | the caller's bytes (`leased_keys.py`) |

`t` is the time to live in seconds, a float; `s` the start, a timestamp of its process's clock.
A lease id has 16 hex digits; `%` and `/` of a name are written `%25` and `%2F`. Readers ignore
unknown fields.

>>> session_key(0x5F)
b'session/000000000000005f'
>>> SessionRecord("ann@host", b":80", 10.0, 445644802596110336).encode().hex()
'84a177a8616e6e40686f7374a176c4033a3830a174cb4024000000000000a173cf062f3f963abd8000'
>>> candidate_key(election_prefix("jobs/daily"), 0x5F)
b'election/jobs%2Fdaily/000000000000005f'
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgpack

from snapkv.base.arguments import check_seconds
from snapkv.base.waiting import monotonic, pause
from snapkv.engine.contract import Engine, OutcomeUnknown, RangeResult, Refused, Txn, TxnResult
from snapkv.errors import (
    CorruptStoreError,
    EngineUnavailableError,
    InvalidKeyError,
    LeaseNotFoundError,
    SessionLostError,
    SnapKVError,
)
from snapkv.layout import encode_text

TTL_S_MAX = 1e6
REQUEST_S = 10.0
"""The longest time of a request of a session or an election, repetitions included, in seconds."""
REVOKE_S = 5.0
RETRY_S_MIN, RETRY_S_MAX = 0.01, 0.5

SESSIONS = b"session/"
ELECTIONS = b"election/"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The value of a session's key."""

    writer: str
    value: bytes = b""
    ttl_s: float | None = None
    started: int | None = None

    def encode(self) -> bytes:
        """Return the msgpack map of the record."""
        fields = {"w": self.writer, "v": self.value, "t": self.ttl_s, "s": self.started}
        packed: bytes = msgpack.packb({k: v for k, v in fields.items() if v is not None})
        return packed

    @classmethod
    def decode(cls, stored: bytes) -> SessionRecord:
        """Read a session's value; raises `CorruptStoreError` if it is not one."""
        try:
            fields = msgpack.unpackb(stored)
            writer, value = fields["w"], fields["v"]
            if not isinstance(writer, str) or not isinstance(value, bytes):
                raise TypeError("the writer is text, the value is bytes")
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as e:
            raise CorruptStoreError(f"a session's key has an invalid value: {stored[:40]!r}") from e
        return cls(writer, value, fields.get("t"), fields.get("s"))


def session_key(lease: int) -> bytes:
    """Return the key of a session, below `N/live/`."""
    return SESSIONS + b"%016x" % lease


def lease_of(key: bytes) -> int:
    """Return the lease whose id a leased key ends with.

    >>> lease_of(b"default/live/session/000000000000005f")
    95
    """
    try:
        return int(key.rpartition(b"/")[2], 16)
    except ValueError as e:
        raise CorruptStoreError(f"key {key!r} does not end with a lease id") from e


def election_prefix(name: str) -> bytes:
    """Return the prefix of an election's keys; raises `InvalidKeyError`, `InvalidTypeError`."""
    text = encode_text(name, "name of an election")
    if not text:
        raise InvalidKeyError("an election needs a name", name)
    return ELECTIONS + text.replace(b"%", b"%25").replace(b"/", b"%2F") + b"/"


def election_name(prefix: bytes) -> str:
    """Return the name of the election whose keys begin so."""
    name = prefix.removeprefix(ELECTIONS).removesuffix(b"/")
    return name.replace(b"%2F", b"/").replace(b"%25", b"%").decode()


def candidate_key(prefix: bytes, lease: int) -> bytes:
    """Return the key of a candidate in the election with that prefix."""
    return prefix + b"%016x" % lease


# --- requests ---


# For example, a session's key is made by "If it does not exist Then put it Else read it":
#
#     first copy                 second copy                what transact does
#     applied                                               returns: succeeded
#     applied, answer lost       not applied: key exists    returns: not succeeded, with the key
#     lost                       applied                    returns: succeeded
#     delayed, answer lost       applied                    returns: succeeded; the first copy may
#                                                           still arrive, and its guard stops it
#     "no space", applied        (a look: key exists)       returns: not succeeded, with the key
#     "no space", not applied    (a look: no key)           raises NoSpaceError
def transact(
    engine: Engine, txn: Txn, timeout: float = REQUEST_S, on_open: Callable[[], None] = lambda: None
) -> TxnResult:
    """Send a transaction until it is answered; its guards must fail once it was applied.

    An answer that leaves open whether it was applied (`OutcomeUnknown.answered`) is followed by a
    look: the same guards, without writes. `on_open` is called if a copy may still arrive, or may
    have been applied without an answer, even if a later copy is answered.

    Raises `SessionLostError` if its lease has ended, `EngineUnavailableError` if no answer came
    within `timeout` seconds, and the engine's other errors.
    """
    deadline, wait_s = monotonic() + timeout, RETRY_S_MIN
    while True:
        try:
            return _send(engine, txn, max(0.0, deadline - monotonic()))
        except OutcomeUnknown as e:
            if e.answered and txn.success:
                return _look(engine, txn, deadline - monotonic(), e.cause or e, on_open)
            on_open()
            if not e.retry:
                e.reraise()
            error = EngineUnavailableError(f"a request was not answered: {e}")
        except EngineUnavailableError as e:
            error = e
        except SnapKVError:
            raise  # it was not applied
        except BaseException:
            on_open()
            raise
        if monotonic() + wait_s >= deadline:
            raise error
        pause(wait_s)
        wait_s = min(2 * wait_s, RETRY_S_MAX)


def _look(
    engine: Engine, txn: Txn, timeout: float, rejection: Exception, on_open: Callable[[], None]
) -> TxnResult:
    """Return what a transaction's guards read if it was applied; else raise the rejection."""
    try:
        answer = transact(engine, Txn(txn.compare, (), txn.failure), timeout)
    except BaseException:
        on_open()
        raise
    if answer.succeeded:  # its guards still hold, so it was not applied
        raise rejection
    return answer


def _send(engine: Engine, txn: Txn, timeout: float) -> TxnResult:
    """Send a transaction once; errors other than `OutcomeUnknown` mean that it was not applied."""
    try:
        return engine.transact(lambda _: txn, txn.compare[0].key, timeout=timeout)
    except LeaseNotFoundError as e:
        raise SessionLostError(str(e)) from e
    except Refused as e:
        if isinstance(e.error, LeaseNotFoundError):
            raise SessionLostError(str(e.error)) from e
        e.reraise()


def found(answer: TxnResult, at: int) -> RangeResult:
    """Return the result of the range at an index of a transaction."""
    result = answer.results[at]
    assert isinstance(result, RangeResult)
    return result


def revoke(engine: Engine, lease: int) -> None:
    """End a lease; if that fails, it ends by itself."""
    with suppress(SnapKVError):
        engine.revoke(lease, timeout=REVOKE_S)


# --- arguments ---


def check_ttl(ttl: object) -> None:
    """Raise `InvalidTypeError` or `InvalidOptionError` for an invalid time to live."""
    check_seconds("ttl", ttl, above=0, most=TTL_S_MAX)
