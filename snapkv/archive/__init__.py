"""The archive: history as files, which outlives the engine's compaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from snapkv.base.extras import requires_extra

with requires_extra("archive", "archives"):
    import pyarrow as pyarrow

from snapkv.archive.folder import Files, Folder
from snapkv.archive.storage import location_of
from snapkv.errors import InvalidOptionError

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")


def open_files(url: str, storage: Mapping[str, Any] | None = None) -> Files:
    """Return the files below a URL, of a folder or of an object store; no request.

    `storage` are options of the object store. Raises `InvalidOptionError`, `InvalidTypeError` for
    an unknown option, and `MissingExtraError` where obstore is not installed.
    """
    scheme, separator, _ = url.partition("://")
    if separator and SCHEME.fullmatch(scheme):
        location = location_of(url)
        from snapkv.archive.objects import ObjectStore  # it needs obstore

        return ObjectStore(location, storage or {})
    if storage:
        raise InvalidOptionError(
            f"storage= is for object stores, and {url!r} is a folder: leave storage= out, or name "
            "a URL such as s3://BUCKET/PATH"
        )
    return Folder(url)
