"""Who shares a transaction: build the callers' operations at one timestamp, take those that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from snapkv.committer.intervals import Interval, covers, merge, overlap
from snapkv.committer.operations import Part, compile_part, guards_max
from snapkv.committer.queue import Call
from snapkv.engine.contract import Engine, Txn
from snapkv.engine.rules import OP_OVERHEAD_BYTES
from snapkv.errors import CommitTooLargeError
from snapkv.layout import NOTE_BYTES_MAX, WRITER_BYTES_MAX, Layout
from snapkv.model import Stamp

PARTS_MAX = 32
"""Parts in one transaction where lists are limited: each may need a list of what is left."""
PARTS_MAX_UNLIMITED = 1_024
MISSES_MAX = 8
"""Callers in a row that do not fit, after which no more are built: it would be done again."""
STAMP_BYTES_MAX = OP_OVERHEAD_BYTES * 8 + 64 + NOTE_BYTES_MAX + WRITER_BYTES_MAX


class Boarding:
    """The rule of who may share a transaction, for one engine and store."""

    def __init__(self, engine: Engine, layout: Layout) -> None:
        self._engine, self._layout = engine, layout
        limited = engine.limits.ops_per_list is not None
        self.parts_max = PARTS_MAX if limited else PARTS_MAX_UNLIMITED
        self.guards_max = guards_max(engine.limits, self.parts_max)
        """How many guards one part may have; None: any number."""

    def board(
        self, queue: Iterable[Call], timestamp: int, failed: Callable[[Call, Exception], None]
    ) -> tuple[list[Call], list[Part], list[Txn]]:
        """Return the calls that ride, their parts and nested transactions, in batch order.

        The first that builds always rides; another one if its writes, guards and note go with
        those on board, none of them is to ride alone, and the request stays small enough. Who does
        not fit waits for the next transaction; whose build raises is told so by `failed`, its
        neighbours are not touched.
        """
        calls: list[Call] = []
        group = Group()
        txns: list[Txn] = []
        room = room_max = self._engine.limits.request_bytes - STAMP_BYTES_MAX
        misses = 0
        for call in queue:
            if len(calls) == self.parts_max or misses == MISSES_MAX:
                break
            try:
                part = compile_part(call.build(Stamp(timestamp, len(calls))), self._layout)
                txn = part.txn(self.guards_max)
                size = self._engine.check_limits(txn)
                if size > room_max:
                    raise CommitTooLargeError("the commit in bytes", size, room_max)
            except Exception as e:
                failed(call, e)
                continue
            alone = call.alone or (calls and calls[0].alone)
            if calls and (alone or size > room or not group.takes(part)):
                misses += 1
                continue
            misses = 0
            room -= size
            calls.append(call)
            group.add(part)
            txns.append(txn)
        return calls, group.parts, txns


class Group:
    """The parts of one transaction, and what they write, remove and look at together.

    Two parts may share a transaction if they have the same note and neither writes or removes a key
    that the other writes, removes or looks at. A part that looks at the head of the store shares
    with none: every commit moves the head.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._written: set[bytes] = set()
        self._looked_at: set[bytes] = set()
        self._removed: list[Interval] = []  # merged

    def takes(self, part: Part) -> bool:
        """Return whether a part may join; O(its keys), and those of the group if it removes any."""
        if not self.parts:
            return True
        first = self.parts[0]
        if part.note != first.note or part.rides_alone or first.rides_alone:
            return False
        looked_at = [check.key for check in part.checks]
        removed = part.removed or self._removed
        return (
            self._written.isdisjoint(part.puts)
            and self._written.isdisjoint(looked_at)
            and self._looked_at.isdisjoint(part.puts)
            and not (removed and self._removes_into(part, looked_at))
        )

    def _removes_into(self, part: Part, looked_at: list[bytes]) -> bool:
        """Return whether the group removes what a part writes or looks at, or the other way."""
        return (
            any(covers(self._removed, key) for key in (*part.puts, *looked_at))
            or any(covers(part.removed, key) for key in (*self._written, *self._looked_at))
            or overlap(part.removed, self._removed)
        )

    def add(self, part: Part) -> None:
        """Let a part join."""
        self.parts.append(part)
        self._written.update(part.puts)
        for check in part.checks:
            self._looked_at.add(check.key)
        if part.removed:
            self._removed = merge([*self._removed, *part.removed])
