"""A byte-keyed space of a store: where layers above keep what they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from snapkv.core import Core
from snapkv.model import Commit, Guard, Ops, SpaceOps, Stamp
from snapkv.view import View


class Space(View[bytes]):
    """A byte-keyed space of a store, for layers above it; the same reads as the store."""

    def __init__(self, core: Core, name: str) -> None:
        super().__init__(core, core.layout.space(name))
        self.name = name

    def commit(
        self,
        build: Callable[[Stamp], SpaceOps] | None = None,
        *,
        puts: Mapping[bytes, bytes] = {},
        deletes: Iterable[bytes] = (),
        delete_prefixes: Iterable[bytes] = (),
        guards: Iterable[Guard] = (),
        note: str | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations on this space alone; `SnapshotKV.commit` can span several."""
        ops = SpaceOps(puts, tuple(deletes), tuple(delete_prefixes), tuple(guards))

        def whole(stamp: Stamp) -> Ops:
            return Ops(spaces={self.name: build(stamp) if build else ops}, note=note)

        return self._core.commit(whole, timeout)
