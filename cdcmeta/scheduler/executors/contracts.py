"""The contracts of sources and sinks, and the simplest sink: a Python function.

A source has one feed with the commits of all tables, in the order of their times.

A changefeed has one sink, a function that returns a writer for each assignment of a table. It takes
the table over and writes its commits. Writers of earlier assignments may live on for a moment, in
another process: a sink that can keeps the newest token that it saw, and rejects older ones
(`fenced`).

Tokens and checkpoints mean something only within one changefeed. So such a sink keeps the `Origin`
of each table, too, and compares it first:

    the same changefeed             the later token writes; the sink's checkpoint counts
    an earlier one of the same id   the new one writes, whatever the tokens, from its own start
    a later one of the same id      this one is fenced
    another one                     an error: two changefeeds do not share a table of a sink
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import NO_TOKEN, Token
from snapkv import Changes, SnapshotKV, Watch

K = TypeVar("K", str, bytes)
WHOLE = "*"
"""The name of a table that is the whole store: tables have names."""
Part: TypeAlias = Changes[str] | Exception
"""What a table gets of a commit; an error ends the table."""


class TableFeed(Protocol):
    """The commits of all tables after a time, then new ones; read by one thread at a time."""

    @property
    def timestamp(self) -> int:
        """Return the time up to which all commits were returned."""

    def next(self, timeout: float) -> Mapping[str, Part] | None:
        """Return each table's part of the next commit; None after `timeout` seconds without one.

        A table without changes in the commit has no part. Raises `CompactedError` if commits are
        gone, `StoreClosedError` after `close`.
        """

    def close(self) -> None:
        """End the feed; any thread may call it."""


class WatchFeed(Generic[K]):
    """A watch of a store, split among tables by a function."""

    def __init__(self, watch: Watch[K], split: Callable[[Changes[K]], Mapping[str, Part]]) -> None:
        self._watch: Watch[K] = watch
        self._split: Callable[[Changes[K]], Mapping[str, Part]] = split

    @property
    def timestamp(self) -> int:
        """Return the time up to which all commits were returned."""
        return self._watch.timestamp

    def next(self, timeout: float) -> Mapping[str, Part] | None:
        """Return each table's part of the next commit; None if none comes in time."""
        changes = self._watch.next(timeout)
        return None if changes is None else self._split(changes)

    def close(self) -> None:
        """End the watch."""
        self._watch.close()


class TableSource:
    """Where the tables of a changefeed are read, in a store. Safe for threads."""

    restarts = False
    """Whether a table can continue with `state` after commits were compacted that it has not."""
    has_removals = False
    """Whether a state since a time has what was removed since; otherwise each state is whole."""

    _store: SnapshotKV

    def feed(self, since: int | None) -> TableFeed:
        """Return the commits after a timestamp (None: after now). Raises as `TableFeed.next`."""
        raise NotImplementedError

    def state(
        self, table: str, since: int, at: int, kept: Iterable[str] = ()
    ) -> Iterator[Changes[str]]:
        """Yield a table as of a timestamp, in parts.

        A source that `has_removals` leaves out what has not changed since `since`. In a whole state
        of any other, keys of the sink (`kept`, in order) that it lacks are removals; without one,
        the feed has all rows. Raises `CompactedError` if that moment is gone.
        """
        return iter(())

    def now(self) -> int:
        """Return the timestamp at or before which nothing changes any more. One round trip."""
        return self._store.resolved()


NAME_IN_URL = "*"
"""The placeholder in a sink's URL of the name of a database."""


class Origin(NamedTuple):
    """Which changefeed writes: ids may be used again, and clusters may use the same ids."""

    place: str
    """The beginning of the shared store's id, the cluster and the changefeed: `6f.../default/copy`.

    A shared store that was made anew has another id.
    """
    created: int
    """The revision that created the changefeed: a later one of the same place has a larger one."""


class SinkRecord(NamedTuple):
    """What a sink keeps of a table."""

    token: Token
    checkpoint: int
    origin: Origin | None = None
    """None in what was written without one."""

    @classmethod
    def read(cls, token: Iterable[Any], checkpoint: Any, origin: Any) -> SinkRecord:
        """Return what the fields of a sink's record have; `origin` is () in one without.

        Raises `ValueError`, `TypeError`.
        """
        owner, number = token
        whose = None
        if origin != ():
            place, created = origin
            whose = Origin(str(place), int(created))
        return cls(Token(int(owner), int(number)), int(checkpoint), whose)


class Claim(NamedTuple):
    """The claim to a table of one assignment, of one changefeed: what a writer writes under."""

    table: str
    token: Token
    origin: Origin | None

    def counting(self, kept: SinkRecord) -> SinkRecord:
        """Return what counts of what a sink keeps: nothing that an earlier changefeed wrote.

        Raises `SinkError` if this assignment may not write.
        """
        theirs, origin = kept.origin, self.origin
        if origin is not None and theirs is not None and origin != theirs:
            if origin.place != theirs.place:
                raise foreign(self.table, theirs, origin)
            if origin.created > theirs.created:
                return NOTHING
            raise SinkError(
                f"{self.table!r} belongs to a changefeed of the same id that was created later, at "
                f"revision {theirs.created} instead of {origin.created}",
                "fenced",
            )
        if kept.token > self.token:
            raise fenced(self.table, kept.token)
        return kept


NOTHING = SinkRecord(NO_TOKEN, 0)
"""What a sink without a record of a table keeps."""


class TableWriter:
    """Writes one table under one assignment; called by one thread at a time."""

    def begin(self, start: int) -> int:
        """Take the table over; return the timestamp up to which the sink has it.

        Everything up to `start` is in the sink. A sink that keeps the checkpoint with the data
        returns its own if that is later, so that nothing is written twice. Raises
        `SinkError` with the reason `fenced` if a later assignment has begun, `failed` if the table
        of this sink belongs to another changefeed.
        """
        raise NotImplementedError

    def replace(self) -> Iterator[str]:
        """Begin a state of the whole table; return the keys that it may have to remove.

        These are the keys that captures have written, in order. The parts of the state follow, and
        have a removal for each such key that the state lacks. A sink that cannot be read returns
        no keys, and notes that a state begins; so does one of databases, whose states have their
        removed documents. An interrupted sink begins again with this call.
        """
        return iter(())

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Write commits in order, completely, before it returns; then the sink is at `checkpoint`.

        With the checkpoint 0 it is a part of the state that the table begins with, and more
        follows. A call that raised is repeated with the same commits, or with these and more.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Free what it holds; nothing is written after that."""


TableSink: TypeAlias = Callable[[str, Token], TableWriter]
"""Returns a writer of a table for one assignment; nothing is written or opened yet."""


def foreign(table: str, kept: Origin, origin: Origin) -> SinkError:
    """Return the error of a writer whose table in this sink belongs to another changefeed."""
    cluster, _, id = kept.place.rpartition("/")
    whose = f"changefeed {id} of another cluster or store ({kept.place})"
    if cluster == origin.place.rpartition("/")[0]:
        whose = f"another changefeed, {id}"
    return SinkError(
        f"{table!r} in this sink belongs to {whose}: choose another sink, or empty this one"
    )


def fenced(table: str, token: Token) -> SinkError:
    """Return the error of a writer whose table has a later assignment, with this token."""
    return SinkError(
        f"{table!r} belongs to a later assignment, {token.owner}.{token.number}", "fenced"
    )


Function = Callable[[str, Token, Sequence[Changes[str]], int], object]
"""Gets the table, the token, the commits and the checkpoint after them."""


class CalledWriter(TableWriter):
    """Passes commits to a function, at least once: after a failure or a move they are repeated.

    The function gets the token, so that what it writes to can reject an earlier assignment. A call
    without commits and with the checkpoint 0 begins a state: what it lacks was removed.

    >>> from cdcmeta.scheduler import Token
    >>> from cdcmeta.scheduler.executors.contracts import CalledWriter
    >>> seen = []
    >>> writer = CalledWriter(lambda *call: seen.append(call), "t", Token(9, 1))
    >>> writer.begin(5)
    5
    >>> writer.write([], 7)
    >>> seen
    [('t', Token(owner=9, number=1), [], 7)]
    """

    def __init__(self, function: Function, table: str, token: Token) -> None:
        self._function, self._table, self._token = function, table, token

    def begin(self, start: int) -> int:
        """Return the start: a function keeps no checkpoint here."""
        return start

    def replace(self) -> Iterator[str]:
        """Call the function without commits, with the checkpoint 0: a state begins."""
        self._function(self._table, self._token, [], 0)
        return iter(())

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Call the function."""
        self._function(self._table, self._token, commits, checkpoint)
