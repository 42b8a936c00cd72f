"""What a commit on one store needs to know of the other stores of its process.

A commit that depends on what was read from another store must have a larger timestamp. Almost every
read brings the timestamp along. A point read of the newest value does not: it may show a commit
whose timestamp this process has not seen. Then the other store's newest timestamp is read before
the commit is sent. For example, with stores a and b, and another process whose clock is faster:

    another process    a.save("k")         timestamp 30
    this process       a.load("k")         shows a revision above the newest mark known: unmarked
                       b.save("x")         reads the newest timestamp of a: 30; commits at 31
                       b.save("y")         commits at 32, as always without reading
"""

from __future__ import annotations

from contextlib import suppress
from weakref import ref

from snapkv.base.concurrency import here
from snapkv.base.waiting import monotonic, no_later_than
from snapkv.clock import Unmarked
from snapkv.errors import SnapKVError

CATCH_UP_S = 1.0
"""The most time that a commit spends on this, for all stores together."""


def catch_up(unmarked: set[ref[Unmarked]], own: object, deadline: float) -> None:
    """Read the newest timestamps of the stores that have shown more than is known of them.

    Not that of `own`: the engine itself orders the commits of one store. Not those of stores whose
    calls run in another place, because a loop cannot wait for them. If a store does not answer,
    nothing is learned from it. Never raises for that: the commit is of another store.
    """
    until, place = min(deadline, monotonic() + CATCH_UP_S), here().place
    for each in unmarked.copy():
        store = each()
        if store is None:
            unmarked.discard(each)  # it was left open
            continue
        if store.tracker is own or store.place is not place:
            continue
        if monotonic() >= until:
            break
        with suppress(SnapKVError), no_later_than(until):
            store.catch_up()
