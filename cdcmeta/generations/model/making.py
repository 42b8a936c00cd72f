"""Making streams: their ids for each range of a ring, and the limits of how many there may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from cdcmeta.errors import InvalidArgumentError, TopologyTooLargeError
from cdcmeta.generations.model.batches import Tokens, Words, first_tokens
from cdcmeta.generations.model.streams import INDEX_MAX, INDEX_SHIFT, RANDOM_SHIFT, VERSION
from cdcmeta.generations.model.tokens import Sharding, checked_ring

RandomBytes = Callable[[int], bytes]
"""A source of so many random bytes: `os.urandom`, or `random.Random(seed).randbytes`."""
RANGES_MAX = INDEX_MAX + 1
DRAWS_MAX = 8


def ring_to_make(
    ring: Mapping[int, Sharding], streams_max: int | None = None, limit: bool = False
) -> dict[int, Sharding]:
    """Return a ring that can be, cut down to so many streams where `limit` allows that.

    Its tokens ascend. Raises `InvalidArgumentError`, `TopologyTooLargeError`.
    """
    if isinstance(ring, Mapping) and len(ring) > RANGES_MAX:
        raise TopologyTooLargeError("ranges", len(ring), RANGES_MAX)
    checked = checked_ring(ring)
    if streams_max is None:
        return checked
    shardings = limited(list(checked.values()), streams_max, limit)
    return dict(zip(checked, shardings, strict=True))


def kinds_of(shardings: Sequence[Sharding]) -> Tokens:
    """Return shardings as an array of two columns: their shards, and the bits they ignore."""
    flat = chain.from_iterable(shardings)
    return np.fromiter(flat, np.int64, 2 * len(shardings)).reshape(-1, 2)


def made_ids(ends: Tokens, shardings: Sequence[Sharding], random_bytes: RandomBytes) -> bytes:
    """Return the ids of the streams of ranges, one behind the other; O(streams).

    Raises `InvalidArgumentError` where the random source repeats itself, or gives too little.
    """
    kinds = kinds_of(shardings)
    counts = kinds[:, 0]
    offsets = np.cumsum(counts) - counts
    tokens: Tokens = np.empty(int(counts.sum()), np.int64)
    starts = np.roll(ends, 1)
    for kind in dict.fromkeys(shardings):
        where: Tokens = np.flatnonzero((kinds == kind).all(axis=1))
        found = first_tokens(starts[where], ends[where], kind)
        tokens[offsets[where][:, None] + np.arange(kind.shards)] = found
    index: Tokens = np.repeat(np.arange(len(ends)), counts)
    words: Words = np.empty((len(tokens), 2), ">u8")
    words[:, 0] = tokens.view(np.uint64)
    fixed = index.astype(np.uint64) << np.uint64(INDEX_SHIFT) | np.uint64(VERSION)
    at_end = tokens == ends[index]
    for _ in range(DRAWS_MAX):
        low = fixed | _drawn(len(tokens), random_bytes)
        if not repeated(low, counts, at_end):
            words[:, 1] = low
            return bytes(words.tobytes())
    raise InvalidArgumentError("the source of random bytes repeats itself")


def repeated(low: Words, counts: Tokens, at_end: npt.NDArray[np.bool_]) -> bool:
    """Return whether two streams at the end of their range are the same, by their low words.

    `counts` tells how many each range has. No other two can be the same: they differ in the
    token, or in the index.
    """
    offsets = np.cumsum(counts) - counts
    for count in np.unique(counts).tolist():
        rows = low.reshape(-1, count) if len(low) == count * len(counts) else None
        if rows is None:
            rows = low[offsets[counts == count][:, None] + np.arange(count)]
        ordered = np.sort(rows, axis=1)  # many short ones: a fraction of sorting them all
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            break  # perhaps of other tokens than the end
    else:
        return False
    ordered = np.sort(low[at_end])
    return bool((ordered[1:] == ordered[:-1]).any())


def limited(shardings: Sequence[Sharding], streams_max: int, cut: bool) -> list[Sharding]:
    """Return shardings with no more streams than allowed, but at least one for each range.

    Ranges with more than their even share get just that, where `cut` says so. The rule is
    ScyllaDB's of 2021. Raises `TopologyTooLargeError`.
    """
    if type(streams_max) is not int or streams_max < 1:
        raise InvalidArgumentError(f"streams_max is a positive number, not {streams_max!r}")
    most = max(streams_max, len(shardings))
    total = sum(each.shards for each in shardings)
    if total <= most:
        return list(shardings)
    if not cut:
        raise TopologyTooLargeError("streams", total, most)
    share = most // len(shardings)
    return [each._replace(shards=min(each.shards, share)) for each in shardings]


def _drawn(count: int, random_bytes: RandomBytes) -> Words:
    raw = random_bytes(8 * count)
    if len(raw) != 8 * count:
        raise InvalidArgumentError(f"{8 * count} random bytes were wanted, {len(raw)} came")
    drawn = np.frombuffer(raw, np.uint64)
    shift = np.uint64(RANDOM_SHIFT)
    return drawn >> shift << shift
