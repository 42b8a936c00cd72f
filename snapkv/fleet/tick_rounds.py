"""Rounds: all members get one timestamp at once, so that one time shows all of them as they were.

Tickers of one member each tick at different times. So a moment of the fleet may show an
effect in one member without its cause in another one, which was ticked a little earlier.
A *round* sends one timestamp T to all members at once. Member c commits it at some instant between
`sent` and `answered(c)`. So the moment T shows all members as they were within the *spread* of the
round, the largest `answered(c) - sent`, whatever any clock says.

The bounds of a round are known when its answers have come. So the next round of the same ticker
records them, in the meta of its ticks:

    round   timestamp   meta of the ticks
    1       100         round 1
    2       110         round 2, before 100, spread_us 1,900
    3       120         round 3, before 110, spread_us 2,400, without b

In round 2 the tick of member b was not answered. It may still arrive, at any time. So the time 110
does not count as a round for a moment with b, and such a moment goes to 100. If the ticker dies
after round 3, nothing shows its bounds, and moments at 120 and later go to 110 or 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from snapkv.errors import CompactedError
from snapkv.fleet.link import AWAY
from snapkv.fleet.members import Members
from snapkv.fleet.open_member import Connection
from snapkv.fleet.pin import LATE, Pin
from snapkv.layout import ROUND_META
from snapkv.model import Scalar
from snapkv.store.observe import Keys

LOOKS_MAX = 8
"""A moment looks for a round in so many ticks of the slowest member, at most."""
FOLLOWING_MAX = 4
"""The bounds of a round are looked for in so many ticks after it, some of other tickers."""

ROUND, TICKER, BEFORE = f"{ROUND_META}round", f"{ROUND_META}ticker", f"{ROUND_META}before"
SPREAD, WITHOUT = f"{ROUND_META}spread_us", f"{ROUND_META}without"
ANY = "*"
"""In place of the names of members without an answer, if these are too long."""


def aligned(
    timestamp: int, pins: dict[str, Pin], members: Members
) -> tuple[int, dict[str, Pin], float | None]:
    """Return the newest round at or below a moment that has one: its time, its pins, its spread.

    All observed members that are seen have to be final, and take part. Without such a round, it
    returns what it got, and None. Mostly two or three round trips.
    """
    found = {name: pin for name, pin in pins.items() if _is_observed(pin)}
    left_out = {name: pin for name, pin in pins.items() if pin.state in LATE and pin.reads is None}
    for _ in range(LOOKS_MAX):
        if len(found) < 2 or any(pin.state != "live" for pin in found.values()):
            break
        common = min(_tick(pin) for pin in found.values())
        if all(_tick(pin) == common for pin in found.values()):
            spread = _spread(found, common, members)
            if spread is not None:
                others = [name for name in pins if name not in found and name not in left_out]
                rest = members.each(others, _pinning(common))
                if not any(map(_is_observed, rest.values())):
                    found |= rest | left_out
                    return common, {name: found[name] for name in pins}, spread
                found |= rest  # a member that has left meanwhile is in that round, too
                found = {name: pin for name, pin in found.items() if _is_observed(pin)}
                continue
            common -= 1
        late = [name for name, pin in found.items() if _tick(pin) > common]
        found |= members.each(late, _pinning(common))
        found = {name: pin for name, pin in found.items() if pin.state != "absent"}
    return timestamp, pins, None


def _is_observed(pin: Pin) -> bool:
    """Return whether it shows the keys of an observed member."""
    return pin.connection.member.prefix is not None and pin.reads is not None


def _pinning(timestamp: int) -> Callable[[Connection], Pin]:
    return lambda each: each.pin(timestamp)


def _tick(pin: Pin) -> int:
    assert pin.moment is not None
    return pin.moment.mark.timestamp


def _spread(found: Mapping[str, Pin], common: int, members: Members) -> float | None:
    """Return the spread of a round in seconds; None if the ticks are not of one, or unbounded.

    A member that is away does not show the bounds, and any other one of the round does.
    """
    rounds = set(members.each(found, lambda each: _round_of(found[each.name])).values())
    made = rounds.pop()
    if rounds or made is None:
        return None  # two tickers may have ticked some members each at the same time
    for pin in found.values():
        try:
            meta = pin.connection.ask(partial(_confirmed, pin=pin, common=common, ticker=made[0]))
        except (*AWAY, CompactedError):
            continue
        if meta is not None:
            without = str(meta.get(WITHOUT) or "").split(",")
            spread = meta.get(SPREAD)
            if isinstance(spread, int) and not {ANY, *found} & set(without):
                return spread / 1_000_000
            return None
    return None


def _round_of(pin: Pin) -> tuple[Scalar, Scalar] | None:
    """Return the ticker and the number of the round whose tick a member shows; None without."""
    assert pin.moment is not None
    mark = pin.moment.mark
    try:
        meta = pin.connection.ask(lambda reads: reads.reader.timeline.stamp(mark)).meta
    except (*AWAY, CompactedError):
        return None
    return (meta[TICKER], meta[ROUND]) if meta and TICKER in meta and ROUND in meta else None


def _confirmed(reads: Keys, pin: Pin, common: int, ticker: Scalar) -> Mapping[str, Scalar] | None:
    """Return the meta of the tick that records the bounds of a ticker's round."""
    assert pin.moment is not None
    timeline, mark = reads.reader.timeline, pin.moment.mark
    for _ in range(FOLLOWING_MAX):
        following = timeline.following(mark)
        if following is None:
            return None
        mark = following
        meta = timeline.stamp(mark).meta
        if meta is not None and meta.get(BEFORE) == common and meta.get(TICKER) == ticker:
            return meta
    return None
