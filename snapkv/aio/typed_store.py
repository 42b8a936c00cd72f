"""A store that is opened with a codec, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snapkv.aio.resources import AsyncClosing
from snapkv.aio.runners import Runner
from snapkv.aio.store import SnapshotKV
from snapkv.aio.typed import TypedView
from snapkv.model import V

if TYPE_CHECKING:
    from snapkv.store.typed_store import TypedStore as SyncTypedStore


class TypedStore(TypedView[str, V], AsyncClosing):
    """A store that was opened with a codec: `snapkv.TypedStore`, awaited.

    `store` is the store with its bytes, and with all that is not about values. Opened by
    `snapkv.aio.open(codec=...)`.
    """

    def __init__(self, runner: Runner, typed: SyncTypedStore[V]) -> None:
        self.store = SnapshotKV(runner, typed.store)
        super().__init__(runner, self.store, typed)
        self._typed: SyncTypedStore[V] = typed

    def __repr__(self) -> str:
        return f"<aio {repr(self._typed)[1:]}"

    async def aclose(self) -> None:
        """Close the store, in about a second; tasks that wait raise `StoreClosedError`."""
        await self.store.aclose()
