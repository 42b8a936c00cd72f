"""The import of a git history: one commit of a store for each commit of git, at git's time.

The store's keys, at each moment:

    text key `<path>`                 the file's content; a symlink's target; of a submodule
                                      the id of the commit it names
    space `git`, key `tree/<path>`    `<mode> <type> <object id>`, as `git ls-tree` writes it
    space `git`, key `commit`         the id of the git commit that this moment shows

A path that is not valid UTF-8, or too long for a key of the engine, is left out of all of these.

Times come from git's commits, made non-decreasing by a running maximum: a commit dated before
its parent moves up to the parent's time. Commits of one second keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import snapkv
from snapkv.base.waiting import perf_counter
from snapkv.cli.exits import Exit
from snapkv.cli.tour.git import SUBMODULE_MODE, BlobReader, Clone, GitCommit, TourError
from snapkv.cli.tour.tour_store import COMMIT_KEY, SPACE, imported_last
from snapkv.engine.lmdb.records import KEY_BYTES_MAX
from snapkv.errors import CommitTooLargeError, ConflictError
from snapkv.layout import NOTE_BYTES_MAX, WRITER_BYTES_MAX, Layout
from snapkv.model import Guard
from snapkv.times import PHYSICAL_MS_MAX, physical_ms

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


# --- the import ----------------------------------------------------------------------------


def import_history(
    store: snapkv.SnapshotKV,
    clock: snapkv.ManualClock,
    clone: Clone,
    timeline: GitTimeline,
    *,
    path: str,
    request_bytes_max: int,
    on_commit: Callable[[int], None],
) -> Imported:
    """Bring the store from its newest commit to HEAD; `on_commit` gets the number of commits done.

    Continues an import that was interrupted. First undoes, in one commit, what other writers
    committed to the store since the last tour.
    """
    done = Imported()
    last = imported_last(store, path)
    guard: Guard = snapkv.Absent(COMMIT_KEY)
    if last is not None:
        entry = store.space(SPACE).at().entry(COMMIT_KEY)
        guard = snapkv.AtRevision(COMMIT_KEY, entry.revision)
        done.before = _position(timeline, last, path) + 1
        done.ts = store.at(revision=entry.revision).timestamp
        _settle(store, clock, timeline, done, path)
    started = perf_counter()
    on_commit(done.before)
    with clone.contents() as contents:
        at = done.before
        for commit in clone.history(last) if at < len(timeline.oids) else ():
            assert commit.oid == timeline.oids[at]
            clock.set(timeline.times_ms[at])
            done.left_out |= {c.path for c in commit.changes if key_of(c.path) is None}
            saved = _save(store, contents, commit, guard, request_bytes_max)
            done.ts, guard = saved.ts, snapkv.AtRevision(COMMIT_KEY, saved.revision)
            at += 1
            on_commit(at)
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


def _position(timeline: GitTimeline, last: bytes, path: str) -> int:
    try:
        return timeline.oids.index(last)
    except ValueError:
        raise TourError(
            f"the store in {path} ends with commit {shown_oid(last)}, which is not in the "
            "first-parent history of HEAD: another branch or clone, or history was rewritten",
            "Make a new store with --again, or give this clone its own: --store DIR",
            Exit.CONFLICT,
        ) from None


def _settle(
    store: snapkv.SnapshotKV,
    clock: snapkv.ManualClock,
    timeline: GitTimeline,
    done: Imported,
    path: str,
) -> None:
    """Restore the state that the last tour left, and check that git's next commit can follow."""
    newest = store.resolved()
    newest_ms = physical_ms(newest)
    if done.before < len(timeline.oids) and newest_ms > timeline.times_ms[done.before]:
        raise TourError(
            f"the store in {path} was changed at {snapkv.format_time(newest)}, after the "
            "time of git's next commit: that commit cannot get its own time any more",
            "Make a new store: --again",
            Exit.CONFLICT,
        )
    clock.set(newest_ms)
    done.undone = sum(1 for _ in store.diff(done.ts, None))
    if not done.undone:
        return
    try:
        store.restore(done.ts, note="tour: take back what was changed since the last one")
    except CommitTooLargeError as e:
        raise TourError(
            f"the changes to {path} since the last tour cannot be undone: {e}",
            f"Make a new store with --again, or allow more: --request-bytes-max {e.size}",
        ) from e


def _save(
    store: snapkv.SnapshotKV, contents: BlobReader, commit: GitCommit, guard: Guard, bytes_max: int
) -> snapkv.Commit:
    """Commit contents, tree lines and id; guarded, so that two tours cannot both write a commit."""
    overhead = OVERHEAD_BYTES * (len(commit.changes) + 4)  # 4: note and stamp
    lines, oids = {COMMIT_KEY: commit.oid}, dict[str, bytes]()
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
        values |= zip(oids, contents.read([*oids.values()], bytes_max, overhead), strict=True)
        deletes = [TREE_PREFIX + path for path in gone]
        tree = snapkv.SpaceOps(puts=lines, deletes=deletes, guards=(guard,))
        removed = [path.decode() for path in gone]
        note, writer = note_of(commit), shortened(commit.author, WRITER_BYTES_MAX)
        ops = snapkv.Ops(values, removed, note=note, spaces={SPACE: tree}, writer=writer)
        return store.commit(lambda _: ops)
    except CommitTooLargeError as e:
        raise too_large(commit, e.size, e.limit) from e
    except ConflictError as e:
        raise TourError(
            "another tour writes to this store at the same time",
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


def too_large(commit: GitCommit, size: int, limit: int) -> TourError:
    """Return the error of a commit that is too large for one transaction."""
    mib = -(-size // (1 << 20))
    return TourError(
        f"git commit {shown_oid(commit.oid)} ({commit.subject[:60]}) is too large for one "
        f"transaction: it needs up to {size:,} bytes, {limit:,} are allowed",
        "A commit is never split. Allow more, and the tour continues from there: "
        f"--request-bytes-max {mib << 20} (etcd's --max-request-bytes must be as large)",
    )
