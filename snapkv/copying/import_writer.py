"""The commits of an import, each under the guard that no other writer came first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from snapkv.copying.import_plan import Plan, Todo, Write
from snapkv.errors import ConflictError
from snapkv.model import Absent, AtRevision, Commit, HeadAt, Meta

TRIES = 8
"""Attempts of a commit while other writers commit elsewhere in the store."""

Progress = Callable[[int, int], None]
"""Called with (commits done, commits in all), before the first commit and after each."""


class Said(NamedTuple):
    """What each commit of an import says of itself."""

    note: str
    writer: str | None
    meta: Meta | None


def carry_out(plan: Plan, todo: Todo, said: Said, progress: Progress) -> Todo:
    """Commit the writes that make the store at `plan.head` equal to the source."""
    if todo.ops is None:
        batches = (ops for ops, _ in plan.batches())
    else:
        batches = (ops for ops in [list(todo.ops)] if ops)
    if todo.commits:
        progress(0, todo.commits)
    revision, newest = plan.head.revision, None
    for number, ops in enumerate(batches, 1):
        note = said.note
        if todo.commits > 1:
            note = f"import {number} of {todo.commits}: {note}"
        newest = _committed(plan, ops, said._replace(note=note), revision)
        revision = newest.revision
        progress(number, todo.commits)
    return replace(todo, newest=newest, ops=None)


def _committed(plan: Plan, ops: list[Write], said: Said, revision: int) -> Commit:
    """Commit one batch, unless another writer changes the target after `revision`.

    The guard is that the store has no commit after `revision`. A commit elsewhere in the store
    makes it fail, too: then the batch is tried again after that commit.
    """
    puts = {key: value for key, value in ops if value is not None}
    deletes = [key for key, value in ops if value is None]
    for _ in range(TRIES):
        try:
            return plan.store.commit(
                puts=puts,
                deletes=deletes,
                guards=[HeadAt(revision)],
                note=said.note,
                writer=said.writer,
                meta=said.meta,
            )
        except ConflictError as e:
            conflict = e
            revision = _unchanged_until(plan, revision)
    keys = "1 key" if len(ops) == 1 else f"{len(ops):,} keys"
    raise ConflictError(
        conflict.failed,
        f"could not commit {keys}: other writers committed first in all {TRIES} attempts; "
        "import again when they commit less often",
    )


def _unchanged_until(plan: Plan, revision: int) -> int:
    """Return the revision of the newest commit; `ConflictError` if the target changed since."""
    store = plan.store
    before, now = store.at(revision=revision), store.at()
    if (changed := next(before.diff(now, plan.target), None)) is None:
        return now.revision
    (was,), (found,) = plan.head.entries_of([changed.key]), now.entries_of([changed.key])
    guard = Absent(changed.key) if was is None else AtRevision(changed.key, was.revision)
    raise ConflictError([(guard, 0 if found is None else found.revision)])
