"""Random commits of a store, and what the live store answers, to compare with an archive."""

from __future__ import annotations

import random
from typing import Any

from snapkv import ManualClock, SnapshotKV
from snapkv.archive.folder import Files, Folder
from snapkv.archive.writer import ArchiveWriter
from snapkv.copying.archive_target import ArchiveTarget
from snapkv.copying.record_options import RecordOptions, RecordStatus
from snapkv.copying.recorder import Recording
from snapkv.copying.sources import StoreSource

KEYS = [f"k{n}" for n in range(12)] + ["a/b", "a\xff", "z"]
SPACES = ["s", "s/%", "t"]
LONG_OVER = -1.0
"""For `GRACE_S`: whatever was replaced is older, although S3 counts in seconds."""


class Writing:
    """Commits of all kinds to a store, and to a neighbour in the same engine."""

    def __init__(self, place: Any, store: SnapshotKV, clock: ManualClock, rng: random.Random):
        self.store, self.clock, self.rng = store, clock, rng
        self.neighbour = place.open(name="neighbour", clock=clock)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        rng = self.rng
        self.clock.advance(rng.choice([0, 0, 1, 700, 60_000]))
        kind = rng.random()
        if kind < 0.1:
            self.neighbour.save("x", b"%d" % rng.randrange(9))
        elif kind < 0.15:
            self.store.tick()
        elif kind < 0.3:
            self.store.commit(deletes=rng.sample(KEYS, rng.randrange(1, 5)))
        elif kind < 0.45:
            space = self.store.space(rng.choice(SPACES))
            space.commit(puts={bytes([rng.randrange(1, 6)]): rng.randbytes(rng.randrange(9))})
        elif kind < 0.5:
            self.store.commit(delete_prefixes=[rng.choice(["k", "a", "z"])])
        else:
            keys = rng.sample(KEYS, rng.randrange(1, 6))
            said = rng.choice(
                [{}, {"note": "a note"}, {"writer": "bob", "meta": {"a": 1, "b": "x"}}]
            )
            self.store.commit(puts={k: b"%d" % rng.randrange(99) for k in keys}, **said)


class Recorder:
    """Records an open store into an archive, as `snapkv.record` does with stores that it opens."""

    def __init__(self, store: SnapshotKV, files: Files) -> None:
        self.source, self._target = StoreSource(store._core), ArchiveTarget(files)
        self._target.open(self.source.identity)
        self._recording: Recording | None = None
        self.status = RecordStatus()

    @property
    def writer(self) -> ArchiveWriter:
        return self._target.writer

    def catch_up(self) -> None:
        if self._recording is None:
            options = RecordOptions(url="memory:", into="archive")
            self._recording = Recording(self.source, self._target, None, options, self.status)
        self._recording.catch_up()


def recorder(store: SnapshotKV, folder: Any) -> Recorder:
    return Recorder(store, Folder(str(folder)))


def answers(store: SnapshotKV, since: int) -> dict[str, Any]:
    """Return all that a store says of the commits after `since`, and of the state there."""
    commits = list(store.commits(since=since))
    moments = sorted({ts + n for ts in [since, *(c.ts for c in commits)] for n in (0, 1)})
    return {
        "commits": commits,
        "backwards": list(store.commits(since=since, newest_first=True)),
        "states": [(list(store.at(ts).items()), store.at(ts).revision) for ts in moments],
        "spaces": [list(store.space(s).at(ts).items()) for s in SPACES for ts in moments],
        "loads": [store.load_with_prefix("k", ts) for ts in moments],
        "counts": [store.at(ts).count() for ts in moments],
        "diffs": [
            list(store.diff(a, b)) for a, b in zip(moments[::9], moments[4::9], strict=False)
        ],
        "histories": [[v for v in store.history(key) if v.ts > since] for key in store.at(since)],
        "revisions": store.revisions_at(moments),
        "watched": [
            [(c.key, c.value, c.commit.ts) for c in changes]
            for changes in store.watch(since=since, timeout=0)
        ],
        "changes": store.changes_to_arrow(since=since, preimages=True).to_pylist(),
        "versions": store.history_to_arrow(since=since).to_pylist(),
    }
