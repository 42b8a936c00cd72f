"""A snapshot whose values a codec decodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Generic, Self

from snapkv.committer import listed
from snapkv.errors import InvalidTypeError
from snapkv.model import Difference, Entry, K, V
from snapkv.reading.decoding import Decoding
from snapkv.reading.snapshot import Snapshot


class TypedSnapshot(Mapping[K, V], Generic[K, V]):
    """A snapshot whose values a codec decodes, as they are read; `raw` is the one of bytes.

    Costs and raises as `Snapshot`, and `DecodeError`.
    """

    def __init__(self, raw: Snapshot[K], decoding: Decoding[V]) -> None:
        self.raw: Snapshot[K] = raw
        self._decoding: Decoding[V] = decoding

    @property
    def timestamp(self) -> int:
        """The moment."""
        return self.raw.timestamp

    @property
    def revision(self) -> int:
        """The revision of the newest commit at that moment."""
        return self.raw.revision

    @property
    def final(self) -> bool:
        """Whether no commit can land at or below this moment any more."""
        return self.raw.final

    def __repr__(self) -> str:
        return repr(self.raw).replace("<Snapshot", "<TypedSnapshot")

    def __copy__(self) -> Self:
        return self  # a value

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getitem__(self, key: K) -> V:
        """Return a value; `KeyNotFoundError` (a KeyError) if the key is absent."""
        return self.entry(key).value

    def __contains__(self, key: object) -> bool:
        return key in self.raw

    def __iter__(self) -> Iterator[K]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def entry(self, key: K, *, timeout: float | None = None) -> Entry[V]:
        """Return a key's value with the revisions it was written and created at."""
        return self._entry(key, self.raw.entry(key, timeout=timeout))

    def entries_of(
        self, keys: Iterable[K], *, timeout: float | None = None
    ) -> list[Entry[V] | None]:
        """Return the entries of some keys, None for absent ones; one round trip for each 128."""
        wanted: list[K] = listed(keys, "keys")
        pairs = zip(wanted, self.raw.entries_of(wanted, timeout=timeout), strict=True)
        return [entry and self._entry(key, entry) for key, entry in pairs]

    def _entry(self, key: K, entry: Entry) -> Entry[V]:
        value = self._decoding.decode(key, entry.value, entry.revision)
        return Entry(value, entry.revision, entry.created, entry.version)

    def entries(
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        after: K | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[K, Entry[V]]]:
        """Yield (key, entry) pairs in key order; bounded as `Snapshot.items`."""
        for key, entry in self.raw.entries(
            prefix, start=start, end=end, after=after, limit=limit, timeout=timeout
        ):
            yield key, self._entry(key, entry)

    def items(  # type: ignore[override]
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        after: K | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[K, V]]:
        """Yield (key, value) pairs in key order; bounded as `Snapshot.items`."""
        for key, data in self.raw.items(
            prefix, start=start, end=end, after=after, limit=limit, timeout=timeout
        ):
            yield key, self._decoding.decode(key, data, partial(self._revision, key))

    def keys(  # type: ignore[override]
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        after: K | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[K]:
        """Yield keys in order, without reading values; bounded as `Snapshot.items`."""
        return self.raw.keys(
            prefix, start=start, end=end, after=after, limit=limit, timeout=timeout
        )

    def values(  # type: ignore[override]
        self, prefix: K | None = None, *, timeout: float | None = None
    ) -> Iterator[V]:
        """Yield values in key order."""
        return (value for _, value in self.items(prefix, timeout=timeout))

    def count(
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        timeout: float | None = None,
    ) -> int:
        """Return the number of keys, bounded as `Snapshot.count`; one round trip."""
        return self.raw.count(prefix, start=start, end=end, timeout=timeout)

    def diff(
        self, other: TypedSnapshot[K, V], prefix: K | None = None, *, timeout: float | None = None
    ) -> Iterator[Difference[K, V]]:
        """Yield the differences from this snapshot to `other`, in key order; as `Snapshot.diff`."""
        if not isinstance(other, TypedSnapshot):
            raise InvalidTypeError(f"diff needs a snapshot of the same view, not {other!r:.80}")
        return self._differences(other, self.raw.diff(other.raw, prefix, timeout=timeout))

    def _differences(
        self, other: TypedSnapshot[K, V], found: Iterator[Difference[K]]
    ) -> Iterator[Difference[K, V]]:
        for key, before, after in ((each.key, each.before, each.after) for each in found):
            yield Difference(
                key,
                self._decoding.maybe(key, before, partial(self._revision, key)),
                other._decoding.maybe(key, after, partial(other._revision, key)),
            )

    def _revision(self, key: K) -> int:
        """Return the revision that wrote a key, for an error."""
        return self.raw.entry(key).revision
