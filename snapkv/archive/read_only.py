"""The half of an engine that an archive does not have: writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snapkv.engine.contract import KeyValue, Lease, Txn, TxnResult
from snapkv.errors import ReadOnlyError


class ReadOnly:
    """Rejects every write."""

    url: str

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        """Raise `ReadOnlyError`."""
        raise self._read_only()

    def transact_each(self, txns: Sequence[Txn], *, timeout: float) -> list[TxnResult]:
        """Raise `ReadOnlyError`."""
        raise self._read_only()

    def check_limits(self, txn: Txn) -> int:
        """Raise `ReadOnlyError`."""
        raise self._read_only()

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Raise `ReadOnlyError`."""
        raise self._read_only()

    def grant(self, ttl_s: float, *, timeout: float | None = None) -> Lease:
        """Raise `ReadOnlyError`."""
        raise self._read_only()

    def keep_alive(self, lease: int, *, timeout: float | None = None) -> float:
        """Raise `ReadOnlyError`."""
        raise self._read_only()

    def revoke(self, lease: int, *, timeout: float | None = None) -> None:
        """Raise `ReadOnlyError`."""
        raise self._read_only()

    def _read_only(self) -> ReadOnlyError:
        return ReadOnlyError(f"{self.url} is an archive, which takes no writes")
