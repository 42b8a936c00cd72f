"""The revisions of many moments at once: all arguments are checked before the first read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snapkv.errors import InvalidTypeError
from snapkv.reading.reader import Reader
from snapkv.times import When, check_timestamp, is_number, resolve, revision_of

if TYPE_CHECKING:
    from snapkv.timeline.timeline import Integers, Revisions


def revisions_at(core: Reader, timestamps: Any) -> Any:
    """Return the revisions of moments: an array for a numpy array, a list for an iterable.

    Raises `InvalidTypeError` and `InvalidTimeError` for an invalid one, as `Reader.source` does,
    before anything is read.
    """
    core.check_open()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(timestamps, numpy.ndarray):
        if isinstance(timestamps, numpy.ma.MaskedArray):
            raise InvalidTypeError("timestamps is a masked array: give its compressed()")
        return _of_array(core, timestamps)
    if isinstance(timestamps, str | bytes):
        given = type(timestamps).__name__
        raise InvalidTypeError(f"timestamps is an iterable of times, not one {given}: use at()")
    try:
        moments = iter(timestamps)
    except TypeError:
        given = type(timestamps).__name__
        raise InvalidTypeError(
            f"timestamps is an iterable of times or an array, not {given}: give a list"
        ) from None
    listed = list(moments)
    if set(map(type, listed)) <= {int}:
        return _of_numbers(core, listed)
    return _of_moments(core, listed)


def _of_array(core: Reader, timestamps: Integers) -> Revisions:
    if timestamps.dtype.kind not in "iu":
        raise InvalidTypeError(
            f"timestamps is an array of {timestamps.dtype}: give an array of integers, "
            "or a list of dates"
        )
    if not timestamps.size:
        return timestamps.astype("int64")
    lowest, highest = int(timestamps.min()), int(timestamps.max())
    positive = timestamps if lowest else timestamps[timestamps > 0]
    _check(core, lowest, int(positive.min()) if positive.size else 0, highest)
    core.source(lowest, None, False)
    flat = timestamps.ravel().astype("uint64", copy=False)
    return core.timeline.revisions_of_array(flat).reshape(timestamps.shape)


def _of_numbers(core: Reader, numbers: list[int]) -> list[int]:
    if not numbers:
        return []
    lowest = min(numbers)
    _check(core, lowest, lowest or min(filter(None, numbers), default=0), max(numbers))
    return _read(core, numbers)


def _of_moments(core: Reader, moments: Sequence[When]) -> list[int]:
    """Answer moments of any kind; a moment that names a revision costs a round trip."""
    now_ms = core.clock.now_ms()
    resolved: list[int | None] = []  # None: it names a revision
    numbers: list[int] = []
    for when in moments:
        if revision_of(when) is not None:
            resolved.append(None)
            continue
        resolved.append(resolve(when, now_ms))
        if is_number(when):
            numbers.append(resolve(when, now_ms))
    if numbers:
        _check(core, min(numbers), min(filter(None, numbers), default=0), max(numbers))
    times = [timestamp for timestamp in resolved if timestamp is not None]
    found = iter(_read(core, times) if times else ())
    named = {when for when, time in zip(moments, resolved, strict=True) if time is None}
    of_named = {when: core.source(when, None, False).revision for when in named}
    return [
        of_named[when] if time is None else next(found)
        for when, time in zip(moments, resolved, strict=True)
    ]


def _check(core: Reader, lowest: int, lowest_positive: int, highest: int) -> None:
    """Raise for numbers that are not timestamps, or not of this store.

    If the lowest above 0, which is always one, and the highest are, so are all in between.
    """
    for number in (lowest, highest):
        check_timestamp(number)
    for number in (lowest_positive, highest):
        core.resolve(number)


def _read(core: Reader, timestamps: Sequence[int]) -> list[int]:
    """Return the revisions of times."""
    core.source(min(timestamps), None, False)  # raises where there is nothing to see
    return core.timeline.revisions_of(timestamps)
