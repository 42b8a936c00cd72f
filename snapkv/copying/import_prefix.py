"""The import of keys of other programs: a store gets the newest state of a prefix.

The source is read at one revision. A first pass over its keys finds names that a store cannot hold,
and the keys of snapkv stores. A second pass merges its keys and values with the store's keys
and values below the same names, and commits the differences, each commit under the guard that no
other writer came first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from snapkv import layout
from snapkv.base.text import counted
from snapkv.committer import check_writer, checked_meta
from snapkv.engine.contract import Engine, KeyValue, Range
from snapkv.errors import (
    AccessDeniedError,
    CommitTooLargeError,
    ConflictError,
    CorruptStoreError,
    FormatError,
    InvalidKeyError,
    InvalidOptionError,
    KeyNotFoundError,
    StoreNotEmptyError,
)
from snapkv.model import Absent, AtRevision, Commit, HeadAt, Ops, Scalar
from snapkv.reading.snapshot import Snapshot, paired
from snapkv.store.location import open_engine
from snapkv.store.store import SnapshotKV
from snapkv.store.writes import SHOWN_CHARS, CommitRoom

COUNTED_NOTE_BYTES_MAX = 48
"""The most bytes that "import 3 of 12: " takes of a note."""
TRIES = 8
"""The most attempts of a commit while other writers commit elsewhere in the store."""

Progress = Callable[[int, int], None]
"""Called with (commits done, commits in all), before the first commit and after each."""
Write = tuple[str, bytes | None]
"""A key and its new value, None for a removal."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import did, or with `dry_run` would do.

    `keys` counts the keys of the source at its `revision`, without the `left_out` keys of snapkv
    stores; of them `saved` were new or different. `commits` counts the commits; `newest` is the
    last one, None without any.
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
    keep: bool = False,
    batches: bool = False,
    note: str | None = None,
    writer: str | None = None,
    meta: Mapping[str, Scalar] | None = None,
    progress: Progress | None = None,
    source_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> ImportResult:
    """Commit the newest state of keys that other programs wrote, read at one revision, to a store.

    `source_url` is the URL of any engine, often of the store's own etcd; `source_options` are its
    options as for `open`. Without `source_options` the environment provides them
    (`SNAPKV_ETCD_USER` and the like). With `source_options`, {} too, the environment is not read,
    so no password of the store's own cluster goes to another one.

    Keys keep their full names; `strip` removes the prefix, and `under` is put before them. With
    `replace`, keys below the new names that differ are replaced, and keys that the source does not
    have are removed, unless `keep`. Without `replace`, the store may hold there only keys with the
    same values as the source: so an interrupted import can continue.

    The import is one commit. With `batches=True`, an import that is too large for one commit
    becomes several, each small enough, with notes "import 3 of 12: ..."; readers see them one by
    one. All have the same `writer` and `meta` (see `SnapshotKV.commit`). Each commit is tried 8
    times while other writers commit to the store. Leases of the source are not imported. Keys of
    snapkv stores are not imported either: a prefix inside a store raises, and stores among the keys
    are left out. `dry_run` writes nothing.

    Reads the keys of the source (twice if snapkv stores are among them), then its values and those
    of the store, twice with several commits. Holds one commit in memory at a time.

    >>> import snapkv
    >>> with snapkv.open("memory:cluster-1") as store:
    ...     import_prefix(store, "memory:cluster-1", "/registry/")
    Traceback (most recent call last):
    ...
    snapkv.errors.KeyNotFoundError: no key begins with '/registry/'

    Raises before anything is written: `KeyNotFoundError` when no key has the prefix, or only keys
    of snapkv stores; `InvalidKeyError` for a key that is not valid UTF-8, is too long, or is empty
    without its prefix; `StoreNotEmptyError`, `CommitTooLargeError`; `StoreNotFoundError` and other
    errors of `open` for the source. Raises later: `ConflictError` when another writer changes a
    key below the new names, or commits first in all 8 attempts; `CompactedError` (unit "revision")
    when the source's revision is compacted; and as `commit`. Committed batches stay, and a second
    import continues after them.
    """
    start = layout.encode_text(prefix, "prefix")
    layout.encode_text(under, "under")
    names = Names(len(start) if strip else 0, under)
    why = _checked_note(note, f"{prefix[:SHOWN_CHARS]!r} from {source_url}")
    if writer is not None:
        check_writer(writer)
    said = Ops(note=why, writer=writer, meta=None if meta is None else checked_meta(meta))
    with ExitStack() as at_end:
        source = _open_source(source_url, source_options, start, names, at_end)
        if not source.keys:
            raise KeyNotFoundError(prefix, reason=_nothing_found(prefix, source.left_out))
        target = under + ("" if strip else prefix)
        work = _Import(store.raw, source, names, target, replace, keep, said)
        done = work.count(batches)
        return done if dry_run else work.carry_out(done, progress or (lambda *_: None))


@dataclass(slots=True)
class _Import:
    """The writes that make the store's keys below `target` equal to the source's."""

    store: SnapshotKV
    source: ForeignKeys
    names: Names
    target: str
    replace: bool
    keep: bool
    said: Ops  # what each commit says of itself
    head: Snapshot[str] = field(init=False)
    room: CommitRoom[str] = field(init=False)
    only: list[Write] = field(init=False, default_factory=list)
    """The writes, if they are one commit."""

    def __post_init__(self) -> None:
        self.room = CommitRoom(self.store._core, self.store._core.layout.data)
        self.head = self.store.at()

    def count(self, batches: bool) -> ImportResult:
        """Count all writes; raises for a key or value that cannot be written. Writes nothing."""
        saved = removed = commits = bytes_all = 0
        for writes, size in self.room.parts(self._writes()):
            gone = sum(value is None for _, value in writes)
            saved, removed = saved + len(writes) - gone, removed + gone
            commits, bytes_all = commits + 1, bytes_all + size
            self.only = writes if commits == 1 else []
        if commits > 1 and not batches:
            if bytes_all > self.room.bytes_max or self.room.ops_max is None:
                raise CommitTooLargeError("the import in bytes", bytes_all, self.room.bytes_max)
            raise CommitTooLargeError("the import in keys", saved + removed, self.room.ops_max)
        source = self.source
        return ImportResult(source.keys, commits, source.revision, saved, removed, source.left_out)

    def carry_out(self, counted: ImportResult, progress: Progress) -> ImportResult:
        """Commit the writes that were counted."""
        commits = counted.commits
        parts: Iterable[list[Write]] = [self.only] if self.only else ()
        if commits > 1:
            parts = (writes for writes, _ in self.room.parts(self._writes()))
        if commits:
            progress(0, commits)
        revision, newest = self.head.revision, None
        for number, writes in enumerate(parts, 1):
            note = self.said.note
            if commits > 1:
                note = f"import {number} of {commits}: {note}"
            newest = self._committed(writes, note, revision)
            revision = newest.revision
            progress(number, commits)
        return dataclasses.replace(counted, newest=newest)

    def _writes(self) -> Iterator[Write]:
        """Yield the differences in key order; raises `StoreNotEmptyError` without `replace`."""
        for old, new in paired(self.head.items(self.target), self.source.pairs(self.names)):
            if old and old != new and not (self.keep and new is None):
                self._check_replace(old[0], removes=new is None)
                yield new or (old[0], None)
            elif new and not old:
                yield new

    def _check_replace(self, key: str, *, removes: bool) -> None:
        if self.replace:
            return
        what, verb = " with another value than the source", "overwrite"
        if removes:
            what, verb = ", which the source does not have", "remove"
        raise StoreNotEmptyError(f"the store has key {key!r}{what}; pass replace=True to {verb} it")

    def _committed(self, writes: list[Write], note: str | None, revision: int) -> Commit:
        """Commit one batch, unless another writer changes the target after `revision`."""
        puts = {key: value for key, value in writes if value is not None}
        deletes = [key for key, value in writes if value is None]
        for _ in range(TRIES):
            try:
                return self.store.commit(
                    puts=puts,
                    deletes=deletes,
                    guards=[HeadAt(revision)],
                    note=note,
                    writer=self.said.writer,
                    meta=self.said.meta,
                )
            except ConflictError as e:  # perhaps by a commit elsewhere in the store
                conflict = e
                revision = self._unchanged_until(revision)
        raise ConflictError(
            conflict.failed,
            f"could not commit {counted(len(writes), 'key')}: other writers committed first in all "
            f"{TRIES} attempts; import again when they commit less often",
        )

    def _unchanged_until(self, revision: int) -> int:
        """Return the revision of the newest commit; `ConflictError` if the target changed since."""
        before, now = self.store.at(revision=revision), self.store.at()
        if (changed := next(before.diff(now, self.target), None)) is None:
            return now.revision
        (was,), (found,) = self.head.entries_of([changed.key]), now.entries_of([changed.key])
        guard = Absent(changed.key) if was is None else AtRevision(changed.key, was.revision)
        raise ConflictError([(guard, 0 if found is None else found.revision)])


def _nothing_found(prefix: str, left_out: int) -> str:
    if not left_out:
        return f"no key begins with {prefix!r}"
    keys = counted(left_out, "key")
    return f"prefix {prefix!r} holds only {keys} of snapkv stores; there is nothing to import"


def _open_source(
    url: str, options: Mapping[str, Any] | None, start: bytes, names: Names, at_end: ExitStack
) -> ForeignKeys:
    """Open the source, which `at_end` closes, and read its keys."""
    with named_denials(url):
        engine = open_engine(
            url,
            create=False,
            options=dict(options or {}),
            home=start or layout.FIRST_KEY,
            environment=options is None,
        )
        at_end.callback(engine.close)
        return read_source(engine, start, names)


def _checked_note(note: str | None, default: str) -> str:
    if note is None:
        return f"import {default}"
    limit = layout.NOTE_BYTES_MAX - COUNTED_NOTE_BYTES_MAX
    if len(layout.encode_text(note, "note")) > limit:
        raise InvalidOptionError(f"the note of an import has at most {limit} bytes")
    return note


FORMAT_SUFFIX = b"/sys/format"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of foreign keys in the store: without `cut` bytes, and with `under` before them."""

    cut: int
    under: str

    def of(self, stored: bytes) -> str:
        """Return the new name of a key; raises `InvalidKeyError` if it cannot have one."""
        try:
            name = stored[self.cut :].decode()
        except UnicodeDecodeError as e:
            raise InvalidKeyError(f"key {stored!r} is not valid UTF-8", stored) from e
        if not self.under + name:
            raise InvalidKeyError(f"key {stored!r} has no name without its prefix", stored)
        return self.under + name


@dataclass(frozen=True, slots=True)
class ForeignKeys:
    """The keys with a prefix at one revision; keys below `roots` belong to snapkv stores."""

    engine: Engine
    start: bytes
    revision: int
    roots: tuple[bytes, ...]
    keys: int
    left_out: int

    def pairs(self, names: Names) -> Iterator[tuple[str, bytes]]:
        """Yield new names and values, in order."""
        first, end = self.start or layout.FIRST_KEY, layout.prefix_end(self.start)
        with named_denials(self.engine.url):
            for page in self.engine.scan(first, end, revision=self.revision):
                for kv in page:
                    if not kv.key.startswith(self.roots):
                        yield names.of(kv.key), kv.value


@contextmanager
def named_denials(url: str) -> Iterator[None]:
    """Name the URL in an `AccessDeniedError`: source and store may be two clusters."""
    try:
        yield
    except AccessDeniedError as e:
        raise AccessDeniedError(f"{url}: {e}") from e


def read_source(engine: Engine, start: bytes, names: Names) -> ForeignKeys:
    """Read the keys below a prefix; raises `InvalidKeyError` for one that cannot be imported."""
    first, end = start or layout.FIRST_KEY, layout.prefix_end(start)
    answer = engine.read([Range(first, end, count_only=True)])
    revision = answer.header.revision
    _check_outside(engine, start, revision)
    found = _counted(engine.scan(first, end, revision=revision, keys_only=True), (), names)
    roots = tuple(root for root in found.roots if _is_store(engine, root, revision))
    if roots:
        found = _counted(engine.scan(first, end, revision=revision, keys_only=True), roots, names)
    if found.error is not None:
        raise found.error
    return ForeignKeys(engine, start, revision, roots, found.keys, found.left_out)


@dataclass(slots=True)
class _KeyCounts:
    """Counts of a source's keys, and the possible roots of snapkv stores among them."""

    keys: int = 0
    left_out: int = 0
    roots: list[bytes] = field(default_factory=list)
    error: InvalidKeyError | None = None


def _counted(pages: Iterable[list[KeyValue]], roots: tuple[bytes, ...], names: Names) -> _KeyCounts:
    """Count all keys, leaving out those below `roots`; keep the error of the first bad one."""
    found = _KeyCounts()
    for page in pages:
        for kv in page:
            if kv.key.startswith(roots):
                found.left_out += 1
                continue
            found.keys += 1
            if kv.key.endswith(FORMAT_SUFFIX):
                found.roots.append(kv.key[: 1 - len(FORMAT_SUFFIX)])
            try:
                names.of(kv.key)
            except InvalidKeyError as e:
                found.error = found.error or e
    return found


def _is_store(engine: Engine, root: bytes, revision: int) -> bool:
    wanted = [Range(root + name, revision=revision) for name in (b"sys/format", b"sys/ts")]
    format_, ts = (result.kvs for result in engine.read(wanted).results)
    if not format_ or not ts:
        return False
    try:
        layout.FormatRecord.decode(format_[0].value)
        layout.StampRecord.decode(ts[0].value)
    except (CorruptStoreError, FormatError) as e:
        return isinstance(e, FormatError)
    return True


def _check_outside(engine: Engine, start: bytes, revision: int) -> None:
    """Raise `InvalidKeyError` for a prefix inside a snapkv store, which needs dump and load."""
    slashes = [at for at, byte in enumerate(start[: layout.NAME_BYTES_MAX + 1]) if byte == ord("/")]
    for at in slashes:
        root = start[: at + 1]
        with suppress(AccessDeniedError):  # a user without the right cannot read a store there
            if _is_store(engine, root, revision):
                name = root[:-1].decode(errors="backslashreplace")
                raise InvalidKeyError(
                    f"{start!r} is inside the snapkv store {name!r}: use dump and load", start
                )
