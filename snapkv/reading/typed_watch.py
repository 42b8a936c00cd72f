"""A watch whose values a codec decodes."""

from __future__ import annotations

from snapkv.model import Change, Changes, K, V
from snapkv.reading.decoding import Decoding
from snapkv.reading.watch import Watch


class TypedWatch(Watch[K, V]):
    """A watch whose values a codec decodes; `raw` is the one of bytes.

    If a value cannot be decoded, the iteration or `next` raises `DecodeError`; the next call
    continues after that commit.
    """

    def __init__(self, raw: Watch[K], decoding: Decoding[V]) -> None:
        self.raw: Watch[K] = raw
        self._decoding: Decoding[V] = decoding
        self.timestamp = raw.timestamp

    def next(self, timeout: float | None = None) -> Changes[K, V] | None:
        """Return the next commit's changes; None if `timeout` seconds bring none."""
        try:
            found = self.raw.next(timeout)
        finally:
            self.timestamp = self.raw.timestamp
        return None if found is None else decoded(found, self._decoding)

    def __next__(self) -> Changes[K, V]:
        try:
            found = next(self.raw)
        finally:
            self.timestamp = self.raw.timestamp
        return decoded(found, self._decoding)

    def close(self) -> None:
        """End the watch; may be repeated."""
        self.raw.close()


def decoded(found: Changes[K], decoding: Decoding[V]) -> Changes[K, V]:
    """Return changes with decoded values; raises `DecodeError`."""
    maybe = decoding.maybe
    return Changes(
        found.commit,
        tuple(
            Change(each.key, maybe(each.key, each.value, each.commit.revision), each.commit)
            for each in found.changes
        ),
    )
