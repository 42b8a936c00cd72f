"""From git histories to one store: keys, documents, and the rows of a CDC log.

Each commit of git becomes three commits of the store, all at git's time:

    text keys `<clone>/<path>`    the contents, with the author as the writer; a symlink's target;
                                  of a submodule the id of the commit that it names
    database `<clone>`            a document `/<path>`: its line of `git ls-tree`, the author, the
                                  commit
    CDC log `files`               a row `<clone>/<path>`: its line of `git ls-tree`

The space `git` has the commit that each clone shows. The rows go to the streams of generations; a
tour changes the ring once, between two commits of git.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from cdcmeta.changes import ChangesDB
from cdcmeta.generations import CdcLog, Generation, GenerationLog, Generations, Sharding
from snapkv import ManualClock, Ops, SnapshotKV, SpaceOps
from snapkv.cli.git_clone import SUBMODULE_MODE, BlobReader, GitCommit, TreeEntry
from snapkv.cli.git_import import OVERHEAD_BYTES, note_of, too_large
from snapkv.errors import CommitTooLargeError
from system.everything.clones import History, Step, Toured, writer_of

LOG = "files"
SPACE = "git"
GIT_CLONE, GIT_COMMIT = "clone", "commit"
"""What the meta of a commit has."""
LEEWAY_S = 0.01
MEMBER_TTL_S = 30.0
GAP_MS = 1_000
"""The ring changes in a gap between two commits that is at least as long."""
RING = {-(1 << 62): Sharding(2), 1 << 62: Sharding(2)}
LATER_RING = RING | {0: Sharding(3)}


class Filler:
    """Writes the steps of a history into a store, one after the other, by git's clock."""

    def __init__(
        self, store: SnapshotKV, clock: ManualClock, history: History, request_bytes_max: int
    ) -> None:
        """Take the store and the clock that it was opened with."""
        self.store, self.history = store, history
        self._clock, self._bytes_max = clock, request_bytes_max
        self.generations = GenerationLog(store, propagation_delay=0.0, leeway=LEEWAY_S)
        self.databases = {each.name: ChangesDB(store, each.name) for each in history.clones}
        self._revs: dict[tuple[str, str], str] = {}
        self._stack = ExitStack()
        self.done = 0
        """How many steps are in the store."""

    def __enter__(self) -> Filler:
        """Make databases and the first generation, before the time of the first step."""
        self._clock.set(max(1, self.history.steps[0].ms - GAP_MS))
        self.generations.make(RING)
        for database in self.databases.values():
            database.create()
        held = Generations(leeway=LEEWAY_S, clock=self._clock)
        member = self.generations.member("tour", generations=held, ttl=MEMBER_TTL_S)
        self._stack.enter_context(member)
        self.rows = CdcLog(self.store, member, LOG)
        self._contents: list[BlobReader] = []
        self._commits = []
        for each in self.history.clones:
            self._contents.append(self._stack.enter_context(each.clone.contents()))
            self._commits.append(each.clone.history(None))
            self._stack.callback(self._commits[-1].close)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def write(self, until: int) -> None:
        """Write the steps up to a position. Raises `AdvisedError` if one is too large."""
        while self.done < until:
            self._write(self.history.steps[self.done])
            self.done += 1

    def gap(self, near: int) -> int | None:
        """Return the step before which the ring can change, near a position; None without one."""
        steps = self.history.steps
        gaps = [
            at
            for at in range(max(1, self.done), len(steps))
            if steps[at].ms - steps[at - 1].ms >= GAP_MS
        ]
        return min(gaps, key=lambda at: abs(at - near), default=None)

    def change_ring(self) -> Generation:
        """Add a node to the ring, in the gap before the next step; return its generation."""
        self._clock.set(self.history.steps[self.done].ms - GAP_MS // 2)
        return self.generations.make(LATER_RING)

    def _write(self, step: Step) -> None:
        self._clock.set(step.ms)
        toured = self.history.clones[step.clone]
        commit = next(self._commits[step.clone])
        entries: dict[bytes, TreeEntry | None] = {}
        for change in commit.changes:
            if toured.key_of(change.path) is None:
                self.history.left_out.add(change.path)
            else:
                entries[change.path] = change.after
        try:
            contents = self._read(step.clone, entries)
            self.store.commit(_building(toured, commit, entries, contents))
            if entries:
                self._put_documents(toured, commit, entries)
                self.rows.write_batch(
                    {_key(toured, path): e and e.line for path, e in entries.items()},
                    note=note_of(commit),
                )
        except CommitTooLargeError as e:
            raise too_large(commit, e.size, e.limit) from e

    def _read(self, clone: int, entries: Mapping[bytes, TreeEntry | None]) -> dict[bytes, bytes]:
        """Return the contents of the paths that a commit wrote."""
        written = {path: entry for path, entry in entries.items() if entry is not None}
        blobs = {p: e.oid for p, e in written.items() if e.mode != SUBMODULE_MODE}
        overhead = OVERHEAD_BYTES * (len(entries) + 4)
        found = self._contents[clone].read([*blobs.values()], self._bytes_max, overhead)
        read = dict(zip(blobs, found, strict=True))
        return {path: read.get(path, entry.oid) for path, entry in written.items()}

    def _put_documents(
        self, toured: Toured, commit: GitCommit, entries: Mapping[bytes, TreeEntry | None]
    ) -> None:
        docs: list[dict[str, Any]] = []
        for path, entry in entries.items():
            id = "/" + path.decode()
            doc: dict[str, Any] = {"_id": id, "author": writer_of(commit.author)}
            doc |= {"commit": commit.oid.decode()}
            doc |= {"_deleted": True} if entry is None else {"line": entry.line.decode()}
            rev = self._revs.get((toured.name, id))
            docs.append(doc | ({"_rev": rev} if rev else {}))
        for doc, done in zip(docs, self.databases[toured.name].bulk(docs), strict=True):
            if done.error is not None:
                raise done.error
            assert done.rev is not None
            self._revs[toured.name, doc["_id"]] = done.rev
            if "_deleted" in doc:  # a path that comes back is a new document
                del self._revs[toured.name, doc["_id"]]


def _building(
    toured: Toured,
    commit: GitCommit,
    entries: Mapping[bytes, TreeEntry | None],
    contents: Mapping[bytes, bytes],
) -> Any:
    """Return the function that the store commits for the keys of a commit of git."""
    gone: Sequence[bytes] = [path for path, entry in entries.items() if entry is None]
    ops = Ops(
        puts={_key(toured, path).decode(): content for path, content in contents.items()},
        deletes=[_key(toured, path).decode() for path in gone],
        note=note_of(commit),
        writer=writer_of(commit.author),
        meta={GIT_CLONE: toured.name, GIT_COMMIT: commit.oid.decode()},
        spaces={SPACE: SpaceOps({toured.name.encode(): commit.oid})},
    )
    return lambda _: ops


def _key(toured: Toured, path: bytes) -> bytes:
    return toured.prefix.encode() + path
