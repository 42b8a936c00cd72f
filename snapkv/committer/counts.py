"""What a committer has done since it was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CommitCounts:
    """Counts of one committer. The leader changes them, or a thread that holds the queue's lock."""

    commits: int = 0
    """Calls that landed, without ticks."""
    transactions: int = 0
    """Transactions that landed; calls that share one count once."""
    ticks: int = 0
    """Ticks that succeeded, also by the timestamp of another commit."""
    conflicts: int = 0
    """Calls whose guards failed."""
    lost_rounds: int = 0
    """Transactions that were sent again because another process committed first."""
    fences: int = 0
    """Transactions without an answer whose outcome had to be found out by a fence."""
    unknown_outcomes: int = 0
    """Calls that ended with `CommitUnknownError`."""
