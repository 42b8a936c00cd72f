"""Methods that are awaited, made of the methods of the same names that wait in a thread."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from snapkv.aio.runners import Runner

P = ParamSpec("P")
T = TypeVar("T")

Method = Callable[Concatenate[Any, P], T]
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]

# --- one result ---


def awaited(method: Method[P, T]) -> Awaited[P, T]:
    """Return a method that awaits this one of the object `_sync`; help and signature are its own.

    load = awaited(KeyspaceReads[K, V].load)
    """
    return _awaited(method, "run")


def written(method: Method[P, T], note: str = "") -> Awaited[P, T]:
    """Return the same for a method that writes; `note` is a further paragraph of its help."""
    return _awaited(method, "write", note)


def _awaited(method: Method[P, T], run: str, note: str = "") -> Awaited[P, T]:
    name = method.__name__

    async def call(self: Any, /, *args: Any, **options: Any) -> T:
        found: T = await getattr(self._runner, run)(getattr(self._sync, name), *args, **options)
        return found

    described: Awaited[P, T] = _described(call, method, note)
    return described


def same(found: Any) -> Any:
    """Return a property of the object `_sync` as a property of this one; its help is its own.

    alive: bool = same(SyncSession.alive)
    """
    name = found.fget.__name__
    return property(lambda self: getattr(self._sync, name), doc=found.__doc__)


def _described(call: Any, method: Any, note: str = "") -> Any:
    """Return a method with the signature and the first paragraph of the help of another one."""
    described = wraps(method)(call)
    first = (method.__doc__ or "").partition("\n\n")[0]  # without one under python -OO
    described.__doc__ = "\n\n".join(filter(None, [first, note]))
    return described


# --- iterators: a chunk of steps for each switch ---

Chunk = tuple[list[T], Exception | None]
"""The next steps of an iterator, and the error that ended them."""

CHUNK_FIRST = 16
CHUNK_MAX = 256
"""The most steps that are taken at once. The first chunk is small, so that the first step comes
soon."""


def iterated(method: Method[P, Iterator[T]]) -> Method[P, AsyncIterator[T]]:
    """Return a method that yields what this one of the object `_sync` yields."""
    name, signature = method.__name__, inspect.signature(method)

    def call(self: Any, /, *args: Any, **options: Any) -> AsyncIterator[T]:
        signature.bind(self, *args, **options)  # raises now, not at the first step
        return items_of(self._runner, partial(getattr(self._sync, name), *args, **options))

    described = _described(call, method)
    returned = f"Async{signature.return_annotation}"
    described.__signature__ = signature.replace(return_annotation=returned)
    made: Method[P, AsyncIterator[T]] = described
    return made


async def items_of(runner: Runner, make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
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
