"""The writes that a store and its spaces share, awaited."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic

from snapkv.aio.reads import Reads
from snapkv.aio.runners import Runner
from snapkv.codecs import Codec
from snapkv.model import Guard, K, Scalar, Updated, V
from snapkv.store.updating import TRIES, check_function

if TYPE_CHECKING:
    from snapkv.store.writes import Writes as SyncWrites


class Writes(Reads[K, V]):
    """The keys of a store or of a space, to read and to write."""

    _sync: SyncWrites[K, V]

    def __init__(
        self, runner: Runner, keys: SyncWrites[K, V], raw: Writes[K] | None = None
    ) -> None:
        super().__init__(runner, keys, raw)  # type: ignore[arg-type]  # mypy tries str and bytes
        self._raw: Writes[K] | None = raw

    @property
    def codec(self) -> Codec[V] | None:
        """The codec; None if values are bytes."""
        return self._sync.codec

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
        save = self._sync.save
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
        remove = self._sync.remove
        return await self._runner.write(remove, key, note=note, writer=writer, meta=meta)

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
        step: Stoppable[V] = Stoppable(fn)
        update = partial(
            self._sync.update,
            guards=guards,
            tries=tries,
            timeout=timeout,
            note=note,
            writer=writer,
            meta=meta,
        )
        return await self._runner.retry(partial(update, key, step), step.stop)


class Stoppable(Generic[V]):
    """The function of an update, which raises `UpdateStopped` once it was stopped."""

    def __init__(self, fn: Callable[[V | None], V | None]) -> None:
        self._fn, self._stopped = fn, False

    def stop(self) -> None:
        """Stop the update before its next try."""
        self._stopped = True

    def __call__(self, value: V | None) -> V | None:
        """Return the new value; raises `UpdateStopped`."""
        if self._stopped:
            raise UpdateStopped("it was cancelled before this try: nothing was written")
        return self._fn(value)


class UpdateStopped(Exception):
    """A cancelled update came to its next try; only a note of `CancelledError` shows it."""
