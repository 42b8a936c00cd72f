"""Views of a store or a space whose values a codec encodes and decodes, awaited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from snapkv.aio.reads import Reads
from snapkv.aio.runners import Runner
from snapkv.aio.typed_snapshot import TypedSnapshot
from snapkv.aio.typed_watch import TypedWatch
from snapkv.aio.updating import Updates
from snapkv.codecs import Codec
from snapkv.model import Commit, Guard, K, Scalar, V
from snapkv.reading.decoding import Decoding
from snapkv.times import When

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
