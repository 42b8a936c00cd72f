"""A recording as a sink: each table has a place of its own, with the times of the source.

A place is a store or an archive, written as `snapkv record` writes it. A commit of the source
becomes one commit there, with the table's part of its changes, and its own time, writer, note and
`source_revision`. The newest of them is the table's position, so nothing is written twice. For
example, `record+lmdb:./copy` keeps the tables `orders/` and `users/` in two stores of one engine:

    default:orders%2F    as of 14:05 it has the keys below `orders/` that the source had at 14:05
    default:users%2F     the same for `users/`

The token of the assignment that writes is kept in the place. In a store it is the name of a key,
`N/live/assignment/<owner><number>` (8 bytes each), which each commit compares.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import snapkv
from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.contracts import TableSink, TableWriter, fenced
from cdcmeta.scheduler.executors.json_lines_sink import SUFFIX, file_name
from snapkv import Change, Changes, Commit, SnapshotKV
from snapkv.base.waiting import monotonic, pause
from snapkv.copying import copying_kit
from snapkv.copying.copying_kit import CREATION_ORDINAL, KeyEvent, KeyValue, RecordTarget, SourceId
from snapkv.errors import ArchiveTakenError, EngineBusyError, SessionLostError
from snapkv.model import Held

if TYPE_CHECKING:
    from snapkv.copying.archive_target import ArchiveTarget  # pyarrow

TAKE_TRIES = 16
"""The most times that another assignment may begin while one takes its place."""

State = list[list[KeyValue]]
Versions = dict[bytes, tuple[int, int]]
"""The revision that created each present key, and how often it was written since."""


class Assignment(NamedTuple):
    """Which table of which source is written, and under which token."""

    table: str
    token: Token
    source: SourceId


RECORD, ARCHIVE = "record+", "record+archive:"
ASSIGNMENTS = b"assignment/"
STATE_NOTE = "the state that the table begins with"
STORE_NAME_BYTES_MAX = 128
_ESCAPED = re.compile(r"[%/:!\x00-\x20\x7f]")
_TOKEN = struct.Struct(">QQ")

FOLDER, DIGITS = "_assignment", 20
FIRST_REVISION = 1
"""The revision at which a place begins: before each commit of a source."""
PAUSE_S = 0.25
"""The least time between two small writes of a table while more commits wait in its queue, in
seconds."""
SMALL_COMMITS = 64
TEND_WRITES = 8
"""The number of writes after which their files are merged."""


def recorded_sink(url: str, name: str, changefeed: str, source: SnapshotKV) -> TableSink:
    """Return the sink of a URL `record+...`, which records each table into a place of its own.

    `source` is the store that is replicated; `name` begins the names of stores.
    """
    facts = source.info()
    store_id, folder = bytes.fromhex(facts["store_id"]), url.removeprefix(ARCHIVE).rstrip("/")

    def place(assignment: Assignment) -> RecordPlace:
        table = assignment.table
        if url.startswith(ARCHIVE):
            return ArchivePlace(f"{folder}/{folder_name(table)}", assignment)
        target = snapkv.open(url.removeprefix(RECORD), name=store_name(name, table))
        return StorePlace(target, assignment)

    def writer(table: str, token: Token) -> RecordedWriter:
        recorded = source_of(store_id, facts["name"], changefeed, table)
        return RecordedWriter(Assignment(table, token, recorded), place)

    return writer


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

    It is not the store's own id, so that no archive of one table passes for the archive of the
    store.
    """
    parts = (store_id, changefeed.encode(), table.encode())
    digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))
    return SourceId(digest.digest()[:16], name, CREATION_ORDINAL)


class RecordedWriter(TableWriter):
    """Records one table. The state that it begins with is in memory until it is complete."""

    def __init__(self, assignment: Assignment, place: Callable[[Assignment], RecordPlace]) -> None:
        self._assignment, self._open_place = assignment, place
        self._layout = copying_kit.Layout(assignment.source.name)
        self._place: RecordPlace | None = None
        self._target: RecordTarget | None = None  # None after a failure: the place is taken again
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

    def _attempt(self, place: RecordPlace, work: Callable[[RecordTarget], None]) -> None:
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
        self,
        place: RecordPlace,
        target: RecordTarget,
        commits: Sequence[Changes[str]],
        checkpoint: int,
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

    def _write_state(self, place: RecordPlace, target: RecordTarget, state_at: int) -> None:
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
        before, rows = self._before, chain.from_iterable(self._state)
        new = (each for each in rows if before.get(each.key) != each.value)
        return tuple(Change(each.key, each.value, head) for each in new)

    def _closed(self) -> SinkError:
        return SinkError(f"the writer of {self._assignment.table!r} is closed")

    @property
    def _reached(self) -> int:
        return 0 if self._last is None else copying_kit.stamp_of(self._last.value)

    def _page(self, page: Changes[str]) -> list[KeyValue]:
        revision, encode = page.commit.revision, self._layout.data.encode
        return [KeyValue(encode(e.key), e.value or b"", revision, revision, 1) for e in page]

    def _step(self, changes: Changes[str]) -> copying_kit.SourceCommit:
        last, head = self._last, changes.commit
        if last is not None and head.revision <= last.mod_revision:
            raise SinkError(
                f"the source has revision {head.revision} after {last.mod_revision} was recorded: "
                "it was restored since; record into a new place"
            )
        ordinal = CREATION_ORDINAL if last is None else last.version
        mark = self._mark(head, ordinal + 1)
        return copying_kit.SourceCommit(
            mark, tuple(self._event(each.key, each.value, head) for each in changes)
        )

    def _mark(self, head: Commit, ordinal: int) -> KeyValue:
        nonce, writer = head.ts.to_bytes(8, "big"), head.writer or ""
        stamp = copying_kit.StampRecord(head.ts, nonce, writer, head.note, meta=head.meta)
        created = self._assignment.source.created
        return KeyValue(self._layout.ts, stamp.encode(), created, head.revision, ordinal)

    def _event(self, key: str, value: bytes | None, head: Commit) -> KeyEvent:
        stored, known = self._layout.data.encode(key), self._versions
        if value is None:
            if known is not None:
                known.pop(stored, None)
            return KeyEvent(KeyValue(stored, b"", 0, head.revision, 0), True)
        created, version = head.revision, 1
        if known is not None:
            created, before = known.get(stored, (head.revision, 0))
            version = before + 1
            known[stored] = created, version
        return KeyEvent(KeyValue(stored, value, created, head.revision, version), False)


class RecordPlace:
    """Where one table is recorded, for one assignment: a store or an archive."""

    state_ordinal: int
    """The ordinal of the commit that the table's first state has."""

    _assignment: Assignment

    def take(self, start: int) -> RecordTarget:
        """Make sure that no earlier assignment writes any more; return the target as it is then.

        `start` is the time that a place begins with that has nothing yet. Raises `SinkError`:
        `fenced` if a later assignment has begun.
        """
        raise NotImplementedError

    def later(self) -> Token | None:
        """Return the greatest token of the place, if it is a later assignment's."""
        token = max(self._tokens(), default=self._assignment.token)
        return token if token > self._assignment.token else None

    def write_state(self, mark: KeyValue, state: State) -> None:
        """Make a state the first moment of the place, durably."""
        raise NotImplementedError

    def values(self) -> dict[str, bytes]:
        """Return the present keys with their values."""
        raise NotImplementedError

    def versions(self) -> Versions | None:
        """Return the versions of the present keys; None if the place counts them itself."""
        return None

    def wait(self, commits: int) -> None:
        """Wait before so many commits are written, if they come too soon."""

    def flushed(self) -> None:
        """Do what is due after commits became durable."""

    def close(self) -> None:
        """Free what the place holds."""

    def _tokens(self) -> Collection[Token]:
        """Return the tokens of the place. One read."""
        raise NotImplementedError


class StorePlace(RecordPlace):
    """A store of its own for one table; four round trips to take it, one more if it changes."""

    state_ordinal = CREATION_ORDINAL + 1

    def __init__(self, store: SnapshotKV, assignment: Assignment) -> None:
        self._store, self._core, self._assignment = store, store._core, assignment
        self._prefix = self._core.layout.live.encode(ASSIGNMENTS)
        self._target: copying_kit.StoreTarget | None = None

    def take(self, start: int) -> RecordTarget:
        """Make the assignment's key the only one."""
        token, source = self._assignment.token, self._assignment.source
        key = ASSIGNMENTS + _TOKEN.pack(*token)
        for _ in range(TAKE_TRIES):
            found = self._tokens()
            if any(kv.value != source.id for kv in found.values()):
                raise SinkError(f"another changefeed records into {self._core.layout.name!r}")
            if max(found, default=token) > token:
                raise fenced(self._assignment.table, max(found))
            mine = found.get(token)
            if mine is not None and len(found) == 1:
                self._target = copying_kit.StoreTarget(self._core, Held(key, mine.create_revision))
                self._target.open(source)
                return self._target
            if mine is None:
                copying_kit.StoreTarget(self._core, Held(key, 0)).open(
                    source
                )  # raises for another source
                self._send(0, copying_kit.Put(self._stored(token), source.id))
            else:
                for earlier in found.keys() - {token}:
                    self._send(mine.create_revision, copying_kit.Delete(self._stored(earlier)))
        raise EngineBusyError(f"assignments of {self._assignment.table!r} keep changing")

    def write_state(self, mark: KeyValue, state: State) -> None:
        """Write a first state."""
        assert self._target is not None, "take() comes first"
        self._target.begin(mark, state)

    def values(self) -> dict[str, bytes]:
        """Return the present keys with their values."""
        return dict(self._store.at().items())

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _tokens(self) -> dict[Token, KeyValue]:
        wanted = copying_kit.Range(self._prefix, copying_kit.prefix_end(self._prefix))
        kvs = self._core.engine.read([wanted]).results[0].kvs
        return {Token(*_TOKEN.unpack(kv.key[len(self._prefix) :])): kv for kv in kvs}

    def _stored(self, token: Token) -> bytes:
        return self._prefix + _TOKEN.pack(*token)

    def _send(self, created: int, op: copying_kit.Op) -> None:
        """Send a request if the assignment's key was created at a revision, 0 for no key."""
        guard = copying_kit.Compare(
            self._stored(self._assignment.token), copying_kit.Compared.CREATE, "=", created
        )
        copying_kit.transact(self._core.engine, copying_kit.Txn((guard,), (op,)))


class ArchivePlace(RecordPlace):
    """An archive of its own for one table: a folder of files.

    Beside its files it has `_assignment/<owner>-<number>`, an empty file with the token of the
    assignment that writes. An assignment writes its file, and then publishes a manifest of the same
    content, so that of an earlier one no manifest can follow: each number is published once.

    A place begins empty, with a moment just before the table's start. The state that a table begins
    with follows, and what is before it is dropped. Should a crash come between, a gap shows that it
    was not dropped, and the next assignment does so.
    """

    state_ordinal = CREATION_ORDINAL + 2  # the one between is in the gap

    def __init__(self, url: str, assignment: Assignment) -> None:
        from snapkv.copying.archive_target import (  # pyarrow
            ArchiveEngine,
            ArchiveTarget,
            open_files,
            publish,
        )

        self._files, self._assignment = open_files(url), assignment
        self._layout = copying_kit.Layout(assignment.source.name)
        self._new_engine = partial(ArchiveEngine, self._files)
        self._new_target = partial(ArchiveTarget, self._files)
        self._publish, self._target = publish, self._new_target()
        self._writes, self._wait_until = 0, 0.0

    def take(self, start: int) -> RecordTarget:
        """Write the token, and publish a manifest that ends what an earlier writer knows."""
        token = self._assignment.token
        for at in range(TAKE_TRIES):
            target = self._new_target()
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
            stamp = copying_kit.StampRecord(max(0, start - 1)).encode()
            created = self._assignment.source.created
            try:
                target.begin(
                    KeyValue(self._layout.ts, stamp, created, FIRST_REVISION, CREATION_ORDINAL), []
                )
            except ArchiveTakenError:
                return False
            return True
        following = manifest.following([])
        if not self._publish(self._files, following):
            return False
        target.writer.manifest = following
        return True

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
        found = self._present(root, copying_kit.prefix_end(root), keys_only=True)
        return {kv.key: (kv.create_revision, kv.version) for kv in found}

    def _present(self, low: bytes, high: bytes, *, keys_only: bool) -> Iterator[KeyValue]:
        engine = self._new_engine()
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


def _name(token: Token) -> str:
    return f"{FOLDER}/{token.owner:0{DIGITS}}-{token.number:0{DIGITS}}"
