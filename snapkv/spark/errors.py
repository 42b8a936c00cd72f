"""Errors as Spark's users see them: Spark drops their classes, so messages begin with a code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from snapkv import errors as causes
from snapkv.errors import SnapKVError


class SourceError(SnapKVError, ValueError):
    """Reading or writing through Spark failed; `code` says why, and its message begins with it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"[{code}] {message}")
        self.code, self._message = code, message

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str]]:
        return SourceError, (self.code, self._message)

    def of(self, member: str) -> SourceError:
        """Return the same error with the name of a fleet's member in its message."""
        found = SourceError(self.code, f"member {member}: {self._message}")
        found.member = member
        return found


class ErrorCode(str):
    """A code of errors: called with a message, it makes the error."""

    def __call__(self, message: str) -> SourceError:
        """Return the error with a message."""
        return SourceError(str(self), message)


TIMESTAMP_EARLIER_THAN_RETENTION = ErrorCode("SNAPKV_TIMESTAMP_EARLIER_THAN_RETENTION")
TIMESTAMP_INVALID = ErrorCode("SNAPKV_TIMESTAMP_INVALID")
VERSION_NOT_FOUND = ErrorCode("SNAPKV_VERSION_NOT_FOUND")
VERSION_COMPACTED = ErrorCode("SNAPKV_VERSION_COMPACTED")
MULTIPLE_BOUNDARY = ErrorCode("SNAPKV_MULTIPLE_BOUNDARY")
INVALID_RANGE = ErrorCode("SNAPKV_INVALID_RANGE")
NO_START = ErrorCode("SNAPKV_NO_START")
NOT_PINNED = ErrorCode("SNAPKV_NOT_PINNED")
STORE_MISMATCH = ErrorCode("SNAPKV_STORE_MISMATCH")
CHECKPOINT_INVALID = ErrorCode("SNAPKV_CHECKPOINT_INVALID")
STORE_NOT_FOUND = ErrorCode("SNAPKV_STORE_NOT_FOUND")
UNKNOWN_OPTION = ErrorCode("SNAPKV_UNKNOWN_OPTION")
MISSING_OPTION = ErrorCode("SNAPKV_MISSING_OPTION")
INVALID_OPTION = ErrorCode("SNAPKV_INVALID_OPTION")
INVALID_SCHEMA = ErrorCode("SNAPKV_INVALID_SCHEMA")
KEY_NOT_TEXT = ErrorCode("SNAPKV_KEY_NOT_TEXT")
VALUE_MALFORMED = ErrorCode("SNAPKV_VALUE_MALFORMED")
NOT_OBSERVED = ErrorCode("SNAPKV_NOT_OBSERVED")
MEMBERS_BEHIND = ErrorCode("SNAPKV_MEMBERS_BEHIND")
HISTORY_GAP = ErrorCode("SNAPKV_HISTORY_GAP")
ARCHIVE_UNREADABLE = ErrorCode("SNAPKV_ARCHIVE_UNREADABLE")
UNAVAILABLE = ErrorCode("SNAPKV_UNAVAILABLE")
ACCESS_DENIED = ErrorCode("SNAPKV_ACCESS_DENIED")
DUPLICATE_KEY = ErrorCode("SNAPKV_DUPLICATE_KEY")
CONFLICT = ErrorCode("SNAPKV_CONFLICT")
FAILED = ErrorCode("SNAPKV_FAILED")

_CODES: dict[ErrorCode, tuple[type[SnapKVError], ...]] = {
    VERSION_NOT_FOUND: (causes.FutureRevisionError,),
    HISTORY_GAP: (causes.HistoryGapError,),
    TIMESTAMP_INVALID: (causes.InvalidTimeError,),
    NOT_OBSERVED: (causes.NotObservedError,),
    MEMBERS_BEHIND: (causes.MembersBehindError,),
    STORE_NOT_FOUND: (causes.StoreNotFoundError, causes.NotAStoreError),
    STORE_MISMATCH: (causes.StoreRecreatedError, causes.StoreRestoredError),
    ACCESS_DENIED: (causes.AccessDeniedError, causes.ReadOnlyError),
    ARCHIVE_UNREADABLE: (causes.ArchiveError, causes.InvalidFileError),
    UNAVAILABLE: (causes.EngineUnavailableError, causes.EngineBusyError),
    KEY_NOT_TEXT: (causes.InvalidKeyError,),
    INVALID_OPTION: (causes.InvalidTypeError, causes.InvalidOptionError),
}
COMPACTED_ADVICE = (
    "history before that is gone: read a later moment, or keep more history (compact later)"
)
ANEW = "load the DataFrame anew, start a stream with a new checkpoint"
_ADVICE = {
    ARCHIVE_UNREADABLE: "; check the URL of the archive, and that workers can read its files",
    KEY_NOT_TEXT: "; keyFormat=binary reads such keys",
    MEMBERS_BEHIND: "; read an earlier time, or say with the option behind what to do about them",
    NOT_OBSERVED: "; keep `snapkv tick --every 1s` running there, and read moments after its first",
    STORE_MISMATCH: f"; {ANEW}",
    STORE_NOT_FOUND: "; check the URL and the option name",
    UNAVAILABLE: "; check that the server is up and that workers can reach it",
}


@contextmanager
def as_source_errors(
    *,
    compacted: ErrorCode = VERSION_COMPACTED,
    advice: str = COMPACTED_ADVICE,
    member: str | None = None,
) -> Iterator[None]:
    """Turn every `SnapKVError` into a `SourceError`, which names the `member` of a fleet.

    For compacted history, `compacted` is the code and `advice` says what to do.
    """
    try:
        yield
    except SourceError as e:
        if member is None or e.member is not None:
            raise
        raise e.of(member) from e.__cause__
    except SnapKVError as e:
        code = next((code for code, kinds in _CODES.items() if isinstance(e, kinds)), FAILED)
        found = code(f"{e}{_ADVICE.get(code, '')}")
        if isinstance(e, causes.CompactedError):
            found = compacted(f"{e}; {advice}")
        name = e.member or member
        raise (found if name is None else found.of(name)) from e
