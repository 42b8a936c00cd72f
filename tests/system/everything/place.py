"""The folder of a tour: what is where, and how stores in it are opened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import snapkv
from snapkv.cli.exits import AdvisedError, Exit
from snapkv.engine.etcd.options import REQUEST_BYTES_MAX as ETCD_REQUEST_BYTES_MAX
from snapkv.engine.lmdb.engine import REQUEST_BYTES_MAX
from snapkv.times import PHYSICAL_MS_MAX

MARK = "made-by-make-tour-all"
"""A file in each folder of a tour, so that nothing else is ever removed."""
STORE, CAPTURES, DOCUMENTS = "tour", "captures", "documents"
"""The names of stores: of the histories, of the captures' records, of the mirrored databases."""
MADE = {
    *(MARK, STORE, CAPTURES, "archive", "clones", "etcd", "etcd.log", "exams", "logs", "mirror"),
    *("recorded", "recorded-captures", "rows", "spark"),
}
"""What a tour makes in its folder."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one tour; an etcd, if given, has the two stores."""

    folder: Path
    etcd: str | None = None

    @property
    def store_url(self) -> str:
        """Where the histories are."""
        return self.etcd or f"lmdb:{self.folder / STORE}"

    @property
    def captures_url(self) -> str:
        """Where captures keep their records."""
        return self.etcd or f"lmdb:{self.folder / CAPTURES}"

    @property
    def request_bytes_max(self) -> int:
        """The largest commit."""
        return ETCD_REQUEST_BYTES_MAX if self.etcd else REQUEST_BYTES_MAX

    @property
    def replicas(self) -> Path:
        """The archives that captures write, one for each clone."""
        return self.folder / "archive"

    @property
    def mirror_url(self) -> str:
        """The store that captures write keys and databases to."""
        return f"lmdb:{self.folder / 'mirror'}"

    @property
    def rows(self) -> Path:
        """The JSON lines that captures write, of the rows of the CDC log."""
        return self.folder / "rows"

    @property
    def recorded(self) -> Path:
        """The archive of the histories, which a recorder makes."""
        return self.folder / "recorded"

    @property
    def recorded_captures(self) -> Path:
        """The archive of the captures' records, which a recorder makes."""
        return self.folder / "recorded-captures"

    def replica(self, prefix: str) -> Path:
        """Return the archive that captures write for a prefix of keys."""
        return self.replicas / quote(prefix, safe="")

    def open_store(self, clock: snapkv.ManualClock | None = None, **more: Any) -> snapkv.SnapshotKV:
        """Open the histories; with a clock at the times of git, without one to read."""
        if clock is not None:
            limit = "max_request_bytes" if self.etcd else "request_bytes_max"
            more |= {"clock": clock, "max_clock_skew": PHYSICAL_MS_MAX // 1_000}
            more |= {"writer": "the tour", limit: self.request_bytes_max}
        store: snapkv.SnapshotKV = snapkv.open(self.store_url, name=STORE, **more)
        return store

    def open_captures(self, **more: Any) -> snapkv.SnapshotKV:
        """Open the records of captures."""
        store: snapkv.SnapshotKV = snapkv.open(self.captures_url, name=CAPTURES, **more)
        return store


def emptied(folder: Path) -> Path:
    """Return a folder without what an earlier tour left in it.

    Raises `AdvisedError`, and removes nothing, if it has anything that no tour made.
    """
    if folder.exists():
        made = MADE if (folder / MARK).exists() else set()
        other = next((path for path in _files(folder) if path.name not in made), None)
        if other is not None:
            raise AdvisedError(
                f"{other} is something that no tour made, and the tour leaves it alone",
                "Name a folder that is new or holds an earlier tour: --into DIR",
                Exit.NO_STORE,
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
    return folder.resolve()


def _files(folder: Path) -> Iterator[Path]:
    """Yield a file itself; of a folder, the files and the folders that are not empty in it."""
    if not folder.is_dir():
        yield folder
        return
    for path in folder.iterdir():
        if path.is_symlink() or any(True for _ in _files(path)):
            yield path
