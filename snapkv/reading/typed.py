"""Reads of a keyspace whose values a codec decodes: the same names as those of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, overload

from snapkv.codecs import Codec
from snapkv.committer import listed
from snapkv.model import Change, Changes, Difference, Entry, K, V, Version
from snapkv.reading.decoding import Decoding
from snapkv.reading.typed_snapshot import TypedSnapshot
from snapkv.reading.view import View
from snapkv.reading.watch import Watch
from snapkv.times import When

# --- a watch whose values a codec decodes ---


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


# --- typed ---

D = TypeVar("D")


class TypedReads(Generic[K, V]):
    """The reads of a keyspace, with values that a codec decodes.

    Each read costs and raises as the one of bytes with the same name, and raises `DecodeError` for
    a value that the codec does not read.
    """

    def __init__(self, raw: View[K], codec: Codec[V]) -> None:
        self._raw: View[K] = raw
        self._decoding: Decoding[V] = Decoding(codec)

    @property
    def raw(self) -> View[K]:
        """The same keys with their bytes."""
        return self._raw

    @property
    def codec(self) -> Codec[V]:
        """The codec."""
        return self._decoding.codec

    def load(self, key: K, ts: When | None = None, *, timeout: float | None = None) -> V:
        """Return the value of a key, now or at a time; as `SnapshotKV.load`."""
        return self.entry(key, ts, timeout=timeout).value

    @overload
    def get(
        self, key: K, default: None = None, ts: When | None = None, *, timeout: float | None = None
    ) -> V | None: ...

    @overload
    def get(
        self, key: K, default: D, ts: When | None = None, *, timeout: float | None = None
    ) -> V | D: ...

    def get(
        self, key: K, default: Any = None, ts: When | None = None, *, timeout: float | None = None
    ) -> Any:
        """Return the value of a key, now or at a time, or `default` if the key is absent."""
        (found,) = self.entries_of([key], ts, timeout=timeout)
        return default if found is None else found.value

    def entry(self, key: K, ts: When | None = None, *, timeout: float | None = None) -> Entry[V]:
        """Return a key's value with its revisions, now or at a time."""
        return self._entry(key, self._raw.entry(key, ts, timeout=timeout))

    def entries_of(
        self, keys: Iterable[K], ts: When | None = None, *, timeout: float | None = None
    ) -> list[Entry[V] | None]:
        """Return the entries of given keys, None where one is absent, now or at a time."""
        wanted: list[K] = listed(keys, "keys")
        pairs = zip(wanted, self._raw.entries_of(wanted, ts, timeout=timeout), strict=True)
        return [entry and self._entry(key, entry) for key, entry in pairs]

    def _entry(self, key: K, entry: Entry) -> Entry[V]:
        value = self._decoding.decode(key, entry.value, entry.revision)
        return Entry(value, entry.revision, entry.created, entry.version)

    def load_with_prefix(
        self, prefix: K, ts: When | None = None, *, timeout: float | None = None
    ) -> tuple[list[K], list[V]]:
        """Return all keys with a prefix and their values, two lists in key order."""
        found = list(self.at(ts, timeout=timeout).items(prefix))
        return [key for key, _ in found], [value for _, value in found]

    def at(
        self,
        when: When | None = None,
        *,
        revision: int | None = None,
        final: bool = False,
        timeout: float | None = None,
    ) -> TypedSnapshot[K, V]:
        """Return the snapshot of a moment: of now, of a time, or of a revision."""
        raw = self._raw.at(when, revision=revision, final=final, timeout=timeout)
        return TypedSnapshot(raw, self._decoding)

    def diff(
        self,
        a: When | None,
        b: When | None = None,
        prefix: K | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[Difference[K, V]]:
        """Yield the differences between two moments (None: now), in key order."""
        before = self.at(a, timeout=timeout)
        return before.diff(self.at(b, timeout=timeout), prefix)

    def history(
        self,
        key: K,
        *,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Version[V]]:
        """Yield the versions of a key; as `SnapshotKV.history`."""
        found = self._raw.history(
            key,
            since=since,
            until=until,
            limit=limit,
            newest_first=newest_first,
            timeout=timeout,
        )
        for each in found:
            value = self._decoding.maybe(key, each.value, each.revision)
            yield Version(each.ts, each.revision, value, each.writer, each.note, each.meta)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> TypedWatch[K, V]:
        """Return an iterator of the commits after `since` with their changes."""
        return TypedWatch(self._raw.watch(prefix, since, timeout=timeout), self._decoding)
