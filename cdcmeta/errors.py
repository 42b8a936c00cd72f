"""Every error of cdcmeta; all derive from `CDCMetaError`.

What the store below raises (`snapkv.CommitUnknownError`, `snapkv.CompactedError`, ...) is passed
on as it is.
"""

from __future__ import annotations

from typing import Any


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
