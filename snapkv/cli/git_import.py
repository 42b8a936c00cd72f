"""The import of a git history: one commit of a store for each commit of git, at git's time.

The store's keys, at each moment:

    text key `<path>`                 the file's content; a symlink's target; of a submodule
                                      the id of the commit it names
    space `git`, key `tree/<path>`    `<mode> <type> <object id>`, as `git ls-tree` writes it
    space `git`, key `commit`         the id of the git commit that this moment shows

With a prefix, paths and `commit` have it. A path that is not valid UTF-8, or too long for a key of
the engine, is left out of all of these.

Times come from git's commits, made non-decreasing by a running maximum: a commit dated before
its parent moves up to the parent's time. Commits of one second keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import snapkv
from snapkv.base.waiting import perf_counter
from snapkv.cli.exits import AdvisedError, Exit
from snapkv.cli.git_clone import SUBMODULE_MODE, BlobReader, Clone, GitCommit
from snapkv.engine.lmdb.records import KEY_BYTES_MAX
from snapkv.errors import CommitTooLargeError, ConflictError
from snapkv.layout import NOTE_BYTES_MAX, WRITER_BYTES_MAX, Layout
from snapkv.times import PHYSICAL_MS_MAX, physical_ms

SPACE = "git"
COMMIT_KEY = b"commit"
TREE_PREFIX = b"tree/"
PATH_BYTES_MAX = KEY_BYTES_MAX - len(Layout("default").space(SPACE).prefix + TREE_PREFIX)
OID_SHOWN = 8
OVERHEAD_BYTES = 1_280
"""The most bytes that a path takes of a request beside its content: two keys, tree line,
framing."""


@dataclass(frozen=True, slots=True)
class GitTimeline:
    """The first-parent history by position: commit ids, and times that never go back."""

    oids: list[bytes]
    times_ms: list[int]
    moved: int
    """The number of commits that were dated before their parent."""

    @classmethod
    def of(cls, clone: Clone) -> GitTimeline:
        """Read the history; a time outside a timestamp's range becomes the nearest one inside."""
        rows = clone.timeline()
        dated = [min(max(seconds, 0) * 1_000, PHYSICAL_MS_MAX) for _, seconds in rows]
        times = list(accumulate(dated, max))
        moved = sum(ms != own for ms, own in zip(times, dated, strict=True))
        return cls([oid for oid, _ in rows], times, moved)


@dataclass(slots=True)
class Imported:
    """What an import did, filled while it goes."""

    before: int = 0
    """Commits that the store held already."""
    commits: int = 0
    seconds: float = 0.0
    ts: int = 0
    """The timestamp at which the store shows the newest git commit."""
    undone: int = 0
    """Keys that other writers had changed since the last tour, and that were restored."""
    left_out: set[bytes] = field(default_factory=set)
    """Paths that cannot be keys."""


def clock_options(clock: snapkv.ManualClock | None = None) -> dict[str, Any]:
    """Return the options with which a store opens whose times are git's, not the machine's."""
    clock = clock or snapkv.ManualClock(PHYSICAL_MS_MAX)
    return {"clock": clock, "max_clock_skew": PHYSICAL_MS_MAX // 1_000}


def imported_last(store: snapkv.SnapshotKV, key: bytes = COMMIT_KEY) -> bytes | None:
    """Return the git commit that the store shows, None if it is new.

    Raises `AdvisedError` for a store that has something else.
    """
    now = store.at()
    last = store.space(SPACE).at(revision=now.revision).get(key)
    if last is None and (now.count() or store.info()["commits"]):
        message = f"no git history was imported into {store.reader.url} with this prefix"
        advice = "Name a new store, or one that holds an import of this history: --store DIR"
        raise AdvisedError(message, advice, Exit.CONFLICT)
    return last


# --- the import ----------------------------------------------------------------------------


def import_history(
    store: snapkv.SnapshotKV,
    clock: snapkv.ManualClock,
    clone: Clone,
    timeline: GitTimeline,
    on_commit: Callable[[int, int], None],
    *,
    prefix: str = "",
    undo: bool = True,
) -> Imported:
    """Bring the store from its newest commit to HEAD; `on_commit` gets how many are done, and all.

    Continues an import that was interrupted. What other writers committed to the store since the
    last one is first undone, in one commit, or without `undo` an error.
    """
    done, stamp_key = Imported(), COMMIT_KEY + prefix.encode()
    last = imported_last(store, stamp_key)
    guard: Any = snapkv.Absent(stamp_key)
    if last is not None:
        entry = store.space(SPACE).at().entry(stamp_key)
        guard = snapkv.AtRevision(stamp_key, entry.revision)
        done.before = _position(timeline, last, store) + 1
        done.ts = store.at(revision=entry.revision).timestamp
        _settle(store, clock, timeline, done, undo)
    started = perf_counter()
    on_commit(done.before, len(timeline.oids))
    with clone.contents() as contents:
        at = done.before
        for commit in clone.history(last, prefix.encode()) if at < len(timeline.oids) else ():
            assert commit.oid == timeline.oids[at]
            clock.set(timeline.times_ms[at])
            done.left_out |= {c.path for c in commit.changes if key_of(c.path) is None}
            saved = _save(store, contents, commit, guard)
            done.ts, guard = saved.ts, snapkv.AtRevision(stamp_key, saved.revision)
            at += 1
            on_commit(at, len(timeline.oids))
    clock.set(timeline.times_ms[-1])
    done.commits, done.seconds = at - done.before, perf_counter() - started
    return done


def key_of(path: bytes) -> str | None:
    r"""Return the key of a path, None when it has none.

    >>> key_of(b"src/main.c"), key_of(b"caf\xe9")
    ('src/main.c', None)
    """
    try:
        return path.decode() if len(path) <= PATH_BYTES_MAX else None
    except UnicodeDecodeError:
        return None


def _position(timeline: GitTimeline, last: bytes, store: snapkv.SnapshotKV) -> int:
    try:
        return timeline.oids.index(last)
    except ValueError:
        raise AdvisedError(
            f"{store.reader.url} ends with commit {shown_oid(last)}, which is not in the "
            "first-parent history of HEAD: another branch or clone, or history was rewritten",
            "Give this clone a store of its own with --store; a tour makes a new one with --again",
            Exit.CONFLICT,
        ) from None


def _settle(
    store: snapkv.SnapshotKV,
    clock: snapkv.ManualClock,
    timeline: GitTimeline,
    done: Imported,
    undo: bool,
) -> None:
    """Restore the state that the last tour left, and check that git's next commit can follow."""
    newest = store.resolved()
    newest_ms = physical_ms(newest)
    late = done.before < len(timeline.oids) and newest_ms > timeline.times_ms[done.before]
    if late or (not undo and newest != done.ts):
        raise AdvisedError(
            f"{store.reader.url} was changed at {snapkv.format_time(newest)}, after its last "
            "import: git's next commit cannot follow any more",
            "Make a new store (of a tour: --again)",
            Exit.CONFLICT,
        )
    clock.set(newest_ms)
    done.undone = sum(1 for _ in store.diff(done.ts, None))
    if not done.undone:
        return
    try:
        store.restore(done.ts, note="tour: take back what was changed since the last one")
    except CommitTooLargeError as e:
        raise AdvisedError(
            f"the changes to {store.reader.url} since the last tour cannot be undone: {e}",
            f"Make a new store with --again, or allow more: --request-bytes-max {e.size}",
        ) from e


def _save(
    store: snapkv.SnapshotKV, contents: BlobReader, commit: GitCommit, guard: Any
) -> snapkv.Commit:
    """Commit contents, tree lines and id; guarded: no two imports write the same commit."""
    most = store.reader.engine.limits.request_bytes
    overhead = OVERHEAD_BYTES * (len(commit.changes) + 4)  # 4: note and stamp
    lines, oids = {guard.key: commit.oid}, dict[str, bytes]()
    values, gone = dict[str, bytes](), list[bytes]()
    for change in commit.changes:
        if (key := key_of(change.path)) is None:
            continue
        if change.after is None:
            gone.append(change.path)
            continue
        lines[TREE_PREFIX + change.path] = change.after.line
        if change.of_content:
            to = values if change.after.mode == SUBMODULE_MODE else oids
            to[key] = change.after.oid
    try:
        values |= zip(oids, contents.read([*oids.values()], most, overhead), strict=True)
        deletes = [TREE_PREFIX + path for path in gone]
        tree = snapkv.SpaceOps(puts=lines, deletes=deletes, guards=(guard,))
        removed = [path.decode() for path in gone]
        note, writer = note_of(commit), shortened(commit.author, WRITER_BYTES_MAX)
        ops = snapkv.Ops(values, removed, note=note, spaces={SPACE: tree}, writer=writer)
        return store.commit(lambda _: ops)
    except CommitTooLargeError as e:
        raise too_large(commit, e.size, e.limit) from e
    except ConflictError as e:
        raise AdvisedError(
            "another import writes to this store at the same time",
            "Let it finish, then run this one again.",
            Exit.CONFLICT,
        ) from e


def note_of(commit: GitCommit) -> str:
    """Return the note of a commit: id and subject, within a note's bytes."""
    return shortened(f"{shown_oid(commit.oid)} {commit.subject}", NOTE_BYTES_MAX)


def shortened(text: str, bytes_max: int) -> str:
    """Return the beginning of a text, within some bytes."""
    return text.encode()[:bytes_max].decode(errors="ignore")


def shown_oid(oid: bytes) -> str:
    """Return an object id as short as people write it."""
    return oid[:OID_SHOWN].decode()


def too_large(commit: GitCommit, size: int, limit: int) -> AdvisedError:
    """Return the error of a commit that is too large for one transaction."""
    mib = -(-size // (1 << 20))
    return AdvisedError(
        f"git commit {shown_oid(commit.oid)} ({commit.subject[:60]}) is too large for one "
        f"transaction: it needs up to {size:,} bytes, {limit:,} are allowed",
        "A commit is never split. Allow more, and it continues from there; of a tour: "
        f"--request-bytes-max {mib << 20} (etcd's --max-request-bytes must be as large)",
    )
