"""Leased keys: their bytes, and requests that may be sent again until they are answered.

Keys and values (below the store's `N/live/`, which is not part of time travel):

| key | value |
|---|---|
| `session/<lease id>` | msgpack map: `w` the writer (text), `v` the user's bytes |
| `election/<name>/<lease id>` | the candidate's bytes |

A lease id has 16 hex digits; `%` and `/` of a name are written `%25` and `%2F`. Readers pass over
unknown fields.

>>> session_key(0x5F)
b'session/000000000000005f'
>>> SessionRecord("ann@host", b"10.0.0.7:80").encode().hex()
'82a177a8616e6e40686f7374a176c40b31302e302e302e373a3830'
>>> candidate_key(election_prefix("jobs/daily"), 0x5F)
b'election/jobs%2Fdaily/000000000000005f'
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgpack

from snapkv.clock import monotonic, pause
from snapkv.engine.contract import Engine, RangeResult, Txn, TxnResult
from snapkv.errors import (
    CorruptStoreError,
    EngineUnavailableError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    LeaseNotFoundError,
    OutcomeUnknown,
    Refused,
    SessionLostError,
    SnapKVError,
)
from snapkv.layout import encode_text

TTL_S_MAX = 1e6
REQUEST_S = 10.0
"""How long a request of a session or an election may take, repetitions included."""
REVOKE_S = 5.0
RETRY_S_MIN, RETRY_S_MAX = 0.01, 0.5

SESSIONS = b"session/"
ELECTIONS = b"election/"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The value of a session's key."""

    writer: str
    value: bytes = b""

    def encode(self) -> bytes:
        """Return the msgpack map of the record."""
        packed: bytes = msgpack.packb({"w": self.writer, "v": self.value})
        return packed

    @classmethod
    def decode(cls, stored: bytes) -> SessionRecord:
        """Read a session's value; raises `CorruptStoreError` when it is none."""
        try:
            fields = msgpack.unpackb(stored)
            writer, value = fields["w"], fields["v"]
            if not isinstance(writer, str) or not isinstance(value, bytes):
                raise TypeError("the writer is text, the value is bytes")
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as e:
            raise CorruptStoreError(f"a session's key holds no session: {stored[:40]!r}") from e
        return cls(writer, value)


def session_key(lease: int) -> bytes:
    """Return the key of a session, below `N/live/`."""
    return SESSIONS + b"%016x" % lease


def lease_of(key: bytes) -> int:
    """Return the lease that a leased key names at its end.

    >>> lease_of(b"default/live/session/000000000000005f")
    95
    """
    try:
        return int(key.rpartition(b"/")[2], 16)
    except ValueError as e:
        raise CorruptStoreError(f"key {key!r} names no lease") from e


def election_prefix(name: str) -> bytes:
    """Return the prefix of an election's keys; raises `InvalidKeyError`, `InvalidTypeError`."""
    text = encode_text(name, "name of an election")
    if not text:
        raise InvalidKeyError("an election needs a name", name)
    return ELECTIONS + text.replace(b"%", b"%25").replace(b"/", b"%2F") + b"/"


def candidate_key(prefix: bytes, lease: int) -> bytes:
    """Return the key of a candidate in the election with that prefix."""
    return prefix + b"%016x" % lease


# --- requests ---


def transact(
    engine: Engine,
    txn: Txn,
    timeout: float = REQUEST_S,
    left_open: Callable[[], None] = lambda: None,
) -> TxnResult:
    """Send a transaction until it is answered: one that may be repeated, by its guards.

    They must not hold any more once it was applied. `left_open` is called when a copy of it may
    still arrive, or may have been applied, whether or not a later one is answered.

    Raises `SessionLostError` when its lease has ended, `EngineUnavailableError` when `timeout`
    seconds brought no answer, and what else the engine refuses it with.
    """
    deadline, wait_s, refusal, sent = monotonic() + timeout, RETRY_S_MIN, None, txn
    while True:
        left_s = max(0.0, deadline - monotonic())
        try:
            answer = _send(engine, sent, left_s)
            if refusal is None or not answer.succeeded:
                return answer
            break  # its guards still hold, so it was not applied
        except OutcomeUnknown as e:
            if e.answered and refusal is None:  # out of space, say: applied or not, a look tells
                refusal, sent = e.cause or e, Txn(txn.compare, (), txn.failure)
                continue
            left_open()
            if not e.retry:
                raise (e.cause or e) from e
            error = EngineUnavailableError(f"no answer tells what became of a request: {e}")
        except EngineUnavailableError as e:
            error = e
        except SnapKVError:
            if refusal is not None:
                left_open()
            raise
        except BaseException:
            left_open()
            raise
        if monotonic() + wait_s >= deadline:
            if refusal is not None:
                left_open()
            raise error
        pause(wait_s)
        wait_s = min(2 * wait_s, RETRY_S_MAX)
    raise refusal


def _send(engine: Engine, txn: Txn, timeout: float) -> TxnResult:
    """Send a transaction once; whatever but `OutcomeUnknown` is raised, nothing was applied."""
    try:
        return engine.transact(lambda _: txn, txn.compare[0].key, timeout=timeout)
    except LeaseNotFoundError as e:
        raise SessionLostError(str(e)) from e
    except Refused as e:
        if isinstance(e.error, LeaseNotFoundError):
            raise SessionLostError(str(e.error)) from e
        raise e.error from e


def found(answer: TxnResult, at: int) -> RangeResult:
    """Return what the range at that place of a transaction found."""
    result = answer.results[at]
    assert isinstance(result, RangeResult)
    return result


def revoke(engine: Engine, lease: int) -> None:
    """End a lease; when that fails it ends by itself."""
    with suppress(SnapKVError):
        engine.revoke(lease, timeout=REVOKE_S)


# --- arguments ---


def check_ttl(ttl: object) -> None:
    """Raise `InvalidTypeError` or `InvalidOptionError` for what is no time to live."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise InvalidTypeError(f"a ttl is seconds, not {type(ttl).__name__}")
    if not 0 < ttl <= TTL_S_MAX:
        raise InvalidOptionError(f"a ttl is in (0, {TTL_S_MAX:.0f}] s, not {ttl}")


def check_value(value: object) -> bytes:
    """Return the value of a leased key; `InvalidTypeError` for anything but bytes."""
    if not isinstance(value, bytes):
        raise InvalidTypeError(f"a value is bytes, not {type(value).__name__}")
    return value
