"""Changefeed scheduling: which capture replicates which table (TiCDC's two-phase scheduler).

* `Coordinator`, the owner's side: told what the `Cluster` is like, it says what to do (`Tick`).
* `Agent`, a capture's side: obeys, and drives a `TableExecutor`, which is yours.
* `Envelope`, what they say to each other; `encoding` makes bytes of it.
* `step` and `ReplicationSet`, what decides about one table: pure functions.

Neither reads a clock, a store or a network. See `docs/scheduler.md`.
"""

from cdcmeta.scheduler.agent import Agent as Agent
from cdcmeta.scheduler.cluster import Cluster as Cluster
from cdcmeta.scheduler.coordinator import Coordinator as Coordinator
from cdcmeta.scheduler.coordinator import Tick as Tick
from cdcmeta.scheduler.executor import ExecutorStatus as ExecutorStatus
from cdcmeta.scheduler.executor import TableExecutor as TableExecutor
from cdcmeta.scheduler.fencing import KnownOwner as KnownOwner
from cdcmeta.scheduler.limits import Limits as Limits
from cdcmeta.scheduler.messages import Barrier as Barrier
from cdcmeta.scheduler.messages import Envelope as Envelope
from cdcmeta.scheduler.replication_set import Place as Place
from cdcmeta.scheduler.replication_set import ReplicationSet as ReplicationSet
from cdcmeta.scheduler.replication_set import Step as Step
from cdcmeta.scheduler.replication_set import rebuilt as rebuilt
from cdcmeta.scheduler.replication_set import step as step
from cdcmeta.scheduler.simulated import Durations as Durations
from cdcmeta.scheduler.simulated import SimulatedExecutor as SimulatedExecutor
from cdcmeta.scheduler.states import Progress as Progress
from cdcmeta.scheduler.states import Role as Role
from cdcmeta.scheduler.states import SetState as SetState
from cdcmeta.scheduler.states import TableState as TableState
from cdcmeta.scheduler.states import TableStatus as TableStatus
from cdcmeta.scheduler.states import Token as Token
from cdcmeta.scheduler.tasks import AddRequest as AddRequest
from cdcmeta.scheduler.tasks import AddTable as AddTable
from cdcmeta.scheduler.tasks import CaptureLost as CaptureLost
from cdcmeta.scheduler.tasks import Found as Found
from cdcmeta.scheduler.tasks import GiveUp as GiveUp
from cdcmeta.scheduler.tasks import MoveTable as MoveTable
from cdcmeta.scheduler.tasks import RemoveRequest as RemoveRequest
from cdcmeta.scheduler.tasks import RemoveTable as RemoveTable
from cdcmeta.scheduler.tasks import Report as Report
from cdcmeta.scheduler.tasks import Send as Send
from cdcmeta.scheduler.transport import InProcessTransport as InProcessTransport
from cdcmeta.scheduler.transport import Transport as Transport
from cdcmeta.scheduler.watermarks import CANNOT_PROCEED as CANNOT_PROCEED
from cdcmeta.scheduler.watermarks import Watermarks as Watermarks
from cdcmeta.scheduler.watermarks import barrier_of as barrier_of
