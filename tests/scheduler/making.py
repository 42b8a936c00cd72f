"""Sets, reports and requests in words: "Commit P s:U" is a set, "prepare s*" a message.

Capital letters are places of who is called like its role: `P` is the capture "p" as the primary.
`s:P` is the capture "s" as the primary, `S*` a secondary with the fresh token.
"""

from __future__ import annotations

from cdcmeta.scheduler import (
    AddRequest,
    AddTable,
    MoveTable,
    Place,
    Progress,
    RemoveRequest,
    ReplicationSet,
    Report,
    Role,
    Send,
    SetState,
    TableState,
    TableStatus,
    Token,
    step,
)
from cdcmeta.scheduler.core.states import Event

TABLE = "t"
FRESH = Token(5, 9)
TOKENS = {"p": Token(5, 1), "s": Token(5, 2), "u": Token(5, 3), "x": Token(5, 4)}
BEFORE = Progress(100, 110, 3)
"""What the sets here know at first."""
FARTHER = Progress(130, 140, 7)
"""What captures report."""

ROLES = {"P": Role.PRIMARY, "S": Role.SECONDARY, "U": Role.UNDETERMINED}
STATES = {
    "A": TableState.ABSENT,
    "Pi": TableState.PREPARING,
    "Pd": TableState.PREPARED,
    "R": TableState.REPLICATING,
    "Sg": TableState.STOPPING,
    "Sd": TableState.STOPPED,
}


def made(words: str, progress: Progress = BEFORE) -> ReplicationSet:
    """Return a set: "Commit P s:U"."""
    state, *places = words.split()
    return ReplicationSet(
        TABLE, SetState[state.upper()], tuple(sorted(place(each) for each in places)), progress
    )


def place(words: str) -> Place:
    """Return a place: "P", "s:P", "S*"."""
    name, _, role = words.rstrip("*").partition(":")
    capture = name.lower()
    return Place(capture, ROLES[role or name], FRESH if words.endswith("*") else TOKENS[capture])


def says(capture: str, state: str, token: Token | None = None) -> Report:
    """Return a report: `says("p", "R")`."""
    token = TOKENS[capture] if token is None else token
    return Report(capture, TableStatus(TABLE, token, STATES[state], FARTHER))


def messages(words: str, rset: ReplicationSet) -> tuple[Send, ...]:
    """Return what is to be sent: "prepare s*, remove p"; adds carry the progress of the set."""
    sent = []
    for each in filter(None, words.split(", ")):
        kind, who = each.split()
        capture = who.rstrip("*")
        token = FRESH if who.endswith("*") else TOKENS[capture]
        if kind == "remove":
            sent.append(Send(capture, RemoveRequest(TABLE, token)))
        else:
            assert kind in ("prepare", "commit")
            request = AddRequest(TABLE, token, rset.progress, is_prepare=kind == "prepare")
            sent.append(Send(capture, request))
    return tuple(sent)


def complaint(rset: ReplicationSet) -> str | None:
    """Return what is wrong with a set: facts 1.2 and what follows from roles."""
    try:
        rset.check()
    except AssertionError as e:
        return str(e)
    return None


class Story:
    """A set that things happen to; tokens are issued as an owner issues them."""

    def __init__(self, rset: ReplicationSet | None = None, *, owner: int = 5) -> None:
        self.rset = rset or ReplicationSet(TABLE, progress=BEFORE)
        self.sent: tuple[Send, ...] = ()
        """What the last thing that happened made the owner send."""
        self._owner, self._issued = owner, 0

    def happens(self, event: Event) -> str:
        """Let something happen; return what is sent: "prepare a, remove b"."""
        self._issued += 1
        fresh = Token(self._owner, self._issued)
        self.rset, self.sent = step(self.rset, event, fresh=fresh)
        assert complaint(self.rset) is None, f"{complaint(self.rset)}: {self.rset}"
        return ", ".join(_word(each) for each in self.sent)

    def says(self, capture: str, state: str, *, token: Token | None = None) -> str:
        """Let a capture report about the assignment that it has, or another."""
        if token is None:
            place = self.rset.place(capture)
            assert place is not None
            token = place.token
        return self.happens(says(capture, state, token))

    def added(self, capture: str) -> Story:
        """Let a capture come to replicate the table."""
        assert self.happens(AddTable(TABLE, capture)) == f"prepare {capture}"
        assert self.says(capture, "Pd") == f"commit {capture}"
        assert self.says(capture, "R") == ""
        assert str(self) == f"REPLICATING {capture}:P"
        return self

    def moving(self, to: str) -> Story:
        """Let a move begin."""
        assert self.happens(MoveTable(TABLE, to)) == f"prepare {to}"
        return self

    def __str__(self) -> str:
        places = (f"{each.capture}:{each.role.name[0]}" for each in self.rset.places)
        return " ".join((self.rset.state.name, *places))


def _word(sent: Send) -> str:
    request = sent.request
    if isinstance(request, RemoveRequest):
        return f"remove {sent.capture}"
    return f"{'prepare' if request.is_prepare else 'commit'} {sent.capture}"
