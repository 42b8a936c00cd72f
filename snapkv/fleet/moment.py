"""A moment of a fleet: the state of all its members at one time, as a read-only mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn, TypeVar

from snapkv.base.arguments import check_text
from snapkv.errors import InvalidKeyError, InvalidTypeError, KeyNotFoundError
from snapkv.fleet.difference import FleetDiff
from snapkv.fleet.member import chosen, named, naming, one_of, steps_named
from snapkv.fleet.pin import LATE, Pin, Seen, State
from snapkv.fleet.token import cut_of, encoded
from snapkv.model import Entry
from snapkv.reading.decoding import entry_of
from snapkv.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from snapkv.fleet.members import Members
    from snapkv.fleet.open_member import OpenMember
    from snapkv.reading.arrow import Table

FleetKey = tuple[str, str]
"""A key of a fleet: the member's name, and the key in it."""
Wanted = str | Iterable[str] | None
"""Which members: a pattern such as `eu-*`, several with commas between or in a list; None: all."""
T = TypeVar("T")


class FleetMoment(Mapping[FleetKey, bytes]):
    """All members at one time; it never changes, and every read of a member sees one revision.

    Keys are `(member, key)`, in the order of members, then of keys. `timestamp` is the moment.
    `members` says what is seen of each member; `final` is whether all of them are final at this
    moment, or do not belong to the fleet at it. If some are not, the moment may have another state
    later, and members that are left out or missing have no keys here.

    Members whose keys other programs write show their newest tick at or below the moment. If all
    of these ticks are of one round (`snapkv fleet tick`), then `spread` is the longest time, in
    seconds, that passed from the first of them to the last: all these members are shown as they
    were within it. None means that they were ticked one by one, or that no such member is in the
    moment; then times of two members differ by a tick and by the skew of their tickers' clocks.

    Reading is lazy, as of a `Snapshot`. `everywhere` and `count` ask members that wait for a
    network in parallel; iterations read one member after another. Errors name the `member` that
    they are about.
    """

    def __init__(
        self,
        timestamp: int,
        pins: dict[str, Pin],
        fleet: Members,
        spread: float | None = None,
        token: str | None = None,
    ) -> None:
        self.timestamp, self.spread, self._pins = timestamp, spread, pins
        self._fleet, self._token = fleet, token

    @property
    def final(self) -> bool:
        """Whether no member's state at this moment can change, and none is missing."""
        return all(pin.state not in LATE for pin in self._pins.values())

    @property
    def members(self) -> Mapping[str, Seen]:
        """What is seen of each member, by its name."""
        return MappingProxyType({name: pin.seen for name, pin in self._pins.items()})

    @property
    def states(self) -> Mapping[str, State]:
        """The state of each member, by its name, as far as it is known without opening archives."""
        return MappingProxyType({name: pin.state for name, pin in self._pins.items()})

    @property
    def late(self) -> Mapping[str, Seen]:
        """What is seen of the members behind or missing, which keep the moment from being final."""
        late = {name: pin.seen for name, pin in self._pins.items() if pin.state in LATE}
        return MappingProxyType(late)

    @property
    def token(self) -> str:
        """The cut as a JSON text: `fleet.at(token=...)` is the same one, or raises."""
        if self._token is None:
            self._token = encoded(cut_of(self.timestamp, self._pins, self.spread))
        return self._token

    def __repr__(self) -> str:
        final = "final" if self.final else "not final"
        return f"<FleetMoment timestamp={self.timestamp} members={len(self._pins)} {final}>"

    def __copy__(self) -> FleetMoment:
        return self  # a value

    def __deepcopy__(self, memo: object) -> FleetMoment:
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidTypeError(
            "a moment reads from its open fleet and cannot be pickled; pickle its token, and pass "
            "that to at(token=...) of the fleet that the other process opened"
        )

    @property
    def pins(self) -> Mapping[str, Pin]:
        """The members as they are pinned, by name; for layers of this package."""
        return MappingProxyType(self._pins)

    # --- one member ---

    def of(self, member: str) -> Snapshot[str]:
        """Return the snapshot of one member; no round trip.

        Raises `InvalidOptionError` for a name that no member has, `KeyNotFoundError` if nothing of
        the member is seen at this moment.
        """
        name = one_of(self._pins, member)
        found = self._pins[name].snapshot()
        if found is None:
            seen = self._pins[name].seen
            raise named(
                KeyNotFoundError(
                    name, self.timestamp, reason=f"{name} is {seen.state}: {self._pins[name].why}"
                ),
                name,
            )
        return found

    # --- keys ---

    def __getitem__(self, key: FleetKey) -> bytes:
        """Return a value; `KeyNotFoundError` (a KeyError) if it is absent."""
        return self.entry(key).value

    def entry(self, key: FleetKey) -> Entry:
        """Return a key's value with its revisions in the member; one round trip.

        Raises `KeyNotFoundError`, `InvalidTypeError`, `InvalidKeyError` (also for a key outside of
        the member's observed prefix, where `everywhere` leaves the member out), and as all reads.
        """
        member, own = _pair(key)
        pin = self._pins.get(member)
        if pin is None or pin.settled().reads is None:
            error = KeyNotFoundError(own, self.timestamp, reason=self._why_not(member, own))
            raise error if pin is None else named(error, member)
        found = pin.get(own)
        if found is None:
            raise named(KeyNotFoundError(own, self.timestamp), member)
        return entry_of(own, found, None)

    def _why_not(self, member: str, key: str) -> str:
        if member not in self._pins:
            return f"no key {key!r} of {member!r}, which is not a member of this moment"
        seen = self._pins[member].seen
        return f"no key {key!r} of {member}, which is {seen.state} at this moment"

    def everywhere(self, key: str, members: Wanted = None) -> dict[str, bytes]:
        """Return the values of one key in all members that have it, by member; a read of each.

        >>> import snapkv
        >>> with snapkv.open("memory:eu-images") as eu, snapkv.open("memory:us-images") as us:
        ...     stamps = eu.save("image", b"v1"), us.save("image", b"v2")
        ...     with snapkv.fleet.open({"eu": eu, "us": us}) as fleet:
        ...         fleet.at(stamps[0], behind="stale").everywhere("image")
        {'eu': b'v1'}
        """
        found: dict[str, bytes] = {}
        waiting: list[str] = []
        names = self._pins if members is None else chosen(list(self._pins), members)
        for name in names:
            pin = self._pins[name]
            if pin.connection.waits:
                waiting.append(name)
            elif (value := _value(pin, key)) is not None:
                found[name] = value
        if not waiting:
            return found
        asked = self._fleet.each(waiting, lambda each: _value(self._pins[each.name], key))
        found |= {name: value for name, value in asked.items() if value is not None}
        return {name: found[name] for name in names if name in found}

    def __contains__(self, key: object) -> bool:
        try:
            self.entry(key)  # type: ignore[arg-type]
        except (KeyNotFoundError, InvalidKeyError, InvalidTypeError):
            return False
        return True

    def __iter__(self) -> Iterator[FleetKey]:
        return self.keys()

    def __len__(self) -> int:
        return self.count()

    def items(  # type: ignore[override]
        self, prefix: str | None = None, *, members: Wanted = None
    ) -> Iterator[tuple[FleetKey, bytes]]:
        """Yield keys and values in order; with a prefix, exact to the byte, only those.

        Members whose observed prefix is another one have none of these. A round trip for each
        page of each member.
        """
        return self._all(Snapshot.items, prefix, members)

    def entries(
        self, prefix: str | None = None, *, members: Wanted = None
    ) -> Iterator[tuple[FleetKey, Entry]]:
        """Yield keys and entries in order; as `items`."""
        return self._all(Snapshot.entries, prefix, members)

    def keys(  # type: ignore[override]
        self, prefix: str | None = None, *, members: Wanted = None
    ) -> Iterator[FleetKey]:
        """Yield keys in order, without reading values; as `items`."""
        for name, snapshot, own in self._snapshots(prefix, members):
            for key in steps_named(name, snapshot.keys(own)):
                yield name, key

    def values(  # type: ignore[override]
        self, prefix: str | None = None, *, members: Wanted = None
    ) -> Iterator[bytes]:
        """Yield values in the order of their keys; as `items`."""
        return (value for _, value in self.items(prefix, members=members))

    def count(self, prefix: str | None = None, *, members: Wanted = None) -> int:
        """Return the number of keys; a round trip for each member."""
        if prefix is not None:
            check_text("prefix", prefix)

        def count(each: OpenMember) -> int:
            snapshot = self._pins[each.name].snapshot()
            with naming(each.name):
                return 0 if snapshot is None else snapshot.count(each.member.longer(prefix))

        names = chosen(list(self._pins), members)
        able = [name for name in names if self._pins[name].connection.member.may_have(prefix)]
        return sum(self._fleet.each(able, count).values())

    def diff(self, other: FleetMoment, prefix: str | None = None) -> FleetDiff:
        """Return the differences from this moment to another one of the same fleet.

        See `Fleet.diff`. Raises `InvalidTypeError` if `other` is not such a moment.
        """
        if not isinstance(other, FleetMoment):
            raise InvalidTypeError(f"diff needs a moment of a fleet, not {type(other).__name__}")
        return FleetDiff(self.timestamp, other.timestamp, self._pins, other._pins, prefix)

    def to_arrow(self, prefix: str | None = None, *, members: Wanted = None) -> Table:
        """Return the keys as an Arrow table: a column `member`, then a `Snapshot`'s columns.

        Needs pyarrow. A round trip a page. Raises `InvalidKeyError` for an observed key that is
        not valid UTF-8.
        """
        from snapkv.fleet.archive_batches import fleet_table

        return fleet_table([self._pins[name] for name in chosen(list(self._pins), members)], prefix)

    def _snapshots(
        self, prefix: str | None, members: Wanted
    ) -> Iterator[tuple[str, Snapshot[str], str | None]]:
        """Yield members that may have keys with a prefix, and what selects them there."""
        if prefix is not None:
            check_text("prefix", prefix)
        for name in chosen(list(self._pins), members):
            pin = self._pins[name]
            member = pin.connection.member
            if member.may_have(prefix) and (snapshot := pin.snapshot()) is not None:
                yield name, snapshot, member.longer(prefix)

    def _all(
        self,
        read: Callable[[Snapshot[str], str | None], Iterator[tuple[str, T]]],
        prefix: str | None,
        members: Wanted,
    ) -> Iterator[tuple[FleetKey, T]]:
        for name, snapshot, own in self._snapshots(prefix, members):
            for key, found in steps_named(name, read(snapshot, own)):
                yield (name, key), found


def _value(pin: Pin, key: str) -> bytes | None:
    """Return the value of a key in one member; None if it is not there."""
    if pin.settled().reads is None or not pin.connection.member.may_have_key(key):
        return None
    kv = pin.get(key)
    return None if kv is None else kv.value


def _pair(key: object) -> FleetKey:
    if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[0], str):
        raise InvalidTypeError(f"a key of a fleet is (member, key), as ('eu-1', 'a'), not {key!r}")
    return key
