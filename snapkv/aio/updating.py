"""Updates that are awaited: one that is cancelled makes no further try."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Generic, cast

from snapkv.aio.reads import ValueReads
from snapkv.model import Guard, K, Scalar, Updated, V
from snapkv.store.updating import TRIES, check_function

if TYPE_CHECKING:
    from snapkv.store.typed import TypedView as SyncTypedView


class Updates(ValueReads[K, V]):
    """`update`, of a store, a space or a typed view."""

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
            cast("SyncTypedView[K, V]", self._reads).update,  # a store has the same name
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
