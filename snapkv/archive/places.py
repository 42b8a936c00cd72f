"""Where an archive is, from its URL."""

from __future__ import annotations

from typing import Any

from snapkv.archive.files import Files, Folder


def open_files(url: str, **options: Any) -> Files:
    """Return the files below a URL."""
    return Folder(url)
