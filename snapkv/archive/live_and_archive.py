"""An engine whose history goes on below its compaction, in an archive.

Reads and watches go to the live engine, and to the archive for what the engine has compacted. So
nothing above notices where compaction is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from snapkv.archive.engine import ArchiveEngine, ArchiveWatcher, open_archived
from snapkv.engine import contract
from snapkv.engine.bulk_reads import changes
from snapkv.errors import (
    CompactedError,
    FutureRevisionError,
    InvalidOptionError,
    StoreClosedError,
    StoreRestoredError,
)
from snapkv.layout import FormatRecord, Layout, SourceId


class JoinedEngine:
    """A live engine, and the archive of one of its stores."""

    def __init__(self, live: contract.Engine, archive: ArchiveEngine) -> None:
        self.live, self.archive = live, archive
        self.url, self.remote = live.url, live.remote
        self.limits: contract.EngineLimits = live.limits
        # what the live engine does alone
        self.transact, self.transact_each = live.transact, live.transact_each
        self.check_limits, self.compact = live.check_limits, live.compact
        self.grant, self.keep_alive, self.revoke = live.grant, live.keep_alive, live.revoke
        self.server_time_ms, self.info, self.check = live.server_time_ms, live.info, live.check
        if (backup := getattr(live, "backup", None)) is not None:
            self.backup = backup  # of the live engine's directory; the archive is not copied
        if (report := getattr(live, "report_failovers", None)) is not None:
            self.report_failovers = report

    def check_source(self, layout: Layout, record: FormatRecord, created: int) -> None:
        """Make sure that the archive is of this store, and of the history that the engine has.

        One round trip. Raises `InvalidOptionError` if it is of another store, `StoreRestoredError`
        if the engine was restored to a backup from before the archive's newest commit.
        """
        archive = self.archive
        source = archive.manifest.source
        if source != SourceId(record.store_id, layout.name, created):
            raise InvalidOptionError(
                f"archive={archive.url!r} is of the store {source.name!r} with the id "
                f"{source.id.hex()}, not of {layout.name!r} with the id {record.store_id.hex()}"
            )
        ours = archive.get(layout.ts).kv
        assert ours is not None, "an archive begins with a commit"
        try:
            theirs = self.live.get(layout.ts, ours.mod_revision).kv
        except CompactedError:
            return
        except FutureRevisionError:
            theirs = None
        if theirs != ours:
            raise StoreRestoredError(
                f"{self.url} has another history than archive={archive.url!r}: "
                "it was restored since; open it without the archive, or the archive alone"
            )

    @property
    def archived(self) -> str:
        """What the archive has, for the messages of errors."""
        return self.archive.archived

    # --- reading ---

    def get(self, key: bytes, revision: int = 0) -> contract.GetResult:
        """Answer one key at a revision."""
        try:
            return self.live.get(key, revision)
        except CompactedError:
            old = self.archive.get(key, self._archived(revision))
        return contract.GetResult(self.live.get(self.archive.layout.ts).header, old.kv)

    def read(
        self,
        ranges: Sequence[contract.Range],
        *,
        serializable: bool = False,
        timeout: float | None = None,
    ) -> contract.ReadResult:
        """Answer all ranges: compacted ranges from the archive, the rest in one request."""
        old: dict[int, contract.RangeResult] = {}
        while True:
            new = [wanted for at, wanted in enumerate(ranges) if at not in old]
            try:
                answer = self.live.read(new, serializable=serializable, timeout=timeout)
                break
            except CompactedError as e:
                point = e.earliest or self.live.compacted_revision()
                lost = [
                    at
                    for at, wanted in enumerate(ranges)
                    if at not in old and 0 < wanted.revision < point
                ]
                if not lost:
                    raise
                found = self.archive.read(
                    [
                        ranges[at]._replace(revision=self._archived(ranges[at].revision))
                        for at in lost
                    ]
                )
                old.update(zip(lost, found.results, strict=True))
        results = iter(answer.results)
        return contract.ReadResult(
            answer.header, [old[at] if at in old else next(results) for at in range(len(ranges))]
        )

    def versions(self, key: bytes, revision: int, limit: int) -> contract.Versions:
        """Return versions of a key from a revision down."""
        try:
            return self.live.versions(key, revision, limit)
        except CompactedError:
            return self.archive.versions(key, self._archived(revision), limit)

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[contract.KeyValue]]:
        """Yield a range in pages."""
        return self._pages(contract.SCAN, key, range_end, revision, keys_only)

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[contract.Pairs]:
        """Yield a range as keys and values."""
        return self._pages(contract.PAIRS, key, range_end, revision, keys_only)

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[contract.Columns]:
        """Yield a range as columns of Arrow."""
        return self._pages(contract.COLUMNS, key, range_end, revision, keys_only)

    def pieces(
        self, key: bytes, range_end: bytes, *, revision: int, rows: int
    ) -> list[contract.RangePiece]:
        """Cut a range into pieces."""
        try:
            return self.live.pieces(key, range_end, revision=revision, rows=rows)
        except CompactedError:
            archived = self._archived(revision)
            return self.archive.pieces(key, range_end, revision=archived, rows=rows)

    def _pages(
        self,
        form: contract.PageForm[contract.Page],
        key: bytes,
        range_end: bytes,
        revision: int,
        keys_only: bool,
    ) -> Iterator[contract.Page]:
        """Yield pages of the live engine, and of the archive from where compaction ended these."""
        listed = partial(form.listed, keys_only=keys_only)
        try:
            for page in listed(self.live, key, range_end, revision=revision):
                yield page
                key = form.last_key(page) + b"\0"
        except CompactedError:
            revision = self._archived(revision)
            yield from listed(self.archive, key, range_end, revision=revision)

    def _archived(self, revision: int) -> int:
        """Return the archive's revision with the state of a compacted one, or `CompactedError`."""
        # revisions of leases and other stores follow the newest commit, and show the same state
        manifest = self.archive.manifest
        if manifest.high < revision:
            manifest = self.archive.refresh()
        at = min(revision, manifest.high)
        if revision < manifest.since or (
            at < revision and not self._reaches(self.live.compacted_revision())
        ):
            raise self._lost(revision)
        return at

    def _lost(self, revision: int) -> CompactedError:
        earliest = self.compacted_revision()
        return CompactedError(revision, earliest, unit="revision", archive=self.archived)

    def _reaches(self, compacted: int) -> bool:
        """Return whether the archive has all commits before a compacted revision of the engine."""
        archive = self.archive
        if archive.manifest.high + 1 >= compacted:
            return True
        ts = archive.layout.ts
        mark = self.live.get(ts, compacted).kv
        assert mark is not None, "the timestamp key is never deleted"
        last_before = mark.version - (mark.mod_revision == compacted)
        if _ordinal(archive.get(ts)) < last_before:
            archive.refresh()
        return _ordinal(archive.get(ts)) >= last_before

    # --- watching ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> contract.Watcher:
        """Return a watcher of the engine, which reads the archive where that is compacted."""
        watcher = JoinedWatcher(self, key, range_end, start_revision)
        if start_revision >= self.live.compacted_revision():
            watcher.begin_live()
        return watcher

    def changes(self, wanted: contract.Replay) -> Iterator[contract.ChangeColumns]:
        """Yield what the archive has of it if the engine has compacted that, then the engine's.

        If the engine is compacted meanwhile, the rest begins after the revisions that were yielded.
        """
        compacted = self.live.compacted_revision()
        while True:
            try:
                for found in self._changes(wanted, compacted):
                    yield found
                    if len(found.revisions):
                        wanted = wanted._replace(first=found.revisions[-1].as_py() + 1)
                return
            except CompactedError:
                before, compacted = compacted, self.live.compacted_revision()
                if compacted == before:
                    raise

    def _changes(self, wanted: contract.Replay, compacted: int) -> Iterator[contract.ChangeColumns]:
        archive = self.archive
        if wanted.first >= compacted + wanted.before:
            yield from self.live.changes(wanted)
        elif wanted.before or not (
            archive.manifest.high >= wanted.last or self._reaches(compacted)
        ):
            yield from changes(self, wanted)
        else:
            high = archive.manifest.high
            yield from archive.changes(wanted._replace(last=min(wanted.last, high)))
            yield from self.live.changes(wanted._replace(first=max(high + 1, compacted)))

    def compacted_revision(self) -> int:
        """Return the oldest readable revision: the archive's, if it reaches the engine's."""
        compacted = self.live.compacted_revision()
        manifest = self.archive.manifest
        if compacted <= manifest.since:
            return compacted
        return manifest.since if self._reaches(compacted) else compacted

    def close(self) -> None:
        """Close both."""
        self.archive.close()
        self.live.close()


class JoinedWatcher:
    """A watch that brings what the archive holds, and goes on in the live engine."""

    def __init__(self, engine: JoinedEngine, key: bytes, range_end: bytes, start: int) -> None:
        self._engine, self._key, self._range_end = engine, key, range_end
        self._next, self._closed = start, False
        self._reopened = 0  # of live watchers that compaction has ended
        self._old: ArchiveWatcher | None = None
        self._live: contract.Watcher | None = None

    @property
    def reopened(self) -> int:
        """The number of times that the live watcher has reconnected, or another one has begun."""
        return self._reopened + (0 if self._live is None else self._live.reopened)

    def next(self, timeout: float | None) -> contract.WatchBatch | None:
        """Return the next batch; see `Watcher`."""
        while True:
            if self._closed:
                raise StoreClosedError("the watch was closed")
            if self._old is self._live is None:
                self._begin()
            if self._old is not None:
                if self._next > self._engine.archive.manifest.high:
                    self.begin_live()
                    continue
                batch = self._old.next(0)
                assert batch is not None, "the archive has this revision"
                self._next = batch.revision + 1
                return batch
            assert self._live is not None
            try:
                batch = self._live.next(timeout)
            except CompactedError:
                self._live.close()
                self._reopened += self._live.reopened + 1
                self._live = None
                continue
            if batch is not None:
                self._next = batch.revision + 1
            return batch

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        if self._live is not None:
            self._live.close()

    def _begin(self) -> None:
        """Watch the archive from the next revision on; `CompactedError` if it has that no more."""
        engine, archive = self._engine, self._engine.archive
        if self._next > archive.manifest.high:
            archive.refresh()
        if archive.manifest.since <= self._next <= archive.manifest.high:
            self._old = archive.watch(self._key, self._range_end, start_revision=self._next)
            return
        compacted = engine.live.compacted_revision()
        if self._next > archive.manifest.high and engine._reaches(compacted):
            self._next = max(self._next, compacted)  # no commit was made until then
            self.begin_live()
            return
        raise engine._lost(self._next)

    def begin_live(self) -> None:
        """Go on in the engine."""
        live = self._engine.live.watch(self._key, self._range_end, start_revision=self._next)
        self._old, self._live = None, live
        if self._closed:
            live.close()


def _ordinal(mark: contract.GetResult) -> int:
    return 0 if mark.kv is None else mark.kv.version


def archive_of(engine: contract.Engine) -> ArchiveEngine | None:
    """Return the archive that an engine has, or is; None without one."""
    if isinstance(engine, ArchiveEngine):
        return engine
    return engine.archive if isinstance(engine, JoinedEngine) else None


def joined(live: contract.Engine, archive: str, storage: Mapping[str, Any] | None) -> JoinedEngine:
    """Return an engine joined with the archive at a URL; closing it closes both."""
    return JoinedEngine(live, open_archived(archive, storage))
