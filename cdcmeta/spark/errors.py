"""Codes of errors beside those of snapkv's format, which mean the same here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdcmeta.errors import CDCMetaError, DatabaseNotFoundError, InvalidSequenceError
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError

DATABASE_NOT_FOUND = "CDCMETA_DATABASE_NOT_FOUND"
DATABASE_MISMATCH = "CDCMETA_DATABASE_MISMATCH"
DATABASE_RELOCATED = "CDCMETA_DATABASE_RELOCATED"
INVALID_SEQUENCE = "CDCMETA_INVALID_SEQUENCE"


@contextmanager
def told() -> Iterator[None]:
    """Turn errors of cdcmeta into `SourceError`; those of snapkv are left to `snapkv.spark`."""
    try:
        yield
    except DatabaseNotFoundError as e:
        raise SourceError(DATABASE_NOT_FOUND, f"{e} there at that moment") from e
    except InvalidSequenceError as e:
        raise SourceError(INVALID_SEQUENCE, str(e)) from e
    except CDCMetaError as e:
        raise SourceError(codes.INVALID_OPTION, str(e)) from e
