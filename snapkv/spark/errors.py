"""Errors as Spark's users see them: Spark drops their classes, so messages begin with a code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from snapkv.errors import (
    AccessDeniedError,
    ArchiveError,
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    FutureRevisionError,
    HistoryGapError,
    InvalidFileError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    MembersBehindError,
    NotAStoreError,
    NotObservedError,
    ReadOnlyError,
    SnapKVError,
    StoreNotFoundError,
    StoreRecreatedError,
    StoreRestoredError,
)


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


TIMESTAMP_EARLIER_THAN_RETENTION = "SNAPKV_TIMESTAMP_EARLIER_THAN_RETENTION"
TIMESTAMP_INVALID = "SNAPKV_TIMESTAMP_INVALID"
VERSION_NOT_FOUND = "SNAPKV_VERSION_NOT_FOUND"
VERSION_COMPACTED = "SNAPKV_VERSION_COMPACTED"
MULTIPLE_BOUNDARY = "SNAPKV_MULTIPLE_BOUNDARY"
INVALID_RANGE = "SNAPKV_INVALID_RANGE"
NO_START = "SNAPKV_NO_START"
NOT_PINNED = "SNAPKV_NOT_PINNED"
STORE_MISMATCH = "SNAPKV_STORE_MISMATCH"
CHECKPOINT_INVALID = "SNAPKV_CHECKPOINT_INVALID"
STORE_NOT_FOUND = "SNAPKV_STORE_NOT_FOUND"
UNKNOWN_OPTION = "SNAPKV_UNKNOWN_OPTION"
MISSING_OPTION = "SNAPKV_MISSING_OPTION"
INVALID_OPTION = "SNAPKV_INVALID_OPTION"
INVALID_SCHEMA = "SNAPKV_INVALID_SCHEMA"
KEY_NOT_TEXT = "SNAPKV_KEY_NOT_TEXT"
VALUE_MALFORMED = "SNAPKV_VALUE_MALFORMED"
NOT_OBSERVED = "SNAPKV_NOT_OBSERVED"
MEMBERS_BEHIND = "SNAPKV_MEMBERS_BEHIND"
HISTORY_GAP = "SNAPKV_HISTORY_GAP"
ARCHIVE_UNREADABLE = "SNAPKV_ARCHIVE_UNREADABLE"
UNAVAILABLE = "SNAPKV_UNAVAILABLE"
ACCESS_DENIED = "SNAPKV_ACCESS_DENIED"
DUPLICATE_KEY = "SNAPKV_DUPLICATE_KEY"
CONFLICT = "SNAPKV_CONFLICT"
FAILED = "SNAPKV_FAILED"

_CODES: tuple[tuple[type[SnapKVError], str], ...] = (
    (FutureRevisionError, VERSION_NOT_FOUND),
    (HistoryGapError, HISTORY_GAP),
    (InvalidTimeError, TIMESTAMP_INVALID),
    (NotObservedError, NOT_OBSERVED),
    (MembersBehindError, MEMBERS_BEHIND),
    (StoreNotFoundError, STORE_NOT_FOUND),
    (NotAStoreError, STORE_NOT_FOUND),
    (StoreRecreatedError, STORE_MISMATCH),
    (StoreRestoredError, STORE_MISMATCH),
    (AccessDeniedError, ACCESS_DENIED),
    (ArchiveError, ARCHIVE_UNREADABLE),
    (InvalidFileError, ARCHIVE_UNREADABLE),
    (ReadOnlyError, ACCESS_DENIED),
    (EngineUnavailableError, UNAVAILABLE),
    (EngineBusyError, UNAVAILABLE),
    (InvalidKeyError, KEY_NOT_TEXT),
    (InvalidTypeError, INVALID_OPTION),
    (InvalidOptionError, INVALID_OPTION),
)
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
def coded(*, compacted: str = VERSION_COMPACTED, advice: str = COMPACTED_ADVICE) -> Iterator[None]:
    """Turn every `SnapKVError` into a `SourceError`.

    For compacted history, `compacted` is the code and `advice` says what to do.
    """
    try:
        yield
    except SourceError:
        raise
    except CompactedError as e:
        raise _of_member(SourceError(compacted, f"{e}; {advice}"), e) from e
    except SnapKVError as e:
        code = next((code for kind, code in _CODES if isinstance(e, kind)), FAILED)
        raise _of_member(SourceError(code, f"{e}{_ADVICE.get(code, '')}"), e) from e


def _of_member(error: SourceError, cause: SnapKVError) -> SourceError:
    return error if cause.member is None else error.of(cause.member)


@contextmanager
def of_member(
    name: str, *, compacted: str = VERSION_COMPACTED, advice: str = COMPACTED_ADVICE
) -> Iterator[None]:
    """Turn every `SnapKVError` into a `SourceError` that names a member of a fleet; as `coded`."""
    try:
        with coded(compacted=compacted, advice=advice):
            yield
    except SourceError as e:
        if e.member is not None:
            raise
        raise e.of(name) from e.__cause__
