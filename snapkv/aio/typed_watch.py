"""A watch whose values a codec decodes, as an asynchronous iterator."""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, Self

from snapkv.aio.resources import AsyncClosing
from snapkv.aio.watch import Watch
from snapkv.model import Changes, K, V
from snapkv.reading.decoding import Decoding
from snapkv.reading.typed_watch import decoded


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
