"""A restore from a page: a preview of exactly what changes, then a commit guarded by its head."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from snapkv.base.text import LongerNames
from snapkv.errors import ConflictError, InvalidOptionError
from snapkv.model import Commit, HeadAt
from snapkv.store.restore import ChosenKeys, RestorePlan, planned
from snapkv.store.store import SnapshotKV
from snapkv.times import When
from snapkv.ui.commit_list import steps_on
from snapkv.ui.key_differences import VALUES_BYTES_MAX, Row, kind_of, row
from snapkv.ui.page_source import Budget, Source

ROWS_MAX = 500
TRIES = 8
"""The most ticks that may come between a preview and its commit."""
LOOK_S = 2.0
STALE = "another commit was made since the preview; nothing was restored: look again"


@dataclass(frozen=True, slots=True)
class Preview:
    """What restoring changes: from the state `head` (a revision) to the state of `timestamp`.

    It writes or removes `total` keys, of which the first are in `rows`. `longer` says which of them
    are not below the prefix. `phrase` is what a person types to confirm it.
    """

    prefix: str
    timestamp: int
    revision: int
    head: int
    total: int
    counts: Counter[str]
    rows: list[Row]
    longer: str | None

    @property
    def phrase(self) -> str:
        """What a person types to confirm it."""
        return f"restore {self.total} {'key' if self.total == 1 else 'keys'}"


class Restores:
    """Previews of a store, and the commits that carry them out.

    The server has checked that the form is of a page of its own.
    """

    def __init__(self, source: Source, store: SnapshotKV) -> None:
        self._source, self._store = source, store

    def preview(self, when: When, prefix: str, rows_max: int = ROWS_MAX) -> Preview:
        """Return what restoring a moment would change; raises as `SnapshotKV.restore`."""
        return self._preview(
            planned(self._store, when, ChosenKeys.of(prefixes=[prefix])), prefix, rows_max
        )

    def _preview(self, plan: RestorePlan, prefix: str, rows_max: int = ROWS_MAX) -> Preview:
        counts = Counter(kind_of(each.before, each.after) for each in plan.changes)
        rows, held = list[Row](), 0
        for each in plan.changes[:rows_max]:
            held += len(each.before or b"") + len(each.after or b"")
            whole = held <= VALUES_BYTES_MAX
            rows.append(row(self._source, each.key, each.before, each.after, whole))
        past, head, total = plan.past, plan.head.revision, len(plan.changes)
        longer = LongerNames(prefix, (each.key for each in plan.changes))
        named = str(longer) if longer else None
        return Preview(prefix, past.timestamp, past.revision, head, total, counts, rows, named)

    def carry_out(
        self,
        *,
        timestamp: int,
        prefix: str,
        head: int,
        note: str,
        confirmation: str,
        writer: str | None,
    ) -> Commit:
        """Commit what the preview showed, and nothing else; return the commit.

        Raises `InvalidOptionError` without a note or with a wrong confirmation, `ConflictError` if
        the store has changed since the preview; and as `SnapshotKV.commit`.
        """
        if not note.strip():
            raise InvalidOptionError("a restore needs a note: say why")
        for _ in range(TRIES):
            plan = planned(self._store, timestamp, ChosenKeys.of(prefixes=[prefix]))
            preview = self._preview(plan, prefix)
            if preview.head != head and self._changed_since(head):
                raise ConflictError([(HeadAt(head), preview.head)], STALE)
            if confirmation.strip() != preview.phrase:
                raise InvalidOptionError(
                    f"to confirm, type {preview.phrase!r}, not {confirmation[:80]!r}"
                )
            if not plan.changes:
                raise InvalidOptionError("nothing to restore: the keys are as they were then")
            with suppress(ConflictError):  # a tick, or another commit, which the next try finds
                return self._store.commit(**plan.writes, note=note.strip(), writer=writer)
        raise ConflictError([(HeadAt(head), preview.head)], STALE)

    def _changed_since(self, head: int) -> bool:
        """Return whether a commit after a revision changed a key: ticks do not count."""
        found = steps_on(
            self._source,
            f"rev:{head}",
            wanted=lambda step: bool(step.counts),
            budget=Budget(LOOK_S),
        )
        return bool(found.steps) or not found.complete
