"""Taking over keys that other programs wrote: the newest state of a prefix becomes a store's.

The source is read at one revision: first its keys alone, which finds names that cannot be taken
over and the stores of ours among them, then the values, merged in order with what the store holds
below the same names. Only what differs is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

from snapkv.committer.boarding import PARTS_MAX, STAMP_BYTES_MAX
from snapkv.engine.base import Delete, Put, Txn
from snapkv.engine.rules import OP_OVERHEAD_BYTES, op_bytes
from snapkv.errors import (
    CommitTooLargeError,
    ConflictError,
    InvalidKeyError,
    InvalidOptionError,
    KeyNotFoundError,
    StoreNotEmptyError,
)
from snapkv.foreign import Names, Source, look
from snapkv.full_keys import FIRST_KEY
from snapkv.model import Commit, HeadAt
from snapkv.opening import open_engine
from snapkv.records import NOTE_BYTES_MAX, encode_text
from snapkv.snapshot import Snapshot
from snapkv.store import SnapshotKV

GUARD_TRIES_MAX = 32
"""How often a commit is tried while others commit to the same store, elsewhere in it."""
GUARD_BYTES = 512
"""What the guard of a commit takes of its request at most."""
COUNTED_NOTE_BYTES_MAX = 48
"""What "import 3 of 12: " takes of a note at most."""
SHOWN_CHARS = 80

Progress = Callable[[int, int], None]
"""Hears (commits done, commits in all), before the first one and after each."""
Write = tuple[str, bytes | None]
"""A key and its new value, None for a removal."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did, or with `dry_run` would do.

    `keys` is how many the source has at its `revision`, without the `left_out` ones of stores of
    ours; of them `saved` were new or different. `newest` is the last commit, None without any.
    """

    keys: int
    commits: int
    revision: int
    saved: int
    removed: int
    left_out: int
    newest: Commit | None = None


def import_prefix(
    store: SnapshotKV,
    source_url: str,
    prefix: str,
    *,
    strip: bool = False,
    under: str = "",
    replace: bool = False,
    batches: bool = False,
    note: str | None = None,
    progress: Progress | None = None,
    source_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> ImportResult:
    """Commit the newest state of keys that others wrote, read at one revision, to a store.

    `source_url` is any engine's, often that of the store's own etcd; `source_options` are its
    options as for `open`. Keys keep their full names, unless `strip` takes the prefix off; `under`
    is put before them. With `replace`, what differs below the new names is replaced and what the
    source has not is removed. Without it nothing may stand there, but keys with the very values
    of the source: so an import that was interrupted goes on where it was.

    It is one commit. When that does not fit, `batches` makes it several, each small enough, which
    readers see arrive; with the note "import 3 of 12: ...". A lease of the source is not kept.
    Keys of stores of ours are no foreign keys: inside of one nothing can be imported, and stores
    that stand among the keys are left out. `dry_run` writes nothing.

    Reads the source's keys (twice where stores of ours are among them), then its values and those
    of the store, twice with several commits. Holds one commit in memory at a time.

    >>> import snapkv
    >>> with snapkv.open("memory:cluster-1") as store:
    ...     import_prefix(store, "memory:cluster-1", "/registry/")
    Traceback (most recent call last):
    ...
    snapkv.errors.KeyNotFoundError: no key '/registry/'

    Raises before anything is written: `KeyNotFoundError` when no key has the prefix,
    `InvalidKeyError` for a key that is no text, too long, or empty without its prefix,
    `StoreNotEmptyError`, `CommitTooLargeError`; `StoreNotFoundError` and others as `open` for the
    source. `ConflictError` when somebody else writes below the new names meanwhile;
    `CompactedError` (unit "revision") when the source's revision is compacted meanwhile; and as
    `commit`. What was committed stays, and a second import goes on from there.
    """
    start = encode_text(prefix, "prefix")
    names = Names(len(start) if strip else 0, _checked_text(under, "under"))
    why = _checked_note(note, f"{prefix[:SHOWN_CHARS]!r} from {source_url}")
    options = dict(source_options or {})
    engine = open_engine(source_url, create=False, options=options, home=start or FIRST_KEY)
    try:
        source = look(engine, start, names)
        if not source.keys:
            raise KeyNotFoundError(prefix)
        target = under + ("" if strip else prefix)
        plan = _Plan(store, source, names, target, replace)
        todo = plan.count(batches)
        if not dry_run:
            todo = _carry_out(plan, todo, why, progress or _unheard)
    finally:
        engine.close()
    return ImportResult(
        source.keys,
        todo.commits,
        source.revision,
        todo.saved,
        todo.removed,
        source.left_out,
        todo.newest,
    )


def _checked_text(text: str, what: str) -> str:
    encode_text(text, what)
    return text


def _checked_note(note: str | None, default: str) -> str:
    if note is None:
        return f"import {default}"
    if len(encode_text(note, "note")) > NOTE_BYTES_MAX - COUNTED_NOTE_BYTES_MAX:
        limit = NOTE_BYTES_MAX - COUNTED_NOTE_BYTES_MAX
        raise InvalidOptionError(f"the note of an import has at most {limit} bytes")
    return note


def _unheard(done: int, total: int) -> None:
    """Take the place of a progress that nobody wants to hear."""


# --- what differs --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Todo:
    """How much there is to write, and the writes themselves when they are one commit."""

    saved: int = 0
    removed: int = 0
    commits: int = 0
    ops: tuple[Write, ...] | None = ()
    newest: Commit | None = None


@dataclass(slots=True)
class _Plan:
    """What makes the store's keys below `target` equal to the source's."""

    store: SnapshotKV
    source: Source
    names: Names
    target: str
    replace: bool
    head: Snapshot[str] = field(init=False)
    bytes_max: int = field(init=False)
    ops_max: int | None = field(init=False)

    def __post_init__(self) -> None:
        limits = self.store._core.engine.limits
        self.bytes_max = limits.request_bytes - STAMP_BYTES_MAX - GUARD_BYTES
        fan = None if limits.ops_per_list is None else (limits.ops_per_list - 1 - PARTS_MAX) // 3
        self.ops_max = None if fan is None else fan**3  # what `committer.part.nest` has room for
        self.head = self.store.at()

    def count(self, batches: bool) -> _Todo:
        """Go through it all once, and refuse what cannot be written; nothing is written yet."""
        counted = _Todo()
        bytes_all = 0
        for ops, size in self.batches():
            removed = sum(value is None for _, value in ops)
            counted = _Todo(
                counted.saved + len(ops) - removed,
                counted.removed + removed,
                counted.commits + 1,
                None if counted.commits else tuple(ops),
            )
            bytes_all += size
        if counted.commits > 1 and not batches:
            if bytes_all > self.bytes_max or self.ops_max is None:
                raise CommitTooLargeError("the import in bytes", bytes_all, self.bytes_max)
            writes = counted.saved + counted.removed
            raise CommitTooLargeError("the import in keys", writes, self.ops_max)
        return counted

    def batches(self) -> Iterator[tuple[list[Write], int]]:
        """Yield the writes in pieces that fit into a commit each, with their bytes.

        The same ones every time, for both sides are read at one moment.
        """
        ops: list[Write] = []
        size = 0
        for write in self._writes():
            more = self._size(write)
            if ops and (size + more > self.bytes_max or len(ops) == self.ops_max):
                yield ops, size
                ops, size = [], 0
            ops.append(write)
            size += more
        if ops:
            yield ops, size

    def _size(self, write: Write) -> int:
        """Return what a write takes of a request at most; raises when it fits into none."""
        key, value = write
        stored = self.store._core.layout.data.encode(key)
        if value is None:
            return op_bytes(Delete(stored)) + OP_OVERHEAD_BYTES
        put = Put(stored, value)
        try:
            self.store._core.engine.check_limits(Txn(success=(put,)))
        except CommitTooLargeError as e:
            raise CommitTooLargeError(f"{key[:SHOWN_CHARS]!r}: {e.what}", e.size, e.limit) from e
        except InvalidKeyError as e:
            raise InvalidKeyError(f"{key[:SHOWN_CHARS]!r}: {e}", key) from e
        size = op_bytes(put) + OP_OVERHEAD_BYTES
        if size > self.bytes_max:
            what = f"{key[:SHOWN_CHARS]!r}: the commit in bytes"
            raise CommitTooLargeError(what, size, self.bytes_max)
        return size

    def _writes(self) -> Iterator[Write]:
        """Yield what differs, in key order; raises when something is in the way."""
        ours, theirs = self.head.items(self.target), self.source.pairs(self.names)
        old, new = next(ours, None), next(theirs, None)
        while old is not None or new is not None:
            if new is None or (old is not None and old[0] < new[0]):
                assert old is not None
                self._check_replace(old[0])
                yield old[0], None
                old = next(ours, None)
            elif old is None or new[0] < old[0]:
                yield new
                new = next(theirs, None)
            else:
                if old[1] != new[1]:
                    self._check_replace(old[0])
                    yield new
                old, new = next(ours, None), next(theirs, None)

    def _check_replace(self, key: str) -> None:
        if not self.replace:
            raise StoreNotEmptyError(
                f"the store has a key {key!r} that differs from what is imported; "
                "replace=True replaces what it has there"
            )


# --- writing -------------------------------------------------------------------------------


def _carry_out(plan: _Plan, todo: _Todo, why: str, progress: Progress) -> _Todo:
    """Commit what differs; the store at `plan.head` is what it differs from."""
    newest, known = None, plan.head.revision
    if todo.ops is None:
        pieces = (ops for ops, _ in plan.batches())
    else:
        pieces = (ops for ops in [list(todo.ops)] if ops)
    if todo.commits:
        progress(0, todo.commits)
    for number, ops in enumerate(pieces, 1):
        note = f"import {number} of {todo.commits}: {why}" if todo.commits > 1 else why
        newest = _commit(plan, ops, note, known)
        known = newest.revision
        progress(number, todo.commits)
    return changed(todo, newest=newest, ops=None)


def _commit(plan: _Plan, ops: list[Write], note: str, known: int) -> Commit:
    """Commit some writes, unless something below the target changed after revision `known`."""
    store = plan.store
    puts = {key: value for key, value in ops if value is not None}
    deletes = [key for key, value in ops if value is None]
    for _ in range(GUARD_TRIES_MAX):
        try:
            return store.commit(puts=puts, deletes=deletes, guards=[HeadAt(known)], note=note)
        except ConflictError as e:
            conflict, head = e, store.at()
            if next(store.at(revision=known).diff(head, plan.target), None) is not None:
                raise
            known = head.revision  # others committed elsewhere, or a tick
    raise conflict
