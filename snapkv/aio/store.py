"""The store that asyncio services hold, and its spaces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from snapkv.aio.coordination import Election, Live, Session
from snapkv.aio.methods import awaited, iterated, same, written
from snapkv.aio.reads import Reads
from snapkv.aio.resources import AsyncClosing, Opening, Shown, made
from snapkv.aio.runners import Runner
from snapkv.codecs import Codec, T
from snapkv.coordination.session import TTL_S
from snapkv.model import Guard, K, Scalar, Updated, V
from snapkv.store.diagnostics import Stats
from snapkv.store.store import SnapshotKV as SyncSnapshotKV
from snapkv.store.updating import TRIES, check_function
from snapkv.store.writes import KeyspaceWrites as SyncWrites
from snapkv.store.writes import Space as SyncSpace

# --- the writes that a store and its spaces share ---


class Writes(Reads[K, V]):
    """The keys of a store or of a space, to read and to write."""

    _sync: SyncWrites[K, V]

    def __init__(
        self, runner: Runner, keys: SyncWrites[K, V], raw: Writes[K] | None = None
    ) -> None:
        super().__init__(runner, keys, raw)  # type: ignore[arg-type]  # mypy tries str and bytes
        self._raw: Writes[K] | None = raw

    codec: Codec[V] | None = same(SyncWrites.codec)
    save = written(SyncWrites[K, V].save)
    remove = written(SyncWrites[K, V].remove)

    async def update(
        self,
        key: K,
        fn: Callable[[V | None], V | None],
        *,
        guards: Iterable[Guard] = (),
        tries: int = TRIES,
        timeout: float | None = None,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> Updated[V]:
        """Change one key: commit `fn(value)`, unless another writer changed the key meanwhile.

        `fn` is a plain function, which must not wait. A cancelled update makes no further try; a
        commit that was sent may land, as with `commit`.
        """
        check_function(fn)
        stopped = threading.Event()

        def step(value: V | None) -> V | None:
            if stopped.is_set():
                raise UpdateStopped("it was cancelled before this try: nothing was written")
            return fn(value)

        update = partial(
            self._sync.update,
            guards=guards,
            tries=tries,
            timeout=timeout,
            note=note,
            writer=writer,
            meta=meta,
        )
        return await self._runner.retry(partial(update, key, step), stopped.set)


class UpdateStopped(Exception):
    """A cancelled update came to its next try; only a note of `CancelledError` shows it."""


# --- store ---


class SnapshotKV(Shown, Writes[str, V], AsyncClosing):
    """A store whose calls are awaited; opened by `snapkv.aio.open`, used in one asyncio loop.

    Each method costs and raises as the method of the same name of `snapkv.SnapshotKV`. Commits of
    concurrent tasks share transactions.

    A commit that is cancelled before it was sent is not made. One that was sent may land: on etcd,
    `asyncio.CancelledError` (and the `TimeoutError` of `asyncio.timeout`, as its cause) has the
    `CommitUnknownError` as its cause, which `resolve` takes. In other engines the call is waited
    for, and a note has its outcome.
    """

    _sync: SyncSnapshotKV[V]

    def __init__(
        self, runner: Runner, store: SyncSnapshotKV[V], raw: SnapshotKV | None = None
    ) -> None:
        super().__init__(runner, store, raw)
        self._spaces: dict[str, Space] = {} if raw is None else raw._spaces

    async def aclose(self) -> None:
        """Close the store, in about a second; tasks that wait raise `StoreClosedError`.

        May be repeated.
        """
        spaces = [space.end_watches() for space in self._spaces.values()]
        await asyncio.gather(self.end_watches(), *spaces)
        await self._runner.wait(self._sync.close, end=lambda: None)  # the pool may be busy
        await self._runner.end()

    # --- writing ---

    multi_save = written(SyncSnapshotKV[V].multi_save)
    multi_save_and_remove_with_prefix = written(SyncSnapshotKV[V].multi_save_and_remove_with_prefix)
    commit = written(SyncSnapshotKV[V].commit, "`build` is a plain function, which must not wait.")
    restore = written(SyncSnapshotKV[V].restore)
    revert = written(SyncSnapshotKV[V].revert)
    resolve = written(SyncSnapshotKV[V].resolve)

    # --- the time line ---

    commits = iterated(SyncSnapshotKV[V].commits)
    commits_to_arrow = awaited(SyncSnapshotKV[V].commits_to_arrow)
    tick = written(SyncSnapshotKV[V].tick)
    resolved = awaited(SyncSnapshotKV[V].resolved)
    compact = written(SyncSnapshotKV[V].compact)
    recordings = awaited(SyncSnapshotKV[V].recordings)
    forget_recording = written(SyncSnapshotKV[V].forget_recording)

    # --- sessions and elections ---

    def session(self, ttl: float = TTL_S, value: bytes = b"") -> Opening[Session]:
        """Return a new session: a sign of life of this process, renewed in the background.

        `await` it, or use it in `async with`, which ends it. If that is cancelled, a session that
        was made nevertheless is closed.
        """

        async def begin() -> Session:
            make = partial(self._sync.session, ttl, value)
            return Session(self._runner, await made(self._runner.write, make))

        return Opening(begin())

    sessions = awaited(SyncSnapshotKV[V].sessions)
    leaders = awaited(SyncSnapshotKV[V].leaders)

    def election(
        self, name: str, *, session: Session | None = None, ttl: float = TTL_S
    ) -> Opening[Election]:
        """Return a candidate of an election, which takes part from `campaign()` on.

        `await` it, or use it in `async with`, at whose end it resigns.
        """

        async def begin() -> Election:
            inner = None if session is None else session._sync
            make = partial(self._sync.election, name, session=inner, ttl=ttl)
            return Election(self._runner, await self._runner.run(make))

        return Opening(begin())

    @property
    def live(self) -> Live:
        """The leased keys: they vanish unless they are renewed, and have no past."""
        return Live(self._runner, self._sync.live)

    # --- spaces, files, facts ---

    def with_codec(self, codec: Codec[T]) -> SnapshotKV[T]:
        """Return the store with values that a codec encodes and decodes, of its text keys."""
        return SnapshotKV(self._runner, self._sync.with_codec(codec), self.raw)

    @property
    def raw(self) -> SnapshotKV:
        """The store with its bytes."""
        return self._raw or self  # type: ignore[return-value]  # of bytes

    def space(self, name: str) -> Space:
        """Return a byte-keyed space of this store."""
        if (found := self._spaces.get(name)) is None:
            found = self._spaces[name] = Space(self._runner, self._sync.space(name))
        return found

    spaces = iterated(SyncSnapshotKV[V].spaces)
    dump = awaited(SyncSnapshotKV[V].dump)
    backup = awaited(SyncSnapshotKV[V].backup)
    load_dump = written(SyncSnapshotKV[V].load_dump)

    guards_max: int | None = same(SyncSnapshotKV.guards_max)
    info = awaited(SyncSnapshotKV[V].info)

    def stats(self) -> Stats:
        """Return counts since the store was opened, and gauges; no round trip, not awaited."""
        return self._sync.stats()

    health = awaited(SyncSnapshotKV[V].health)
    check = awaited(SyncSnapshotKV[V].check)


class Space(Writes[bytes, V]):
    """A byte-keyed space of a store: `snapkv.Space`, awaited."""

    _sync: SyncSpace[V]

    def __init__(self, runner: Runner, space: SyncSpace[V], raw: Space | None = None) -> None:
        super().__init__(runner, space, raw)
        self.name = space.name

    def with_codec(self, codec: Codec[T]) -> Space[T]:
        """Return the space with values that a codec encodes and decodes."""
        return Space(self._runner, self._sync.with_codec(codec), self.raw)

    @property
    def raw(self) -> Space:
        """The space with its bytes."""
        return self._raw or self  # type: ignore[return-value]  # of bytes

    commit = written(SyncSpace[V].commit)
