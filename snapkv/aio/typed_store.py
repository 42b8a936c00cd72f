"""A store that is opened with a codec, awaited."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from snapkv.aio.runners import Runner
from snapkv.aio.store import SnapshotKV
from snapkv.aio.typed import TypedView
from snapkv.model import V

if TYPE_CHECKING:
    from snapkv.store.typed_store import TypedStore as SyncTypedStore


class TypedStore(TypedView[str, V]):
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the store, in about a second; tasks that wait raise `StoreClosedError`."""
        await self.store.aclose()
