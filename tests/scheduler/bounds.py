"""How large the worlds are that are explored, and stories that lead deep into some of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .small_moves import Moves, follow
from .small_world import Budget, World, begin


class Bound(NamedTuple):
    """How large a world is explored."""

    captures: int
    budget: Budget
    moves: Callable[[], Moves]

    story: tuple[str, ...] = ()
    """What happens first: each word is in what happens next."""

    def start(self) -> World:
        """Return the world to begin with."""
        return follow(begin(self.captures, self.budget), self.moves(), *self.story)


def bound(
    captures: int,
    *story: str,
    channel: int = 1,
    data: int = 0,
    overtaking: bool = False,
    pruning: bool = True,
    **budget: int,
) -> Bound:
    """Return a bound; budgets that are not named are 0."""
    moves = partial(Moves, channel=channel, data=data, overtaking=overtaking, pruning=pruning)
    return Bound(captures, Budget(**budget), moves, story)


HEARD = (
    *("announces to c0", "delivers Announce", "delivers Sync"),
    *("announces to c1", "delivers Announce", "delivers Sync"),
)
DOUBLED = (
    *HEARD,
    *("adds to c0", "doubles is_prepare=True", "delivers PREPARING", "c0 has prepared"),
    *("asks c0", "delivers Heartbeat", "delivers PREPARED", "doubles is_prepare=False"),
    *("c0 replicates", "delivers PREPARED", "asks c0", "delivers Heartbeat"),
    "delivers REPLICATING",
)
"""Both requests that made c0 the primary are on their way to it once more."""
DOUBLED_AND_FAILED = (
    *DOUBLED,
    *("c0 fails", "delivers STOPPED", "adds to c1", "delivers o3->c1", "c1 has prepared"),
)
DOUBLED_AND_RESTARTED = (
    *(*DOUBLED, "c0 restarts", "notices c0"),
    *("adds to c1", "delivers o3->c1", "c1 has prepared"),
)
"""... and another is about to be the primary."""
DOUBLED_AND_DEPOSED = (
    *(*DOUBLED, "c0 fails", "delivers STOPPED", "another owner"),
    *("o4 announces to c0", "delivers Announce", "delivers Sync"),
    *("o4 announces to c1", "delivers Announce", "delivers Sync"),
    *("o4 adds to c1", "delivers o4->c1", "c1 has prepared"),
)
"""... and the new owner is about to make another the primary."""
ALIKE = (
    *("announces to c0", "delivers Announce", "delivers Sync"),
    *("announces to c1", "delivers Announce", "doubles Sync"),
    *("adds to c1", "delivers is_prepare=True", "delivers PREPARING", "c1 has prepared"),
    *("asks c1", "delivers Heartbeat", "delivers PREPARED", "delivers is_prepare=False"),
    *("c1 replicates", "the same owner again"),
)
"""An owner is elected again while an answer to it is on its way that is no longer true."""
COMMITTED = (
    *HEARD,
    *("adds to c0", "delivers is_prepare=True", "delivers PREPARING", "c0 has prepared"),
    *("asks c0", "delivers Heartbeat", "delivers PREPARED", "delivers is_prepare=False"),
    *("another owner", "o4 announces to c0", "delivers Announce", "delivers Sync"),
    *("o4 announces to c1", "delivers Announce", "delivers Sync"),
)
"""A new owner finds what is prepared, and was told to write by the one before."""
NOT_HEARD = (
    *HEARD,
    *("adds to c0", "delivers is_prepare=True", "delivers PREPARING", "c0 has prepared"),
    *("asks c0", "delivers Heartbeat", "delivers PREPARED", "delivers is_prepare=False"),
    *("c0 replicates", "delivers PREPARED", "another owner"),
    *("o4 announces to c1", "delivers Announce", "delivers Sync", "waits no longer"),
)
"""A new owner waits no longer for a capture that is the primary."""
FOUND_LATE = (
    *NOT_HEARD,
    *("o4 adds to c1", "delivers is_prepare=True", "c1 has prepared"),
    *("o4 announces to c0", "delivers Announce", "delivers Sync"),
)
"""A capture that had said nothing turns out to be the primary; another has prepared meanwhile."""


EXPLORED = {
    "a move, two messages on each way": bound(2, channel=2, moves=1),
    "a move, questions overtake": bound(2, channel=1, overtaking=True, data=1, moves=1),
    "a move, a crash, three captures": bound(3, moves=1, crashes=1),
    "two moves, a restart under the same name, data": bound(2, data=1, moves=2, restarts=1),
    "a move, a restart, a doubled message": bound(2, moves=1, restarts=1, doubles=1),
    "a move, a table that fails, data": bound(2, data=1, moves=1, failures=1),
    "a table that fails, two messages on each way": bound(2, channel=2, failures=1),
    "a move, a lost message": bound(2, data=1, moves=1, drops=2),
    "a move, a table removed and wanted again, data": bound(2, data=1, moves=1, removals=1),
    "another owner, a move": bound(2, failovers=1, moves=1),
    "another owner that does not wait for all": bound(2, *NOT_HEARD, failovers=1, mutes=1),
    "a preparation given up, a doubled message": bound(2, giveups=1, doubles=1),
    "a move, a preparation given up, data": bound(2, data=1, moves=1, giveups=1),
    "another owner, what was to begin given up": bound(2, *COMMITTED, failovers=1, giveups=1),
    "another owner, a doubled message": bound(2, failovers=1, doubles=1),
    "another owner, a lost message": bound(2, failovers=1, drops=1),
    "a late answer, a move": bound(2, *FOUND_LATE, channel=2, failovers=1, mutes=1, moves=1),
    "the same owner again, a doubled answer": bound(
        2, *ALIKE, channel=2, reelections=1, doubles=1, pruning=False
    ),
    "doubled requests, a table that fails": bound(
        2, *DOUBLED_AND_FAILED, channel=3, overtaking=True, failures=1, doubles=2
    ),
    "what hangs, one capture": bound(1, hangs=1),
    "what hangs": bound(2, hangs=1),
    "what hangs, a move": bound(2, moves=1, hangs=1),
    "another owner, what was told to start hangs": bound(
        2, *COMMITTED, "c0 hangs", failovers=1, hangs=1
    ),
    "a table that fails and is forgotten": bound(2, moves=1, failures=1, forgets=1),
    "doubled requests, a table that fails and is forgotten": bound(
        2, *DOUBLED_AND_FAILED, channel=3, overtaking=True, failures=1, doubles=2, forgets=1
    ),
    "doubled requests, another owner": bound(
        *(2, *DOUBLED_AND_DEPOSED),
        channel=3,
        overtaking=True,
        failures=1,
        doubles=2,
        failovers=1,
        pruning=False,
    ),
    "doubled requests, a restart": bound(
        2, *DOUBLED_AND_RESTARTED, channel=3, overtaking=True, restarts=1, doubles=2, pruning=False
    ),
}
"""What `make test` explores."""

DEEPER = {
    "a move, two messages on each way, data": bound(2, channel=2, data=1, moves=1),
    "two moves, a crash, three captures": bound(3, moves=2, crashes=1),
    "another owner that does not wait for all, from the beginning": bound(2, failovers=1, mutes=1),
    "a move, a preparation given up, a doubled message": bound(2, moves=1, giveups=1, doubles=1),
    "what hangs, a lost message": bound(2, hangs=1, drops=1),
    "what hangs, another owner": bound(2, hangs=1, failovers=1),
    "two given up, a doubled message": bound(2, giveups=2, doubles=1),
    "two that hang, a crash": bound(2, hangs=2, crashes=1),
    "what hangs, three captures, a move": bound(3, moves=1, hangs=1),
    "what hangs, two messages on each way": bound(2, channel=2, hangs=1, moves=1),
    "two more owners": bound(2, failovers=2),
    "another owner, two messages on each way": bound(2, channel=2, failovers=1),
    "another owner, a doubled message, a restart": bound(2, failovers=1, doubles=1, restarts=1),
    "another owner, a table that fails and is forgotten": bound(
        2, failovers=1, failures=1, forgets=1
    ),
    "a restart, a table that fails and is forgotten, doubled": bound(
        2, restarts=1, failures=1, forgets=1, doubles=1
    ),
    "another owner, a crash, questions overtake": bound(2, overtaking=True, failovers=1, crashes=1),
    "a move, a table that fails": bound(2, channel=2, moves=1, failures=1),
    "another owner, three captures": bound(3, failovers=1),
    "another owner, a move, a crash": bound(2, failovers=1, moves=1, crashes=1),
    "another owner, a restart": bound(2, failovers=1, restarts=1),
    "another owner, a table that fails": bound(2, failovers=1, failures=1),
    "another owner, a preparation given up": bound(2, failovers=1, giveups=1),
    "a move, a crash, two messages, questions overtake": bound(
        2, channel=2, overtaking=True, moves=1, crashes=1
    ),
    "another owner that does not wait for all, a crash": bound(2, failovers=1, mutes=1, crashes=1),
    "two moves, a table that fails, a crash, three captures": bound(
        3, moves=2, crashes=1, failures=1
    ),
}
"""What `make soak` explores besides."""
