"""An owner's view of its cluster at one moment, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.states import INTEGER_MAX
from cdcmeta.scheduler.protocol.messages import NO_BARRIER, Barrier

NO_FLOORS: Mapping[str, int] = MappingProxyType({})
WEIGHT_MAX = 1e100
"""The largest weight: sums of such weights are finite, too."""


class Cluster(NamedTuple):
    """What an owner sees of its cluster at one moment.

    >>> from cdcmeta.scheduler import Cluster
    >>> seen = Cluster(0, {"c1": 3, "c2": 7}, {"orders": 1.0}, checkpoint=100, revision=9)
    >>> seen.barrier.everywhere
    0
    """

    now: int
    """Microseconds; always of the same clock, and never less than before."""
    captures: Mapping[str, int]
    """The registered captures and the revisions of their registrations, new after a restart."""
    tables: Mapping[str, float]
    """The tables to replicate and their weights; the mapping is never changed in place."""
    checkpoint: int
    """The stored checkpoint of the changefeed; microseconds."""
    revision: int
    """The store's revision when `captures` was read.

    Not before the election, nor before the changefeed's last restart, and never less than before.
    """
    barrier: Barrier = NO_BARRIER
    """How far tables may be replicated."""
    floors: Mapping[str, int] = NO_FLOORS
    """The start of each table that has a checkpoint of its own, below the stored checkpoint."""

    def check(self, since: int, owner: str, before: Cluster | None) -> None:
        """Raise `InvalidArgumentError` for invalid values, or for values older than `before`.

        `since` is the revision of the election or, if that is later, of the restart.
        O(captures + barrier), and O(tables) if `tables` or `floors` is another object than before.
        """
        least = Cluster(0, {}, {}, 0, since) if before is None else before
        _check_integer("now", self.now, least.now)
        _check_integer("checkpoint", self.checkpoint, 0)
        _check_integer("the cluster's revision", self.revision, least.revision)
        self._check_captures(owner, least.captures)
        _check_barrier(self.barrier)
        if before is None or self.tables is not before.tables:
            self._check_tables()
        if before is None or self.floors is not before.floors:
            for table, floor in self.floors.items():
                check_name("a table", table)
                _check_integer(f"the floor of {table!r}", floor, 0)

    def _check_captures(self, owner: str, before: Mapping[str, int]) -> None:
        if not isinstance(self.captures, Mapping):
            raise InvalidArgumentError(f"captures are names and epochs, not {self.captures!r}")
        for name, epoch in self.captures.items():
            check_name("a capture", name)
            if name == owner:
                raise InvalidArgumentError(f"{name!r} is both the owner's name and a capture's")
            _check_integer(f"the epoch of {name!r}", epoch, before.get(name, 0))
            if epoch > self.revision:
                raise InvalidArgumentError(
                    f"{name!r} registered at revision {epoch}, after the cluster's revision "
                    f"{self.revision}"
                )

    def _check_tables(self) -> None:
        if not isinstance(self.tables, Mapping):
            raise InvalidArgumentError(f"tables are names and weights, not {self.tables!r}")
        for table, weight in self.tables.items():
            check_name("a table", table)
            if not isinstance(weight, int | float) or not 0 <= weight <= WEIGHT_MAX:
                raise InvalidArgumentError(
                    f"the weight of {table!r} is a number from 0 to 1e100, not {weight!r}"
                )


def check_name(of_what: str, name: object) -> None:
    """Raise `InvalidArgumentError` for a name that is not a non-empty UTF-8 text."""
    if type(name) is str and name:
        if name.isascii():
            return
        try:
            name.encode()
        except UnicodeEncodeError:
            pass
        else:
            return
    raise InvalidArgumentError(f"the name of {of_what} is a non-empty text, not {name!r}")


def check_revision(of_what: str, number: object, least: int) -> None:
    """Raise `InvalidArgumentError` for a number that is not a revision."""
    if type(number) is not int or not least <= number <= INTEGER_MAX:
        raise InvalidArgumentError(f"{of_what} is an integer >= {least}, not {number!r}")


def _check_integer(what: str, number: object, least: int) -> None:
    if type(number) is not int or not 0 <= number <= INTEGER_MAX:
        raise InvalidArgumentError(f"{what} is an integer >= 0, not {number!r}")
    if number < least:
        raise InvalidArgumentError(f"{what} is {number}, less than the known {least}")


def _check_barrier(barrier: object) -> None:
    if barrier is NO_BARRIER:
        return
    if not isinstance(barrier, Barrier) or type(barrier.tables) is not tuple:
        raise InvalidArgumentError(f"a barrier is a Barrier, as of barrier_of(), not {barrier!r}")
    _check_integer("a barrier", barrier.everywhere, 0)
    for pair in barrier.tables:
        if type(pair) is not tuple or len(pair) != 2:
            raise InvalidArgumentError(f"a barrier is a table and a time, not {pair!r}")
        check_name("a table", pair[0])
        _check_integer(f"the barrier of {pair[0]!r}", pair[1], 0)
    if len(dict(barrier.tables)) != len(barrier.tables):
        raise InvalidArgumentError("a barrier names a table twice")
