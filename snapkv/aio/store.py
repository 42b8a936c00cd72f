"""The store that asyncio services hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

from snapkv.aio.coordination import Election, Session
from snapkv.aio.live import Live
from snapkv.aio.resources import AsyncClosing, Opening, made
from snapkv.aio.runners import Runner
from snapkv.aio.writes import Writes
from snapkv.base.files import FILE_MODE, FilePath
from snapkv.codecs import Codec, T
from snapkv.coordination.session import TTL_S
from snapkv.model import Build, Commit, Compaction, Guard, Scalar, SpaceOps, Stamp, V
from snapkv.store.health import HEALTH_TIMEOUT_S, Health
from snapkv.store.stats import Stats
from snapkv.store.writes import Addition
from snapkv.times import When

if TYPE_CHECKING:
    from snapkv.committer import Check
    from snapkv.coordination.session import Sessions
    from snapkv.reading.arrow import Table
    from snapkv.store.check import CheckReport
    from snapkv.store.recorder_watermarks import Watermark
    from snapkv.store.space import Space as SyncSpace
    from snapkv.store.store import SnapshotKV as SyncSnapshotKV


class SnapshotKV(Writes[str, V], AsyncClosing):
    """A store whose calls are awaited; opened by `snapkv.aio.open`, used in one asyncio loop.

    Each method costs and raises as the method of the same name of `snapkv.SnapshotKV`. Commits of
    concurrent tasks share transactions.

    A commit that is cancelled before it was sent is not made. One that was sent may land: on etcd,
    `asyncio.CancelledError` (and the `TimeoutError` of `asyncio.timeout`, as its cause) has the
    `CommitUnknownError` as its cause, which `resolve` takes. In other engines the call is waited
    for, and a note has its outcome.
    """

    def __init__(
        self, runner: Runner, store: SyncSnapshotKV[V], raw: SnapshotKV | None = None
    ) -> None:
        super().__init__(runner, store, raw)
        self._store: SyncSnapshotKV[V] = store
        self._spaces: dict[str, Space] = {} if raw is None else raw._spaces

    def __repr__(self) -> str:
        return f"<aio {repr(self._store)[1:]}"

    async def aclose(self) -> None:
        """Close the store, in about a second; tasks that wait raise `StoreClosedError`.

        May be repeated.
        """
        spaces = [space.end_watches() for space in self._spaces.values()]
        await asyncio.gather(self.end_watches(), *spaces)
        await self._runner.wait(self._store.close, end=lambda: None)  # the pool may be busy
        await self._runner.end()

    # --- writing ---

    async def multi_save(
        self,
        kvs: Mapping[str, V],
        additions: Iterable[Addition[V]] = (),
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Save several keys in one commit; return its timestamp."""
        save = partial(self._store.multi_save, note=note, writer=writer, meta=meta)
        return await self._runner.write(save, kvs, additions)

    async def multi_save_and_remove_with_prefix(
        self,
        saves: Mapping[str, V],
        removals: Iterable[str],
        additions: Iterable[Addition[V]] = (),
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Remove everything under some prefixes and save keys, in one commit."""
        write = self._store.multi_save_and_remove_with_prefix
        write = partial(write, note=note, writer=writer, meta=meta)
        return await self._runner.write(write, saves, removals, additions)

    async def commit(
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
        """Commit operations, or the operations that `build(stamp)`, a plain function, returns."""
        return await self._runner.write(
            self._store.commit,
            build,
            puts=puts,
            deletes=deletes,
            delete_prefixes=delete_prefixes,
            guards=guards,
            additions=additions,
            note=note,
            writer=writer,
            meta=meta,
            timeout=timeout,
        )

    async def restore(
        self,
        when: When,
        prefix: str = "",
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        before_first: bool = False,
        timeout: float | None = None,
    ) -> Commit:
        """Make the present equal a past moment, in one commit; return it."""
        restore = partial(self._store.restore, note=note, writer=writer, meta=meta)
        return await self._runner.write(
            restore, when, prefix, before_first=before_first, timeout=timeout
        )

    async def resolve(
        self,
        ts: int,
        nonce: bytes,
        *,
        batch: int = 0,
        guards: Iterable[Guard | Check] = (),
        timeout: float | None = None,
    ) -> Commit | None:
        """Find out the outcome of a commit that was unknown, from any process, for good."""
        return await self._runner.write(
            self._store.resolve, ts, nonce, batch=batch, guards=guards, timeout=timeout
        )

    # --- the time line ---

    def commits(
        self,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        *,
        newest_first: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Commit]:
        """Yield the commits after `since` (exclusive) up to `until` (inclusive), oldest first."""
        commits = partial(self._store.commits, newest_first=newest_first, timeout=timeout)
        return self._steps(commits, since, until, limit)

    async def commits_to_arrow(
        self,
        since: When | None = None,
        until: When | None = None,
        *,
        timeout: float | None = None,
    ) -> Table:
        """Return the commits in (since, until] as an Arrow table, newest first."""
        return await self._runner.run(self._store.commits_to_arrow, since, until, timeout=timeout)

    async def tick(self) -> Commit:
        """Commit only a timestamp: it moves `resolved()` forward."""
        return await self._runner.write(self._store.tick)

    async def resolved(self, *, timeout: float | None = None) -> int:
        """Return the newest final timestamp: no commit at or below it can come."""
        return await self._runner.run(self._store.resolved, timeout=timeout)

    async def compact(self, before: When, *, past_recordings: bool = False) -> Compaction:
        """Remove the history before a moment; the state at that moment stays readable."""
        compact = self._store.compact
        return await self._runner.write(compact, before, past_recordings=past_recordings)

    async def recordings(self, *, timeout: float | None = None) -> list[Watermark]:
        """Return how far each recording of this store has copied it."""
        return await self._runner.run(self._store.recordings, timeout=timeout)

    async def forget_recording(self, into: str) -> None:
        """Forget a recording that has ended, so that compaction no longer waits for it."""
        await self._runner.write(self._store.forget_recording, into)

    # --- sessions and elections ---

    def session(self, ttl: float = TTL_S, value: bytes = b"") -> Opening[Session]:
        """Return a new session: a sign of life of this process, renewed in the background.

        `await` it, or use it in `async with`, which ends it. If that is cancelled, a session that
        was made nevertheless is closed.
        """

        async def begin() -> Session:
            make = partial(self._store.session, ttl, value)
            return Session(self._runner, await made(self._runner.write, make))

        return Opening(begin())

    async def sessions(self, *, timeout: float | None = None) -> Sessions:
        """Return the live sessions, the oldest first, at the list's `revision`."""
        return await self._runner.run(self._store.sessions, timeout=timeout)

    def election(
        self, name: str, *, session: Session | None = None, ttl: float = TTL_S
    ) -> Opening[Election]:
        """Return a candidate of an election, which takes part from `campaign()` on.

        `await` it, or use it in `async with`, at whose end it resigns.
        """

        async def begin() -> Election:
            inner = None if session is None else session.sync
            make = partial(self._store.election, name, session=inner, ttl=ttl)
            return Election(self._runner, await self._runner.run(make))

        return Opening(begin())

    @property
    def live(self) -> Live:
        """The leased keys: they vanish unless they are renewed, and have no past."""
        return Live(self._runner, self._store.live)

    # --- spaces, files, facts ---

    def with_codec(self, codec: Codec[T]) -> SnapshotKV[T]:
        """Return the store with values that a codec encodes and decodes, of its text keys."""
        return SnapshotKV(self._runner, self._store.with_codec(codec), self.raw)

    @property
    def raw(self) -> SnapshotKV:
        """The store with its bytes."""
        return self._raw or self  # type: ignore[return-value]  # of bytes

    def space(self, name: str) -> Space:
        """Return a byte-keyed space of this store."""
        if (found := self._spaces.get(name)) is None:
            found = self._spaces[name] = Space(self._runner, self._store.space(name))
        return found

    def spaces(
        self, prefix: str = "", when: When | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[str]:
        """Yield the names of the spaces that hold keys, now or at a time."""
        return self._steps(self._store.spaces, prefix, when, timeout=timeout)

    async def dump(
        self,
        file: BinaryIO | FilePath,
        at: When | None = None,
        *,
        mode: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Write one moment, spaces included, to a file; return the number of keys."""
        return await self._runner.run(self._store.dump, file, at, mode=mode, progress=progress)

    async def backup(self, path: FilePath, *, mode: int = FILE_MODE) -> None:
        """Copy a live lmdb store, history and all, to a new directory."""
        await self._runner.run(self._store.backup, path, mode=mode)

    async def load_dump(
        self,
        file: BinaryIO | FilePath,
        *,
        replace: bool = False,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> Commit:
        """Commit the contents of a dump, in one commit, after reading and verifying all of it."""
        load = partial(self._store.load_dump, note=note, writer=writer, meta=meta)
        return await self._runner.write(load, file, replace=replace)

    @property
    def guards_max(self) -> int | None:
        """How many guards one commit may have here; None: any number."""
        return self._store.guards_max

    async def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return facts about the store and its engine, for people, without secrets."""
        return await self._runner.run(self._store.info, timeout=timeout)

    def stats(self) -> Stats:
        """Return counts since the store was opened, and gauges; no round trip, not awaited."""
        return self._store.stats()

    async def health(self, *, timeout: float = HEALTH_TIMEOUT_S) -> Health:
        """Return whether the engine answers, and how old the newest commit is, for a probe."""
        return await self._runner.run(self._store.health, timeout=timeout)

    async def check(self, *, progress: Callable[[int], None] = lambda _: None) -> CheckReport:
        """Check every invariant of the stored data."""
        return await self._runner.run(self._store.check, progress=progress)


class Space(Writes[bytes, V]):
    """A byte-keyed space of a store: `snapkv.Space`, awaited."""

    def __init__(self, runner: Runner, space: SyncSpace[V], raw: Space | None = None) -> None:
        super().__init__(runner, space, raw)
        self._space: SyncSpace[V] = space
        self.name = space.name

    def with_codec(self, codec: Codec[T]) -> Space[T]:
        """Return the space with values that a codec encodes and decodes."""
        return Space(self._runner, self._space.with_codec(codec), self.raw)

    @property
    def raw(self) -> Space:
        """The space with its bytes."""
        return self._raw or self  # type: ignore[return-value]  # of bytes

    async def commit(
        self,
        build: Callable[[Stamp], SpaceOps] | None = None,
        *,
        puts: Mapping[bytes, V] = {},
        deletes: Iterable[bytes] = (),
        delete_prefixes: Iterable[bytes] = (),
        guards: Iterable[Guard] = (),
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations on this space; `SnapshotKV.commit` can span several."""
        return await self._runner.write(
            self._space.commit,
            build,
            puts=puts,
            deletes=deletes,
            delete_prefixes=delete_prefixes,
            guards=guards,
            note=note,
            writer=writer,
            meta=meta,
            timeout=timeout,
        )
