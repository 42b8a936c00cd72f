"""Changefeed scheduling: which capture replicates which table (TiCDC's two-phase scheduler).

* `Coordinator`, the owner's side: told what the `Cluster` is like, it says what to do (`Tick`).
* `Agent`, a capture's side: obeys, and drives a `TableExecutor`, which is yours.
* `Envelope`, what they say to each other; `encoding` makes bytes of it.
* `step` and `ReplicationSet`, what decides about one table: pure functions.

Neither reads a clock, a store or a network. See `docs/scheduler.md`.
"""

from cdcmeta.scheduler.capture.agent import Agent as Agent
from cdcmeta.scheduler.capture.executor import ExecutorStatus as ExecutorStatus
from cdcmeta.scheduler.capture.executor import TableExecutor as TableExecutor
from cdcmeta.scheduler.capture.simulated import Durations as Durations
from cdcmeta.scheduler.capture.simulated import SimulatedExecutor as SimulatedExecutor
from cdcmeta.scheduler.core.limits import Limits as Limits
from cdcmeta.scheduler.core.replication_set import Place as Place
from cdcmeta.scheduler.core.replication_set import ReplicationSet as ReplicationSet
from cdcmeta.scheduler.core.replication_set import Step as Step
from cdcmeta.scheduler.core.replication_set import rebuilt as rebuilt
from cdcmeta.scheduler.core.replication_set import step as step
from cdcmeta.scheduler.core.states import Progress as Progress
from cdcmeta.scheduler.core.states import Role as Role
from cdcmeta.scheduler.core.states import SetState as SetState
from cdcmeta.scheduler.core.states import TableState as TableState
from cdcmeta.scheduler.core.states import TableStatus as TableStatus
from cdcmeta.scheduler.core.states import Token as Token
from cdcmeta.scheduler.core.tasks import AddRequest as AddRequest
from cdcmeta.scheduler.core.tasks import AddTable as AddTable
from cdcmeta.scheduler.core.tasks import CaptureLost as CaptureLost
from cdcmeta.scheduler.core.tasks import Found as Found
from cdcmeta.scheduler.core.tasks import GiveUp as GiveUp
from cdcmeta.scheduler.core.tasks import MoveTable as MoveTable
from cdcmeta.scheduler.core.tasks import RemoveRequest as RemoveRequest
from cdcmeta.scheduler.core.tasks import RemoveTable as RemoveTable
from cdcmeta.scheduler.core.tasks import Report as Report
from cdcmeta.scheduler.core.tasks import Send as Send
from cdcmeta.scheduler.core.watermarks import CANNOT_PROCEED as CANNOT_PROCEED
from cdcmeta.scheduler.core.watermarks import Watermarks as Watermarks
from cdcmeta.scheduler.core.watermarks import barrier_of as barrier_of
from cdcmeta.scheduler.owner.cluster import Cluster as Cluster
from cdcmeta.scheduler.owner.coordinator import Coordinator as Coordinator
from cdcmeta.scheduler.owner.coordinator import Tick as Tick
from cdcmeta.scheduler.protocol.fencing import KnownOwner as KnownOwner
from cdcmeta.scheduler.protocol.messages import Barrier as Barrier
from cdcmeta.scheduler.protocol.messages import Envelope as Envelope
from cdcmeta.scheduler.protocol.transport import InProcessTransport as InProcessTransport
from cdcmeta.scheduler.protocol.transport import Transport as Transport
