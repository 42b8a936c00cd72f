"""Importing keys that other programs wrote: a store gets the newest state of a prefix.

The source is read at one revision. A first pass over its keys finds names that a store cannot hold,
and the keys of snapkv stores. A second pass merges its keys and values with those of the store
below the same names, and commits the differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from snapkv.committer import check_writer, checked_meta
from snapkv.copying.import_plan import Plan
from snapkv.copying.import_source import Names, Source, named_denials, read_source
from snapkv.copying.import_writer import Progress, Said, carry_out
from snapkv.errors import InvalidOptionError, KeyNotFoundError
from snapkv.layout import FIRST_KEY, NOTE_BYTES_MAX, encode_text
from snapkv.location import open_engine
from snapkv.model import Commit, Scalar
from snapkv.store.batches import SHOWN_CHARS
from snapkv.store.store import SnapshotKV

COUNTED_NOTE_BYTES_MAX = 48
"""The most bytes that "import 3 of 12: " takes of a note."""


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
    have are removed. Without it, the store may hold there only keys with the same values as the
    source: so an interrupted import can continue.

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
    start = encode_text(prefix, "prefix")
    names = Names(len(start) if strip else 0, _checked_text(under, "under"))
    why = _checked_note(note, f"{prefix[:SHOWN_CHARS]!r} from {source_url}")
    if writer is not None:
        check_writer(writer)
    said = Said(why, writer, None if meta is None else checked_meta(meta))
    with ExitStack() as at_end:
        source = _opened_source(source_url, source_options, start, names, at_end)
        if not source.keys:
            raise KeyNotFoundError(prefix, reason=_nothing_found(prefix, source.left_out))
        target = under + ("" if strip else prefix)
        plan = Plan(store, source, names, target, replace)
        todo = plan.count(batches)
        if not dry_run:
            todo = carry_out(plan, todo, said, progress or (lambda *_: None))
    return ImportResult(
        source.keys,
        todo.commits,
        source.revision,
        todo.saved,
        todo.removed,
        source.left_out,
        todo.newest,
    )


def _nothing_found(prefix: str, left_out: int) -> str:
    if not left_out:
        return f"no key begins with {prefix!r}"
    keys = "1 key" if left_out == 1 else f"{left_out:,} keys"
    return f"prefix {prefix!r} holds only {keys} of snapkv stores; there is nothing to import"


def _opened_source(
    url: str, options: Mapping[str, Any] | None, start: bytes, names: Names, at_end: ExitStack
) -> Source:
    """Open the source, which `at_end` closes, and read its keys."""
    with named_denials(url):
        engine = open_engine(
            url,
            create=False,
            options=dict(options or {}),
            home=start or FIRST_KEY,
            environment=options is None,
        )
        at_end.callback(engine.close)
        return read_source(engine, start, names)


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
