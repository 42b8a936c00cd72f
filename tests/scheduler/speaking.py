"""Messages as owners and captures write them, by hand."""

from __future__ import annotations

from cdcmeta.scheduler import (
    AddRequest,
    Cluster,
    Coordinator,
    Progress,
    RemoveRequest,
    TableState,
    TableStatus,
    Tick,
    Token,
)
from cdcmeta.scheduler.core.states import Request
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    Body,
    DispatchTable,
    DispatchTableResponse,
    Envelope,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Sync,
)

OWNER, REVISION = "owner", 9
START = Progress(100, 100)


def from_capture(
    name: str,
    body: Body,
    *,
    epoch: int = 3,
    to: str = OWNER,
    revision: int = REVISION,
    changefeed: int = 0,
) -> Envelope:
    """Return what a capture says to an owner."""
    return Envelope(Header(name, to, revision, epoch, changefeed), body)


def from_owner(
    body: Body,
    *,
    to: str = "c1",
    name: str = OWNER,
    revision: int = REVISION,
    epoch: int = 3,
    changefeed: int = 0,
) -> Envelope:
    """Return what an owner says to a capture."""
    return Envelope(Header(name, to, revision, epoch, changefeed), body)


def sync(*tables: TableStatus, is_stopping: bool = False) -> Sync:
    """Return all that a capture holds."""
    return Sync("1", tables, is_stopping)


def beat(*tables: TableStatus, is_stopping: bool = False) -> HeartbeatResponse:
    """Return a heartbeat's answer."""
    return HeartbeatResponse(tables, is_stopping)


def says(table: str, state: TableState, token: Token, progress: Progress = START) -> TableStatus:
    """Return what a capture says of a table."""
    return TableStatus(table, token, state, progress)


def prepare(table: str, token: Token, progress: Progress = START) -> Envelope:
    """Return an owner's request to prepare a table."""
    return _dispatched(AddRequest(table, token, progress, is_prepare=True))


def commit(table: str, token: Token, progress: Progress = START) -> Envelope:
    """Return an owner's request to replicate a table."""
    return _dispatched(AddRequest(table, token, progress, is_prepare=False))


def remove(table: str, token: Token) -> Envelope:
    """Return an owner's request to end a table."""
    return _dispatched(RemoveRequest(table, token))


def asks(*tables: tuple[str, Token]) -> Envelope:
    """Return an owner's heartbeat."""
    return from_owner(Heartbeat(tables))


def _dispatched(request: Request) -> Envelope:
    return from_owner(DispatchTable(request))


def statuses(sent: list[Envelope]) -> list[tuple[str, Token, str]]:
    """Return what a capture answered to requests: table, token, state."""
    return [
        (body.status.table, body.status.token, body.status.state.name)
        for _, body in sent
        if isinstance(body, DispatchTableResponse)
    ]


def requests(tick: Tick) -> list[tuple[str, Request]]:
    """Return what an owner asked of captures."""
    return [
        (header.to, body.request)
        for header, body in tick.messages
        if isinstance(body, DispatchTable)
    ]


def announced(tick: Tick) -> list[str]:
    """Return whom an owner asked for all they hold."""
    return [header.to for header, body in tick.messages if isinstance(body, Announce)]


class Owner:
    """A coordinator with a cluster that is written by hand."""

    def __init__(self, alive: dict[str, int], tables: list[str], **options: object) -> None:
        self.coordinator = Coordinator(OWNER, "c0", revision=REVISION, **options)
        self.alive, self.tables = dict(alive), dict.fromkeys(tables, 1.0)
        self.now, self.revision, self.stored = 0, REVISION, 50

    def tick(self, *inbox: Envelope, us: int = 1_000) -> Tick:
        """Let the owner hear and decide."""
        self.now += us
        self.revision = max(self.revision, *self.alive.values(), 0)
        seen = Cluster(self.now, dict(self.alive), self.tables, self.stored, self.revision)
        told = self.coordinator.tick(inbox, seen)
        self.stored = max(self.stored, told.watermarks.checkpoint)
        return told
