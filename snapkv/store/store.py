"""The store: what services open, write to and ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from snapkv.committer import Check, Sent, compile_check, listed, pairs
from snapkv.coordination.election import Election
from snapkv.coordination.session import TTL_S, Session, SessionInfo, sessions
from snapkv.errors import InvalidOptionError, InvalidTypeError, NotSupportedError
from snapkv.files import FILE_MODE, FilePath, check_mode, checked_path
from snapkv.layout import StampRecord
from snapkv.lifecycle import Closing
from snapkv.model import Build, Commit, Compaction, Guard, Ops
from snapkv.reading import history as _history
from snapkv.reading.deadline import bounds
from snapkv.reading.view import View
from snapkv.store import check as _check
from snapkv.store import dump as _dump
from snapkv.store.additions import Addition, building
from snapkv.store.core import Core
from snapkv.store.restoring import restored
from snapkv.store.space import Space
from snapkv.times import When, check_timestamp

if TYPE_CHECKING:
    from snapkv.reading.arrow import Table


class SnapshotKV(View[str], Closing):
    """A store of text keys and byte values that answers for any moment of its life.

    Safe for threads and usable as a context manager. Opened by `snapkv.open`.
    """

    _core: Core

    def __init__(self, core: Core) -> None:
        super().__init__(core, core.layout.data)

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __repr__(self) -> str:
        return f"<SnapshotKV {self._core.url} name={self._core.layout.name!r}>"

    def close(self) -> None:
        """Close the store; what waits in other threads ends with `StoreClosedError`."""
        self._core.close()

    # --- writing ---

    def save(self, key: str, value: bytes) -> int:
        """Save one key; return the commit's timestamp. One round trip."""
        ops = Ops(((key, value),))  # type: ignore[arg-type]  # of any key
        return self._core.commit(lambda stamp: ops, None).ts

    def remove(self, key: str) -> int:
        """Remove one key, which may be absent; return the commit's timestamp. One round trip."""
        return self.commit(deletes=[key]).ts

    def multi_save(self, kvs: Mapping[str, bytes], additions: Iterable[Addition] = ()) -> int:
        """Save several keys in one commit; return its timestamp.

        Each addition is called with that timestamp and returns one more (key, value) to save.
        """
        return self.commit(puts=kvs, additions=additions).ts

    def multi_save_and_remove_with_prefix(
        self,
        saves: Mapping[str, bytes],
        removals: Iterable[str],
        additions: Iterable[Addition] = (),
    ) -> int:
        """Remove everything under some prefixes and save keys, in one commit; return its timestamp.

        Removals come first: "remove a/, save a/new" leaves a/new alone under a/.
        """
        return self.commit(puts=saves, delete_prefixes=removals, additions=additions).ts

    def commit(
        self,
        build: Build | None = None,
        *,
        puts: Mapping[str, bytes] = {},
        deletes: Iterable[str] = (),
        delete_prefixes: Iterable[str] = (),
        guards: Iterable[Guard] = (),
        additions: Iterable[Addition] = (),
        note: str | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations, or what `build(stamp)` returns for the very stamp it commits with.

        `build` must be pure: it is called again for every new timestamp. What it raises stops
        this commit, with nothing written. Removals come before saves. `note` (4 KiB at most) is
        kept in the commit log. `timeout` (seconds, 60 at most) bounds the wait.

        One round trip; commits of several threads share one.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     commit = store.commit(puts={"a": b"1"}, guards=[snapkv.Absent("a")], note="new")
        ...     store.load("a")
        b'1'

        Raises `ConflictError` when a guard does not hold, `CommitTooLargeError`,
        `DuplicateKeyError`, `InvalidKeyError`, `InvalidTypeError`, `CommitTimeoutError` (it did
        not happen), `CommitUnknownError` (`resolve` can settle it), `StoreRecreatedError`,
        `ClockSkewError`, `NoSpaceError`, `ReadOnlyError`, `EngineBusyError` (another process kept
        the write lock; it did not happen), `EngineUnavailableError` (nothing was sent; it did not
        happen), `AccessDeniedError`.
        """
        if build is None:
            build = building(
                Ops(
                    list(pairs(puts)),  # type: ignore[arg-type]
                    listed(deletes, "deletes"),
                    listed(delete_prefixes, "delete_prefixes"),
                    listed(guards, "guards"),
                    note,
                ),
                tuple(listed(additions, "additions")),
            )
        elif not callable(build):
            raise InvalidTypeError(
                f"commit takes a function, not {type(build).__name__}; values: commit(puts=...)"
            )
        elif puts or deletes or delete_prefixes or guards or additions or note is not None:
            raise InvalidOptionError("give a function or keywords, not both")
        return self._core.commit(build, timeout)

    def restore(
        self,
        when: When,
        prefix: str = "",
        *,
        note: str | None = None,
        before_first: bool = False,
        timeout: float | None = None,
    ) -> Commit:
        """Make the present equal a past moment, in one commit; return it.

        `store.diff(None, when, prefix)` shows what it would do. It restores text keys: what stands
        in spaces belongs to the layers that put it there. Only what differs is written. Under
        steady writing by others it falls back to writing everything. A moment before the first
        commit needs `before_first=True`, for it removes every key (with the prefix).

        `timeout` (seconds) bounds all of it, reads and commits together, of which a commit gets 60
        at most. Without it `read_timeout` bounds each read, and `commit_timeout` each commit.

        Raises `InvalidTimeError`, `PrefixNotFoundError` (a KeyError: no key has the prefix, now or
        then), `CompactedError`, `CommitTooLargeError`, `ReadTimeoutError` (nothing was written),
        and as `commit`.
        """
        return restored(self, self._core, when, prefix, note, before_first, timeout)

    def resolve(
        self,
        ts: int,
        nonce: bytes,
        *,
        batch: int = 0,
        guards: Iterable[Guard | Check] = (),
        timeout: float | None = None,
    ) -> Commit | None:
        """Settle a commit whose outcome was unknown, from any process, once and for all.

        `ts`, `nonce`, `batch` and `guards` are those of the `CommitUnknownError`, which can be
        pickled to another process; guards on text keys may also be written anew. Returns the commit
        when it landed, None when it never will. Keep the answer: once compaction took the history
        of that time, the same question can no longer be decided. Raises `ConflictError` when its
        group landed without this part, `CommitUnknownError` when that cannot be told.
        """
        core = self._core
        core.check_open()
        check_timestamp(ts)
        if not isinstance(nonce, bytes) or not nonce:
            raise InvalidTypeError("a nonce is the bytes that CommitUnknownError carries")
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            raise InvalidTypeError(f"a batch counts from 0, it is not {batch!r}")
        if core.timeline.head().timestamp < ts:
            core.check_not_ahead(ts)
        stamp = StampRecord(ts, nonce, core.committer.writer)
        checks = tuple(
            guard
            if isinstance(guard, Check)
            else compile_check(guard, core.layout.data, core.layout)
            for guard in listed(guards, "guards")
        )
        sent = Sent(stamp, core.committer.created, core.timeline.newest_known())
        mark = core.committer.resolve(sent, checks, timeout=core.timeout_s(timeout))
        if mark is None:
            return None
        return replace(_history.commit_of(mark, core.timeline.stamp(mark)), batch=batch)

    # --- the time line ---

    @bounds
    def commits(
        self,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        *,
        newest_first: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Commit]:
        """Yield the commits after `since` (exclusive) up to `until` (inclusive), oldest first.

        Ticks are commits too. Commits that shared a transaction appear as one, with batch 0.
        Without `since` it begins with what compaction left; with one that is gone it raises
        `CompactedError`. One watch over the timestamp key; a page at a time when newest first.

        Raises `EngineUnavailableError`, `ReadTimeoutError`, too.
        """
        return _history.commits(self._core, since, until, limit, newest_first)

    @bounds
    def commits_to_arrow(
        self,
        since: When | None = None,
        until: When | None = None,
        *,
        timeout: float | None = None,
    ) -> Table:
        """Return the commits in (since, until] as an Arrow table, newest first.

        Columns: version (revision), timestamp (to the millisecond), userName (the writer),
        operation (WRITE, TICK, or FENCE, which proved another one dead), userMetadata (the note),
        operationMetrics (a map: numPuts, numDeletes, in spaces too). Without `since` it begins
        with what compaction left, whose operation is unknown. Needs pyarrow. Costs two watches.

        Raises `CompactedError`, `EngineUnavailableError`, `ReadTimeoutError`.
        """
        from snapkv.reading import tables

        self._core.check_open()
        return tables.commits_table(self._core, since, until)

    def tick(self) -> Commit:
        """Commit nothing but a timestamp: it moves `resolved()` forward. One round trip.

        Raises `ClockSkewError` in a store whose timestamps are ahead of the clock, and as `commit`.
        """
        return self._core.tick()

    @bounds
    def resolved(self, *, timeout: float | None = None) -> int:
        """Return the timestamp at or below which nothing can commit any more. One round trip.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        self._core.check_open()
        return self._core.timeline.head().timestamp

    def compact(self, before: When) -> Compaction:
        """Forget the history before a moment; the state at that moment stays readable.

        It affects the whole engine, other stores in it too. It never passes the newest minute or
        so, in which outcomes of commits must stay decidable: the result tells how far it went.
        """
        self._core.check_open()
        return self._core.compact(self._core.resolve(before))

    # --- who is there, who leads ---

    def session(self, ttl: float = TTL_S, value: bytes = b"") -> Session:
        """Return a new session: a sign of life that others see, kept alive by a thread.

        When this process dies, its key vanishes `ttl` seconds after the last renewal (etcd: whole
        seconds, 2 at least by default). `value` is what `sessions()` shows. Two round trips.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store, store.session(5.0, b"host:80") as session:
        ...     commit = store.commit(puts={"owner": b"host:80"}, guards=[session.guard])
        ...     [info.value for info in store.sessions()]
        [b'host:80']

        Raises `InvalidTypeError`, `InvalidOptionError`, `CommitTooLargeError`,
        `EngineUnavailableError`, `EngineBusyError`, `NoSpaceError`, `AccessDeniedError`,
        `SessionLostError` (all that took longer than the lease lasts).
        """
        return Session(self._core, self._core.committer.writer, ttl, value)

    @bounds
    def sessions(self, *, timeout: float | None = None) -> list[SessionInfo]:
        """Return the sessions that live, in the order in which they were made. One round trip.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        return sessions(self._core)

    def election(
        self, name: str, *, session: Session | None = None, ttl: float = TTL_S
    ) -> Election:
        """Return a place in an election; `campaign()` stands in it. No round trip.

        Without a session each campaign makes one of its own, of `ttl` seconds, and ends it on
        resigning.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store, store.election("compactor") as election:
        ...     leader = election.campaign(b"host:80", timeout=10)
        ...     commit = store.commit(puts={"k": b"1"}, guards=[leader.guard])
        ...     leader.leading, election.leader().value, leader.revision < commit.revision
        (True, b'host:80', True)

        Raises `InvalidTypeError`, `InvalidKeyError`, `InvalidOptionError`, `StoreClosedError`.
        """
        writer = self._core.committer.writer
        return Election(self._core, name, writer=writer, session=session, ttl=ttl)

    # --- spaces, files, facts ---

    def space(self, name: str) -> Space:
        """Return a byte-keyed space of this store."""
        self._core.check_open()
        return Space(self._core, name)

    def dump(
        self,
        file: BinaryIO | FilePath,
        at: When | None = None,
        *,
        mode: int | None = None,
        progress: _dump.Progress = lambda _: None,
    ) -> int:
        """Write one moment, spaces included, to a file; return the number of keys.

        A path gets a complete dump or stays as it was. A new file has the permissions 0o600, one
        that is replaced keeps its own; `mode` sets them. A device or a FIFO (with a reader within
        a minute) is written to as it is. `progress` hears of the keys written.
        Raises as `at`, `InvalidFileError`, `NoSpaceError`.
        """
        return _dump.dump(self._core, file, at, mode, progress)

    def backup(self, path: FilePath, *, mode: int = FILE_MODE) -> None:
        """Copy a live lmdb store, history and all, to a new directory, while writers go on.

        The copy is LMDB's own, of one moment, and without free pages; all stores of the directory
        come along. It appears when it is complete, with files of the permissions `mode`. It costs
        as reading and writing all of it; meanwhile a commit of this process that needs a larger
        map waits, 30 seconds at most. `dump` writes one moment, of any engine.

        >>> import snapkv, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with snapkv.open(f"lmdb:{folder}/meta") as store:
        ...         timestamp = store.save("a", b"1")
        ...         store.backup(f"{folder}/copy")
        ...     with snapkv.open(f"lmdb:{folder}/copy", create=False) as copy:
        ...         copy.load("a", timestamp)
        b'1'

        Raises `NotSupportedError` (memory, etcd), `InvalidFileError` (also when something is at
        `path`), `NoSpaceError`, `InvalidOptionError`, `InvalidTypeError`.
        """
        core = self._core
        core.check_open()
        copy = getattr(core.engine, "backup", None)
        if copy is None:
            raise NotSupportedError(
                f"{core.url} cannot be copied as a directory, only lmdb stores can: "
                "dump() writes one moment; etcdctl snapshot save copies an etcd"
            )
        copy(checked_path(path), check_mode(mode))

    def load_dump(
        self, file: BinaryIO | FilePath, *, replace: bool = False, note: str | None = None
    ) -> Commit:
        """Commit what a dump holds, in one commit, after reading and verifying all of it.

        It holds no more of the file than one commit of this engine may have, whatever the file
        claims. Raises `StoreNotEmptyError` when there are keys already and `replace` does not say
        to replace them; `NotAStoreError`, `FormatError`, `CorruptStoreError` for the file;
        `InvalidFileError` when it cannot be read; `CommitTooLargeError`.
        """
        with _dump.opened(file) as opened:
            return _dump.load_dump(self._core, opened, replace=replace, note=note)

    @property
    def guards_max(self) -> int | None:
        """How many guards one commit may have here; None: any number."""
        return self._core.committer.guards_max

    @bounds
    def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return facts about the store and its engine, for people, without secrets.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        core = self._core
        core.check_open()
        head, oldest = core.timeline.head(), core.timeline.oldest()
        return {
            "url": core.url,
            "name": core.layout.name,
            "store_id": core.format.store_id.hex(),
            "format": core.format.format,
            "commits": head.ordinal - 1,
            "newest_timestamp": head.timestamp,
            "newest_revision": head.revision,
            "earliest_timestamp": oldest.timestamp,
            "ring": f"{len(core.timeline.ring)} of {core.timeline.ring.slots}",
            "key_bytes_max": core.engine.limits.key_bytes - len(core.layout.data.prefix),
            "retain_ms": core.retain_ms,
            "retain_error": str(core.retain_error) if core.retain_error else None,
            "engine": core.engine.info(),
        }

    def check(self, *, progress: _dump.Progress = lambda _: None) -> _check.CheckReport:
        """Check every invariant of what is stored; `progress` hears of the commits checked."""
        return _check.check(self._core, progress)
