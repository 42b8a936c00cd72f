"""Outcomes of commits: the guards that failed, and commits of unknown outcome."""

from __future__ import annotations

from typing import Any

from snapkv.committer.operations import Check, Operations
from snapkv.committer.request import Request, SentRequest
from snapkv.engine.contract import RangeResult, TxnResult
from snapkv.errors import (
    AccessDeniedError,
    CommitTooLargeError,
    CommitUnknownError,
    ConflictError,
    InvalidKeyError,
    LeaseNotFoundError,
    SnapKVError,
)
from snapkv.times import dated

ABOUT_ONE = (AccessDeniedError, CommitTooLargeError, InvalidKeyError, LeaseNotFoundError)
"""Errors with which an engine rejects a whole group although only one member is at fault."""
FailedGuards = list[tuple[Check, int]]
"""Guards that failed, each with the revision at which its key was last written."""


def name_open(error: BaseException, request: Request[Any], batch: int) -> None:
    """Name the commit whose outcome an interrupted caller does not get, in a note and as a cause.

    The cause is the `CommitUnknownError` whose facts `resolve` takes.
    """
    stamp, checks = request.sent.stamp, request.checks(batch)
    error.add_note(f"outcome unknown: commit {dated(stamp.timestamp)}, nonce {stamp.nonce.hex()}")
    error.__cause__ = unknown(request.sent, checks, batch=batch, why="the caller was interrupted")


def failed_guards(ops: Operations, result: object) -> FailedGuards:
    """Return the guards that failed, from the reads of a skipped transaction; none if applied."""
    assert isinstance(result, TxnResult)
    if result.succeeded:
        return []
    failed = []
    for check, seen in zip(ops.checks, result.results, strict=True):
        assert isinstance(seen, RangeResult)
        if (found := check.failed_at(seen)) is not None:
            failed.append((check, found))
    assert failed, "a skipped transaction has a guard that failed"
    return failed


def unknown(
    sent: SentRequest,
    checks: tuple[Check, ...],
    *,
    why: str,
    batch: int = 0,
    may_still_land: bool = True,
) -> CommitUnknownError:
    """Return the error that names a commit of unknown outcome, for `store.resolve`."""
    return CommitUnknownError(
        sent.stamp.timestamp,
        sent.stamp.nonce,
        may_still_land=may_still_land,
        batch=batch,
        guards=checks,
        why=why,
    )


def error_of(
    sent: SentRequest, batch: int, checks: tuple[Check, ...], failed: FailedGuards | None
) -> SnapKVError | None:
    """Return the error of a member whose guards failed, None if it was applied.

    `failed` is None if compaction took the answer.
    """
    if failed is None:
        why = "the history that shows it was compacted"
        return unknown(sent, checks, batch=batch, why=why, may_still_land=False)
    if failed:
        return ConflictError((check.guard, found) for check, found in failed)
    return None
