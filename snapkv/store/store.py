"""The store that services open, write and read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from snapkv.base.arguments import check_bool, check_int, check_text
from snapkv.base.files import FILE_MODE, FilePath, check_mode, checked_path
from snapkv.base.lifecycle import Closing
from snapkv.codecs import Codec, T
from snapkv.committer import Check, SentRequest, compile_check, listed
from snapkv.committer.group import GroupBuilder
from snapkv.coordination.election import Election, Leader, leaders
from snapkv.coordination.leased_keys import Live
from snapkv.coordination.session import TTL_S, Session, Sessions, sessions
from snapkv.errors import AccessDeniedError, InvalidOptionError, InvalidTypeError, NotSupportedError
from snapkv.hooks import CloseEvent
from snapkv.layout import StampRecord
from snapkv.model import Build, Commit, Compaction, Guard, NotebookRows, Ops, Reverted, Scalar, V
from snapkv.reading import history as _history
from snapkv.reading.deadline import bounds, within
from snapkv.reading.log import log
from snapkv.reading.text_search import TextSearch
from snapkv.store import dump as _dump
from snapkv.store.diagnostics import (
    HEALTH_TIMEOUT_S,
    CheckReport,
    Health,
    Stats,
    check,
    health,
    size_of,
    stats,
)
from snapkv.store.recorder_watermarks import Watermark, forget, watermarks
from snapkv.store.restore import ChosenKeys, restored
from snapkv.store.revert import revert_plans, reverted
from snapkv.store.store_writer import StoreWriter
from snapkv.store.writes import Addition, KeyspaceWrites, Space, building, names
from snapkv.times import When, check_timestamp, format_time, physical_ms

# --- facts about a store and its engine, as `SnapshotKV.info` returns them ---

WRITERS_OF = 100
"""The number of newest commits whose writers are counted."""


def facts(core: StoreWriter) -> dict[str, Any]:
    """Return facts about an open store; a few round trips."""
    core.check_open()
    head, oldest = core.timeline.head(), core.timeline.oldest()
    newest = list(_history.commits(core, None, None, WRITERS_OF, True))
    copied, engine = watermarks(core.engine, core.layout), core.engine.info()
    alive: dict[str, Any] = {}
    with suppress(AccessDeniedError):  # a user that ticks may have rights below NAME/sys/ only
        holders = {each.id: each.writer for each in sessions(core)}
        led = {name: holders.get(one.session, "?") for name, one in leaders(core).items()}
        alive = {"sessions": len(holders), "leaders": led}
    lags = {each.into: physical_ms(head.timestamp) - physical_ms(each.timestamp) for each in copied}
    return {
        "url": core.url,
        "name": core.layout.name,
        "store_id": core.format.store_id.hex(),
        "format": core.format.format,
        "commits": head.ordinal - 1,
        "newest_timestamp": head.timestamp,
        "newest_age_s": core.age_s(head.timestamp),
        "newest_writer": next((each.writer for each in newest if each.ts == head.timestamp), None),
        "newest_revision": head.revision,
        "earliest_timestamp": oldest.timestamp,
        "size_bytes": size_of(engine),
        "writers": dict(Counter(each.writer for each in newest if each.writer is not None)),
        **alive,
        "recordings": {each.into: format_time(each.timestamp) for each in copied},
        "recordings_lag_s": {into: max(0, lag_ms) / 1_000 for into, lag_ms in lags.items()},
        "ring": f"{len(core.timeline.tracker.ring)} of {core.timeline.tracker.ring.slots}",
        "key_bytes_max": core.engine.limits.key_bytes - len(core.layout.data.prefix),
        "retain_ms": core.retain_ms,
        "retain_error": str(core.retain_error) if core.retain_error else None,
        "engine": engine,
    }


# --- store ---

if TYPE_CHECKING:
    from snapkv.reading.arrow import Table


class SnapshotKV(KeyspaceWrites[str, V], Closing):
    """A store of text keys and byte values that can be read as of any moment of its life.

    Safe for threads and usable as a context manager. Opened by `snapkv.open`. With a codec
    (`with_codec`, `open(codec=...)`), it is a store of other values: its reads and writes of text
    keys decode and encode. Several may share a store, with its log, guards and times; `close`
    closes all of them.

    >>> import snapkv
    >>> from snapkv import codecs
    >>> with snapkv.open("memory:") as store:
    ...     plans = store.with_codec(codecs.json)
    ...     commit = plans.commit(puts={"a": {"seats": 1}}, note="new")
    ...     done = plans.update("a", lambda plan: {**(plan or {}), "seats": 2})
    ...     plans.load("a"), plans.load("a", commit.ts), store.load("a")
    ({'seats': 2}, {'seats': 1}, b'{"seats":2}')
    """

    def __init__(self, core: StoreWriter) -> None:
        super().__init__(core, core.layout.data)

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __repr__(self) -> str:
        codec = "" if self._decoding is None else f" codec={self._decoding.name}"
        return f"<SnapshotKV {self._core.url} name={self._core.layout.name!r}{codec}>"

    def close(self) -> None:
        """Close the store; calls that wait in other threads raise `StoreClosedError`."""
        notify = None if self._core.closed else self._core.notify
        self._core.close()
        if notify is not None:
            notify(CloseEvent(notify.store, self.raw))

    # --- writing ---

    def multi_save(
        self,
        kvs: Mapping[str, V],
        additions: Iterable[Addition[V]] = (),
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Save several keys in one commit; return its timestamp.

        Each addition is called with that timestamp and returns one more (key, value) to save.
        """
        return self.commit(puts=kvs, additions=additions, note=note, writer=writer, meta=meta).ts

    def multi_save_and_remove_with_prefix(
        self,
        saves: Mapping[str, V],
        removals: Iterable[str],
        additions: Iterable[Addition[V]] = (),
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Remove everything under some prefixes and save keys, in one commit; return its timestamp.

        Removals come first: "remove a/, save a/new" leaves a/new alone under a/.
        """
        return self.commit(
            puts=saves,
            delete_prefixes=removals,
            additions=additions,
            note=note,
            writer=writer,
            meta=meta,
        ).ts

    def commit(
        self,
        build: Build | None = None,
        *,
        puts: Mapping[str, V] = {},
        deletes: Iterable[str] = (),
        delete_prefixes: Iterable[str] = (),
        guards: Iterable[Guard] = (),
        additions: Iterable[Addition[V]] = (),
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations, or the operations that `build(stamp)` returns for the commit's stamp.

        `build` must be pure: it is called again for every new timestamp. If it raises, nothing is
        written. Removals come before saves: a key that is removed and saved is saved. To save a key
        twice is an error. What `build` returns has bytes, whatever the codec. `timeout` (seconds,
        60 at most) bounds the wait.

        The commit log keeps `note` (4 KiB at most), `writer` (256 bytes), which takes the place of
        the store's writer for this commit, and `meta`: 64 facts at most, each a name with a text,
        a number, a bool or None, together 4 KiB in msgpack. Nothing checks whether they are true.

        One round trip. Commits of several threads share it if these three are equal, so a meta that
        differs from call to call makes each call a transaction of its own.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     commit = store.commit(puts={"a": b"1"}, guards=[snapkv.Absent("a")], note="new")
        ...     ts = store.save("a", b"2", writer="alice", meta={"request": "r-17", "ticket": 4})
        ...     [(version.writer, version.meta) for version in store.history("a")][1]
        ('alice', Meta({'request': 'r-17', 'ticket': 4}))

        Raises `ConflictError` if a guard fails, `CommitTooLargeError`, `InvalidKeyError`,
        `InvalidTypeError`, `InvalidOptionError` (of `timeout`, `writer`, `meta`),
        `InvalidValueError` (of a codec), `CommitTimeoutError` (it did not happen),
        `CommitUnknownError` (`resolve` finds it out), `StoreRecreatedError`, `ClockSkewError`,
        `NoSpaceError`, `ReadOnlyError`, `EngineBusyError` (another process kept the write lock; it
        did not happen), `EngineUnavailableError` (nothing was sent; it did not happen),
        `AccessDeniedError`.
        """
        said = any(each is not None for each in (note, writer, meta))
        wanted: Build | Ops
        if build is None:
            wanted = building(
                Ops(
                    self._encoded(puts),  # type: ignore[arg-type]
                    listed(deletes, "deletes"),
                    listed(delete_prefixes, "delete_prefixes"),
                    listed(guards, "guards"),
                    note,
                    writer=writer,
                    meta=meta,
                ),
                tuple(listed(additions, "additions")),
                self._encoded,
            )
        elif not callable(build):
            raise InvalidTypeError(
                f"commit takes a function, not {type(build).__name__}; values: commit(puts=...)"
            )
        elif puts or deletes or delete_prefixes or guards or additions or said:
            raise InvalidOptionError("give a function or keywords, not both")
        else:
            wanted = build
        return self._core.commit(wanted, timeout)

    def restore(
        self,
        when: When,
        prefix: str = "",
        *,
        keys: Iterable[str] = (),
        prefixes: Iterable[str] = (),
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        before_first: bool = False,
        timeout: float | None = None,
    ) -> Commit:
        """Make the present equal a past moment, in one commit; return it.

        It restores the given keys and all with one of the prefixes, or without either every key.
        `store.diff(None, when, prefix)` shows what it would do. It restores text keys only: keys in
        spaces belong to the layers that wrote them. Only differences are written; if other writers
        keep committing first, everything is. A moment before the first commit needs
        `before_first=True`, because it removes every key (of the given ones).

        `timeout` (seconds) bounds all of it, reads and commits together, of which a commit gets 60
        at most. Without it `read_timeout` bounds each read, and `commit_timeout` each commit.

        Raises `InvalidTimeError`, `KeyNotFoundError` (a KeyError: no key has the name or prefix,
        now or then), `CompactedError`, `CommitTooLargeError`, `ReadTimeoutError` (nothing was
        written), and as `commit`.
        """
        check_text("prefix", prefix)
        chosen = ChosenKeys.of(keys, [*listed(prefixes, "prefixes"), *filter(None, [prefix])])
        said = Ops(note=note, writer=writer, meta=meta)
        return restored(self.raw, self._core, when, chosen, said, before_first, timeout)

    def revert(
        self,
        *commits: When,
        keys: Iterable[str] = (),
        prefixes: Iterable[str] = (),
        theirs: bool = False,
        force: bool = False,
        dry_run: bool = False,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        timeout: float | None = None,
    ) -> Reverted:
        """Put back what some commits changed, and only that, in one commit; return what it did.

        Each text key that they changed (of `keys` and `prefixes`, if given) gets the value from
        before, or is removed. If another commit changed it later, that is a conflict: with `theirs`
        the later value stays, with `force` it is lost. `dry_run` only returns what would change,
        and the conflicts. A commit is named by its exact time, a date that only one has, or
        `rev:4`; commits that shared a transaction are one.

        Costs two watches for each commit, and two over what came since the first one. If one of the
        keys changes meanwhile, or any key if it makes an absent key or has more keys than an engine
        takes guards for, it reads that and tries again, 64 times in all. `timeout` (seconds) bounds
        all of it.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     saved, wrong = store.save("a", b"1"), store.multi_save({"a": b"2", "b": b"2"})
        ...     later, done = store.save("c", b"3"), store.revert(wrong)
        ...     [change.key for change in done.changes], dict(store.at())
        (['a', 'b'], {'a': b'1', 'c': b'3'})

        Raises `RevertConflictError` (it names keys and later commits), `InvalidTimeError` (such a
        commit does not exist), `KeyNotFoundError` (no such key was changed), and as `restore`.
        """
        plans = revert_plans(self.raw, commits, ChosenKeys.of(keys, prefixes), theirs, force)
        if dry_run:
            with within(timeout):
                return next(plans)[0]
        said = Ops(note=note, writer=writer, meta=meta)
        return reverted(self._core, plans, said, theirs or force, timeout)

    # --- unknown outcomes ---

    def resolve(
        self,
        ts: int,
        nonce: bytes,
        *,
        batch: int = 0,
        guards: Iterable[Guard | Check] = (),
        timeout: float | None = None,
    ) -> Commit | None:
        """Find out the outcome of a commit that was unknown, from any process, for good.

        `ts`, `nonce`, `batch` and `guards` come from the `CommitUnknownError`, which can be
        pickled to another process; guards on text keys may also be new, equal objects. Returns the
        commit if it landed, None if it never will. Keep the answer: after compaction of that time
        the same call can no longer find it out. Raises `ConflictError` if its group landed without
        this commit, and `CommitUnknownError` if the outcome cannot be found out.
        """
        core = self._core
        core.check_open()
        check_timestamp(ts)
        if not isinstance(nonce, bytes) or not nonce:
            raise InvalidTypeError("nonce must be the bytes of CommitUnknownError.nonce")
        check_int("batch", batch, 0)
        if core.timeline.head().timestamp < ts:
            core.check_not_ahead(ts)
        stamp = StampRecord(ts, nonce, core.writer)
        checks = tuple(
            guard
            if isinstance(guard, Check)
            else compile_check(guard, core.layout.data, core.layout)
            for guard in listed(guards, "guards")
        )
        sent = SentRequest(stamp, core.committer.created, core.timeline.tracker.newest)
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
        text: str | None = None,
        ignore_case: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Commit]:
        """Yield the commits after `since` (exclusive) up to `until` (inclusive), oldest first.

        Ticks are commits too. Commits that shared a transaction appear as one, with batch 0.
        Without `since` it begins with the oldest commit that compaction left; a compacted `since`
        raises `CompactedError`. One watch over the timestamp key; newest first, one for each page.

        With a `text`, only commits in which the value of a text key gained or lost it: has it more
        or less often in its bytes. `ignore_case` is of ASCII letters. That is a watch over the
        keys, too, and a round trip for each 128 keys that the commits of a page changed.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     stamps = [store.save("image", b"web:1.2%d" % n) for n in (5, 6, 7)]
        ...     [stamps.index(commit.ts) for commit in store.commits(text="web:1.26")]
        [1, 2]

        Raises `EngineUnavailableError`, `ReadTimeoutError`, too, and `InvalidOptionError` for a
        text that is empty or has over 1,000 bytes.
        """
        if text is None:
            commits = _history.commits(self._core, since, until, limit, newest_first)
            return NotebookRows("commits", commits)
        if limit is not None:
            check_int("limit", limit, 0)
        wanted: Any = {"text": TextSearch.of(text, ignore_case), "timeout": timeout}
        found = log(self.raw, since, until, newest_first=newest_first, **wanted)
        return islice((each.commit for each in found), limit)

    @bounds
    def commits_to_arrow(
        self, since: When | None = None, until: When | None = None, *, timeout: float | None = None
    ) -> Table:
        """Return the commits in (since, until] as an Arrow table, newest first.

        Columns: version (revision), timestamp (to the millisecond), userName (the writer),
        operation (WRITE, TICK, or FENCE, which proved a commit dead), userMetadata (the note),
        operationMetrics (a map: numPuts, numDeletes, in spaces too), meta (as JSON text). Without
        `since` it begins with the oldest commit left, whose operation is unknown. Needs pyarrow.
        Costs two watches.

        Raises `CompactedError`, `EngineUnavailableError`, `ReadTimeoutError`.
        """
        from snapkv.reading import tables

        self._core.check_open()
        return tables.commits_table(self._core, since, until)

    def tick(self) -> Commit:
        """Commit only a timestamp: it moves `resolved()` forward. One round trip.

        Raises `ClockSkewError` if the store's timestamps are ahead of the clock, and as `commit`.
        """
        return self._core.tick()

    @bounds
    def resolved(self, *, timeout: float | None = None) -> int:
        """Return the newest final timestamp: no commit at or below it can come. One round trip.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        self._core.check_open()
        return self._core.timeline.head().timestamp

    def compact(self, before: When, *, past_recordings: bool = False) -> Compaction:
        """Remove the history before a moment; the state at that moment stays readable.

        It affects the whole engine, with all stores in it. It keeps about the newest minute, so
        that unknown outcomes of commits can be found out, and what a recording of this store has
        not copied yet, except with `past_recordings`. The result shows how far it went.
        """
        self._core.check_open()
        check_bool("past_recordings", past_recordings)
        return self._core.compact(self._core.resolve(before), past_recordings=past_recordings)

    @bounds
    def recordings(self, *, timeout: float | None = None) -> list[Watermark]:
        """Return how far each recording of this store has copied it. One round trip.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        self._core.check_open()
        return watermarks(self._core.engine, self._core.layout)

    def forget_recording(self, into: str) -> None:
        """Forget a recording that has ended, so that compaction no longer waits for it.

        `into` is what its watermark names. Two round trips. Raises `KeyNotFoundError`,
        `EngineUnavailableError`, `ReadOnlyError`.
        """
        self._core.check_open()
        forget(self._core.engine, self._core.layout, into)

    # --- sessions and elections ---

    def session(self, ttl: float = TTL_S, value: bytes = b"") -> Session:
        """Return a new session: a sign of life of this process; see `Session`. Two round trips.

        `ttl` is in seconds (etcd: whole ones, 2 at least by default). `sessions()` shows `value`.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store, store.session(5.0, b"host:80") as session:
        ...     commit = store.commit(puts={"owner": b"host:80"}, guards=[session.guard])
        ...     [info.value for info in store.sessions()]
        [b'host:80']

        Raises `InvalidTypeError`, `InvalidOptionError`, `CommitTooLargeError`,
        `EngineUnavailableError`, `EngineBusyError`, `NoSpaceError`, `AccessDeniedError`,
        `SessionLostError` (this took longer than the lease lasts).
        """
        return Session(self._core, self._core.writer, ttl, value)

    @bounds
    def sessions(self, *, timeout: float | None = None) -> Sessions:
        """Return the live sessions, the oldest first, at the list's `revision`. One round trip.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        return sessions(self._core)

    @bounds
    def leaders(self, *, timeout: float | None = None) -> dict[str, Leader]:
        """Return the leader of each election that has one, by the election's name. One round trip.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store, store.election("compactor") as election:
        ...     done = election.campaign(b"host:80", timeout=10)
        ...     {name: leader.value for name, leader in store.leaders().items()}
        {'compactor': b'host:80'}

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        return leaders(self._core)

    def election(
        self, name: str, *, session: Session | None = None, ttl: float = TTL_S
    ) -> Election:
        """Return a candidate of an election, which takes part from `campaign()` on. No round trip.

        Without a session each campaign makes its own, of `ttl` seconds, and ends it on resigning.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store, store.election("compactor") as election:
        ...     leader = election.campaign(b"host:80", timeout=10)
        ...     commit = store.commit(puts={"k": b"1"}, guards=[leader.guard])
        ...     leader.leading, election.leader().value, leader.revision < commit.revision
        (True, b'host:80', True)

        Raises `InvalidTypeError`, `InvalidKeyError`, `InvalidOptionError`, `StoreClosedError`.
        """
        return Election(self._core, name, writer=self._core.writer, session=session, ttl=ttl)

    @property
    def live(self) -> Live:
        """The leased keys: they vanish unless they are renewed, and have no past; see `Live`."""
        return Live(self._core)

    # --- spaces, files, facts ---

    def with_codec(self, codec: Codec[T]) -> SnapshotKV[T]:
        """Return the store with values that a codec encodes and decodes, of its text keys.

        `snapkv.codecs` has `json`, `msgpack` and `pydantic_model(Model)`. No round trip. Raises
        `InvalidTypeError` if `codec` is not one.
        """
        store: SnapshotKV[T] = self._with_codec(codec)
        return store

    @property
    def raw(self) -> SnapshotKV:
        """The store with its bytes."""
        return self._raw or self  # type: ignore[return-value]  # of bytes

    def space(self, name: str) -> Space:
        """Return a byte-keyed space of this store."""
        self._core.check_open()
        return Space(self._core, name)

    @bounds
    def spaces(
        self, prefix: str = "", when: When | None = None, *, timeout: float | None = None
    ) -> Iterator[str]:
        """Yield the names of the spaces that hold keys, now or at a time, and begin with a prefix.

        In the order of their stored names. One round trip for each. Raises as `at`.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     for name in ("jobs/daily", "jobs/weekly", "users"):
        ...         commit = store.space(name).commit(puts={b"k": b"1"})
        ...     list(store.spaces("jobs/"))
        ['jobs/daily', 'jobs/weekly']
        """
        return names(self._core, prefix, when)

    def dump(
        self,
        file: BinaryIO | FilePath,
        at: When | None = None,
        *,
        mode: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Write one moment, spaces included, to a file; return the number of keys.

        A path gets a complete dump or stays as it was. A new file has the permissions 0o600, one
        that is replaced keeps its own; `mode` sets them. A device or a FIFO (with a reader within
        a minute) is written to as it is. `progress` is called with the number of keys written.
        Raises as `at`, `InvalidFileError`, `NoSpaceError`.
        """
        return _dump.dump(self._core, file, at, mode, progress)

    def backup(self, path: FilePath, *, mode: int = FILE_MODE) -> None:
        """Copy a live lmdb store, history and all, to a new directory, while writers continue.

        The copy is LMDB's own, of one moment, and without free pages; it contains all stores of the
        directory, but no `archive`. It appears when it is complete, with files of the permissions
        `mode`. It costs as much as reading and writing all of it; meanwhile a commit of this
        process that needs a larger map waits 30 seconds at most. `dump` writes one moment.

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
        self,
        file: BinaryIO | FilePath,
        *,
        replace: bool = False,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> Commit:
        """Commit the contents of a dump, in one commit, after reading and verifying all of it.

        `note`, `writer` and `meta` are as for `commit`. It reads no more of the file than one
        commit of this engine may contain, whatever the file claims. Raises `StoreNotEmptyError` if
        the store has keys and `replace` is False; `NotAStoreError`, `FormatError`,
        `CorruptStoreError` for the file; `InvalidFileError` if it cannot be read;
        `CommitTooLargeError`.
        """
        with _dump.open_file(file) as dump:
            said = Ops(note=note, writer=writer, meta=meta)
            return _dump.load_dump(self._core, dump, said, replaces=replace)

    @property
    def guards_max(self) -> int | None:
        """The most guards of one commit on this engine; None: any number."""
        core = self._core
        return GroupBuilder(core.engine, core.layout, core.writer).guards_max

    @bounds
    def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return facts about the store and its engine, for people, without secrets.

        Also the writers of the newest 100 commits, the lag of each recording, the number of
        sessions, and the writer that leads each election. A few round trips. What the user may not
        read is left out. Sizes are of all that the engine holds, on etcd of a server's file.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        return facts(self._core)

    def stats(self) -> Stats:
        """Return counts since the store was opened, and gauges; no round trip.

        Lookups are counted, too, if the store was opened with `stats=True`, or with hooks that want
        it.

        >>> import snapkv
        >>> with snapkv.open("memory:", stats=True) as store:
        ...     ts = store.save("a", b"1")
        ...     values = store.load("a", ts), store.load("a")
        ...     store.stats().commits, store.stats().lookups
        (1, Lookups(head=1, ring=1, block=0, search=0))

        It also answers for a closed store.
        """
        return stats(self._core)

    def health(self, *, timeout: float = HEALTH_TIMEOUT_S) -> Health:
        """Return whether the engine answers, and how old the newest commit is, for a probe.

        It waits `timeout` seconds at most. One round trip, of a read that needs a quorum; an
        unreachable engine raises nothing: `answers` is False then, and `error` says why.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     store.health().answers
        True

        Raises `StoreClosedError`, `InvalidOptionError`, `InvalidTypeError` (of `timeout`).
        """
        return health(self._core, timeout)

    def check(self, *, progress: Callable[[int], None] = lambda _: None) -> CheckReport:
        """Check every invariant of the stored data; `progress` gets the number of commits."""
        return check(self._core, progress)
