"""Another store as the place of a recording: each commit is repeated there, with its own time.

The target's timestamp key carries the position: the revision and ordinal of the source's commit,
written in the same transaction. Each transaction compares that the key is as this recorder left
it, and that its leadership holds. So nothing is recorded twice, wherever a process ends
(`store_commits`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from snapkv.copying.sources import Pages, SourceCommit, differences, gap_note
from snapkv.copying.store_commits import CommitPart, StoreCommits, Writes
from snapkv.engine.contract import Delete, Engine, KeyEvent, KeyValue, Put, Range, Txn
from snapkv.errors import (
    ArchiveError,
    CommitTooLargeError,
    CompactedError,
    CorruptStoreError,
    InvalidKeyError,
)
from snapkv.layout import CREATION_ORDINAL, Layout, SourceId, StampRecord, prefix_end, stamp_of
from snapkv.model import Held
from snapkv.reading.change_replay import events_of
from snapkv.reading.view import KeyspaceReads
from snapkv.store.store import SnapshotKV
from snapkv.store.store_writer import StoreWriter
from snapkv.times import end_of_ms

if TYPE_CHECKING:
    from snapkv.copying.archive_target import ArchiveTarget

NEWEST_IN = 1_000, 50_000
"""The numbers of revisions in which the newest recorded change is looked for."""
BEFORE_MARK = 1 << 17
"""The distance from the timestamp of a state's first part to that of its mark: half a
millisecond."""


class StoreTarget:
    """A store that repeats the commits of a source; `guard` proves the leadership."""

    is_full = False
    """Whether a flush is due, whatever its age."""

    def __init__(self, core: StoreWriter, guard: Held) -> None:
        self._core, self._engine, self._layout = core, core.engine, core.layout
        self._commits = StoreCommits(core, guard)
        self._long_keys = [core.layout.space(name) for name in (LONG_KEYS, LONG_KEY_NAMES)]
        self._source_root = b""  # of the source's keys

    @property
    def pending(self) -> int:
        """Bytes that are not durable yet."""
        return self._commits.pending

    # --- what is recorded ---

    def known(self) -> SourceId | None:
        """Return the source that is recorded here; one round trip."""
        return self._commits.known()

    def open(self, identity: SourceId) -> None:
        """Take a source; raises `ArchiveError` if the store is it, or holds anything else."""
        if identity.observed is None and identity.id == self._core.format.store_id:
            raise ArchiveError(
                f"{self._core.url} is the source itself: record into another place or name"
            )
        known, used = self.known(), self._commits.head.version > CREATION_ORDINAL
        if known is None and used:
            raise ArchiveError(
                f"{self._core.url} has commits of its own: record into a store that has none"
            )
        if known is not None:
            identity.check_follows(known, self._core.url)
        self._commits.source, self._source_root = identity, Layout(identity.name).root

    @property
    def echo_ends(self) -> tuple[bytes, bytes]:
        """What keys end with that have this record's commits: in a record of its keys, or of it."""
        return b"/data/" + self._layout.ts, b"/sys/ts"

    def is_echo(self, value: bytes) -> bool:
        """Return whether a value belongs to a commit which was made here; a lookup."""
        try:
            stamp = StampRecord.decode(value)
            found = self._core.timeline.find(stamp.timestamp)
        except (CorruptStoreError, CompactedError):
            return False
        return found is not None and found[1].nonce == stamp.nonce

    def last(self) -> KeyValue | None:
        """Return the newest mark of the source that is recorded."""
        stamp, source = StampRecord.decode(self._commits.head.value), self._commits.source
        assert source is not None, "open() comes first"
        if self._commits.head.version > CREATION_ORDINAL and stamp.source is None:
            raise ArchiveError(
                f"{self._core.url} has commits that were not recorded: its history is its own now"
            )
        if self._commits.part is not None:
            before = StampRecord.decode(CommitPart.decode(self._commits.part).before)
            # times of a prefix are its recorder's: the next time is after the times of the parts
            stamp = before if source.observed is None else replace(stamp, source=before.source)
        if stamp.source is None or not stamp.source[0]:
            return None
        revision, ordinal = stamp.source
        key = Layout(source.name).ts
        value = replace(stamp, source=None).encode()
        return KeyValue(key, value, source.created, revision, ordinal)

    def newest_change(self) -> KeyEvent | None:
        """Return the newest recorded change; None if it is a part of a state, or too long ago.

        A watch of each window of revisions, and some round trips.
        """
        part, engine, layout = self._commits.part, self._engine, self._layout
        until = engine.get(layout.ts).header.revision if part is None else part.create_revision - 1
        recorded = layout.data.prefix, prefix_end(layout.spaces)
        with suppress(CompactedError):
            for window in NEWEST_IN:
                first = max(until - window, engine.compacted_revision(), 1)
                events = [
                    event
                    for event in events_of(engine, *recorded, first, until)
                    if event.kv.key.startswith((layout.data.prefix, layout.spaces))
                ]
                if events:
                    at = events[-1].kv.mod_revision
                    return self._as_change([e for e in events if e.kv.mod_revision == at], at)
        return None

    def _as_change(self, events: Sequence[KeyEvent], at: int) -> KeyEvent | None:
        """Return one of the events of a revision as the source had it; None if that is unknown."""
        mark = self._engine.get(self._layout.ts, at).kv
        stamp = None if mark is None else StampRecord.decode(mark.value)
        if mark is None or mark.mod_revision != at or stamp is None or stamp.source is None:
            return None
        if self._commits.named_at() >= at:  # other keys are observed since
            return None
        values, names = self._long_keys
        changes = [event for event in events if not event.kv.key.startswith(names.prefix)]
        if stamp.note is not None or not changes:  # parts of states and of commits have notes
            return None
        (name, value, *_), is_delete = event = min(changes, key=lambda event: event.is_delete)
        stored_name = name.removeprefix(self._layout.root)
        if name.startswith(values.prefix):
            short = names.encode(values.decode(name))
            full = self._engine.get(short, at - 1 if is_delete else at).kv
            assert full is not None, "both rows of a long key are written together"
            stored_name = full.value
        kv = KeyValue(self._source_root + stored_name, value, 0, stamp.source[0], 0)
        return event._replace(kv=kv)

    def differs(
        self, mark: KeyValue, state: Pages, comparable: Callable[[bytes, bytes], bool]
    ) -> bool:
        """Return whether a state is not the one recorded at the newest mark; reads both.

        A round trip for each value that is not comparable.
        """
        if self._commits.part is not None:  # it has a part of the next commit, too
            return False
        for op in self._differing(mark, state):
            known = self._engine.get(op.key).kv
            if known is None or isinstance(op, Delete) or comparable(op.value, known.value):
                return True
        return False

    def recorded(self) -> Iterator[Sequence[KeyValue]]:
        """Yield the newest recorded versions in pages, with the keys of the source."""
        values, names = self._long_keys
        ours, theirs = self._layout.root, self._source_root
        short = tuple(space.prefix for space in self._long_keys)
        for page in self._present(short, within=False):
            yield [kv._replace(key=theirs + kv.key[len(ours) :]) for kv in page]
        long = {kv.key: kv for page in self._present(short, within=True) for kv in page}
        for key, kv in long.items():
            if key.startswith(names.prefix):
                found = long[values.prefix + key[len(names.prefix) :]]
                yield [found._replace(key=theirs + kv.value)]

    # --- recording ---

    def begin(self, mark: KeyValue, state: Pages) -> None:
        """Write a first state in parts; what is older cannot be read afterwards."""
        if mark.version == CREATION_ORDINAL:  # the source has no keys yet, and neither has this
            return
        self._write_differences(mark, state, (0, 0))
        self._commits.write(self._stamp(mark), [])
        self._forget_parts()

    def close_gap(self, last: KeyValue, mark: KeyValue, state: Pages) -> None:
        """Write what differs from a state; a commit before it has the gap's note."""
        position = last.mod_revision, last.version
        self._commits.is_moving = True
        if mark.version > last.version + 1:
            timestamp = stamp_of(self._commits.head.value) + 1
            stamp = StampRecord(timestamp, os.urandom(8), note=gap_note(last, mark))
            self._commits.write(replace(stamp, source=position), [])
        self._write_differences(mark, state, position)
        self._commits.is_moving = False
        self._commits.write(self._stamp(mark), [])

    def add(self, step: SourceCommit) -> None:
        """Take a step, which becomes one commit when no more come, or the group is full."""
        changed = {event.kv.key: event for event in step.events}  # the last change of each key
        self._commits.add(self._stamp(step.mark), self._writes(changed.values()))

    def settle_in(self) -> float:
        """Return after how many seconds the group has waited for long enough."""
        return self._commits.settle_in()

    def settle(self) -> None:
        """Make all steps durable, which waited for more of them."""
        self._commits.settle()

    flush = settle

    def tend(self, keep_before_ms: int | None) -> None:
        """Compact what is older than a time."""
        if keep_before_ms is not None:
            self._core.compact(end_of_ms(keep_before_ms))

    # --- states ---

    def _write_differences(self, mark: KeyValue, state: Pages, position: tuple[int, int]) -> None:
        """Make the target's keys equal to a mark's, in commits that keep the position."""
        at = max(stamp_of(self._commits.head.value) + 1, stamp_of(mark.value) - BEFORE_MARK)
        before = self._commits.before()
        note = StampRecord.decode(mark.value).note or "recording a state"
        for ops in self._commits.parts(self._differing(mark, state)):
            if at < stamp_of(mark.value):
                stamp = StampRecord(at, os.urandom(8), note=note, source=position)
                self._commits.write(stamp, ops)
                at += 1
            else:  # the state is found again after a crash
                self._commits.write(None, ops, CommitPart((0, 0), b"", 0, before, True))

    def _differing(self, mark: KeyValue, state: Pages) -> Iterator[Put | Delete]:
        """Yield the writes that make the target's keys equal to a state; long keys come last."""
        long: dict[bytes, bytes] = {}
        spaces = tuple(space.prefix for space in self._long_keys)

        def moved() -> Iterator[Sequence[KeyValue]]:
            for page in state:
                kept = []
                for kv in page:
                    rows = self._rows(kv.key[len(self._source_root) :], kv.value)
                    if len(rows) > 1 or rows[0][0].startswith(spaces):
                        long.update(rows)
                    else:
                        kept.append(kv._replace(key=rows[0][0]))
                yield kept

        for each in differences(self._present(spaces, within=False), moved(), mark):
            yield _write_of(each)
        found = [[KeyValue(key, value, 0, 0, 1) for key, value in sorted(long.items())]]
        for each in differences(self._present(spaces, within=True), found, mark):
            yield _write_of(each)

    def _present(self, spaces: tuple[bytes, ...], *, within: bool) -> Iterator[Sequence[KeyValue]]:
        """Yield the newest recorded keys, also of a part, without or within some spaces."""
        layout = self._layout
        recorded = layout.data.prefix, layout.spaces
        whole = layout.root, prefix_end(layout.root)
        newest = self._engine.get(layout.ts).header.revision
        for page in self._engine.scan(*whole, revision=newest):
            kept = (kv for kv in page if kv.key.startswith(recorded))
            yield [
                kv._replace(mod_revision=0) for kv in kept if kv.key.startswith(spaces) == within
            ]

    def _forget_parts(self) -> None:
        """Compact away the parts of the first state, if nothing else lives in the engine."""
        root = self._layout.root
        ranges = [Range(b"\0", root, limit=1), Range(prefix_end(root), b"\0", limit=1)]
        if not any(result.kvs for result in self._engine.read(ranges).results):
            self._engine.compact(self._commits.head.mod_revision)

    # --- transactions ---

    def _stamp(self, mark: KeyValue) -> StampRecord:
        stamp = StampRecord.decode(mark.value)
        return replace(stamp, ahead=0, source=(mark.mod_revision, mark.version), began=0)

    def _writes(self, events: Iterable[KeyEvent]) -> Writes:
        writes: Writes = []
        for event in events:
            for key, value in self._rows(event.kv.key[len(self._source_root) :], event.kv.value):
                writes.append(Delete(key) if event.is_delete else Put(key, value))
        return writes

    def _rows(self, stored_name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
        """Return what the target has of a key: the key, or two rows for one that is too long."""
        key = self._layout.root + stored_name
        if is_long(self._engine, key):
            short, (values, names) = short_key(stored_name), self._long_keys
            return [(values.encode(short), value), (names.encode(short), stored_name)]
        return [(key, value)]


def _write_of(event: KeyEvent) -> Put | Delete:
    return Delete(event.kv.key) if event.is_delete else Put(event.kv.key, event.kv.value)


RecordTarget: TypeAlias = "ArchiveTarget | StoreTarget"
"""Takes the steps of a record in order, each once."""

LONG_KEYS, LONG_KEY_NAMES = "long-keys", "long-key-names"
"""The spaces of a record for keys that are longer than its engine takes.

`long-keys` has the values, and `long-key-names` the full names, both under a short key: the first
128 bytes of the name, `~`, and the SHA-256 of the stored name in hexadecimal. The stored name of a
store's or a prefix's key is `data/` and the key, that of a key in a space `space/<name>/` and the
key. Two names have the same short key only if their SHA-256 is the same.

    data//registry/configmaps/nnn...   /registry/configmaps/nn...n~5ae1...   of each space
"""
BEGINNING_BYTES = 128
"""The most bytes of a name that its short key begins with."""


def short_key(stored_name: bytes) -> bytes:
    """Return the short key of a stored name.

    >>> short_key(b"data/" + b"n" * 500)[:14], len(short_key(b"data/" + b"n" * 500))
    (b'nnnnnnnnnnnnnn', 193)
    """
    key = stored_name.removeprefix(b"data/")
    digest = hashlib.sha256(stored_name).hexdigest()
    return key[:BEGINNING_BYTES] + b"~" + digest.encode()


def is_long(engine: Engine, key: bytes) -> bool:
    """Return whether a stored key is longer than an engine takes."""
    if 2 * len(key) > engine.limits.key_bytes:  # lmdb counts zero bytes twice
        try:
            engine.check_limits(Txn(success=(Put(key, b""),)))
        except (InvalidKeyError, CommitTooLargeError):
            return True
    return False


def with_long_keys(kv: KeyspaceReads[str], key: str) -> tuple[Any, str | bytes]:
    """Return the view that has a key, and the key there: `long-keys` if a record ever had it there.

    Copies of such a record have it there, too, even if their engine takes longer keys. One more
    read for a key of more than 128 bytes.
    """
    stored = kv.keyspace.encode(key)
    if isinstance(kv, SnapshotKV) and len(stored) > BEGINNING_BYTES:
        short = short_key(b"data/" + stored.removeprefix(kv.keyspace.prefix))
        if next(iter(kv.space(LONG_KEY_NAMES).history(short)), None) is not None:
            return kv.space(LONG_KEYS), short
    return kv, key
