"""A store that is opened with a codec."""

from __future__ import annotations

from typing import Self

from snapkv.base.lifecycle import Closing
from snapkv.codecs import Codec
from snapkv.model import V
from snapkv.store.core import Core
from snapkv.store.store import SnapshotKV
from snapkv.store.typed import TypedView


class TypedStore(TypedView[str, V], Closing):
    """A store that was opened with a codec: a typed view, which closes the store with itself.

    `store` is the store with its bytes, and with all that is not about values: spaces, sessions,
    elections, restoring, compacting, the commit log. Opened by `snapkv.open(codec=...)`.
    """

    def __init__(self, core: Core, store: SnapshotKV, codec: Codec[V]) -> None:
        super().__init__(core, store, codec, store.commit)
        self.store = store

    def __enter__(self) -> Self:
        self.store.__enter__()
        return self

    def __repr__(self) -> str:
        return repr(self.store).replace("<SnapshotKV", "<TypedStore")

    def close(self) -> None:
        """Close the store; calls that wait in other threads raise `StoreClosedError`."""
        self.store.close()
