"""Groups: build the callers' operations at one timestamp, and choose the calls that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from snapkv.committer.operations import (
    Interval,
    Operations,
    compile_operations,
    covers,
    guards_max,
    merge,
    overlap,
)
from snapkv.committer.queue import Call
from snapkv.engine.contract import Engine, Txn
from snapkv.engine.request_checks import OP_OVERHEAD_BYTES, blamed
from snapkv.errors import CommitTooLargeError
from snapkv.layout import META_BYTES_MAX, NOTE_BYTES_MAX, WRITER_BYTES_MAX, Layout, pack_meta
from snapkv.model import Ops, Stamp

MEMBERS_MAX = 32
"""The most members of a group where the engine limits lists: the members' lists share the rest of
the limit."""
MEMBERS_MAX_UNLIMITED = 1_024
MISSES_MAX = 8
"""The most calls in a row that are built although they do not fit: each is built again later."""
STAMP_BYTES_MAX = OP_OVERHEAD_BYTES * 8 + 64 + NOTE_BYTES_MAX + WRITER_BYTES_MAX + META_BYTES_MAX


class EmptyGroupError(Exception):
    """All calls failed to build, or left: nothing is sent."""


# For example, these calls wait, in this order, and no list is limited:
#
#     call   operations                        joins?
#     A      put a                             the first one that builds always does: batch 0
#     B      its build raises                  no: B fails, and only B
#     C      put c if d is absent              yes: batch 1
#     D      put d                             no: C's guard checks d
#     E      delete everything below "e/"      yes: batch 2
#     F      put e/1                           no: E deletes it
#     G      put g, with a note                no: the timestamp key holds one note, and A has none
#     H      put h, by another writer          no: it holds one writer, too, and one meta
#
# A, C and E are sent in one transaction, with one timestamp. D, F, G and H stay queued, in this
# order, and D leads the next group. So a call never waits longer because of a later one.
class GroupBuilder:
    """Chooses the calls that share a transaction, for one engine and store with its writer."""

    def __init__(self, engine: Engine, layout: Layout, writer: str) -> None:
        self._engine, self._layout, self._writer = engine, layout, writer
        limited = engine.limits.ops_per_list is not None
        self.members_max = MEMBERS_MAX if limited else MEMBERS_MAX_UNLIMITED
        self.guards_max = guards_max(engine.limits, self.members_max)
        """The most guards of one member; None: any number."""

    def build(
        self, waiting: Iterable[Call], timestamp: int, failed: Callable[[Call, Exception], None]
    ) -> tuple[list[Call], list[Operations], list[Txn]]:
        """Return the calls of the next group, their operations and transactions, in batch order.

        `CommitGroup` says which of them go together; a call that does not fit stays queued. If a
        call's build raises, only that call fails, through `failed`.
        """
        calls: list[Call] = []
        members: list[Operations] = []
        txns: list[Txn] = []
        group: CommitGroup | None = None  # made for the second call
        room = room_max = self._engine.limits.request_bytes - STAMP_BYTES_MAX
        misses = 0
        for call in waiting:
            if len(calls) == self.members_max or misses == MISSES_MAX:
                break
            try:
                built = call.build
                if not isinstance(built, Ops):
                    built = built(Stamp(timestamp, len(calls)))
                ops = compile_operations(built, self._layout, self._writer)
                txn = ops.txn(self.guards_max)
                size = self._engine.check_limits(txn)
                if size > room_max:
                    what = blamed("the commit", txn, self._layout.data.prefix)
                    raise CommitTooLargeError(what, size, room_max)
            except Exception as e:
                failed(call, e)
                continue
            if calls:
                group = group or CommitGroup(members[0])
                alone = call.alone or calls[0].alone
                if alone or size > room or not group.takes(ops):
                    misses += 1
                    continue
                group.add(ops)
            misses = 0
            room -= size
            calls.append(call)
            members.append(ops)
            txns.append(txn)
        return calls, members, txns


class CommitGroup:
    """The members of one transaction, and what they write, remove and check together.

    Two members may share a transaction if they have the same writer, note and meta, and neither
    writes or removes a key that the other writes, removes or checks. A member that checks the head
    of the store shares with none: every commit moves the head.
    """

    def __init__(self, first: Operations) -> None:
        self._first = first
        self._written: set[bytes] = set()
        self._checked: set[bytes] = set()
        self._removed: list[Interval] = []  # merged
        self.add(first)

    def takes(self, ops: Operations) -> bool:
        """Return whether operations may join; O(their keys), plus the group's if they remove."""
        first = self._first
        if ops.checks_head or first.checks_head or not _say_the_same(ops, first):
            return False
        checked = [check.key for check in ops.checks]
        removed = ops.removed or self._removed
        return (
            self._written.isdisjoint(ops.puts)
            and self._written.isdisjoint(checked)
            and self._checked.isdisjoint(ops.puts)
            and not (removed and self._removes_into(ops, checked))
        )

    def _removes_into(self, ops: Operations, checked: list[bytes]) -> bool:
        """Return whether the group removes what `ops` writes or checks, or the other way."""
        return (
            any(covers(self._removed, key) for key in (*ops.puts, *checked))
            or any(covers(ops.removed, key) for key in (*self._written, *self._checked))
            or overlap(ops.removed, self._removed)
        )

    def add(self, ops: Operations) -> None:
        """Add a member."""
        self._written.update(ops.puts)
        for check in ops.checks:
            self._checked.add(check.key)
        if ops.removed:
            self._removed = merge([*self._removed, *ops.removed])


def _say_the_same(a: Operations, b: Operations) -> bool:
    """Return whether two members can have one stamp.

    Metas are compared as they are stored: in Python, 1, 1.0 and True are equal.
    """
    if a.note != b.note or a.writer != b.writer:
        return False
    return a.meta is b.meta or pack_meta(a.meta or {}) == pack_meta(b.meta or {})
