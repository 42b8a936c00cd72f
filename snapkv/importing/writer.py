"""The commits of an import, each between those of others, whom it watches meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from snapkv.clock import monotonic
from snapkv.engine.contract import Engine, WatchBatch
from snapkv.errors import ConflictError, CrowdedError, EngineUnavailableError
from snapkv.importing.plan import Plan, Todo, Write
from snapkv.layout import Layout
from snapkv.model import Absent, AtRevision, Commit, HeadAt
from snapkv.reading.snapshot import Snapshot

GUARD_TRIES_MAX = 32
"""How often a commit is tried while others commit to the same store, elsewhere in it."""
SPLIT_TRIES_MAX = 4
"""How often one that may be made smaller is."""
REGROWTH = 8
"""How many times larger the next piece of the plan may be than what fitted in the last one."""
HEAR_S_MAX = 12.0
"""How long the watch of what others commit may take to tell of a commit that is there."""
DRAIN_S_MAX = 1.0
"""How long, from when it was asked, it may go on with what came after that commit."""

Progress = Callable[[int, int], None]
"""Hears (commits done, commits in all), before the first one and after each.

Where others commit often and commits are made smaller, the second number grows.
"""


def carry_out(plan: Plan, todo: Todo, why: str, progress: Progress, batches: bool) -> Todo:
    """Commit what differs; the store at `plan.head` is what it differs from."""
    if todo.ops is None:
        pieces = (ops for ops, _ in plan.batches())
    else:
        pieces = (ops for ops in [list(todo.ops)] if ops)
    if todo.commits:
        progress(0, todo.commits)
    writing = Writing(plan, why, progress, batches, plan.head.revision, todo.commits)
    for ops in pieces:
        with closing(writing):
            writing.write(ops)
    return replace(todo, commits=writing.done, newest=writing.newest, ops=None)


@dataclass(slots=True)
class Writing:
    """The commits of an import, each under the guard that nobody wrote below the target.

    That is looked at up to revision `known`, and the guard is that nothing at all was committed
    after it: what others commit meanwhile makes it fail, and is looked at before the next try.
    Where they commit as often as that takes, only a small commit comes between; `fits` is how many
    writes did, None when there was no need.
    """

    plan: Plan
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
        others, self.others = self.others, None
        if others is not None:
            others.close()

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
        it, a watch tells of each commit as it comes. One that lost its server, before or while it
        told, is not relied on.
        """
        told = None
        if self.others is not None and not self.others.reopened:
            told = self.others.heard(revision)
        if told is None:
            self.close()
            told = self._compared()
        self.known, key = told
        if key is not None:
            raise in_the_way(self.plan.head, self.plan.store.at(), key)
        if self.others is None:
            core = self.plan.store._core
            self.others = Meanwhile(core.engine, core.layout, self.plan.target, self.known)

    def _compared(self) -> tuple[int, str | None]:
        """Return what `Meanwhile.heard` does, from the difference since the commit `known`."""
        store = self.plan.store
        before, head = store.at(revision=self.known), store.at()
        first = next(before.diff(head, self.plan.target), None)
        return head.revision, None if first is None else first.key


class Meanwhile:
    """What others commit to a store: a watch from a target up to the timestamp key.

    All of them write that key, so the watch tells of each commit at once, and nobody has to ask
    how far it has come. `ours` are revisions that are not others'.
    """

    def __init__(self, engine: Engine, layout: Layout, target: str, known: int) -> None:
        """Begin after the commit at revision `known`."""
        self._data, self._ts, self._known = layout.data, layout.ts, known
        self._start, self._end = self._data.range_of(target)
        self._watcher = engine.watch(self._start, self._ts + b"\0", start_revision=known + 1)
        self.ours: set[int] = set()

    @property
    def reopened(self) -> int:
        """How often the server was lost: what is there may be another history."""
        return self._watcher.reopened

    def heard(self, revision: int) -> tuple[int, str | None] | None:
        """Return the newest commit's revision, `revision` at least, and a key below the target.

        That is the first one which others wrote; None when they wrote none. No pair at all when
        the server was lost meanwhile. Where they commit faster than it can be read it is not the
        very newest: it ends in time, however much there is. Raises `EngineUnavailableError` when
        the watch tells nothing of the revision, and as a watch does.
        """
        start = monotonic()
        while True:
            reached, passed_s = self._known >= revision, monotonic() - start
            left_s = (DRAIN_S_MAX if reached else HEAR_S_MAX) - passed_s
            batch = self._watcher.next(0.0 if reached else left_s) if left_s > 0 else None
            if self.reopened:
                return None
            if batch is not None:
                if (key := self._take(batch)) is not None:
                    return self._known, key
            elif reached:
                return self._known, None
            else:
                raise EngineUnavailableError(f"the watch told nothing of revision {revision}")

    def _take(self, batch: WatchBatch) -> str | None:
        """Return the first key below the target which others wrote in a batch."""
        for event in batch.events:
            key = event.kv.key
            if key == self._ts:
                self._known = batch.revision
            elif self._start <= key < self._end and batch.revision not in self.ours:
                name: str = self._data.decode(key)
                return name
        return None

    def close(self) -> None:
        """End the watch."""
        self._watcher.close()


def in_the_way(before: Snapshot[str], now: Snapshot[str], key: str) -> ConflictError:
    """Return the error that names a key which others changed, as a guard on it that failed."""
    (was,), (found,) = before.entries_of([key]), now.entries_of([key])
    guard = Absent(key) if was is None else AtRevision(key, was.revision)
    return ConflictError([(guard, 0 if found is None else found.revision)])
