"""A snapshot whose values a codec decodes, with awaited reads."""

from __future__ import annotations

from collections.abc import AsyncIterator

from snapkv.aio.snapshot import Snapshot, SnapshotReads
from snapkv.errors import InvalidTypeError
from snapkv.model import Difference, K, V


class TypedSnapshot(SnapshotReads[K, V]):
    """A snapshot whose values a codec decodes: `snapkv.TypedSnapshot` with awaited reads."""

    @property
    def raw(self) -> Snapshot[K]:
        """The same moment with its bytes."""
        return Snapshot(self._runner, self._reads.raw)

    def diff(
        self, other: TypedSnapshot[K, V], prefix: K | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Difference[K, V]]:
        """Yield the differences from this snapshot to `other`, in key order."""
        if not isinstance(other, TypedSnapshot):
            raise InvalidTypeError(f"diff needs a snapshot of the same view, not {other!r:.80}")
        return self._steps(self._reads.diff, other._reads, prefix, timeout=timeout)
