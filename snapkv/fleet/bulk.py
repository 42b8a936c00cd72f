"""Many small archives read as wholes, some at a time in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from snapkv.errors import FileMissingError, SnapKVError
from snapkv.fleet.member import named
from snapkv.fleet.pin import Pin

if TYPE_CHECKING:
    from concurrent.futures import Future

    from snapkv.archive.whole import Differing

Found = TypeVar("Found")

THREADS = min(8, os.cpu_count() or 1)
"""Reading Parquet and merging rows is work for the CPU."""
AHEAD = 4
"""So many archives for each thread are read before they are asked for."""


def states(pins: Iterable[Pin], prefix: bytes) -> Iterator[tuple[Pin, Any]]:
    """Yield archives, each with its state as an Arrow table, None if it has to be opened."""

    def state(pin: Pin) -> Any:
        return None if pin.whole is None else pin.whole.state(pin.timestamp, prefix)

    return _in_threads(pins, lambda pin: pin, state)


def differences(
    pairs: Iterable[tuple[Pin, Pin]], prefix: bytes
) -> Iterator[tuple[tuple[Pin, Pin], list[Differing] | None]]:
    """Yield pairs of moments of an archive with what differs, None if it has to be opened."""

    def differing(pair: tuple[Pin, Pin]) -> list[Differing] | None:
        a, b = pair
        if a.whole is None or b.whole is None or a.whole is not b.whole:
            return None
        return list(b.whole.differences(a.timestamp, b.timestamp, prefix))

    return _in_threads(pairs, lambda pair: pair[0], differing)


def _in_threads(
    asked: Iterable[Found], pin_of: Callable[[Found], Pin], read: Callable[[Found], Any]
) -> Iterator[tuple[Found, Any]]:
    """Yield things with what a function reads of them, in order."""
    from concurrent.futures import ThreadPoolExecutor

    ahead: deque[tuple[Found, Future[Any]]] = deque()
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="snapkv fleet files")
    try:
        for each in asked:
            ahead.append((each, pool.submit(read, each)))
            if len(ahead) >= THREADS * AHEAD:
                yield _done(*ahead.popleft(), pin_of)
        while ahead:
            yield _done(*ahead.popleft(), pin_of)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _done(each: Found, future: Future[Any], pin_of: Callable[[Found], Pin]) -> tuple[Found, Any]:
    try:
        return each, future.result()
    except FileMissingError:  # merged into another one meanwhile: an open archive looks again
        return each, None
    except SnapKVError as e:
        raise named(e, pin_of(each).connection.name)  # noqa: B904
