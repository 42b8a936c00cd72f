"""The reads that a store, each of its spaces, and an observed prefix share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

from snapkv.committer import listed
from snapkv.errors import KeyNotFoundError
from snapkv.layout import Keyspace
from snapkv.model import Difference, Entry, K, KeysAndValues, NotebookRows, V, Version
from snapkv.reading import history as _history
from snapkv.reading.deadline import bounds, within
from snapkv.reading.decoding import Decoding, entry_of
from snapkv.reading.reader import Reader, revisions_at
from snapkv.reading.snapshot import Snapshot
from snapkv.reading.watches import StoreWatch, Watch, WatchRequest
from snapkv.timeline import READS_MAX
from snapkv.times import When, names_revision

if TYPE_CHECKING:
    from snapkv.reading.arrow import Table
    from snapkv.timeline.timeline import Integers, Revisions

D = TypeVar("D")


class KeyspaceReads(KeysAndValues[K, V]):
    """The reads of one keyspace, at any moment.

    A time may be a timestamp, an aware datetime, ISO text with an offset, a relative text such as
    `-5m`, or a revision as `rev:4`. A date means the end of its millisecond. A revision means the
    state at that revision, also between two commits; as an end of a range (`since`, `until`) and in
    `compact` it means the newest commit at or below it. `rv:4` names the commit that recorded
    revision 4 of another engine, a resourceVersion of Kubernetes, or the newest one before it; of
    observed keys it is `rev:4`. Other stores raise `InvalidTimeError`.

    A number that cannot be a timestamp of this store raises `InvalidTimeError`: one below a
    hundredth of its newest timestamp (revisions, unix seconds), or a century ahead. 0 is the
    beginning.

    `timeout` bounds a read in seconds: all its requests, retries, lookups and waits for locks
    together; `ReadTimeoutError` (a TimeoutError) if that is not enough. For an iterator it
    bounds all steps together, a codec's too, without the time of the caller in between. None means
    the `read_timeout` of `open`; without either, each request to an etcd cluster
    ends after 12 s without an answer (`EngineUnavailableError`); a read has a few requests.

    Values are bytes, or what a codec decodes: then each read raises `DecodeError`, too, for a value
    that the codec does not read. Tables of Arrow have the bytes.
    """

    _decoding: Decoding[V] | None = None
    """The codec; None if values are bytes."""

    def __init__(self, core: Reader, space: Keyspace) -> None:
        self._core, self._space = core, space
        self._read_timeout = core.read_timeout
        # The short way, `Timeline.get`, is tried where `_is_plain`. Where it returns None, the
        # careful way answers.
        self._is_plain = core.read_timeout is None and core.policy.at_head
        meter, self._encode = core.meter, space.encode
        get = core.timeline.get if meter is None else meter.get
        self._get: Callable[[bytes, Any], Any] = get  # the type of bytes as values is not known
        self._read_keys = core.get if meter is None else meter.timed("load", core.get)
        self._source_at = core.source if meter is None else meter.timed("at", core.source)

    @property
    def reader(self) -> Reader:
        """The reader below, for layers of this package that read in bulk."""
        return self._core

    @property
    def keyspace(self) -> Keyspace:
        """How keys are stored, for layers of this package that read in bulk."""
        return self._space

    def load(self, key: K, ts: When | None = None, *, timeout: float | None = None) -> V:
        """Return the value of a key, now or at a time.

        One round trip for now, for times at or above the newest commit and for times in the
        ring; 2 to 3 on average below it, and 6 at most over 30,000 revisions.

        Raises `KeyNotFoundError` (a KeyError), `CompactedError`, `InvalidKeyError`,
        `InvalidTimeError`, `EngineUnavailableError`, `ReadTimeoutError` (one of these, after
        `timeout` seconds).
        """
        if timeout is None and self._is_plain and not self._core.closed:
            kv = self._get(self._encode(key), ts)
            if kv is not None:
                value: V = kv.value
                return value if self._decoding is None else self._decoding.of(key, kv)
        return self._entry(key, ts, timeout).value

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
        """Return the value of a key, now or at a time, or `default` if the key is absent.

        Costs and raises as `load`, but for `KeyNotFoundError`.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     store.get("a"), store.get("a", b"none")
        (None, b'none')
        """
        if timeout is None and self._is_plain and not self._core.closed:
            kv = self._get(self._encode(key), ts)
            if kv is not None:
                return kv.value if self._decoding is None else self._decoding.of(key, kv)
        (found,) = self.entries_of([key], ts, timeout=timeout)
        return default if found is None else found.value

    def entry(self, key: K, ts: When | None = None, *, timeout: float | None = None) -> Entry[V]:
        """Return a key's value with its revisions, now or at a time; costs and raises as `load`.

        The revision is what the guard `AtRevision` takes.
        """
        if timeout is None and self._is_plain and not self._core.closed:
            kv = self._get(self._encode(key), ts)
            if kv is not None:
                return entry_of(key, kv, self._decoding)
        return self._entry(key, ts, timeout)

    def _entry(self, key: K, ts: When | None, timeout: float | None) -> Entry[V]:
        (found,) = self.entries_of([key], ts, timeout=timeout)
        if found is None:
            raise KeyNotFoundError(key, None if ts is None else self._core.resolve(ts))
        return found

    @bounds
    def entries_of(
        self, keys: Iterable[K], ts: When | None = None, *, timeout: float | None = None
    ) -> list[Entry[V] | None]:
        """Return the entries of given keys, None where one is absent, now or at a time.

        All are of one state. Costs as `load` for fewer than 128 keys, else one round trip and one
        for each 128 of them. Raises as `load`, but for `KeyNotFoundError`.
        """
        self._core.check_open()
        wanted: list[K] = listed(keys, "keys")
        stored = [self._space.encode(key) for key in wanted]
        together = self._core.engine.limits.reads_together(stored)
        of_revision = isinstance(ts, str) and names_revision(ts)
        if len(stored) >= READS_MAX or of_revision or not together:
            found = self._source_at(ts, None, False).get(stored)
        else:
            found = self._read_keys(stored, ts)
        pairs = zip(wanted, found, strict=True)
        return [kv and entry_of(key, kv, self._decoding) for key, kv in pairs]

    @bounds
    def load_with_prefix(
        self, prefix: K, ts: When | None = None, *, timeout: float | None = None
    ) -> tuple[list[K], list[V]]:
        """Return all keys with a prefix and their values, two lists in key order.

        The prefix is exact to the byte; the empty one means everything. All of it is read at one
        revision. Costs as `load`, and one round trip a page. Raises as `load`, but for
        `KeyNotFoundError`.
        """
        keys: list[K] = []
        values: list[V] = []
        snapshot = self.at(ts, timeout=timeout)
        for page in snapshot.pairs(prefix):
            found = self._space.decode_all(page.keys)
            keys += found
            values += snapshot._values_of(found, page)
        return keys, values

    @bounds
    def at(
        self,
        when: When | None = None,
        *,
        revision: int | None = None,
        final: bool = False,
        timeout: float | None = None,
    ) -> Snapshot[K, V]:
        """Return the snapshot of a moment: of now, of a time, or of a revision.

        A time after the newest commit is answered with the newest state and `final == False`:
        another commit could still land at or below it. `final=True` commits a tick first, so that
        none can; a time beyond now + `max_clock_skew` then raises `ClockSkewError`.

        `timeout` bounds this call, and each read of the snapshot that has no timeout of its own.

        Costs one round trip for now, none for times in the ring, 2 to 3 on average below it.
        Raises `CompactedError`, `FutureRevisionError`, `InvalidTimeError`,
        `EngineUnavailableError`, `ReadTimeoutError`; with `final=True` as `commit`, too.
        """
        read_timeout = self._read_timeout if timeout is None else timeout
        source = self._source_at(when, revision, final)
        decoding: Decoding[V] | None = self._decoding
        return Snapshot(source, self._space, read_timeout=read_timeout, decoding=decoding)

    @overload
    def revisions_at(
        self, timestamps: Iterable[When], *, timeout: float | None = None
    ) -> list[int]: ...

    @overload
    def revisions_at(self, timestamps: Integers, *, timeout: float | None = None) -> Revisions: ...

    @bounds
    def revisions_at(self, timestamps: Any, *, timeout: float | None = None) -> Any:
        """Return the revisions of many moments: `at(when).revision` of each, in the order given.

        `timestamps` is an iterable of times of any kind, and the result a list of ints; or it is
        a numpy array of integers, and the result an array of int64 in the same shape. They may
        repeat, in any order.

        Nothing is read if one of them is not valid. Times in the ring, and times looked up before,
        cost no round trip. The rest costs, if there are many times per 256 commits, at most 4 to 12
        round trips and one watch over these commits; otherwise a search for each, 2 to 3 round
        trips. A text such as `rev:4` costs one. O(log commits) for each time; holds 4,096 commits
        in memory at once. Known times take about as long as `numpy.searchsorted` on an array of
        all commits.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     first, second = store.save("a", b"1"), store.save("a", b"2")
        ...     revisions = store.revisions_at([second, first, first + 1, 0])
        ...     revisions == [store.at(ts).revision for ts in (second, first, first + 1, 0)]
        True

        Raises `InvalidTypeError`, and what `at` raises for the earliest of them: `CompactedError`,
        `InvalidTimeError`, `FutureRevisionError`, `EngineUnavailableError`, `ReadTimeoutError`.
        """
        return revisions_at(self._core, timestamps)

    @bounds
    def timestamp_of(self, when: When) -> int:
        """Return the timestamp of a time, by this store's clock; no round trip.

        `rev:4` means the newest commit at or below that revision; one round trip. Raises
        `InvalidTimeError`, `InvalidTypeError`, `FutureRevisionError`, `CompactedError`.
        """
        return self._core.resolve(when)

    @bounds
    def diff(
        self,
        a: When | None,
        b: When | None = None,
        prefix: K | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[Difference[K, V]]:
        """Yield the differences between two moments (None: now), in key order.

        Raises as `at`.
        """
        before = self.at(a, timeout=timeout)
        return NotebookRows("differences", before.diff(self.at(b, timeout=timeout), prefix))

    @bounds
    def changes_to_arrow(
        self,
        prefix: K | None = None,
        since: When | None = None,
        until: When | None = None,
        *,
        preimages: bool = False,
        timeout: float | None = None,
    ) -> Table:
        """Return the changes of the commits in (since, until] as an Arrow table, in commit order.

        Columns: key, value (None for a removal), _change_type (insert, update_postimage, delete),
        _commit_version (revision), _change_ordinal (index among the commit's changes of these
        keys), _commit_timestamp (to the millisecond). With `preimages` a removal has the removed
        value, and each update a row before it (update_preimage) with the old value. Without
        `since` it begins with the oldest commit left. Needs pyarrow. Costs two watches, and with
        `preimages` a round trip for each 128 changes.

        Raises `CompactedError`, `EngineUnavailableError`, `ReadTimeoutError`, and
        `InvalidKeyError` for an observed key that is not valid UTF-8.
        """
        from snapkv.reading import tables

        self._core.check_open()
        keys = tables.key_range_of(self._space, prefix)
        return tables.changes_table(self._core, keys, since, until, preimages)

    @bounds
    def history_to_arrow(
        self,
        prefix: K | None = None,
        since: When | None = None,
        until: When | None = None,
        *,
        timeout: float | None = None,
    ) -> Table:
        """Return every version that was in force at some time in [since, until], as an Arrow table.

        Columns: key, value, _version_from and _version_to (revisions: in force from the first until
        before the second), _timestamp_from and _timestamp_to. `_version_to` is None for a version
        in force at the end; `_timestamp_from` is None if the commit that wrote it was compacted.
        Sorted by key and revision. Without `since` it begins with the oldest state left. Needs
        pyarrow. Costs a scan at the beginning and two watches, and a few reads, or one watch, for
        the times of the versions that the scan found.

        Raises as `changes_to_arrow`, and for an observed prefix `NotObservedError` if its first
        tick came after `until`.
        """
        from snapkv.reading import tables

        self._core.check_open()
        keys = tables.key_range_of(self._space, prefix)
        return tables.history_table(self._core, keys, since, until)


class View(KeyspaceReads[K, V]):
    """The reads and watches of one keyspace of a store."""

    @bounds
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
        """Yield the versions of a key, oldest first: time, value, writer and note.

        A removal has the value None. History begins with the version in force
        at the compaction point, whose `ts` is None if its commit was compacted. With a time
        `since` (exclusive) it begins behind that, and it ends at `until` (inclusive) or after
        `limit` versions. The `ts` of the last version of a page begins the next page: as `since`,
        or newest first as `until`, less 1.

        Costs one watch over the key from `since` on, and one round trip for each 128 versions.
        Newest first, versions are read back from the newest one, not further than asked: on etcd
        a round trip each, 32 at most, then by watches over growing windows of revisions. What came
        before the key was created is found by such watches, too.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     stamps = [store.save("a", b"%d" % n) for n in range(5)]
        ...     newest = [v.value for v in store.history("a", newest_first=True, limit=2)]
        ...     newest, [v.value for v in store.history("a", since=stamps[1], until=stamps[3])]
        ([b'4', b'3'], [b'2', b'3'])

        Raises `CompactedError` (of `since`, too), `InvalidTimeError`, `InvalidOptionError`,
        `InvalidTypeError`, `EngineUnavailableError`, `ReadTimeoutError`.
        """
        wanted = _history.HistoryBounds(since, until, limit, newest_first)
        found: Iterator[Any] = _history.versions(self._core, self._space.encode(key), wanted)
        versions = found if self._decoding is None else self._decoding.versions(key, found)
        return NotebookRows(f"versions of {key!r}", versions)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> Watch[K, V]:
        """Return an iterator of the commits after `since` (None: after now) with their changes.

        In order, none twice, none missing; resumable from the last timestamp seen. Iteration ends
        if `timeout` seconds bring nothing (None: it waits), but never before it has returned all
        commits that are older than this call.

        The `read_timeout` of `open` bounds this call, not the iteration.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     first = store.save("a", b"1")
        ...     for changes in store.watch(since=0, timeout=0):
        ...         print(changes.commit.ts == first, [(c.key, c.value) for c in changes])
        True [('a', b'1')]

        Raises `CompactedError` if commits after `since` are gone, `EngineUnavailableError`.
        """
        self._core.check_open()
        timeline = self._core.timeline
        with within(self._read_timeout):
            head = timeline.head()
            if since is None:
                mark, after = head, 0
            else:
                after = self._core.resolve(since)
                mark = timeline.at(after).mark
            more = after, timeout, self._decoding
            return StoreWatch(WatchRequest(self._core, self._space, prefix, mark, head, *more))
