"""Changefeed scheduling: which capture replicates which table (TiCDC's two-phase scheduler).

* `Coordinator`, the owner's side: gets the state of the `Cluster`, returns what to do (`Tick`).
* `Agent`, a capture's side: obeys the owner and drives your `TableExecutor`.
* `Envelope`, a message between them; the module `protocol.encoding` makes bytes of it.
* `step` and `ReplicationSet`, the decisions about one table: pure functions.

Neither reads a clock, a store or a network. See `docs/scheduler_core.md`, and `cdcmeta/DESIGN.md`,
which has examples of what the modules do; `cdcmeta.scheduler.runtime` is the system around it.
"""

from cdcmeta.scheduler.agent import Agent, ExecutorStatus, TableExecutor
from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.replication_set import Place, ReplicationSet, Step, rebuilt, step
from cdcmeta.scheduler.core.states import (
    AbandonTable,
    AddRequest,
    AddTable,
    CaptureLost,
    Found,
    MoveTable,
    Progress,
    RemoveRequest,
    RemoveTable,
    Report,
    Role,
    Send,
    SetState,
    TableState,
    TableStatus,
    Token,
)
from cdcmeta.scheduler.core.watermarks import CANNOT_PROCEED, Watermarks, barrier_of
from cdcmeta.scheduler.owner.cluster import Cluster
from cdcmeta.scheduler.owner.coordinator import Coordinator, Tick
from cdcmeta.scheduler.protocol.messages import Barrier, Envelope, KnownOwner

__all__ = [
    "CANNOT_PROCEED",
    "AbandonTable",
    "AddRequest",
    "AddTable",
    "Agent",
    "Barrier",
    "CaptureLost",
    "Cluster",
    "Coordinator",
    "Envelope",
    "ExecutorStatus",
    "Found",
    "KnownOwner",
    "Limits",
    "MoveTable",
    "Place",
    "Progress",
    "RemoveRequest",
    "RemoveTable",
    "ReplicationSet",
    "Report",
    "Role",
    "Send",
    "SetState",
    "Step",
    "TableExecutor",
    "TableState",
    "TableStatus",
    "Tick",
    "Token",
    "Watermarks",
    "barrier_of",
    "rebuilt",
    "step",
]
