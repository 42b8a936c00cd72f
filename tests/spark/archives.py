"""Stores with an archive, for tests: random commits, recorded in steps, merged in between."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from archive.histories import recorder
from reading.tabled import Writing

from snapkv import ManualClock, SnapshotKV
from snapkv.archive.manifest import existing


class Archived:
    """A store on LMDB or etcd that is recorded; `first` is the first revision of the archive."""

    def __init__(self, place: Any, store: SnapshotKV, clock: ManualClock, folder: Path, seed: int):
        self.place, self.store, self.clock = place, store, clock
        self.rng = random.Random(seed)
        self.folder = str(folder / "archive")
        self.writing = Writing(store, clock, self.rng)
        self.writing.steps(3)
        self._recorder = recorder(store, self.folder)
        self.reach()
        self.first = self._recorder.writer.manifest.since
        self.since = store.at(revision=self.first).timestamp

    @property
    def options(self) -> dict[str, str]:
        return {"archive": self.folder}

    @property
    def alone(self) -> str:
        return f"archive:{self.folder}"

    @property
    def reached(self) -> int:
        return self._recorder.writer.manifest.high

    def reach(self) -> None:
        """Record what there is."""
        self._recorder.catch_up()

    def grow(self, rounds: int, steps: int = 12) -> None:
        """Write and record in turn; merge at random."""
        for _ in range(rounds):
            self.writing.steps(steps)
            self.reach()
            while self.rng.random() < 0.6 and self.tidy():
                pass

    def tidy(self) -> bool:
        """Merge files, or add a base, if one is due."""
        return self._recorder.writer.tidy()

    def merge(self) -> None:
        """Merge all that is due, and delete what no manifest of now names, as an hour later."""
        while self.tidy():
            pass
        files = self._recorder.writer.files
        named = {file.path for file in existing(files).files}
        for folder in ("base", "delta", "log"):
            for entry in files.list(folder):
                if entry.name not in named:
                    files.delete(entry.name)

    def compact(self, revision: int) -> None:
        """Compact the live engine."""
        engine = self.place.engine()
        if revision > engine.compacted_revision():
            engine.compact(revision)

    def marks(self) -> list[Any]:
        """The commits that the archive has, but for the first."""
        return [c for c in self.store.commits(since=self.since) if c.revision <= self.reached]
