"""The view of a transaction in the memory engine: the newest state under its own writes."""

from __future__ import annotations

from collections.abc import Callable, Container

from snapkv.engine.contract import KeyValue, Range, RangeResult, in_range
from snapkv.engine.leases import is_id
from snapkv.errors import LeaseNotFoundError


class Overlay:
    """The newest state of an engine, overlaid with what one transaction wrote so far.

    `newest` and `range` are the engine's own answers, `leases` holds the leases that are alive.
    """

    def __init__(
        self,
        newest: Callable[[bytes], KeyValue | None],
        range_: Callable[[Range], RangeResult],
        leases: Container[int],
        revision: int,
    ) -> None:
        self._newest, self._range, self._leases = newest, range_, leases
        self.revision = revision
        self.written: dict[bytes, KeyValue] = {}

    def newest(self, key: bytes) -> KeyValue | None:
        """Return the key's newest version, None when it does not exist."""
        if key in self.written:
            kv = self.written[key]
            return kv if kv.version else None
        return self._newest(key)

    def range(self, wanted: Range) -> RangeResult:
        """Answer a range, at the newest state or an older one."""
        if not self.written or wanted.revision:
            return self._range(wanted)
        before = self._range(Range(wanted.key, wanted.range_end)).kvs
        keys = {kv.key for kv in before} | set(self.written)
        kvs = [
            kv
            for key in sorted(keys)
            if in_range(key, wanted.key, wanted.range_end) and (kv := self.newest(key))
        ]
        return answer(wanted, kvs)

    def put(self, key: bytes, value: bytes, lease: int) -> KeyValue | None:
        """Write a key; return the version before. Raises `LeaseNotFoundError`."""
        if lease and not (is_id(lease) and lease in self._leases):
            raise LeaseNotFoundError(lease)
        prev = self.newest(key)
        created, version = (prev.create_revision, prev.version) if prev else (self.revision, 0)
        self.written[key] = KeyValue(key, value, created, self.revision, version + 1, lease)
        return prev

    def delete(self, key: bytes, range_end: bytes) -> int:
        """Remove a key or range; return how many keys it removed."""
        if range_end:
            found = self.range(Range(key, range_end)).kvs
        else:
            found = [kv] if (kv := self.newest(key)) else []
        for kv in found:
            self.written[kv.key] = KeyValue(kv.key, b"", 0, self.revision, 0)
        return len(found)


def answer(wanted: Range, kvs: list[KeyValue]) -> RangeResult:
    """Return the requested part of the found keys."""
    count = len(kvs)
    if wanted.count_only:
        return RangeResult([], count)
    if wanted.limit:
        kvs = kvs[: wanted.limit]
    if wanted.keys_only:
        kvs = [kv._replace(value=b"") for kv in kvs]
    return RangeResult(kvs, count, len(kvs) < count)
