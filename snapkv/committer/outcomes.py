"""What callers are told: the guards that did not hold, and commits of unknown outcome."""

from __future__ import annotations

from typing import Any

from snapkv.committer.operations import Check, Part
from snapkv.committer.request import Attempt, Sent
from snapkv.dates import dated
from snapkv.engine.contract import RangeResult, TxnResult
from snapkv.errors import CommitUnknownError

Unheld = list[tuple[Check, int]]
"""Guards that did not hold, with the revisions that they found."""


def add_note(error: BaseException, attempt: Attempt[Any]) -> None:
    """Name the commit whose outcome an interrupt leaves open, for `resolve`."""
    stamp = attempt.sent.stamp
    error.add_note(f"outcome unknown: commit {dated(stamp.timestamp)}, nonce {stamp.nonce.hex()}")


def read_back(part: Part, result: object) -> Unheld:
    """Return the guards of a part that did not hold, from what it read when it was skipped."""
    assert isinstance(result, TxnResult)
    if result.succeeded:
        return []
    unheld = []
    for check, seen in zip(part.checks, result.results, strict=True):
        assert isinstance(seen, RangeResult)
        if (found := check.failed_at(seen)) is not None:
            unheld.append((check, found))
    assert unheld, "a skipped part has a guard that did not hold"
    return unheld


def unknown(
    sent: Sent,
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
