"""Errors as CouchDB reports them: a status, an error and a reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cdcmeta import errors as _errors
from cdcmeta.errors import CDCMetaError, InvalidArgumentError
from snapkv import errors as _store

NO_DATABASE = "Database does not exist."


class HTTPError(CDCMetaError):
    """An answer with an error: its status, CouchDB's name of the error, and a reason."""

    def __init__(
        self, status: int, error: str, reason: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, error, reason)
        self.status, self.error, self.reason = status, error, reason
        self.headers = dict(headers or {})

    def __str__(self) -> str:
        return f"{self.status} {self.error}: {self.reason}"

    @property
    def body(self) -> dict[str, str]:
        """The JSON of the answer."""
        return {"error": self.error, "reason": self.reason}


def bad_request(reason: str) -> HTTPError:
    """Return the answer to an invalid request."""
    return HTTPError(400, "bad_request", reason)


def not_found(reason: str = "missing") -> HTTPError:
    """Return the answer to a request for something that does not exist."""
    return HTTPError(404, "not_found", reason)


def not_implemented(what: str) -> HTTPError:
    """Return the answer to a request for a part of CouchDB that this server lacks."""
    return HTTPError(501, "not_implemented", f"{what} is not part of this server")


def method_not_allowed(allowed: str) -> HTTPError:
    """Return the answer to a wrong method; `allowed` lists the right ones, with commas."""
    reason = f"Only {allowed} allowed"
    return HTTPError(405, "method_not_allowed", reason, {"Allow": allowed})


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise cdcmeta's `InvalidArgumentError` for an option that snapkv rejects in the block."""
    try:
        yield
    except _store.InvalidOptionError as e:
        raise InvalidArgumentError(str(e)) from None


_UNAVAILABLE = 503, "service_unavailable", None
_ANSWERS: tuple[tuple[type[Exception], tuple[int, str, str | None]], ...] = (
    (_errors.DatabaseNotFoundError, (404, "not_found", NO_DATABASE)),
    (
        _errors.DatabaseExistsError,
        (412, "file_exists", "The database could not be created, the file already exists."),
    ),
    (_errors.DatabaseRelocatedError, (403, "forbidden", None)),
    (_errors.DocumentConflictError, (409, "conflict", "Document update conflict.")),
    (_errors.InvalidNameError, (400, "illegal_database_name", None)),
    (_errors.InvalidIdError, (400, "illegal_docid", None)),
    (_errors.InvalidDocumentError, (400, "doc_validation", None)),
    (_errors.InvalidRevisionError, (400, "bad_request", "Invalid rev format")),
    (
        _errors.InvalidSequenceError,
        (400, "bad_request", "Malformed sequence supplied in 'since' parameter."),
    ),
    (_errors.EditUnknownError, _UNAVAILABLE),
    (_errors.EditNotMadeError, _UNAVAILABLE),
    (CDCMetaError, (400, "bad_request", None)),
    (_store.InvalidTimeError, (400, "bad_request", None)),
    (_store.InvalidTupleError, (400, "bad_request", None)),
    (_store.InvalidKeyError, (400, "illegal_docid", None)),
    (_store.CompactedError, (410, "gone", None)),
    (_store.HistoryGapError, (410, "gone", None)),
    (_store.CommitTooLargeError, (413, "too_large", None)),
    (_store.NoSpaceError, (507, "insufficient_storage", None)),
    (_store.ReadOnlyError, (403, "forbidden", None)),
    (_store.SnapKVError, _UNAVAILABLE),  # the rest are failures of the store or the network
)
"""First match wins; without a reason here, it is the error's message."""


def answer_of(error: Exception) -> HTTPError | None:
    """Return the answer to an error, None for an unexpected exception."""
    if isinstance(error, HTTPError):
        return error
    if isinstance(error, _errors.DocumentNotFoundError):
        return not_found(error.reason)
    found = next((answer for kind, answer in _ANSWERS if isinstance(error, kind)), None)
    if found is None:
        return None
    status, word, reason = found
    return HTTPError(status, word, reason or str(error))
