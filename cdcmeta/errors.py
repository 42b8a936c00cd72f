"""Every error of cdcmeta; all derive from `CDCMetaError`.

Errors of the store below (`snapkv.CommitUnknownError`, `snapkv.CompactedError`, ...) pass through
unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from snapkv.times import dated

NAMED_MAX = 10
"""The most items that a message names; it counts the rest."""


class CDCMetaError(Exception):
    """Base of all errors of this package; they can be copied and pickled with their attributes."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[CDCMetaError], args: tuple[object, ...], attributes: dict[str, object]
) -> CDCMetaError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


# --- the caller's argument is not usable; nothing was written --------------------------


class InvalidArgumentError(CDCMetaError, ValueError):
    """An argument is out of range, has the wrong type, or contradicts another or the stored state.

    That includes selectors, stream ids, rings with too many ranges or streams, and a consumer or a
    table that is registered with other workers or another log of generations.
    """


class InvalidNameError(CDCMetaError, ValueError):
    """The name of a database is empty, too long, or has characters that are not allowed."""


class InvalidDocumentError(CDCMetaError, ValueError):
    """The document cannot be stored: not a JSON object, a bad id, an unknown special member, ..."""


class InvalidIdError(InvalidDocumentError):
    """The value is not a valid document id: not a text, empty, too long, or reserved."""


class InvalidRevisionError(CDCMetaError, ValueError):
    """The text is not a valid revision: a positive number, a dash, 32 hexadecimal digits."""


class InvalidSequenceError(CDCMetaError, ValueError):
    """The argument is not a valid place in the feed: a past sequence, `"now"`, or a time."""


class InvalidMessageError(CDCMetaError, ValueError):
    """The bytes are not a message between an owner and a capture, or a value cannot be encoded.

    `reason` is `unsupported` for a message of an unknown version or kind, whose sender is newer;
    otherwise it is `malformed`.
    """

    def __init__(self, message: str, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


class CorruptTopologyError(CDCMetaError, ValueError):
    """Stored ranges and streams do not form a valid topology."""


# --- what the caller asks for does not exist, or exists already ------------------------


class DatabaseNotFoundError(CDCMetaError, LookupError):
    """No database has this name (at that time), or it was deleted while a feed followed it."""


class DatabaseExistsError(CDCMetaError, FileExistsError):
    """A database with this name exists already."""


class DatabaseRelocatedError(CDCMetaError, PermissionError):
    """The database was moved to another store and takes no more writes here."""


class DocumentNotFoundError(CDCMetaError, KeyError):
    """The document or revision does not exist; `reason` is `missing` or `deleted`."""

    def __init__(self, id: str, reason: str = "missing") -> None:
        super().__init__(id, reason)
        self.id, self.reason = id, reason

    def __str__(self) -> str:
        return f"document {self.id!r} is {self.reason}"


# --- the edit failed, or may have failed -----------------------------------------------


class DocumentConflictError(CDCMetaError, RuntimeError):
    """The document is not at the revision that the edit names; nothing was written."""

    def __init__(self, id: str, reason: str = "document update conflict") -> None:
        super().__init__(id, reason)
        self.id, self.reason = id, reason

    def __str__(self) -> str:
        return f"{self.reason}: {self.id!r}"


class EditUnknownError(CDCMetaError, TimeoutError):
    """The outcome of the edits is unknown; `ChangesDB.resolve(error)` finds it out.

    `commit` is the `snapkv.CommitUnknownError`, which any process can resolve. `before` holds the
    results of edits that were committed earlier, `after` the edits that were not tried.
    """

    def __init__(self, commit: Any, plan: Any, before: Any = (), after: Any = ()) -> None:
        super().__init__(commit, plan, before, after)
        self.commit, self.plan, self.before, self.after = commit, plan, before, after

    def __str__(self) -> str:
        return str(self.commit)


class EditNotMadeError(CDCMetaError, TimeoutError):
    """The edit was not made: the timeout passed, or another commit of its bulk failed."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id

    def __str__(self) -> str:
        return f"the edit of {self.id!r} was not made"


# --- the stream of a write cannot be determined ----------------------------------------


class InvalidWriteTimeError(CDCMetaError, ValueError):
    """A write has a timestamp that is not accepted now; the client must choose another.

    `reason` is `future` when `ts` is later than `limit`, the clock plus the leeway. It is `past`
    when the generation of `ts` was superseded and `ts` is not later than `limit`.
    """

    def __init__(self, reason: str, ts: int, limit: int) -> None:
        if reason == "future":
            why = f"is too far in the future: the latest accepted time is now {dated(limit)}"
        else:
            why = f"comes too late: its generation was superseded, and {dated(limit)} has passed"
        super().__init__(f"the write at {dated(ts)} {why}")
        self.reason, self.ts, self.limit = reason, ts, limit


class GenerationUnavailableError(CDCMetaError, RuntimeError):
    """The generation of a write is not known here now; a retry may succeed.

    `reason` says why. `none`: no known generation operates at that time. `not retrieved`: it is
    known, but its streams have not been read yet. `undecided`: a switch is prepared, and its
    generation may operate by then. `ts` is the write's timestamp; `since` is the time from which
    that generation operates. Either is None where it is unknown.
    """

    def __init__(
        self, reason: str, message: str, *, ts: int | None = None, since: int | None = None
    ) -> None:
        super().__init__(message)
        self.reason, self.ts, self.since = reason, ts, since


class MemberLostError(GenerationUnavailableError):
    """The member's session ended, so generations switch without it: make a new member.

    A retry with this member never succeeds. `reason` is `lost`.
    """

    def __init__(self, session: int) -> None:
        super().__init__("lost", f"the session {session:x} of this member ended: make a new member")
        self.session = session


# --- switches of generations, and their consumers --------------------------------------


class GenerationNotFoundError(CDCMetaError, LookupError):
    """The generation never existed, or was removed after it expired."""


class SwitchAbortedError(CDCMetaError):
    """A switch of generations was aborted: the generations stay as they were."""

    def __init__(self, id: bytes, why: str) -> None:
        super().__init__(f"the switch was aborted: {why}")
        self.id, self.why = id, why


class SwitchPendingError(CDCMetaError, TimeoutError):
    """A switch of generations is still under way, and may still be committed.

    `waiting` names the members that have not answered, if the switch waits for any.
    """

    def __init__(self, id: bytes, waiting: tuple[str, ...] = ()) -> None:
        named = ", ".join(waiting[:NAMED_MAX])
        more = f" and {len(waiting) - NAMED_MAX} more" if len(waiting) > NAMED_MAX else ""
        message = "a switch is still under way"
        super().__init__(f"{message}; it waits for {named}{more}" if waiting else message)
        self.id, self.waiting = id, waiting


class ConsumerTakenError(CDCMetaError):
    """Another consumer of this name saved its progress since, or the name was forgotten."""

    def __init__(self, name: str) -> None:
        super().__init__(f"consumer {name!r} was continued by another process, or was forgotten")
        self.name = name


class LogTrimmedError(CDCMetaError, LookupError):
    """Log rows were trimmed before the consumer read them.

    The consumer has read up to `position`; rows up to `until` were trimmed.
    """

    def __init__(
        self, consumer: str, table: str, position: int, until: int, mend: str | None = None
    ) -> None:
        mend = mend or f"forget the consumer and register it with since={until}"
        super().__init__(
            f"consumer {consumer!r} of table {table!r} has read up to {dated(position)}, but rows "
            f"up to {dated(until)} were trimmed: to go on without them, {mend}"
        )
        self.consumer, self.table, self.position, self.until = consumer, table, position, until


class ExpiryIncompleteError(CDCMetaError):
    """Log rows of some tables could not be removed; the rest of the work is done.

    `failed` has the error of each such table, `done` is the `Expired` that `GenerationLog.expire`
    would have returned. The next call removes what is left.
    """

    def __init__(self, failed: Mapping[str, Exception], done: Any) -> None:
        named = [f"{table!r} ({why})" for table, why in list(failed.items())[:NAMED_MAX]]
        more = f" and of {len(failed) - NAMED_MAX} more" if len(failed) > NAMED_MAX else ""
        super().__init__(
            f"could not remove log rows of {', '.join(named)}{more}; the rest is done: expire again"
        )
        self.failed, self.done = dict(failed), done


class ChangefeedNotFoundError(CDCMetaError, LookupError):
    """The store has no changefeed with this id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"changefeed {id!r} does not exist: list them, or create it")
        self.id = id


class SinkError(CDCMetaError):
    """A sink did not take what was written to it; the same is written again later.

    `reason` is `fenced` if a later assignment of the table has begun, which ends this one;
    otherwise it is `failed`.
    """

    def __init__(self, message: str, reason: str = "failed") -> None:
        super().__init__(message)
        self.reason = reason


class LateGenerationWarning(UserWarning):
    """A generation became known after writes of its time went to the one before it."""
