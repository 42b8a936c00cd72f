"""etcd's error texts: which mean that a request is not applied, and the errors to raise for them.

Codes are ambiguous (a lost connection and a full queue are both UNAVAILABLE), texts are not. Any
other failure after a request was sent leaves its outcome open.

Definite, by the place where etcd checks (`server/etcdserver` of 3.5):

| text | checked |
|---|---|
| request is too large, too many requests | before it is proposed |
| too many operations, duplicate key, key is not provided | on arrival, from the request alone |
| rpc not supported for learner, invalid auth token | on arrival |
| authentication failed | of a login only |
| permission denied, auth store is old, user name is empty | when applied, before it is executed |
| requested lease not found | when applied: all puts, nested ones too, before the first is done |

Not definite, but final (`MAY_BE_APPLIED`): etcd has finished with the request, and a read finds its
outcome.

* database space exceeded: checked before it is proposed, and once more when it is applied, where
  etcd executes the transaction and still answers with the error.
* corrupt cluster: the member that answers executed nothing, but it says that members disagree.
* any other text with a code of `_BY_CODE`: the text of a server that speaks etcd's protocol and is
  not an etcd.
"""

from __future__ import annotations

from collections.abc import Callable

from snapkv.engine.etcd.grpc_client import NOT_A_MESSAGE, CallFailed
from snapkv.engine.etcd.kine import NOT_SERIALIZABLE, UNSUPPORTED_TXN, no_store_error
from snapkv.errors import (
    AccessDeniedError,
    CommitTooLargeError,
    CorruptStoreError,
    EngineBusyError,
    EngineUnavailableError,
    InvalidKeyError,
    LeaseNotFoundError,
    NoSpaceError,
    NotSupportedError,
    SnapKVError,
)

COMPACTED = "etcdserver: mvcc: required revision has been compacted"
FUTURE = "etcdserver: mvcc: required revision is a future revision"
LEASE_NOT_FOUND = "etcdserver: requested lease not found"
AUTH_NOT_ENABLED = "etcdserver: authentication is not enabled"
DENIED = "etcdserver: permission denied"

TOKEN_STALE = (
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
    "etcdserver: user name is empty",
)
"""The token has to be renewed; the request was not applied."""

TRY_ELSEWHERE = ("etcdserver: rpc not supported for learner", "etcdserver: too many requests")
"""The texts of requests that a server rejects before it proposes them: they may be sent again, to
another member or a little later."""

NO_SPACE = "etcdserver: mvcc: database space exceeded"
CORRUPT = "etcdserver: corrupt cluster"

MAY_BE_APPLIED = (NO_SPACE, CORRUPT)
"""The answer is final, but the rejected request may have been applied."""

NOT_HTTP2 = "Failed parsing HTTP/2"
"""The text of gRPC for a server that speaks another protocol, such as HTTP/1 or TLS."""

_ERRORS: dict[str, Callable[[str, int], SnapKVError]] = {
    NO_SPACE: lambda text, size: NoSpaceError(
        "the cluster is out of space (its quota): compact, defragment, then disarm the alarm"
    ),
    "etcdserver: request is too large": lambda text, size: too_large(size),
    "etcdserver: too many operations in txn request": lambda text, size: CommitTooLargeError(
        "the request in bytes (it has more operations than the server's --max-txn-ops)",
        size,
        size - 1,
    ),
    "etcdserver: duplicate key given in txn request": lambda text, size: InvalidKeyError(text),
    "etcdserver: key is not provided": lambda text, size: InvalidKeyError(text),
    CORRUPT: lambda text, size: CorruptStoreError(
        "the cluster raised its alarm CORRUPT: its members disagree"
    ),
    DENIED: lambda text, size: AccessDeniedError("the user lacks the right to these keys"),
    "etcdserver: authentication failed, invalid user ID or password": (
        lambda text, size: AccessDeniedError("no such user, or a wrong password")
    ),
    LEASE_NOT_FOUND: lambda text, size: LeaseNotFoundError(0),
    UNSUPPORTED_TXN: lambda text, size: no_store_error(text),
}

_BY_CODE: dict[str, Callable[[str], SnapKVError]] = {
    **dict.fromkeys(
        ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "OUT_OF_RANGE"),
        NotSupportedError,
    ),
    "DATA_LOSS": CorruptStoreError,
}
"""What a server rejects with a text that etcd does not have: a repetition fails, too.

Not of this kind are codes that a proxy makes of a status of HTTP (`stranger_error`), and UNKNOWN:
that is etcd's code, too, for a proposal that raft has dropped.
"""

OVERSIZED_BY_GRPC = "received message larger than max"
"""The text of the server's gRPC for a request that etcd never saw, and of the client's for an
answer."""


DISTRUST = ("CERTIFICATE_VERIFY_FAILED", "is not in peer certificate")
"""The texts of gRPC for a certificate of an unknown authority, or for another host."""


class OversizedAnswerError(EngineUnavailableError):
    """The answer is larger than the channel takes; only an etcd3 client's channel has a limit."""


def is_oversized_answer(failure: CallFailed) -> bool:
    """Return whether this client rejected an answer for its size: a retry would fail, too."""
    return OVERSIZED_BY_GRPC in failure.text.lower() and "CLIENT" in failure.text


def too_large(size: int) -> CommitTooLargeError:
    """Return the error for a request of so many bytes that the server does not take."""
    what = "the request in bytes (see the server's --max-request-bytes)"
    return CommitTooLargeError(what, size, size - 1)


def stranger_error(failure: CallFailed, address: str) -> SnapKVError | None:
    """Return the error for an answer that an etcd, as it is used here, does not send; else None.

    One endpoint alone may be a proxy whose backend is being replaced: HTTP's 404 is UNIMPLEMENTED.
    """
    if failure.code == "UNAVAILABLE" and any(text in failure.text for text in DISTRUST):
        return EngineUnavailableError(f"{address}: its certificate is not trusted: {failure}")
    if NOT_HTTP2 in failure.text:
        return EngineUnavailableError(f"{address}: this is not an etcd, or it wants TLS: {failure}")
    if failure.code == "UNIMPLEMENTED" or NOT_A_MESSAGE in failure.text:
        return EngineUnavailableError(f"{address}: this is not an etcd: {failure}")
    if failure.code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
        return AccessDeniedError(f"{address}: {failure}")
    return None


def is_stale_token(failure: CallFailed) -> bool:
    """Return whether a new token may help."""
    return failure.text.startswith(TOKEN_STALE)


def is_for_elsewhere(failure: CallFailed) -> bool:
    """Return whether the request was rejected unread."""
    return failure.text.startswith(TRY_ELSEWHERE)


def is_not_serializable(failure: CallFailed) -> bool:
    """Return whether the server would answer the same read if it were not serializable."""
    return NOT_SERIALIZABLE in failure.text


def may_be_applied(failure: CallFailed) -> bool:
    """Return whether a rejected request may have been applied."""
    known = _known_refusal(failure, 0)
    return failure.text.startswith(MAY_BE_APPLIED) or (known is None and failure.code in _BY_CODE)


def refusal_of(failure: CallFailed, request_bytes: int = 0) -> SnapKVError | None:
    """Return the error to raise when the server rejected the request, None for any other failure.

    The rejection is definite unless `may_be_applied`.
    """
    if failure.text.startswith((COMPACTED, FUTURE)):
        return None  # the caller's error names the revisions
    known = _known_refusal(failure, request_bytes)
    if known is None and (error := _BY_CODE.get(failure.code)) is not None:
        return error(f"the server rejects the request: {failure}")
    return known


def _known_refusal(failure: CallFailed, request_bytes: int) -> SnapKVError | None:
    """Return the error for a text of etcd's, or of kine's."""
    for text, error in _ERRORS.items():
        if failure.text.startswith(text):
            return error(failure.text, request_bytes)
    if is_stale_token(failure):
        return AccessDeniedError("the cluster wants a user and a password")
    if is_for_elsewhere(failure):
        return EngineBusyError(failure.text)
    return None
