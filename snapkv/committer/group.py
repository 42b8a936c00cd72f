"""Who rides together: build the callers' operations at one timestamp, and take those that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
        parts: list[Part] = []
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
            if calls and (
                alone or size > room or not all(goes_with(part, other) for other in parts)
            ):
                misses += 1
                continue
            misses = 0
            room -= size
            calls.append(call)
            parts.append(part)
            txns.append(txn)
        return calls, parts, txns


def goes_with(part: Part, other: Part) -> bool:
    """Return whether two parts may share a transaction: same note, no key in each other's way.

    A guard on the head goes with nobody: what else is committed beside it, it must not miss.
    """
    alone = part.rides_alone or other.rides_alone
    return not alone and part.note == other.note and not part.clashes(other)
