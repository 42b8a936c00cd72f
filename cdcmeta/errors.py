"""Every error of cdcmeta; all derive from `CDCMetaError`.

What the store below raises (`snapkv.CommitUnknownError`, `snapkv.CompactedError`, ...) is passed
on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snapkv.times import dated

NAMED_MAX = 10
"""So many names are in a message; the rest are counted."""


class CDCMetaError(Exception):
    """Base of all errors of this package."""


# --- what the caller handed over is not usable; nothing was written --------------------


class InvalidNameError(CDCMetaError, ValueError):
    """The name of a database is empty, too long, or has other characters than it may."""


class InvalidDocumentError(CDCMetaError, ValueError):
    """The document cannot be stored: no JSON object, a bad id, an unknown special member, ..."""


class InvalidIdError(InvalidDocumentError):
    """The text is no id of a document: empty, too long, reserved, or no text at all."""


class InvalidRevisionError(CDCMetaError, ValueError):
    """The text is no revision: a positive number, a dash, 32 hexadecimal digits."""


class InvalidSequenceError(CDCMetaError, ValueError):
    """The argument is no place in the feed: no sequence, no `"now"`, no time, or of the future."""


class InvalidSelectorError(CDCMetaError, ValueError):
    """The selector is no condition: an unknown operator, or an argument of the wrong type."""


class InvalidArgumentError(CDCMetaError, ValueError):
    """An argument is out of range, or does not go with another."""


class InvalidMessageError(CDCMetaError, ValueError):
    """The bytes are no message between an owner and a capture, or a value cannot be one."""


class UnsupportedMessageError(InvalidMessageError):
    """A message is of a version or a kind that this one does not know: the sender is newer."""


class InvalidStreamIdError(CDCMetaError, ValueError):
    """The bytes are no stream id: not 16, or of another version."""


class TopologyTooLargeError(CDCMetaError, ValueError):
    """A topology has more ranges or streams than it may."""

    def __init__(self, what: str, found: int, limit: int) -> None:
        super().__init__(f"{found:,} {what}, more than {limit:,}")
        self.what, self.found, self.limit = what, found, limit

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.found, self.limit)


class CorruptTopologyError(CDCMetaError, ValueError):
    """Stored ranges and streams do not make a topology."""


# --- what is asked for is not there ----------------------------------------------------


class DatabaseNotFoundError(CDCMetaError, LookupError):
    """There is no database of this name (at that time)."""


class DatabaseExistsError(CDCMetaError, FileExistsError):
    """There is a database of this name already."""


class DatabaseDeletedError(CDCMetaError, LookupError):
    """The database was deleted while it was followed."""


class DatabaseRelocatedError(CDCMetaError, PermissionError):
    """The database was moved to another store and takes no more writes here."""


class DocumentNotFoundError(CDCMetaError, KeyError):
    """There is no such document or revision; `reason` is `missing` or `deleted`."""

    def __init__(self, id: str, reason: str = "missing") -> None:
        super().__init__(id, reason)
        self.id, self.reason = id, reason

    def __str__(self) -> str:
        return f"document {self.id!r} is {self.reason}"


# --- what happened meanwhile -----------------------------------------------------------


class DocumentConflictError(CDCMetaError, RuntimeError):
    """The document is not at the revision that the edit names; nothing was written."""

    def __init__(self, id: str, reason: str = "document update conflict") -> None:
        super().__init__(id, reason)
        self.id, self.reason = id, reason

    def __str__(self) -> str:
        return f"{self.reason}: {self.id!r}"


class EditUnknownError(CDCMetaError, TimeoutError):
    """Nobody knows yet whether the edits happened; settle it with `ChangesDB.resolve(error)`.

    `commit` is `snapkv.CommitUnknownError`, which can be settled from any process, too. `before`
    holds what became of those that were committed before it, `after` those that were not tried.
    """

    def __init__(self, commit: Any, plan: Any, before: Any = (), after: Any = ()) -> None:
        super().__init__(commit, plan, before, after)
        self.commit, self.plan, self.before, self.after = commit, plan, before, after

    def __str__(self) -> str:
        return str(self.commit)


class EditNotMadeError(CDCMetaError, TimeoutError):
    """The edit was not made: time was over, or others of its bulk were settled as never made."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id

    def __str__(self) -> str:
        return f"the edit of {self.id!r} was not made"


# --- writes whose stream cannot be told -------------------------------------------------


class InvalidWriteTimeError(CDCMetaError, ValueError):
    """A write has a timestamp that it may not have (now): the client's doing."""


class WriteFromFutureError(InvalidWriteTimeError):
    """A write is further ahead of the clock than clocks may be apart."""

    def __init__(self, ts: int, latest: int) -> None:
        super().__init__(
            f"the write at {dated(ts)} is from the future: {dated(latest)} is the latest now"
        )
        self.ts, self.latest = ts, latest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ts, self.latest)


class WriteFromPastError(InvalidWriteTimeError):
    """A write belongs to a generation that was superseded, and comes too late for it."""

    def __init__(self, ts: int, earliest: int) -> None:
        super().__init__(
            f"the write at {dated(ts)} is from the past: of a generation before {dated(earliest)}"
        )
        self.ts, self.earliest = ts, earliest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ts, self.earliest)


class GenerationUnavailableError(CDCMetaError, RuntimeError):
    """The generation of a write cannot be told here, now: trying again may help."""


class NoGenerationError(GenerationUnavailableError):
    """No known generation operates at the write's timestamp."""

    def __init__(self, ts: int) -> None:
        super().__init__(f"no generation operates at {dated(ts)}")
        self.ts = ts

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ts,)


class GenerationNotRetrievedError(GenerationUnavailableError):
    """The generation of a write is known, but not its streams: they could not be read yet."""

    def __init__(self, time: int) -> None:
        super().__init__(f"the generation from {dated(time)} on is known, but not yet retrieved")
        self.time = time

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.time,)


class GenerationUndecidedError(GenerationUnavailableError):
    """A switch of generations is prepared, and may come before the write's timestamp."""

    def __init__(self, ts: int, since: int) -> None:
        super().__init__(
            f"a generation may operate from {dated(since)} on, before the write at {dated(ts)}"
        )
        self.ts, self.since = ts, since

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ts, self.since)


class MemberLostError(GenerationUnavailableError):
    """The member's session ended: others switch generations without it. Make a new one."""

    def __init__(self, session: int) -> None:
        super().__init__(f"the session {session:x} of this member ended")
        self.session = session

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.session,)


# --- switches of generations ------------------------------------------------------------


class GenerationNotFoundError(CDCMetaError, LookupError):
    """There is no such generation, or it was removed after it expired."""


class SwitchAbortedError(CDCMetaError):
    """A switch of generations came to nothing: everything stays as it was."""

    def __init__(self, id: bytes, why: str) -> None:
        super().__init__(f"the switch was given up: {why}")
        self.id, self.why = id, why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.why)


class SwitchPendingError(CDCMetaError, TimeoutError):
    """A switch of generations is still under way, and may still come.

    `waiting` names the members that have not answered, where that is what it waits for.
    """

    def __init__(self, id: bytes, waiting: tuple[str, ...] = ()) -> None:
        named = ", ".join(waiting[:NAMED_MAX])
        more = f" and {len(waiting) - NAMED_MAX} more" if len(waiting) > NAMED_MAX else ""
        message = "a switch is still under way"
        super().__init__(f"{message}, it waits for {named}{more}" if waiting else message)
        self.id, self.waiting = id, waiting

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.waiting)


class ConsumerTakenError(CDCMetaError):
    """Somebody else consumes under this name, or it was forgotten."""

    def __init__(self, name: str) -> None:
        super().__init__(f"consumer {name!r} goes on elsewhere, or was forgotten")
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name,)


class ConsumerMismatchError(CDCMetaError, ValueError):
    """The progress stored under this name is not this consumer's.

    The name has another number of workers, or an older version registered it, which did not record
    the table that it reads.
    """


class LogTrimmedError(CDCMetaError, LookupError):
    """Log rows were trimmed that a consumer has not read.

    It came to `position`, and rows up to `until` are gone.
    """

    def __init__(self, consumer: str, table: str, position: int, until: int) -> None:
        super().__init__(
            f"consumer {consumer!r} of table {table!r} came to {position}, and rows up to {until} "
            f"were trimmed: to go on without them forget it and register it with since={until}"
        )
        self.consumer, self.table, self.position, self.until = consumer, table, position, until

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.consumer, self.table, self.position, self.until)


class ExpiryIncompleteError(CDCMetaError):
    """Log rows of some tables could not be removed; all else that was to be done is done.

    `failed` has the error of each such table, `done` is the `Expired` that `GenerationLog.expire`
    would have returned. The next call goes on with what is left.
    """

    def __init__(self, failed: Mapping[str, Exception], done: Any) -> None:
        named = [f"{table!r} ({why})" for table, why in list(failed.items())[:NAMED_MAX]]
        more = f" and of {len(failed) - NAMED_MAX} more" if len(failed) > NAMED_MAX else ""
        super().__init__(
            f"could not remove log rows of {', '.join(named)}{more}; all else is done: expire again"
        )
        self.failed, self.done = dict(failed), done

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failed, self.done)


class WrongGenerationLogError(CDCMetaError, ValueError):
    """The streams of a table are not of this log of generations: its rows are in others.

    `found` is the space of the log that the table belongs to, `given` that of the one in use.
    """

    def __init__(self, table: str, found: str, given: str) -> None:
        super().__init__(
            f"the streams of table {table!r} are of {found!r}, not of {given!r}: "
            "open it with that log of generations"
        )
        self.table, self.found, self.given = table, found, given

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, self.found, self.given)


class LateGenerationWarning(UserWarning):
    """A generation was learnt of after writes of its time went to the one before it."""
