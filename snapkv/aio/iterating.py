"""Iterators of a store as asynchronous ones: a chunk of steps for each switch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from snapkv.aio.runners import Runner

T = TypeVar("T")

Chunk = tuple[list[T], Exception | None]
"""The next steps of an iterator, and the error that ended them."""

CHUNK_FIRST = 16
CHUNK_MAX = 256
"""Steps that are taken at once; the first chunk is small, so that the first step comes soon."""


async def steps_of(runner: Runner, make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
    """Yield the steps of an iterator that `make` returns; both run where the store's calls run.

    An error is raised after the steps before it. The iterator is closed at the end, also if the
    caller leaves early.
    """
    iterator = await runner.run(make)
    try:
        size, error = CHUNK_FIRST, None
        while error is None:
            chunk, error = await runner.run(chunk_of, iterator, size)
            for step in chunk:
                yield step
            if error is None and len(chunk) < size:
                return
            size = CHUNK_MAX
        raise error
    finally:
        if (close := getattr(iterator, "close", None)) is not None:
            with suppress(RuntimeError, ValueError):  # a call that was cancelled still runs it
                await runner.run(close)


def chunk_of(iterator: Iterator[T], size: int) -> Chunk[T]:
    """Return the next steps, and the error that ended them."""
    chunk: list[T] = []
    try:
        for step in iterator:
            chunk.append(step)
            if len(chunk) == size:
                break
    except Exception as e:
        return chunk, e
    return chunk, None
