"""Views of a store or a space whose values a codec encodes and decodes, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, Self

from snapkv.aio.reads import Reads
from snapkv.aio.resources import AsyncClosing
from snapkv.aio.runners import Runner
from snapkv.aio.snapshot import Snapshot, SnapshotReads
from snapkv.aio.updating import Updates
from snapkv.aio.watch import Watch
from snapkv.codecs import Codec
from snapkv.errors import InvalidTypeError
from snapkv.model import Changes, Commit, Difference, Guard, K, Scalar, V
from snapkv.reading.decoding import Decoding
from snapkv.reading.typed import decoded
from snapkv.times import When

# --- a watch whose values a codec decodes, as an asynchronous iterator ---


class TypedWatch(AsyncClosing, Generic[K, V]):
    """A watch whose values a codec decodes; `raw` is the one of bytes.

    It shares the watch of the engine with all watches of these keys. If a value cannot be decoded,
    the iteration or `next` raises `DecodeError`; the next call continues after that commit.
    """

    def __init__(self, raw: Watch[K], decoding: Decoding[V]) -> None:
        self.raw: Watch[K] = raw
        self._decoding: Decoding[V] = decoding

    @property
    def prefix(self) -> K | None:
        """The prefix of the keys; None: all."""
        return self.raw.prefix

    @property
    def timestamp(self) -> int:
        """The timestamp of the newest commit seen, matching or not."""
        return self.raw.timestamp

    def __await__(self) -> Generator[object, None, Self]:
        return self._begun().__await__()

    async def __aenter__(self) -> Self:
        return await self._begun()

    async def _begun(self) -> Self:
        await self.raw
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Changes[K, V]:
        return decoded(await anext(self.raw), self._decoding)

    async def next(self, timeout: float | None = None) -> Changes[K, V] | None:
        """Return the next commit's changes; None if `timeout` seconds bring none."""
        found = await self.raw.next(timeout)
        return None if found is None else decoded(found, self._decoding)

    async def aclose(self) -> None:
        """End the watch; a task that waits in it ends its iteration. May be repeated."""
        await self.raw.aclose()


# --- typed ---

# --- a snapshot whose values a codec decodes, with awaited reads ---


class TypedSnapshot(SnapshotReads[K, V]):
    """A snapshot whose values a codec decodes: `snapkv.TypedSnapshot` with awaited reads."""

    @property
    def raw(self) -> Snapshot[K]:
        """The same moment with its bytes."""
        return Snapshot(self._runner, self._reads.raw)

    def diff(
        self, other: TypedSnapshot[K, V], prefix: K | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Difference[K, V]]:
        """Yield the differences from this snapshot to `other`, in key order."""
        if not isinstance(other, TypedSnapshot):
            raise InvalidTypeError(f"diff needs a snapshot of the same view, not {other!r:.80}")
        return self._steps(self._reads.diff, other._reads, prefix, timeout=timeout)


# --- typed ---

if TYPE_CHECKING:
    from snapkv.store.typed import TypedView as SyncTypedView


class TypedView(Updates[K, V]):
    """The keys of a store or a space, with values of a codec: `snapkv.TypedView`, awaited.

    Each method costs and raises as that of `snapkv.TypedView`. The codec is called where the calls
    of the store run, and for watches in the loop: it must not wait.
    """

    def __init__(self, runner: Runner, raw: Reads[K], view: SyncTypedView[K, V]) -> None:
        super().__init__(runner, view)  # type: ignore[arg-type]  # mypy tries str and bytes
        self._raw: Reads[K] = raw
        self._view: SyncTypedView[K, V] = view
        self._decoding: Decoding[V] = Decoding(view.codec)

    @property
    def raw(self) -> Reads[K]:
        """The same keys with their bytes."""
        return self._raw

    @property
    def codec(self) -> Codec[V]:
        """The codec."""
        return self._view.codec

    async def at(
        self,
        when: When | None = None,
        *,
        revision: int | None = None,
        final: bool = False,
        timeout: float | None = None,
    ) -> TypedSnapshot[K, V]:
        """Return the snapshot of a moment: of now, of a time, or of a revision."""
        at = self._view.at
        found = await self._runner.run(at, when, revision=revision, final=final, timeout=timeout)
        return TypedSnapshot(self._runner, found)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> TypedWatch[K, V]:
        """Return an asynchronous iterator of the commits after `since` (None: its beginning)."""
        return TypedWatch(self._raw.watch(prefix, since, timeout=timeout), self._decoding)

    async def save(
        self,
        key: K,
        value: V,
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Save one key; return the commit's timestamp."""
        save = self._view.save
        return await self._runner.write(save, key, value, note=note, writer=writer, meta=meta)

    async def remove(
        self,
        key: K,
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Remove one key, which may be absent; return the commit's timestamp."""
        remove = self._view.remove
        return await self._runner.write(remove, key, note=note, writer=writer, meta=meta)

    async def commit(
        self,
        *,
        puts: Mapping[K, V] = {},
        deletes: Iterable[K] = (),
        delete_prefixes: Iterable[K] = (),
        guards: Iterable[Guard] = (),
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations; values are encoded before anything is written."""
        return await self._runner.write(
            self._view.commit,
            puts=puts,
            deletes=deletes,
            delete_prefixes=delete_prefixes,
            guards=guards,
            note=note,
            writer=writer,
            meta=meta,
            timeout=timeout,
        )
