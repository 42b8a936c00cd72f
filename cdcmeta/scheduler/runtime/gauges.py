"""Gauges of a capture, for monitors: what it replicates, and what it schedules while it leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.states import SetState
from cdcmeta.scheduler.owner.coordinator import Coordinator
from cdcmeta.scheduler.runtime.reports import FeedReport


class Scheduled(NamedTuple):
    """A changefeed under an owner."""

    states: Mapping[str, int]
    """How many tables are in each state: absent, prepare, commit, replicating, removing."""
    checkpoint: int
    """The timestamp up to which all tables are replicated; 0 while it is not known."""
    resolved: int
    """The timestamp up to which the changes of all tables were read; 0 while it is not known."""

    @classmethod
    def of(cls, coordinator: Coordinator) -> Scheduled:
        """Return how a changefeed is. O(tables that are not replicating)."""
        progress = coordinator.progress
        return cls(
            table_states(coordinator.replication),
            progress.behind or max(progress.stored.checkpoint, progress.reported.checkpoint),
            progress.reported.resolved,
        )


class CaptureStatus(NamedTuple):
    """A capture from registration to the end of its session, as it was up to two seconds ago."""

    name: str
    """Its label and its session."""
    is_leading: bool
    reports: Mapping[str, FeedReport]
    """What it reports of each changefeed whose tables it has."""
    scheduled: Mapping[str, Scheduled]
    """The changefeeds that it schedules; none unless it leads."""


def table_states(replication: ReplicationManager) -> dict[str, int]:
    """Return how many tables are in each state. O(tables that are not replicating)."""
    counts = dict.fromkeys((state.name.lower() for state in SetState), 0)
    for table in replication.unsettled:
        counts[replication.sets[table].state.name.lower()] += 1
    counts["replicating"] = len(replication.sets) - len(replication.unsettled)
    return counts
