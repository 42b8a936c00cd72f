"""Logs of generations as pages show them: what operated when, consumers, the ring of one.

A ring has arcs for the picture, a page of its ranges, and the stream of a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest

from cdcmeta.errors import CorruptTopologyError, GenerationNotFoundError
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.streams import STREAM_BYTES, StreamId, ring_bytes
from cdcmeta.generations.tokens import BIAS, TOKEN_MAX, TOKEN_MIN, murmur3_token
from cdcmeta.generations.topology import TokenRange
from cdcmeta.ui.page_requests import Listed, listed, space_names
from snapkv import Snapshot, SnapshotKV, When

LOGS_MAX = 25
GENERATIONS_MAX = 50
CONSUMERS_MAX = 200
TABLES_MAX = 200


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """A generation at a moment: it operates from `time` until `until` (None: no later one)."""

    time: int
    until: int | None
    phase: str
    id: str
    ranges: int
    streams: int
    made: int
    expired: int | None
    refines: bool | None


@dataclass(frozen=True, slots=True)
class SwitchRow:
    """A switch under way: `answers` counts the members that have read it, `refusals` says why not.

    Members reject writes from `not_before` on; after `deadline` any process may end it.
    """

    phase: str
    id: str
    ranges: int
    streams: int
    not_before: int
    deadline: int
    answers: int
    refusals: list[str]


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """A worker of a consumer, and the time up to which it has read."""

    table: str | None
    name: str
    part: int
    parts: int
    generation: int
    position: int


@dataclass(frozen=True, slots=True)
class Log:
    """A log of generations at a moment; `rows` are the newest, and `total` counts all.

    `aborted` is why the last switch failed, if it was aborted. `more` says whether tables or
    consumers are left out.
    """

    name: str
    rows: list[GenerationRow]
    total: int
    switch: SwitchRow | None
    aborted: str | None
    tables: list[str]
    consumers: list[ConsumerRow]
    more: bool


def list_logs(
    store: SnapshotKV,
    when: When | None = None,
    *,
    time: int,
    start: str = "",
    limit: int = LOGS_MAX,
    generations: int = GENERATIONS_MAX,
) -> Listed[Log]:
    """Return the logs of a store at a moment, from a name on; a few listings for each.

    `time` is the timestamp of the moment: it says which generations operate.
    """
    at: When = f"rev:{store.at(when).revision}"
    found = space_names(store, layout.space_of(""), start, at)
    return listed(found, limit, lambda name: log_at(store, name, at, time=time, limit=generations))


def log_at(
    store: SnapshotKV,
    name: str,
    when: When | None = None,
    *,
    time: int,
    limit: int = GENERATIONS_MAX,
) -> Log:
    """Return a log at a moment, its newest generations first; `time` is the moment's timestamp.

    Six listings. Raises `GenerationNotFoundError` for a log that the store does not have.
    """
    state = layout.read_state(store.space(layout.space_of(name)), when)
    snapshot = state.snapshot
    found = layout.generations_at(snapshot)
    if not found and next(snapshot.keys(), None) is None:
        raise GenerationNotFoundError(f"the store has no log {name!r} at this moment")
    later = zip_longest(found, found[1:])
    rows = [generation_row(each, after, time) for each, after in later]
    tables = list(islice(snapshot.keys(layout.TABLE_PREFIX), TABLES_MAX + 1))
    consumers = sorted(layout.consumers_at(snapshot).items(), key=lambda each: each[1].position)
    more = len(tables) > TABLES_MAX or len(consumers) > CONSUMERS_MAX
    return Log(
        name,
        rows[::-1][:limit],
        len(found),
        None if state.switch is None else _switch_row(snapshot, state.switch),
        None if state.aborted is None else state.aborted.why,
        [layout.table_of(key) for key in tables[:TABLES_MAX]],
        [
            ConsumerRow(*id, progress.generation, progress.position)
            for id, progress in consumers[:CONSUMERS_MAX]
        ],
        more,
    )


def generation_row(
    found: layout.Generation, later: layout.Generation | None, time: int
) -> GenerationRow:
    """Return a listed generation and what it is at a time; `later` is the next one."""
    return GenerationRow(
        found.time,
        None if later is None else later.time,
        found.phase(time, later),
        found.id.hex(),
        found.ranges,
        found.streams,
        found.made,
        found.expired,
        found.refines,
    )


def _switch_row(snapshot: Snapshot[bytes], switch: layout.Switch) -> SwitchRow:
    refusals = islice(snapshot.values(layout.answer_key(layout.REFUSAL, switch.id)), CONSUMERS_MAX)
    return SwitchRow(
        switch.phase,
        switch.id.hex(),
        switch.ranges,
        switch.streams,
        switch.not_before,
        switch.deadline,
        snapshot.count(layout.answer_key(layout.ACK, switch.id)),
        sorted(why.decode(errors="replace") for why in refusals),
    )


# --- the ring of a generation ---

RANGES_MAX = 50
ARCS_MAX = 128
"""The most ranges of a ring that are drawn one by one; a larger ring is shown as so many equal
sectors, each with the number of its ranges."""
STREAMS_MAX, STREAMS_MIN = 1_024, 4
"""The most streams that a page names, and the fewest of each range."""
RING = 1 << 64


@dataclass(frozen=True, slots=True)
class Arc:
    """A part of the ring, the tokens in (start, end]: how many ranges end in it, and streams.

    `streams` is None where ranges are only counted.
    """

    start: int
    end: int
    ranges: int
    streams: int | None


@dataclass(frozen=True, slots=True)
class RangeRow:
    """A range of tokens, (start, end], its share of the ring, and its first streams, by shard."""

    start: int
    end: int
    share: float
    shards: int
    ignore_msb: int
    streams: list[str]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """Where a key's changes go: its token, the shard, and the stream."""

    key: str
    token: int
    range: RangeRow
    shard: int
    stream: str


@dataclass(frozen=True, slots=True)
class TokenRing:
    """A generation's ring: arcs for the picture, and a page of its ranges.

    The next page begins at the range of the token `start`, None at the end.
    """

    log: str
    generation: GenerationRow
    arcs: list[Arc]
    rows: list[RangeRow]
    start: int | None
    key: KeyRow | None


def ring_at(
    store: SnapshotKV,
    name: str,
    generation: int,
    when: When | None = None,
    *,
    time: int,
    start: int | None = None,
    key: str = "",
    limit: int = RANGES_MAX,
) -> TokenRing:
    """Return the ring of the generation that begins at a time, as it is stored at a moment.

    A large one costs a count for each sector, and reads the ranges of the page only. Raises
    `GenerationNotFoundError`, `CorruptTopologyError`.
    """
    snapshot = store.space(layout.space_of(name)).at(when)
    found = layout.generations_at(snapshot)
    at = next((n for n, each in enumerate(found) if each.time == generation), None)
    if at is None:
        raise GenerationNotFoundError(f"the log {name!r} has no generation {generation}")
    each, later = [*found, None][at : at + 2]
    assert each is not None
    arcs, last = _arcs(snapshot, each)
    token = TOKEN_MIN - 1 if start is None else start - 1
    ranges = _ranges(snapshot, each, token, limit + 1, last)
    return TokenRing(
        name,
        generation_row(each, later, time),
        arcs,
        [range_row(each, max(STREAMS_MIN, STREAMS_MAX // limit)) for each in ranges[:limit]],
        ranges[limit].end if len(ranges) > limit else None,
        key_row(snapshot, each, key, last) if key else None,
    )


def range_row(found: TokenRange, named: int = STREAMS_MIN) -> RangeRow:
    """Return a range of tokens, with the names of its first streams."""
    width = (found.end - found.start) % RING or RING
    streams = [str(each) for each in found.streams[:named]]
    return RangeRow(
        found.start, found.end, width / RING, len(found.streams), found.ignore_msb, streams
    )


def key_row(
    snapshot: Snapshot[bytes], generation: layout.Generation, key: str, last: int
) -> KeyRow:
    """Return the stream of a key's changes in a generation; one or two short listings."""
    token = murmur3_token(key.encode(errors="surrogateescape"))
    found = _ranges(snapshot, generation, token - 1, 1, last)
    if not found:  # the ring goes on at its beginning
        found = _ranges(snapshot, generation, TOKEN_MIN - 1, 1, last)
    owner = found[0]
    shard = owner.sharding.shard_of(token)
    return KeyRow(key, token, range_row(owner), shard, str(owner.streams[shard]))


def _arcs(snapshot: Snapshot[bytes], generation: layout.Generation) -> tuple[list[Arc], int]:
    """Return the arcs of the ring, and the last range's end."""
    if generation.ranges <= ARCS_MAX:
        topology = layout.topology_at(snapshot, generation)
        arcs = [Arc(each.start, each.end, 1, len(each.streams)) for each in topology]
        return arcs, topology.ends[-1]
    prefix = layout.rows_prefix(generation.id)
    bounds = [TOKEN_MIN - 1 + RING * n // ARCS_MAX for n in range(ARCS_MAX)] + [TOKEN_MAX]
    arcs = []
    for low, high in pairwise(bounds):
        first, behind = (_row_key(prefix, token + 1) for token in (low, high))
        arcs.append(Arc(low, high, snapshot.count(prefix, start=first, end=behind), None))
    if (found := sum(arc.ranges for arc in arcs)) != generation.ranges:
        if not found:
            raise GenerationNotFoundError(f"generation {generation.id.hex()} no longer has rows")
        raise CorruptTopologyError(f"the rows have {found} ranges, not {generation.ranges}")
    filled = next(arc for arc in reversed(arcs) if arc.ranges)
    *_, key = snapshot.keys(prefix, start=_row_key(prefix, filled.start + 1))
    return arcs, _token_of(layout.end_of(prefix, key))


def _ranges(
    snapshot: Snapshot[bytes], generation: layout.Generation, after: int, limit: int, last: int
) -> list[TokenRange]:
    """Return ranges that end after a token, in the order of the ring up to `last`; one listing."""
    prefix = layout.rows_prefix(generation.id)
    found = list(islice(snapshot.items(prefix, start=_row_key(prefix, after + 1)), limit))
    ends = [_token_of(layout.end_of(prefix, key)) for key, _ in found]
    if not ends:
        return []
    starts = [_before(snapshot, prefix, ends[0], last), *ends]
    return [
        TokenRange(start, end, _streams(value), value[0])
        for start, end, (_, value) in zip(starts, ends, found, strict=False)
    ]


def _before(snapshot: Snapshot[bytes], prefix: bytes, end: int, last: int) -> int:
    """Return the end of the range before, from growing parts: engines list forwards only."""
    width = RING // ARCS_MAX // 64
    low = end
    while low > TOKEN_MIN - 1:
        high, low = low, max(TOKEN_MIN - 1, low - width)
        keys = list(snapshot.keys(prefix, start=_row_key(prefix, low), end=_row_key(prefix, high)))
        if keys:
            return _token_of(layout.end_of(prefix, keys[-1]))
        width *= 8
    return last


def _streams(value: bytes) -> tuple[StreamId, ...]:
    if len(value) % STREAM_BYTES != 1:
        raise CorruptTopologyError(f"{value[:20]!r} is not a row of a topology")
    return tuple(
        StreamId(value[at : at + STREAM_BYTES]) for at in range(1, len(value), STREAM_BYTES)
    )


def _row_key(prefix: bytes, token: int) -> bytes:
    return layout.row_key(prefix, ring_bytes(min(token, TOKEN_MAX))) + b"\0" * (token > TOKEN_MAX)


def _token_of(end: bytes) -> int:
    return int.from_bytes(end, "big") - BIAS
