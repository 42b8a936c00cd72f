"""Two stores of a process, and another writer with a faster clock."""

from __future__ import annotations

from collections.abc import Callable

from store.engines import Place

import snapkv
from snapkv.clock import SystemClock
from snapkv.times import pack

AHEAD_MS = 4_000
"""How far the other writer's clock is ahead: more than a test takes between two commits, less than
the skew that stores allow."""


class Fast:
    """The clock of another machine."""

    def __init__(self, ahead_ms: int = AHEAD_MS) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms


class Two:
    """Stores `a` and `b` of this process, and another writer of `a` with a faster clock."""

    def __init__(self, place: Place, **options) -> None:
        self.fast = place.open(name="a", clock=Fast())
        self.fast.multi_save({"k": b"old", "gone": b"old"})
        self.fast.space("s").commit(puts={b"k": b"old"})
        self.a = place.open(name="a", **options)
        self.b = place.open(name="b")
        self.ts = 0

    def write(self) -> int:
        """Commit on `a` in the other process; return the timestamp."""
        spaces = {"s": snapkv.SpaceOps(puts={b"k": b"7"})}
        ops = snapkv.Ops(puts={"k": b"7"}, deletes=["gone"], spaces=spaces)
        self.ts = self.fast.commit(lambda _: ops).ts
        return self.ts

    def assert_later(self, commit: Callable[[], int] | None = None) -> None:
        """Commit on `b`, which has to be later than what was read from `a`."""
        assert self.ts > pack(SystemClock().now_ms()), "else the clock alone would do"
        ts = self.b.save("x", b"1") if commit is None else commit()
        assert ts > self.ts
