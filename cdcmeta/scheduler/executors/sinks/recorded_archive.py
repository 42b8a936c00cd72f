"""An archive as the place of a recorded table.

Beside its files it has `_assignment/<owner>-<number>`, an empty file with the token of the
assignment that writes. An assignment writes its file, and then publishes a manifest of the same
content, so that of an earlier one no manifest can follow: each number is published once.

    A   _assignment/9-1    publishes 1, 2
    B   _assignment/9-2    publishes 3, as 2
    A   publishes 3: it exists, and there is a later assignment: fenced

A place begins empty, with a moment just before the table's start. The state that a table begins
with follows, and what is before it is dropped. Should a crash come between, a gap shows that it
was not dropped, and the next assignment does so.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.sinks.contract import fenced
from cdcmeta.scheduler.executors.sinks.recorded_place import TAKE_TRIES, Assignment, State, Versions
from snapkv.base.waiting import monotonic, pause
from snapkv.copying.archive_target import ArchiveEngine, ArchiveTarget, open_files, publish
from snapkv.copying.toolkit import (
    CREATION_ORDINAL,
    KeyValue,
    Layout,
    StampRecord,
    Target,
    prefix_end,
)
from snapkv.errors import ArchiveTakenError

FOLDER, DIGITS = "_assignment", 20
FIRST_REVISION = 1
"""Where a place begins: before each commit of a source."""
PAUSE_S = 0.25
"""Two small writes of a table are so far apart, while more commits wait in its queue."""
SMALL_COMMITS = 64
TEND_WRITES = 8
"""After so many writes, their files are merged."""


class ArchivePlace:
    """A folder of files for one table."""

    state_ordinal = CREATION_ORDINAL + 2  # the one between is in the gap

    def __init__(self, url: str, assignment: Assignment) -> None:
        self._files, self._assignment = open_files(url), assignment
        self._layout = Layout(assignment.source.name)
        self._target = ArchiveTarget(self._files)
        self._writes, self._wait_until = 0, 0.0

    def take(self, start: int) -> Target:
        """Write the token, and publish a manifest that ends what an earlier writer knows."""
        token = self._assignment.token
        for at in range(TAKE_TRIES):
            target = ArchiveTarget(self._files)
            target.open(self._assignment.source)
            if not at:
                self._files.put_new(_name(token), b"")
            later = self.later()
            if later is not None:
                raise fenced(self._assignment.table, later)
            if self._is_published(target, start):
                break
        else:
            raise ArchiveTakenError(f"{self._files.url} keeps changing")
        self._target = target
        self._drop_gap()
        for earlier in self._tokens():
            if earlier < token:
                self._files.delete(_name(earlier))
        return target

    def _is_published(self, target: ArchiveTarget, start: int) -> bool:
        manifest = target.writer.manifest
        if manifest is None:
            stamp = StampRecord(max(0, start - 1)).encode()
            created = self._assignment.source.created
            try:
                target.begin(
                    KeyValue(self._layout.ts, stamp, created, FIRST_REVISION, CREATION_ORDINAL), []
                )
            except ArchiveTakenError:
                return False
            return True
        following = manifest.following([])
        if not publish(self._files, following):
            return False
        target.writer.manifest = following
        return True

    def later(self) -> Token | None:
        """Return the greatest token that has a file, if it is a later assignment's; one listing."""
        token = max(self._tokens(), default=self._assignment.token)
        return token if token > self._assignment.token else None

    def _tokens(self) -> list[Token]:
        found = []
        for entry in self._files.list(FOLDER):
            owner, _, number = entry.name.removeprefix(f"{FOLDER}/").partition("-")
            if owner.isdigit() and number.isdigit():
                found.append(Token(int(owner), int(number)))
        return found

    def write_state(self, mark: KeyValue, state: State) -> None:
        """Write a first state, then drop what is before it."""
        last = self._target.last()
        assert last is not None, "take() comes first"
        if mark.mod_revision <= last.mod_revision + 1:
            raise SinkError(f"a state at revision {mark.mod_revision} is not one of a store")
        self._target.close_gap(last, mark, state)
        self._drop_gap()

    def _drop_gap(self) -> None:
        manifest = self._target.writer.manifest
        if manifest is not None and manifest.gaps:
            self._target.writer.keep(manifest.resolved)

    def values(self) -> dict[str, bytes]:
        """Return the present keys with their values."""
        data = self._layout.data
        low, high = data.range_of("")
        found = self._present(low, high, keys_only=False)
        return {data.decode(kv.key): kv.value for kv in found}

    def versions(self) -> Versions | None:
        """Read the keys that are present, without their values."""
        root = self._layout.root
        found = self._present(root, prefix_end(root), keys_only=True)
        return {kv.key: (kv.create_revision, kv.version) for kv in found}

    def _present(self, low: bytes, high: bytes, *, keys_only: bool) -> Iterator[KeyValue]:
        engine = ArchiveEngine(self._files)
        revision = engine.manifest.high
        for page in engine.scan(low, high, revision=revision, keys_only=keys_only):
            yield from page

    def wait(self, commits: int) -> None:
        """Wait if the last write was a moment ago, and this one is small."""
        if commits < SMALL_COMMITS:
            pause(max(0.0, self._wait_until - monotonic()))

    def flushed(self) -> None:
        """Merge small files after each few writes."""
        self._writes, self._wait_until = self._writes + 1, monotonic() + PAUSE_S
        if self._writes % TEND_WRITES == 0:
            self._target.tend(None)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _name(token: Token) -> str:
    return f"{FOLDER}/{token.owner:0{DIGITS}}-{token.number:0{DIGITS}}"
