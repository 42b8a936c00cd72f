"""Taking over keys that other programs wrote: the newest state of a prefix becomes a store's.

The source is read at one revision: first its keys alone, which finds names that cannot be taken
over and the stores of ours among them, then the values, merged in order with what the store holds
below the same names. Only what differs is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from snapkv.errors import InvalidOptionError, KeyNotFoundError, OnlyStoresError
from snapkv.full_keys import FIRST_KEY
from snapkv.importing.plan import SHOWN_CHARS, Plan
from snapkv.importing.source import Names, Source, look, named_denials
from snapkv.importing.writer import Progress, carry_out
from snapkv.layout import NOTE_BYTES_MAX, encode_text
from snapkv.model import Commit
from snapkv.reading.opening import open_engine
from snapkv.store.store import SnapshotKV

COUNTED_NOTE_BYTES_MAX = 48
"""What "import 3 of 12: " takes of a note at most."""


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
        plan = Plan(store, source, names, target, replace)
        todo = plan.count(batches)
        if not dry_run:
            todo = carry_out(plan, todo, why, progress or (lambda *_: None), batches)
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
