"""A snapshot: the whole store at one moment, as a read-only mapping that never changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar

from snapkv.base.arguments import check_int
from snapkv.committer import listed
from snapkv.engine.contract import (
    ALL_KEYS_END,
    COLUMNS,
    PAIRS,
    SCAN,
    KeyValue,
    Page,
    PageForm,
    Pairs,
)
from snapkv.errors import (
    InvalidKeyError,
    InvalidTypeError,
    KeyNotFoundError,
    SnapKVError,
    dated,
)
from snapkv.layout import Keyspace
from snapkv.model import ROWS_MAX, Difference, Entry, K, KeysAndValues, V, html_table
from snapkv.reading.deadline import bounds, within
from snapkv.reading.decoding import Decoding, entry_of
from snapkv.reading.text_search import TextSearch
from snapkv.timeline import READS_MAX, Moment

# --- the state of a snapshot, and the differences of two ---

T = TypeVar("T", bound=tuple[Any, ...])
Both = Iterator[tuple[bytes, bytes | None, bytes | None]]


class StateReads(Protocol):
    """The state of a snapshot."""

    timestamp: int
    revision: int
    final: bool

    def get(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Return the versions of stored keys, None where a key is absent."""

    def pages(
        self, form: PageForm[Page], start: bytes, end: bytes, *, keys_only: bool = False
    ) -> Iterator[Page]:
        """Yield the range [start, end) in pages, ascending."""

    def first(
        self, start: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the first `limit` keys of the range [start, end) in pages, and read no more."""

    def ranges(
        self, wanted: Sequence[tuple[bytes, bytes]], limit: int = 0
    ) -> list[Sequence[KeyValue]]:
        """Return the contents of some short ranges, `limit` keys of each (0: all)."""

    def count(self, start: bytes, end: bytes) -> int:
        """Return the number of keys in a range."""

    def changed(self, other: StateReads, start: bytes, end: bytes) -> list[bytes] | None:
        """Return sorted stored keys that hold all differences; None if scanning is cheaper."""


def both_read(a: StateReads, b: StateReads, keys: Sequence[bytes]) -> Both:
    """Yield (key, value in a, value in b) of given keys; a round trip for each 64, or two."""

    def read(at: int) -> Both:
        chunk = keys[at : at + READS_MAX // 2]
        if isinstance(a, Moment) and isinstance(b, Moment):
            found = zip(chunk, *a.get_both(b, chunk), strict=True)
        else:
            found = zip(chunk, a.get(chunk), b.get(chunk), strict=True)
        return iter([(key, old and old.value, new and new.value) for key, old, new in found])

    return chain.from_iterable(map(read, range(0, len(keys), READS_MAX // 2)))


def both_scanned(a: StateReads, b: StateReads, start: bytes, end: bytes) -> Both:
    """Yield (key, value in a, value in b) of a whole range, merging two scans in order."""
    left, right = a.pages(SCAN, start, end), b.pages(SCAN, start, end)
    for before, after in paired(chain.from_iterable(left), chain.from_iterable(right)):
        if before and after:
            if before.mod_revision != after.mod_revision:
                yield before.key, before.value, after.value
        elif before:
            yield before.key, before.value, None
        elif after:
            yield after.key, None, after.value


def paired(left: Iterable[T], right: Iterable[T]) -> Iterator[tuple[T | None, T | None]]:
    """Merge two streams in the order of keys, which are the first fields of their items.

    Yields the items with the same key together, and None for the stream that lacks a key.

    >>> list(paired([("a", 1), ("b", 2)], [("b", 3), ("c", 4)]))
    [(('a', 1), None), (('b', 2), ('b', 3)), (None, ('c', 4))]
    """
    lefts, rights = iter(left), iter(right)
    old, new = next(lefts, None), next(rights, None)
    while old is not None or new is not None:
        if old is not None and new is not None and old[0] == new[0]:
            yield old, new
            old, new = next(lefts, None), next(rights, None)
        elif new is None or (old is not None and old[0] < new[0]):
            yield old, None
            old = next(lefts, None)
        else:
            yield None, new
            new = next(rights, None)


# --- snapshot ---

if TYPE_CHECKING:
    from snapkv.reading.arrow import Table


class Snapshot(KeysAndValues[K, V], Mapping[K, V]):
    """All keys at one moment; every read of one snapshot sees the same revision.

    `timestamp` is the requested moment (without one, that of the newest commit), `revision` that of
    the newest commit at or before it. `final` means that no commit can land at or below
    `timestamp` any more; if False, the same moment may have another state later.

    Reading is lazy: a key costs one round trip, iterating one per page. Prefer `items()` over
    `dict(snapshot)`, which reads key by key. `timeout` bounds a read in seconds, as in a store;
    None means the timeout of `at(timeout=...)`. Reads raise `CompactedError`,
    `EngineUnavailableError`, `ReadTimeoutError`.

    Values are bytes, or what the codec of the store decodes as they are read: `DecodeError` if it
    does not read one. `raw` and tables have the bytes.
    """

    def __init__(
        self,
        source: StateReads,
        space: Keyspace,
        *,
        read_timeout: float | None = None,
        decoding: Decoding[V] | None = None,
    ) -> None:
        self._source, self._space, self._read_timeout = source, space, read_timeout
        self._decoding: Decoding[V] | None = decoding

    @property
    def raw(self) -> Snapshot[K]:
        """The same moment with its bytes."""
        return Snapshot(self._source, self._space, read_timeout=self._read_timeout)

    @property
    def timestamp(self) -> int:
        """The moment."""
        return self._source.timestamp

    @property
    def revision(self) -> int:
        """The revision of the newest commit at that moment."""
        return self._source.revision

    @property
    def final(self) -> bool:
        """Whether no commit can land at or below this moment any more."""
        return self._source.final

    def __repr__(self) -> str:
        final = "final" if self.final else "not final"
        codec = "" if self._decoding is None else f" codec={self._decoding.name}"
        at, revision = dated(self.timestamp), self.revision
        return f"<Snapshot {at} revision={revision} {final}{codec}>"

    def _repr_html_(self) -> str | None:
        try:
            return html_table(["key", "value"], self.items(limit=ROWS_MAX + 1), repr(self))
        except SnapKVError:  # such as a closed store: it has its repr
            return None

    def __copy__(self) -> Self:
        return self  # a value

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            "a snapshot reads from its open store and cannot be pickled; pickle its timestamp, "
            "and pass that to at() of a store that the other process opened"
        )

    def __getitem__(self, key: K) -> V:
        """Return a value; `KeyNotFoundError` (a KeyError) if the key is absent."""
        return self.entry(key).value

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str if self._space.text else bytes) or not key:
            return False
        try:
            return self._found([key])[0] is not None
        except InvalidKeyError:  # no such key can exist
            return False

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __len__(self) -> int:
        return self.count()

    def entry(self, key: K, *, timeout: float | None = None) -> Entry[V]:
        """Return a key's value with the revisions it was written and created at.

        Raises `KeyNotFoundError`, `InvalidKeyError`, and as all reads.
        """
        (found,) = self._found([key], timeout)
        if found is None:
            raise KeyNotFoundError(key, self.timestamp)
        return entry_of(key, found, self._decoding)

    def entries_of(
        self, keys: Iterable[K], *, timeout: float | None = None
    ) -> list[Entry[V] | None]:
        """Return the entries of some keys, None for absent ones; one round trip for each 128.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     ts = store.save("a", b"1")
        ...     [entry and entry.value for entry in store.at().entries_of(["a", "b"])]
        [b'1', None]
        """
        wanted: list[K] = listed(keys, "keys")
        pairs = zip(wanted, self._found(wanted, timeout), strict=True)
        return [kv and entry_of(key, kv, self._decoding) for key, kv in pairs]

    def _found(self, keys: list[Any], timeout: float | None = None) -> list[KeyValue | None]:
        bound = self._read_timeout if timeout is None else timeout
        stored = [self._space.encode(key) for key in keys]
        if bound is None:  # the short way
            return self._source.get(stored)
        with within(bound):
            return self._source.get(stored)

    @bounds
    def items_of(
        self,
        ranges: Iterable[tuple[K, K]],
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> list[list[tuple[K, V]]]:
        """Return the keys and values in each of some short ranges [start, end).

        With a `limit`, at most so many of each, the first ones. One round trip for each 128 ranges;
        the contents come in one answer. Raises `InvalidOptionError`, `InvalidTypeError` for an
        invalid limit.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     commit = store.commit(puts={"a/1": b"1", "b/1": b"2", "b/2": b"3"})
        ...     store.at().items_of([("a/", "a0"), ("b/2", "b0")])
        [[('a/1', b'1')], [('b/2', b'3')]]
        """
        if limit is not None:
            check_int("limit", limit, 1)
        encode = self._space.encode
        wanted = [
            (encode(start), encode(end)) for start, end in map(_pair, listed(ranges, "ranges"))
        ]
        found = self._source.ranges(wanted, limit or 0)
        return [list(map(self._item, kvs)) for kvs in found]

    def _item(self, kv: KeyValue) -> tuple[K, V]:
        key = self._space.decode(kv.key)
        return key, entry_of(key, kv, self._decoding).value

    @bounds
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
        """Yield (key, entry) pairs in key order; bounded as `items`."""
        decode = self._space.decode
        low, high = self._range(prefix, start, end, after)
        for page in self._pages(low, high, limit) if _any(low, high) else ():
            for kv in page:
                key = decode(kv.key)
                yield key, entry_of(key, kv, self._decoding)

    @bounds
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
        """Yield (key, value) pairs in key order; with a prefix, exact to the byte, only those.

        `start` (inclusive) and `end` (exclusive) are keys that bound it further. `limit` ends it
        after so many, and `after` goes on behind a key, so the last key of a page is the token of
        the next one. No key beyond the limit is read. Pages of one moment (`at(timestamp)`) are of
        one state; the key of a token need not exist any more.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     commit = store.commit(puts={"a/1": b"", "a/2": b"", "a/3": b"", "b": b""})
        ...     snapshot = store.at(commit.ts)
        ...     first = [key for key, _ in snapshot.items("a/", limit=2)]
        ...     first, [key for key, _ in snapshot.items("a/", limit=2, after=first[-1])]
        (['a/1', 'a/2'], ['a/3'])

        Raises `InvalidOptionError`, `InvalidTypeError` for an invalid limit.
        """
        for page in self.pairs(prefix, start, end, after, limit=limit):
            keys = self._space.decode_all(page.keys)
            yield from zip(keys, self._values_of(keys, page), strict=True)

    @bounds
    def search(
        self,
        text: str,
        prefix: K | None = None,
        *,
        ignore_case: bool = False,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[K, V]]:
        """Yield the keys, with a prefix or all, whose values have a text, in key order.

        The text is compared with the stored bytes, as UTF-8 of 1,000 bytes at most; `ignore_case`
        ignores the case of ASCII letters. `limit` is the most pairs that it yields. It reads each
        value, with one round trip for a page.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     commit = store.commit(puts={"a": b"web:1.25", "b": b"web:1.26"})
        ...     list(store.at().search("1.26"))
        [('b', b'web:1.26')]

        Raises `InvalidOptionError` for another text, or an invalid limit.
        """
        wanted, pages = TextSearch.of(text, ignore_case), self.pairs(prefix)
        pairs = (pair for page in pages for pair in zip(page.keys, page.values, strict=True))
        for stored, value in islice((each for each in pairs if wanted.find(each[1]) >= 0), limit):
            key = self._space.decode(stored)
            yield key, self._values_of([key], Pairs([stored], [value]))[0]

    @bounds
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
        """Yield keys in order, without reading values; bounded as `items`."""
        for page in self.pairs(prefix, start, end, after, limit=limit, keys_only=True):
            yield from self._space.decode_all(page.keys)

    def values(  # type: ignore[override]
        self, prefix: K | None = None, *, timeout: float | None = None
    ) -> Iterator[V]:
        """Yield values in key order."""
        return (value for _, value in self.items(prefix, timeout=timeout))

    @bounds
    def count(
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        timeout: float | None = None,
    ) -> int:
        """Return the number of keys, bounded as `items`; one round trip."""
        low, high = self._range(prefix, start, end)
        return self._source.count(low, high) if _any(low, high) else 0

    @bounds
    def to_arrow(self, prefix: K | None = None, *, timeout: float | None = None) -> Table:
        """Return the keys, with a prefix or all, as an Arrow table in key order.

        Columns: key, value (binary), create_version and mod_version (revisions), key_version (how
        often it was written since it was created). For pandas, polars and duckdb; needs pyarrow.
        A round trip a page. Raises `InvalidKeyError` for an observed key that is not valid UTF-8.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     commit = store.commit(puts={"a": b"1", "b": b"2"})
        ...     store.at().to_arrow().select(["key", "value"]).to_pylist()
        [{'key': 'a', 'value': b'1'}, {'key': 'b', 'value': b'2'}]
        """
        from snapkv.reading import arrow

        return arrow.snapshot_table(self._source.pages(COLUMNS, *self._range(prefix)), self._space)

    @bounds
    def diff(
        self, other: Snapshot[K, V], prefix: K | None = None, *, timeout: float | None = None
    ) -> Iterator[Difference[K, V]]:
        """Yield the differences from this snapshot to `other`, in key order.

        Costs the changes in between if they are few and not compacted, else one pass over both.
        Raises `InvalidTypeError` if `other` is not a snapshot of the same keys, or if only one of
        the two has a codec.
        """
        if not isinstance(other, Snapshot) or other._space != self._space:
            raise InvalidTypeError(f"diff needs a snapshot of the same keys, not {other!r}")
        ours, theirs = self._decoding, other._decoding
        if (ours is None) != (theirs is None):
            raise InvalidTypeError(f"diff needs a snapshot of the same view, not {other!r:.80}")
        start, end = self._range(prefix)
        keys = self._source.changed(other._source, start, end)
        pairs: Iterator[tuple[bytes, Any, Any]] = (
            both_scanned(self._source, other._source, start, end)
            if keys is None
            else both_read(self._source, other._source, keys)
        )
        for stored, before, after in pairs:
            if before != after:
                key = self._space.decode(stored)
                if ours is not None and theirs is not None:
                    before = ours.maybe(key, before, self._revision)
                    after = theirs.maybe(key, after, other._revision)
                yield Difference(key, before, after)

    def _revision(self, key: K) -> int:
        return self.raw.entry(key).revision

    def pairs(
        self,
        prefix: K | None,
        start: K | None = None,
        end: K | None = None,
        after: K | None = None,
        *,
        limit: int | None = None,
        keys_only: bool = False,
    ) -> Iterator[Pairs]:
        """Yield the items in pages, as the engine stores them; for layers of this package."""
        low, high = self._range(prefix, start, end, after)
        if limit is None:
            if not _any(low, high):
                return iter(())
            return self._source.pages(PAIRS, low, high, keys_only=keys_only)
        pages = self._pages(low, high, limit, keys_only=keys_only)
        return (Pairs([kv.key for kv in page], [kv.value for kv in page]) for page in pages)

    def _values_of(self, keys: list[K], page: Pairs) -> Sequence[V]:
        """Return the values in a page of `pairs`, whose keys are `keys`."""
        values: Sequence[Any] = page.values
        if self._decoding is None:
            return values
        decode, revision = self._decoding.decode, self._revision
        return [decode(key, data, revision) for key, data in zip(keys, values, strict=True)]

    def _pages(
        self, low: bytes, high: bytes, limit: int | None, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the versions in a range, in pages; with a limit so many of the first ones."""
        if limit is not None:
            check_int("limit", limit, 0)
        if not _any(low, high):
            return iter(())
        if limit is None:
            return self._source.pages(SCAN, low, high, keys_only=keys_only)
        return self._source.first(low, high, limit, keys_only=keys_only)

    def _range(
        self, prefix: K | None, start: K | None = None, end: K | None = None, after: K | None = None
    ) -> tuple[bytes, bytes]:
        low, high = self._space.range_of(self._space.default_prefix if prefix is None else prefix)
        if start is not None:
            low = max(low, self._space.encode(start))
        if after is not None:
            low = max(low, self._space.encode(after) + b"\0")
        if end is not None:
            bound = self._space.encode(end)
            high = bound if high == ALL_KEYS_END else min(high, bound)
        return low, high


def _pair(span: Any) -> tuple[Any, Any]:
    if not isinstance(span, tuple | list) or len(span) != 2:
        raise InvalidTypeError(f"a range is a pair of keys (start, end), not {span!r}")
    return span[0], span[1]


def _any(low: bytes, high: bytes) -> bool:
    """Return whether a range can hold keys."""
    return low < high or high == ALL_KEYS_END
