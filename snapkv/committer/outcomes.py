"""Outcomes of commits: the guards that failed, and commits of unknown outcome."""

from __future__ import annotations

from typing import Any

from snapkv.committer.operations import Check, Operations
from snapkv.committer.request import Request, SentRequest
from snapkv.dates import dated
from snapkv.engine.contract import RangeResult, TxnResult
from snapkv.errors import CommitUnknownError

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
