"""Error codes besides those of snapkv's format, which have the same meaning here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdcmeta.errors import CDCMetaError, DatabaseNotFoundError, InvalidSequenceError
from snapkv.spark import errors
from snapkv.spark.errors import SourceError

DATABASE_NOT_FOUND = "CDCMETA_DATABASE_NOT_FOUND"
DATABASE_MISMATCH = "CDCMETA_DATABASE_MISMATCH"
DATABASE_RELOCATED = "CDCMETA_DATABASE_RELOCATED"
INVALID_SEQUENCE = "CDCMETA_INVALID_SEQUENCE"


@contextmanager
def converted() -> Iterator[None]:
    """Convert errors of cdcmeta to `SourceError`; `snapkv.spark` converts those of snapkv."""
    try:
        yield
    except DatabaseNotFoundError as e:
        raise SourceError(DATABASE_NOT_FOUND, f"{e} there at that moment") from e
    except InvalidSequenceError as e:
        raise SourceError(INVALID_SEQUENCE, str(e)) from e
    except CDCMetaError as e:
        raise SourceError(errors.INVALID_OPTION, str(e)) from e
