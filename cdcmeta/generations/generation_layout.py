"""Keys and values of a log of generations, in tuple encoding, and its state at one moment.

| key | value |
|---|---|
| `("head",)` | the newest generation's time; commits that depend on it guard this key |
| `("generation", time)` | the generation that operates from `time` on: a msgpack map |
| `("rows", id, end)` | a range of its topology: `Topology.rows` |
| `("switch",)` | the switch under way, a msgpack map |
| `("switch", "ack", id, session)` | a member has read the rows: the newest write it accepted |
| `("switch", "refusal", id, session)` | a member could not read the rows: why |
| `("switch", "aborted")` | the last aborted switch: its id and why |
| `("consumer", table, name, part, parts)` | a consumer's progress, a msgpack map |
| `("consumer", name)` | the same, from a version that did not record the table |
| `("table", name)` | a table whose streams are of this log; empty |
| `("consumers",)` | counts registrations of consumers |

Ids are 16 random bytes, times are snapkv's timestamps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgpack

from cdcmeta.argument_checks import checked_name
from cdcmeta.errors import CorruptTopologyError, GenerationNotFoundError, InvalidArgumentError
from cdcmeta.generations.tokens import Sharding
from cdcmeta.generations.topology import Topology
from snapkv import Absent, AtRevision, Entry, Snapshot, Space, When
from snapkv.errors import CorruptStoreError, FormatError, InvalidTupleError
from snapkv.model import Guard
from snapkv.times import TIMESTAMP_MAX
from snapkv.tuples import pack, unpack

FORMAT = 0
HEAD, SWITCH, ABORTED = pack(("head",)), pack(("switch",)), pack(("switch", "aborted"))
CONSUMERS = pack(("consumers",))
GENERATION_PREFIX, CONSUMER_PREFIX = pack(("generation",)), pack(("consumer",))
TABLE_PREFIX = pack(("table",))
ID_BYTES, NUMBER_BYTES, RING_BYTES = 16, 8, 8
LATER_FIELDS = {"refines": None}
"""The defaults of fields that records of older versions lack."""
STORING, PREPARED = "storing", "prepared"
ACK, REFUSAL = "ack", "refusal"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Generation:
    """A listed generation: the time from which it operates, and its size.

    `ring` is the digest of its ring; `made` the timestamp of its commit; `expired` the one at which
    it was marked as superseded, None before. `refines` is whether each of its ranges lies in one
    range of the previous generation; None without a previous one, or if an older version made it.
    If it is False, a stream may continue several streams.
    """

    time: int
    id: bytes
    ring: bytes
    ranges: int
    streams: int
    made: int
    expired: int | None = None
    refines: bool | None = None

    def phase(self, time: int, later: Generation | None) -> str:
        """Return what it is at a time: to come, operates, superseded or expired.

        `later` is the next generation, None without one.
        """
        if later is None or later.time > time:
            return "to come" if self.time > time else "operates"
        return "superseded" if self.expired is None else "expired"


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch of generations under way.

    `phase` is `storing` while its rows are written, then `prepared`: members answer, and reject
    writes from `not_before` on until the switch has ended. After `deadline` any process may end it.
    `first` is whether the log has no generation yet. `refines` as in `Generation`.
    """

    id: bytes
    ring: bytes
    ranges: int
    streams: int
    phase: str
    not_before: int
    deadline: int
    first: bool
    refines: bool | None = None


@dataclass(frozen=True, slots=True)
class Aborted:
    """The last aborted switch, and why."""

    id: bytes
    why: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a consumer has read: its generation, and the time up to which."""

    generation: int
    position: int


class ConsumerId(NamedTuple):
    """Names one of the `parts` workers of a consumer of a table's log.

    `table` is None for a consumer whose table an older version did not record.
    """

    table: str | None
    name: str
    part: int = 0
    parts: int = 1


def encode(record: Generation | Switch | Aborted | Progress) -> bytes:
    """Return a record's bytes. Raises `InvalidArgumentError` for one that `decode` would reject."""
    fields = {name: getattr(record, name) for name in record.__slots__}
    if problem := _problem(type(record), fields):
        raise InvalidArgumentError(f"not a valid {type(record).__name__}: {problem}")
    return msgpack.packb({"format": FORMAT} | fields)  # type: ignore[no-any-return]


def decode(kind: type[T], raw: bytes) -> T:
    """Return the record in bytes; unknown fields are ignored.

    Raises `CorruptStoreError`, also for a field of another type or out of its range; `FormatError`.
    """
    try:
        fields = LATER_FIELDS | msgpack.unpackb(raw)
        if fields["format"] != FORMAT:
            raise FormatError(f"the {kind.__name__.lower()}", fields["format"], FORMAT)
        found = {name: fields[name] for name in kind.__slots__}  # type: ignore[attr-defined]
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptStoreError(f"not a valid {kind.__name__}: {e!r}") from e
    if problem := _problem(kind, found):
        raise CorruptStoreError(f"not a valid {kind.__name__}: {problem}")
    return kind(**found)


def _problem(kind: type[Any], fields: Mapping[str, Any]) -> str | None:
    """Return the first invalid field of a record as text, None if all are valid."""
    for name, value in fields.items():
        is_valid = _VALID_NAMED.get(name) or _VALID[kind.__annotations__[name]]
        if not is_valid(value):
            return f"{name} is {value!r:.80}"
    return None


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= TIMESTAMP_MAX


_VALID: dict[str, Callable[[Any], bool]] = {
    "int": _is_number,
    "int | None": lambda value: value is None or _is_number(value),
    "bytes": lambda value: type(value) is bytes,
    "str": lambda value: type(value) is str,
    "bool": lambda value: type(value) is bool,
    "bool | None": lambda value: value is None or type(value) is bool,
}
"""The checks of fields, by annotation."""
_VALID_NAMED: dict[str, Callable[[Any], bool]] = {
    "id": lambda value: type(value) is bytes and len(value) == ID_BYTES,
    "phase": lambda value: value in (STORING, PREPARED),
}
"""The stricter checks of some fields, by name."""


def generation_of(key: bytes, raw: bytes) -> Generation:
    """Return the generation of a key and its value.

    Raises `CorruptStoreError`, also if their times differ.
    """
    found = decode(Generation, raw)
    if key != generation_key(found.time):
        raise CorruptStoreError(f"the key {key.hex()} is not that of generation {found.time}")
    return found


def space_of(name: str) -> str:
    """Return the name of a log's space."""
    return f"generations/{name}"


def generation_key(time: int) -> bytes:
    """Return the key of the generation from a time on."""
    return pack(("generation", time))


def rows_prefix(id: bytes) -> bytes:
    """Return the prefix of the keys of a generation's ranges."""
    return pack(("rows", id))


def row_key(prefix: bytes, end: bytes) -> bytes:
    """Return the key of a range; `prefix` is its generation's."""
    if b"\x00" in end:
        return prefix + pack((end,))
    return b"%b\x01%b\x00" % (prefix, end)  # the same, faster


def end_of(prefix: bytes, key: bytes) -> bytes:
    """Return the end of the range of a key. Raises `CorruptTopologyError`."""
    packed = key[len(prefix) :]
    if packed[:1] == b"\x01" and packed.find(b"\x00") == len(packed) - 1 == RING_BYTES + 1:
        return packed[1:-1]  # bytes without a zero byte
    try:
        (end,) = unpack(packed)
    except (InvalidTupleError, ValueError) as e:
        raise CorruptTopologyError(f"the row {packed.hex():.80} is not a range: {e}") from e
    if not isinstance(end, bytes) or len(end) != RING_BYTES:
        raise CorruptTopologyError(f"the row {packed.hex():.80} is not a range")
    return end


def answer_key(kind: str, id: bytes, *session: int) -> bytes:
    """Return the key of a member's `ACK` or `REFUSAL`; without a session the prefix of all."""
    return pack(("switch", kind, id, *session))


def session_of(key: bytes) -> int:
    """Return the session of an acknowledgement's or refusal's key. Raises `CorruptStoreError`."""
    return _named(key, 4, int)


def consumer_key(id: ConsumerId) -> bytes:
    """Return the key of a consumer's progress. Raises `InvalidArgumentError` (the name)."""
    if id.table is None:  # the key of older versions
        return pack(("consumer", checked_name("a consumer's name", id.name)))
    return consumers_prefix(id.table, id.name) + pack((id.part, id.parts))


def consumers_prefix(table: str, name: str) -> bytes:
    """Return the prefix of the keys of a consumer's workers; raises as `consumer_key`."""
    names = checked_name("a table's name", table), checked_name("a consumer's name", name)
    return pack(("consumer", *names))


def consumer_of(key: bytes) -> ConsumerId:
    """Return the consumer of a progress key. Raises `CorruptStoreError`."""
    match _elements(key):
        case ("consumer", str(name)):
            return ConsumerId(None, name)
        case ("consumer", str(table), str(name), int(part), int(parts)) if 0 <= part < parts:
            return ConsumerId(table, name, part, parts)
    raise CorruptStoreError(f"not a key of a generation log: {key.hex():.80}")


def table_key(table: str) -> bytes:
    """Return the key that lists a table as one of this log."""
    return pack(("table", table))


def table_of(key: bytes) -> str:
    """Return the table of its key. Raises `CorruptStoreError`."""
    return _named(key, 2, str)


def number(value: int) -> bytes:
    """Return a number as the value of a key."""
    return value.to_bytes(NUMBER_BYTES, "big")


def number_of(raw: bytes) -> int:
    """Return the number of a value. Raises `CorruptStoreError` unless it has eight bytes."""
    if len(raw) != NUMBER_BYTES:
        raise CorruptStoreError(f"a number has {NUMBER_BYTES} bytes, not {len(raw)}")
    return int.from_bytes(raw, "big")


def digest_of(ring: Mapping[int, Sharding]) -> bytes:
    """Return the SHA-256 digest of a ring's tokens and shardings.

    The ring is from `checked_ring`: its tokens ascend.
    """
    facts = list(zip(ring, *zip(*ring.values(), strict=True), strict=True))
    packed: Any = msgpack.packb(facts)
    return hashlib.sha256(packed).digest()


def _named(key: bytes, count: int, kind: type[T]) -> T:
    """Return the last element of a key with `count` elements."""
    elements = _elements(key)
    if len(elements) != count or not isinstance(elements[-1], kind):
        raise CorruptStoreError(f"not a key of a generation log: {key.hex():.80}")
    return elements[-1]


def _elements(key: bytes) -> tuple[Any, ...]:
    try:
        return unpack(key)
    except InvalidTupleError as e:
        raise CorruptStoreError(f"not a key of a generation log: {key.hex():.80}") from e


# --- what a log has at one moment ---


@dataclass(frozen=True, slots=True)
class LogState:
    """The state at one revision: the newest generation's time, and the switch under way."""

    snapshot: Snapshot[bytes]
    head: int
    head_revision: int
    switch: Switch | None
    switch_revision: int
    aborted: Aborted | None

    def guards(self) -> list[Guard]:
        """Return guards that hold while the newest generation and the switch are unchanged."""
        return [unchanged(HEAD, self.head_revision), unchanged(SWITCH, self.switch_revision)]


def read_state(space: Space, as_of: When | None = None) -> LogState:
    """Return the newest state, or the state of a time; one or two round trips."""
    snapshot = space.at(as_of)
    head, switch, aborted = snapshot.entries_of([HEAD, SWITCH, ABORTED])
    return LogState(
        snapshot,
        number_of(head.value) if head else 0,
        revision_of(head),
        decode(Switch, switch.value) if switch else None,
        revision_of(switch),
        decode(Aborted, aborted.value) if aborted else None,
    )


def generations_at(snapshot: Snapshot[bytes]) -> list[Generation]:
    """Return the generations listed at a moment, oldest first."""
    return [generation_of(*item) for item in snapshot.items(GENERATION_PREFIX)]


def consumers_at(snapshot: Snapshot[bytes]) -> dict[ConsumerId, Progress]:
    """Return the consumers registered at a moment, and their progress."""
    items = snapshot.items(CONSUMER_PREFIX)
    return {consumer_of(key): decode(Progress, value) for key, value in items}


def topology_at(snapshot: Snapshot[bytes], generation: Generation | Switch) -> Topology:
    """Return the topology of a generation, or of a switch under way; one listing.

    Raises `GenerationNotFoundError` if its rows were removed, `CorruptTopologyError`.
    """
    prefix = rows_prefix(generation.id)
    rows = [(end_of(prefix, key), value) for key, value in snapshot.items(prefix)]
    if not rows:
        raise GenerationNotFoundError(f"generation {generation.id.hex()} no longer has rows")
    topology = Topology.of_rows(rows)
    found, wanted = (len(topology), topology.stream_count), (generation.ranges, generation.streams)
    if found != wanted:
        raise CorruptTopologyError(f"the rows have {found} ranges and streams, not {wanted}")
    return topology


def revision_of(entry: Entry | None) -> int:
    """Return the revision of an entry, 0 for none."""
    return 0 if entry is None else entry.revision


def unchanged(key: bytes, revision: int) -> Guard:
    """Return the guard that a key is unchanged since it was read: at a revision, 0: absent."""
    return AtRevision(key, revision) if revision else Absent(key)
