"""A recording as a sink: each table has a place of its own, with the times of the source.

A place is a store or an archive, written as `snapkv record` writes it. A commit of the source
becomes one commit there, with the table's part of its changes, and its own time, writer, note and
`source_revision`. The newest of them is the table's position, so nothing is written twice. For
example, `record+lmdb:./copy` keeps the tables `orders/` and `users/` in two stores of one engine:

    default:orders%2F    as of 14:05 it has the keys below `orders/` that the source had at 14:05
    default:users%2F     the same for `users/`

The token of the assignment that writes is kept in the place. In a store it is the name of a key,
`N/live/assignment/<owner><number>` (8 bytes each), which each commit compares. An assignment writes
its key, then deletes those with smaller tokens:

    A   key (9, 1)                             commits compare (9, 1)
    B   key (9, 2); deletes (9, 1)             commits compare (9, 2)
    A   commit: the key (9, 1) is missing, and there is a greater one: fenced
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

import snapkv
from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.sinks.contract import fenced
from cdcmeta.scheduler.executors.sinks.json_lines import SUFFIX, file_name
from cdcmeta.scheduler.executors.sinks.recorded_place import (
    TAKE_TRIES,
    Assignment,
    Place,
    State,
    Versions,
)
from snapkv import Change, Changes, Commit, SnapshotKV
from snapkv.copying.toolkit import (
    CREATION_ORDINAL,
    Compare,
    Compared,
    Delete,
    Event,
    KeyValue,
    Layout,
    Op,
    Put,
    Range,
    SourceId,
    StampRecord,
    Step,
    StoreTarget,
    Target,
    Txn,
    prefix_end,
    stamp_of,
    transact,
)
from snapkv.errors import ArchiveTakenError, EngineBusyError, SessionLostError
from snapkv.model import Held

RECORD, ARCHIVE = "record+", "record+archive:"
ASSIGNMENTS = b"assignment/"
STATE_NOTE = "the state that the table begins with"
STORE_NAME_BYTES_MAX = 128
_ESCAPED = re.compile(r"[%/:!\x00-\x20\x7f]")
_TOKEN = struct.Struct(">QQ")


class RecordedSink:
    """Records each table into a place of its own; `source` is the store that is replicated."""

    def __init__(
        self, source: SnapshotKV, changefeed: str, place: Callable[[Assignment], Place]
    ) -> None:
        facts = source.info()
        self._place, self._changefeed = place, changefeed
        self._store_id, self._name = bytes.fromhex(facts["store_id"]), facts["name"]

    def writer(self, table: str, token: Token) -> RecordedWriter:
        """Return a writer of one assignment."""
        source = source_of(self._store_id, self._name, self._changefeed, table)
        return RecordedWriter(Assignment(table, token, source), self._place)

    def close(self) -> None:
        """Do nothing: writers close their places."""


def recorded_sink(url: str, name: str, changefeed: str, source: SnapshotKV) -> RecordedSink:
    """Return the sink of a URL `record+...`; `name` begins the names of stores."""
    if url.startswith(ARCHIVE):
        folder = url.removeprefix(ARCHIVE).rstrip("/")

        def archive(assignment: Assignment) -> Place:
            from cdcmeta.scheduler.executors.sinks.recorded_archive import ArchivePlace  # pyarrow

            return ArchivePlace(f"{folder}/{folder_name(assignment.table)}", assignment)

        return RecordedSink(source, changefeed, archive)

    def store(assignment: Assignment) -> Place:
        target = store_name(name, assignment.table)
        return StorePlace(snapkv.open(url.removeprefix(RECORD), name=target), assignment)

    return RecordedSink(source, changefeed, store)


def folder_name(table: str) -> str:
    """Return the folder of a table's archive.

    >>> folder_name("orders/")
    'orders%2F'
    """
    return file_name(table).removesuffix(SUFFIX)


def store_name(sink_name: str, table: str) -> str:
    """Return the name of a table's store: no two tables of a sink share it.

    A name that would be too long is a digest instead.

    >>> store_name("default", "orders/new")
    'default:orders%2Fnew'
    """
    name = f"{sink_name}:{_ESCAPED.sub(lambda found: quote(found[0], safe=''), table)}"
    if len(name.encode()) > STORE_NAME_BYTES_MAX:
        name = f"{sink_name}:!{hashlib.sha256(table.encode()).hexdigest()[:32]}"
    return name


def source_of(store_id: bytes, name: str, changefeed: str, table: str) -> SourceId:
    """Return what a place says that it records: one table of a store, by one changefeed.

    It is not the store's own id, so that no archive of one table passes for that of the store.
    """
    parts = (store_id, changefeed.encode(), table.encode())
    digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))
    return SourceId(digest.digest()[:16], name, CREATION_ORDINAL)


class RecordedWriter:
    """Records one table. The state that it begins with is in memory until it is complete."""

    def __init__(self, assignment: Assignment, place: Callable[[Assignment], Place]) -> None:
        self._assignment, self._open_place = assignment, place
        self._layout = Layout(assignment.source.name)
        self._place: Place | None = None
        self._target: Target | None = None  # None after a failure: the place is taken again
        self._start = 0
        self._last: KeyValue | None = None
        self._versions: Versions | None = None
        self._state: list[Changes[str]] = []
        self._before: dict[str, bytes] = {}
        """What the place had when the state began."""

    def begin(self, start: int) -> int:
        """Take the place, so that earlier assignments are fenced; return the recorded position."""
        self.close()
        self._start = start
        self._place = self._open_place(self._assignment)
        try:
            self._attempt(self._place, lambda target: None)
        except BaseException:
            self.close()
            raise
        return max(start, self._reached)

    def replace(self) -> Iterator[str]:
        """Begin a state, in memory; return the keys that the record has."""
        if self._place is None:
            raise self._closed()
        has_commits = self._last is not None and self._last.version > CREATION_ORDINAL
        self._state, self._before = [], self._place.values() if has_commits else {}
        return iter(sorted(self._before))

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Record the commits, durably; a part of the state waits until it is complete."""
        if self._place is None:
            raise self._closed()
        if not checkpoint:
            self._state += commits
            return
        place = self._place
        self._attempt(place, lambda target: self._write(place, target, commits, checkpoint))

    def close(self) -> None:
        """Close the place."""
        place, self._place, self._target = self._place, None, None
        self._state, self._before = [], {}
        if place is not None:
            place.close()

    def _attempt(self, place: Place, work: Callable[[Target], None]) -> None:
        """Work on the target, which is taken first if it is not ours for certain."""
        try:
            target = self._target
            if target is None:
                target = place.take(self._start)
                self._last, self._versions = target.last(), None
            self._target = None
            work(target)
            self._target = target
        except (ArchiveTakenError, EngineBusyError, SessionLostError) as e:
            later = place.later()
            if later is not None:
                raise fenced(self._assignment.table, later) from e
            raise SinkError(f"{type(e).__name__}: {e}") from e

    def _write(
        self, place: Place, target: Target, commits: Sequence[Changes[str]], checkpoint: int
    ) -> None:
        if self._state:
            self._write_state(place, target, checkpoint)
        new = [changes for changes in commits if changes.commit.ts > self._reached]
        if not new:
            return
        if self._versions is None:
            self._versions = place.versions()
        place.wait(len(new))
        for changes in new:
            step = self._step(changes)
            target.add(step)
            self._last = step.mark
        target.flush()
        place.flushed()

    def _write_state(self, place: Place, target: Target, state_at: int) -> None:
        """Begin a place with the state, or add what differs from it as one commit."""
        last, head = self._last, self._state[0].commit
        if self._reached < state_at:
            head = Commit(state_at, 0, head.revision, None, STATE_NOTE)
            if last is None or last.version <= CREATION_ORDINAL:
                self._last = self._mark(head, place.state_ordinal)
                place.write_state(self._last, [self._page(page) for page in self._state])
            elif changes := self._differing(head):
                self._versions = place.versions()
                step = self._step(Changes(head, changes))
                target.add(step)
                target.flush()
                self._last = step.mark
                place.flushed()
        self._state, self._before = [], {}

    def _differing(self, head: Commit) -> tuple[Change[str], ...]:
        """Return the state's changes of what the place has."""
        before, pages = self._before, self._state
        return tuple(
            Change(each.key, each.value, head)
            for page in pages
            for each in page
            if before.get(each.key) != each.value
        )

    def _closed(self) -> SinkError:
        return SinkError(f"the writer of {self._assignment.table!r} is closed")

    @property
    def _reached(self) -> int:
        return 0 if self._last is None else stamp_of(self._last.value)

    def _page(self, page: Changes[str]) -> list[KeyValue]:
        revision, encode = page.commit.revision, self._layout.data.encode
        return [KeyValue(encode(e.key), e.value or b"", revision, revision, 1) for e in page]

    def _step(self, changes: Changes[str]) -> Step:
        last, head = self._last, changes.commit
        if last is not None and head.revision <= last.mod_revision:
            raise SinkError(
                f"the source has revision {head.revision} after {last.mod_revision} was recorded: "
                "it was restored since; record into a new place"
            )
        ordinal = CREATION_ORDINAL if last is None else last.version
        mark = self._mark(head, ordinal + 1)
        return Step(mark, tuple(self._event(each.key, each.value, head) for each in changes))

    def _mark(self, head: Commit, ordinal: int) -> KeyValue:
        nonce, writer = head.ts.to_bytes(8, "big"), head.writer or ""
        stamp = StampRecord(head.ts, nonce, writer, head.note, meta=head.meta)
        created = self._assignment.source.created
        return KeyValue(self._layout.ts, stamp.encode(), created, head.revision, ordinal)

    def _event(self, key: str, value: bytes | None, head: Commit) -> Event:
        stored, known = self._layout.data.encode(key), self._versions
        if value is None:
            if known is not None:
                known.pop(stored, None)
            return Event(KeyValue(stored, b"", 0, head.revision, 0), True)
        created, version = head.revision, 1
        if known is not None:
            created, before = known.get(stored, (head.revision, 0))
            version = before + 1
            known[stored] = created, version
        return Event(KeyValue(stored, value, created, head.revision, version), False)


class StorePlace:
    """A store of its own for one table; four round trips to take it, one more if it changes."""

    state_ordinal = CREATION_ORDINAL + 1

    def __init__(self, store: SnapshotKV, assignment: Assignment) -> None:
        self._store, self._core, self._assignment = store, store._core, assignment
        self._prefix = self._core.layout.live.encode(ASSIGNMENTS)
        self._target: StoreTarget | None = None

    def take(self, start: int) -> Target:
        """Make the assignment's key the only one."""
        token, source = self._assignment.token, self._assignment.source
        key = ASSIGNMENTS + _TOKEN.pack(*token)
        for _ in range(TAKE_TRIES):
            found = self._found()
            if any(kv.value != source.id for kv in found.values()):
                raise SinkError(f"another changefeed records into {self._core.layout.name!r}")
            if max(found, default=token) > token:
                raise fenced(self._assignment.table, max(found))
            mine = found.get(token)
            if mine is not None and len(found) == 1:
                self._target = StoreTarget(self._core, Held(key, mine.create_revision))
                self._target.open(source)
                return self._target
            if mine is None:
                StoreTarget(self._core, Held(key, 0)).open(source)  # raises for another source
                self._send(0, Put(self._stored(token), source.id))
            else:
                for earlier in found.keys() - {token}:
                    self._send(mine.create_revision, Delete(self._stored(earlier)))
        raise EngineBusyError(f"assignments of {self._assignment.table!r} keep changing")

    def later(self) -> Token | None:
        """Return the greatest token that has a key, if it is a later assignment's."""
        token = max(self._found(), default=self._assignment.token)
        return token if token > self._assignment.token else None

    def write_state(self, mark: KeyValue, state: State) -> None:
        """Write a first state."""
        assert self._target is not None, "take() comes first"
        self._target.begin(mark, state)

    def values(self) -> dict[str, bytes]:
        """Return the present keys with their values."""
        return dict(self._store.at().items())

    def versions(self) -> Versions | None:
        """Return None: a store counts versions itself."""
        return None

    def wait(self, commits: int) -> None:
        """Do nothing."""

    def flushed(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _found(self) -> dict[Token, KeyValue]:
        wanted = Range(self._prefix, prefix_end(self._prefix))
        kvs = self._core.engine.read([wanted]).results[0].kvs
        return {Token(*_TOKEN.unpack(kv.key[len(self._prefix) :])): kv for kv in kvs}

    def _stored(self, token: Token) -> bytes:
        return self._prefix + _TOKEN.pack(*token)

    def _send(self, created: int, op: Op) -> None:
        """Send a request if the assignment's key was created at a revision, 0 for no key."""
        guard = Compare(self._stored(self._assignment.token), Compared.CREATE, "=", created)
        transact(self._core.engine, Txn((guard,), (op,)))
