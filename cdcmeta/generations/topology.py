"""Topologies: how a generation splits the ring into ranges, and each range into streams.

The algorithm is ScyllaDB's: one range for each token of the ring, and one stream for each shard of
the node that owns the range's end. The stream's token is in the range and owned by that shard. So a
log row is on the same nodes and the same shard as its base row.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cdcmeta.errors import CorruptTopologyError, InvalidArgumentError
from cdcmeta.generations.streams import (
    INDEX_MAX,
    INDEX_SHIFT,
    STREAM_BYTES,
    VERSION,
    RandomBytes,
    StreamId,
    has_duplicates,
    limited_ring,
    new_stream_ids,
    sharding_table,
)
from cdcmeta.generations.tokens import (
    BIAS,
    IGNORE_MSB_MAX,
    MASK,
    TOKEN_MIN,
    Sharding,
    Tokens,
    Words,
    checked_token,
    integer,
    shards_of,
)

Streams: TypeAlias = npt.NDArray[np.void]
"""Stream ids of 16 bytes each (`dtype V16`): `StreamId(bytes(streams[0]))`."""
SHOWN_MAX = 10
"""The most ranges that `check` names for each kind of problem."""
STREAM_DTYPE = np.dtype(f"V{STREAM_BYTES}")


class TokenRange(NamedTuple):
    """The tokens in (start, end], and the streams of their writes.

    The first range of a topology begins at the last one's end and crosses the ring's end. The n-th
    of `streams` is the stream of the n-th shard.
    """

    start: int
    end: int
    streams: tuple[StreamId, ...]
    ignore_msb: int

    @property
    def sharding(self) -> Sharding:
        """How the tokens of the range map to its streams."""
        return Sharding(len(self.streams), self.ignore_msb)


class Topology:
    """The ranges of one generation, in the order of the ring, with their streams.

    Stored as a few arrays: 1,638,400 streams in 25,600 ranges take 41 MB, and about 70 bytes more
    for each stream that `stream_for` has returned. Immutable.
    """

    __slots__ = (
        *("_alike", "_ends", "_ids", "_ignore", "_offsets", "_places", "_shards", "_streams"),
        "ends",
    )

    def __init__(self, ends: Tokens, shardings: Iterable[Sharding], ids: bytes) -> None:
        """Take an end and a sharding for each range, and all ids, without checks."""
        self.ends: list[int] = ends.tolist()
        kinds = sharding_table(list(shardings))
        self._ends, self._ids = ends, ids
        self._shards, self._ignore = kinds[:, 0], kinds[:, 1]
        self._offsets = np.concatenate([[0], np.cumsum(self._shards)])
        self._alike: tuple[int, int, int, int] | None = None
        self._places: list[tuple[int, int, int, int, int]] = []
        counts = self._shards.tolist()
        self._streams: list[StreamId | None] = [None] * (len(ids) // STREAM_BYTES + sum(counts[:1]))
        if len(kinds) and (kinds == kinds[0]).all():
            self._alike = _arithmetic(*kinds[0].tolist())
        else:
            firsts, pairs = self._offsets.tolist(), list(map(tuple, kinds.tolist()))
            places = {kind: _arithmetic(*kind) for kind in set(pairs)}
            of_each = [places[kind] for kind in pairs]
            self._places = [(first, *each) for first, each in zip(firsts, of_each, strict=False)]
            self._places += self._places[:1]  # after the last range the first one continues

    @classmethod
    def make(
        cls,
        ring: Mapping[int, Sharding],
        *,
        random_bytes: RandomBytes = os.urandom,
        streams_max: int | None = None,
        limit: bool = False,
    ) -> Topology:
        """Return a new topology for a ring: its tokens, each with its owner's sharding.

        More streams than `streams_max` are an error. With `limit` the ranges with the most streams
        get fewer instead; their rows are then not on the shard of their base rows.
        O(streams), in NumPy.

        >>> topology = Topology.make({100: Sharding(2), 110: Sharding(2)})
        >>> [[stream.token for stream in each.streams] for each in topology]
        [[111, 2251799813685248], [101, 110]]

        Raises `InvalidArgumentError`.
        """
        return cls.of_ring(limited_ring(ring, streams_max, limit), random_bytes)

    @classmethod
    def of_ring(cls, ring: Mapping[int, Sharding], random_bytes: RandomBytes) -> Topology:
        """Return a new topology for a ring that `ring_to_make` returned, as `make` does."""
        ends, shardings = np.array(list(ring), np.int64), list(ring.values())
        return cls(ends, shardings, new_stream_ids(ends, shardings, random_bytes))

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[bytes, bytes]]) -> Topology:
        """Return the topology of stored rows, as `rows` yields them.

        Raises `CorruptTopologyError`, which names the problems.
        """
        found = list(rows)
        for key, value in found:
            if type(key) is not bytes or type(value) is not bytes:
                raise CorruptTopologyError(f"the range {key!r:.80} is not a row of a topology")
            if len(key) != 8 or len(value) % STREAM_BYTES != 1 or value[0] > IGNORE_MSB_MAX:
                raise CorruptTopologyError(f"the range {key.hex():.80} is not a row of a topology")
        found.sort()
        places = np.frombuffer(b"".join([key for key, _ in found]), ">u8").astype(np.uint64)
        ends = (places ^ np.uint64(BIAS)).view(np.int64)
        heads = {(len(value), value[0]) for _, value in found}
        kinds = {head: Sharding(head[0] // STREAM_BYTES, head[1]) for head in heads}
        shardings = [kinds[len(value), value[0]] for _, value in found]
        topology = cls(ends, shardings, b"".join(value[1:] for _, value in found))
        if problems := topology.check():
            raise CorruptTopologyError("; ".join(problems))
        return topology

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield a key and a value for each range: its end; its streams and ignored bits.

        The keys sort in the order of the ring.
        """
        places = (self._ends.view(np.uint64) ^ np.uint64(BIAS)).astype(">u8")
        keys = np.frombuffer(places.tobytes(), "V8").tolist()
        offsets = (self._offsets * STREAM_BYTES).tolist()
        heads = [bytes([bits]) for bits in range(IGNORE_MSB_MAX + 1)]
        for at, (key, bits) in enumerate(zip(keys, self._ignore.tolist(), strict=True)):
            yield key, heads[bits] + self._ids[offsets[at] : offsets[at + 1]]

    # --- asking ---

    def stream_for(self, token: int) -> StreamId:
        """Return the stream of a token; O(log ranges).

        Raises `InvalidArgumentError` for a token that is not an integer. Its range is not checked.
        """
        if type(token) is not int:
            token = integer("a token", token)
        at = bisect_left(self.ends, token)
        if self._alike is None:
            first, count, bias, mask, shift = self._places[at]
        else:  # does not read memory outside the cache, which is the slowest part
            count, bias, mask, shift = self._alike
            first = at * count
        own = first + ((token + bias & mask) * count >> shift)
        return self._streams[own] or self._stream(own)

    def streams_for(self, tokens: Tokens) -> Streams:
        """Return the streams of many tokens, an array of `dtype V16`; O(tokens log ranges).

        Raises `InvalidArgumentError` unless they are an array of type int64.
        """
        if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int64 or tokens.ndim != 1:
            raise InvalidArgumentError("tokens are an array of type int64")
        if not len(tokens):
            return np.empty(0, STREAM_DTYPE)
        at: Tokens = np.searchsorted(self._ends, tokens)
        at[at == len(self._ends)] = 0
        shards = self._shards[at]
        same = shards.min() == shards.max() and self._ignore.min() == self._ignore.max()
        if same:
            own = shards_of(tokens, int(shards[0]), int(self._ignore[0]))
        else:
            words = shards.astype(np.uint64), self._ignore[at].astype(np.uint64)
            own = shards_of(tokens, *words)
        return self.ids[self._offsets[at] + own]

    @property
    def ids(self) -> Streams:
        """All streams, range by range, shard by shard: an array of `dtype V16`."""
        return np.frombuffer(self._ids, STREAM_DTYPE)

    @property
    def stream_count(self) -> int:
        """The number of streams."""
        return len(self._ids) // STREAM_BYTES

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, at: int) -> TokenRange:
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        at %= len(self)
        first, behind = (self._offsets[at : at + 2] * STREAM_BYTES).tolist()
        raws = (self._ids[n : n + STREAM_BYTES] for n in range(first, behind, STREAM_BYTES))
        streams = tuple(map(StreamId, raws))
        return TokenRange(self.ends[at - 1], self.ends[at], streams, int(self._ignore[at]))

    def __iter__(self) -> Iterator[TokenRange]:
        return (self[at] for at in range(len(self)))

    def range_of(self, token: int) -> TokenRange:
        """Return the range of a token; O(log ranges)."""
        return self[bisect_left(self.ends, checked_token(token)) % len(self)]

    def shardings(self) -> dict[int, Sharding]:
        """Return the ring that it was made of: ends and their owners' shardings."""
        kinds = zip(self._shards.tolist(), self._ignore.tolist(), strict=True)
        return dict(zip(self.ends, (Sharding(*kind) for kind in kinds), strict=True))

    # --- checking ---

    def check(self) -> list[str]:
        """Return the problems as texts, none if it is valid. O(streams), in NumPy.

        Checked: the ends ascend. Each range has streams; each stream has version 1, its range's
        index, a unique id, and a token in the range that its shard owns (or the range's end).
        """
        if not len(self):
            return ["it has no ranges"]
        if (self._ends[1:] <= self._ends[:-1]).any() or self._ends[0] < TOKEN_MIN:
            return ["the ends of the ranges do not ascend"]
        if (self._shards < 1).any():
            return self._described("has no streams", self._shards < 1)
        words = np.frombuffer(self._ids, ">u8").astype(np.uint64).reshape(-1, 2)
        index: Tokens = np.repeat(np.arange(len(self)), self._shards)
        low, tokens = words[:, 1], words[:, 0].view(np.int64)
        starts, ends = np.roll(self._ends, 1)[index], self._ends[index]
        shards = np.arange(len(index)) - self._offsets[index]
        kinds: tuple[Words | int, Words | int]
        if self._alike is None:
            kinds = self._shards[index].astype(np.uint64), self._ignore[index].astype(np.uint64)
        else:
            kinds = int(self._shards[0]), int(self._ignore[0])
        inside = np.where(
            starts < ends,
            (tokens > starts) & (tokens <= ends),
            (tokens > starts) | (tokens <= ends),
        )
        owned = (shards_of(tokens, *kinds) == shards) | (tokens == ends)
        own_index = low >> np.uint64(INDEX_SHIFT) & np.uint64(INDEX_MAX)
        problems = self._described(
            "has a stream of another version", low & np.uint64(15) != VERSION, index
        )
        problems += self._described("has a stream of another index", own_index != index, index)
        problems += self._described(
            "has a stream outside of it", ~inside | (tokens < TOKEN_MIN), index
        )
        problems += self._described("has a stream of another shard", ~owned, index)
        if not problems and has_duplicates(low, self._shards, tokens == ends):
            problems.append("a stream occurs twice")
        return problems

    def _described(
        self, what: str, wrong: npt.NDArray[np.bool_], index: npt.NDArray[np.intp] | None = None
    ) -> list[str]:
        where = np.flatnonzero(wrong)
        ranges = np.unique(where if index is None else index[where]).tolist()
        shown = [f"range {at} (up to {self.ends[at]}) {what}" for at in ranges[:SHOWN_MAX]]
        return shown + [f"{len(ranges) - SHOWN_MAX} more ranges, too"] * (len(ranges) > SHOWN_MAX)

    # --- helpers ---

    def _stream(self, own: int) -> StreamId:
        """Return a stream by its index; after the last range's come the first range's again."""
        at = own % self.stream_count * STREAM_BYTES
        self._streams[own] = found = StreamId(self._ids[at : at + STREAM_BYTES])
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self.ends == other.ends and list(self.rows()) == list(other.rows())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Topology of {len(self)} ranges, {self.stream_count} streams>"


def _arithmetic(shards: int, ignore_msb: int) -> tuple[int, int, int, int]:
    """Return (shards, bias, mask, shift): `(token + bias & mask) * shards >> shift` is the shard.

    The same as `Sharding.shard_of`: without the ignored bits, the bias does not matter.
    """
    return shards, 0 if ignore_msb else BIAS, MASK >> ignore_msb, 64 - ignore_msb
