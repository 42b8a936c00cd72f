"""Taking over keys that other programs wrote: the newest state of a prefix becomes a store's.

The source is read at one revision: first its keys alone, which finds names that cannot be taken
over and the stores of ours among them, then the values, merged in order with what the store holds
below the same names. Only what differs is committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
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
from snapkv.foreign import (
    CrowdedError,
    Meanwhile,
    Names,
    OnlyStoresError,
    Source,
    in_the_way,
    look,
    named_denials,
)
from snapkv.full_keys import FIRST_KEY
from snapkv.model import Commit, HeadAt
from snapkv.opening import open_engine
from snapkv.records import NOTE_BYTES_MAX, encode_text
from snapkv.snapshot import Snapshot
from snapkv.store import SnapshotKV

GUARD_TRIES_MAX = 32
"""How often a commit is tried while others commit to the same store, elsewhere in it."""
SPLIT_TRIES_MAX = 4
"""How often one that may be made smaller is."""
REGROWTH = 8
"""How many times larger the next piece of the plan may be than what fitted in the last one."""
GUARD_BYTES = 512
"""What the guard of a commit takes of its request at most."""
COUNTED_NOTE_BYTES_MAX = 48
"""What "import 3 of 12: " takes of a note at most."""
SHOWN_CHARS = 80

Progress = Callable[[int, int], None]
"""Hears (commits done, commits in all), before the first one and after each.

Where others commit often and commits are made smaller, the second number grows.
"""
Write = tuple[str, bytes | None]
"""A key and its new value, None for a removal."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did, or with `dry_run` would do.

    `keys` is how many the source has at its `revision`, without the `left_out` ones of stores of
    ours; of them `saved` were new or different. `commits` is how many it took, or would take if
    nobody else commits. `newest` is the last commit, None without any.
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
    options as for `open`. Without them the environment stands in (`SNAPKV_ETCD_USER` and the
    like); where they are given, {} too, they are all that the source is told, so that no password
    of the store's own cluster goes to another one. Keys keep their full names, unless `strip`
    takes the prefix off; `under` is put before them. With `replace`, what differs below the new
    names is replaced and what the source has not is removed. Without it nothing may stand there,
    but keys with the very values of the source: so an import that was interrupted goes on where
    it was.

    It is one commit. When that does not fit, `batches` makes it several, each small enough, which
    readers see arrive; with the note "import 3 of 12: ...". When others commit to the store, each
    commit has to come between theirs: with `batches`, one that cannot is made smaller, and there
    are more than were foreseen. A lease of the source is not kept.
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

    Raises before anything is written: `KeyNotFoundError` when no key has the prefix, or only
    keys of stores of ours, `InvalidKeyError` for a key that is no text, too long, or empty without
    its prefix, `StoreNotEmptyError`, `CommitTooLargeError`; `StoreNotFoundError` and others as
    `open` for the source. `ConflictError` when somebody else writes below the new names
    meanwhile, which names a key of those, or when others commit too often for a commit to come
    between; `CompactedError` (unit "revision") when the source's revision is compacted meanwhile;
    and as `commit`. What was committed stays, and a second import goes on from there.
    """
    start = encode_text(prefix, "prefix")
    names = Names(len(start) if strip else 0, _checked_text(under, "under"))
    why = _checked_note(note, f"{prefix[:SHOWN_CHARS]!r} from {source_url}")
    with ExitStack() as at_end:
        source = _looked_at(source_url, source_options, start, names, at_end)
        if not source.keys:
            error = OnlyStoresError(prefix, source.left_out) if source.left_out else None
            raise error or KeyNotFoundError(prefix)
        target = under + ("" if strip else prefix)
        plan = _Plan(store, source, names, target, replace)
        todo = plan.count(batches)
        if not dry_run:
            todo = _carry_out(plan, todo, why, progress or (lambda *_: None), batches)
    return ImportResult(
        source.keys,
        todo.commits,
        source.revision,
        todo.saved,
        todo.removed,
        source.left_out,
        todo.newest,
    )


def _looked_at(
    url: str, options: Mapping[str, Any] | None, start: bytes, names: Names, at_end: ExitStack
) -> Source:
    """Open the source, which `at_end` closes, and look at its keys."""
    with named_denials(url):
        engine = open_engine(
            url,
            create=False,
            options=dict(options or {}),
            home=start or FIRST_KEY,
            environment=options is None,
        )
        at_end.callback(engine.close)
        return look(engine, start, names)


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
                self._check_replace(old[0], removes=True)
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

    def _check_replace(self, key: str, *, removes: bool = False) -> None:
        if self.replace:
            return
        if removes:
            raise StoreNotEmptyError(
                f"the store's key {key!r} is in the way: the source has no such key; "
                "replace=True would remove it"
            )
        raise StoreNotEmptyError(
            f"the store has a key {key!r} that differs from what is imported; "
            "replace=True replaces it"
        )


# --- writing -------------------------------------------------------------------------------


def _carry_out(plan: _Plan, todo: _Todo, why: str, progress: Progress, batches: bool) -> _Todo:
    """Commit what differs; the store at `plan.head` is what it differs from."""
    if todo.ops is None:
        pieces = (ops for ops, _ in plan.batches())
    else:
        pieces = (ops for ops in [list(todo.ops)] if ops)
    if todo.commits:
        progress(0, todo.commits)
    writing = _Writing(plan, why, progress, batches, plan.head.revision, todo.commits)
    for ops in pieces:
        with closing(writing):
            writing.write(ops)
    return changed(todo, commits=writing.done, newest=writing.newest, ops=None)


@dataclass(slots=True)
class _Writing:
    """The commits of an import, each under the guard that nobody wrote below the target.

    That is looked at up to revision `known`, and the guard is that nothing at all was committed
    after it: what others commit meanwhile makes it fail, and is looked at before the next try.
    Where they commit as often as that takes, only a small commit comes between; `fits` is how many
    writes did, None when there was no need.
    """

    plan: _Plan
    why: str
    progress: Progress
    batches: bool
    known: int
    total: int
    done: int = 0
    fits: int | None = None
    newest: Commit | None = None
    others: Meanwhile | None = None

    def write(self, ops: list[Write]) -> None:
        """Commit a piece of the plan: at once, or as often as it takes with `batches`."""
        size = len(ops) if self.fits is None else min(len(ops), REGROWTH * self.fits)
        self.total += math.ceil(len(ops) / size) - 1
        at = 0
        while at < len(ops):
            left = len(ops) - at
            splits = self.batches and min(size, left) > 1
            try:
                self._commit(ops[at : at + size], SPLIT_TRIES_MAX if splits else GUARD_TRIES_MAX)
            except CrowdedError:
                if not splits:
                    raise
                half = min(size, left) // 2
                self.total += math.ceil(left / half) - math.ceil(left / size)
                size = half
                continue
            at += size
            self.done += 1
            self.progress(self.done, self.total)
        self.fits = size if size < len(ops) else None

    def close(self) -> None:
        """Watch no longer what others commit."""
        if self.others is not None:
            self.others.close()
            self.others = None

    def _commit(self, ops: list[Write], tries: int) -> None:
        """Commit some writes in one commit; raises when something is in the way."""
        puts = {key: value for key, value in ops if value is not None}
        deletes = [key for key, value in ops if value is None]
        note = f"import {self.done + 1} of {self.total}: {self.why}" if self.total > 1 else self.why
        for _ in range(tries):
            guards = [HeadAt(self.known)]
            try:
                self.newest = self.plan.store.commit(
                    puts=puts, deletes=deletes, guards=guards, note=note
                )
            except ConflictError as e:
                conflict = e
                self._look(max((found for _, found in e.failed), default=0))
                continue
            self.known = self.newest.revision
            if self.others is not None:
                self.others.ours.add(self.known)
            return
        raise CrowdedError(conflict, tries, len(ops), whole=not self.batches)

    def _look(self, revision: int) -> None:
        """Look at what others committed, up to a revision at least.

        A difference tells it first. That takes etcd 100 ms, in which they may commit again: after
        it, a watch tells of each commit as it comes. One that lost its server is not relied on.
        """
        if self.others is not None and not self.others.reopened:
            self.known, key = self.others.heard(revision)
        else:
            self.close()
            store, target = self.plan.store, self.plan.target
            before, head, core = store.at(revision=self.known), store.at(), store._core
            first = next(before.diff(head, target), None)
            self.known, key = head.revision, None if first is None else first.key
            self.others = Meanwhile(core.engine, core.layout, target, self.known)
        if key is not None:
            raise in_the_way(self.plan.head, self.plan.store.at(), key)
