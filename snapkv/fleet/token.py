"""A cut of a fleet as a text, which names the same one in another process, or is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from snapkv.base.arguments import check_text
from snapkv.errors import (
    InvalidOptionError,
    MembersBehindError,
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.fleet.member import named
from snapkv.fleet.member_link import MemberLink
from snapkv.fleet.pin import Pin
from snapkv.layout import Mark
from snapkv.times import TIMESTAMP_MAX

FORMAT = 1
NOTHING = "missing"
"""The state of a member of which a moment shows nothing."""
TOKEN_CHARACTERS_MAX = 64 << 20


class TokenPlace(NamedTuple):
    """One member in a token: its store, and the commit that the cut shows of it.

    `ordinal` and `revision` are 0 where nothing is seen of the member; then `state` says why. The
    `witness` is a later commit that made the time final on the member: a watch that goes on there
    verifies it.
    """

    store_id: bytes
    state: str
    timestamp: int
    ordinal: int
    revision: int
    witness: Mark | None = None

    def fields(self) -> list[object]:
        """Return it as a list for JSON."""
        witness = self.witness
        seen = () if witness is None else (witness.timestamp, witness.ordinal, witness.revision)
        return [self.store_id.hex(), *self[1:5], *seen]


class TokenCut(NamedTuple):
    """What a token names: a time, the members at it, and the spread of its round in seconds.

    `prefix` is that of a watch; a moment has none, and a watch of any prefix may go on there.
    """

    timestamp: int
    places: Mapping[str, TokenPlace]
    spread: float | None = None
    prefix: str | None = None


# For example, of a fleet of two members, of which the second one joined later:
#
#     {"format": 1, "timestamp": 445644800032243719,
#      "members": {"eu-1": ["5f..", "seen", 445644800032243000, 17, 42],
#                  "us-1": ["", "absent", 0, 0, 0]}}
#
# A moment at a round has "spread_us", too, in microseconds. After the place of a member come the
# timestamp, ordinal and revision of its witness, if it has one. For example, the cut at 30:
#
#     a   10@4 30@5           "a": ["5f..", "seen", 30, 4, 5]
#     b   20@7 44@8           "b": ["a3..", "seen", 20, 6, 7, 44, 7, 8]    44 made 30 final
#
# If b is set back to 20 and commits 25, then a watch that goes on after 30 would miss that. It
# finds that b has no 44.
def encoded(cut: TokenCut) -> str:
    """Return a cut as a JSON text on one line."""
    members = {name: place.fields() for name, place in cut.places.items()}
    fields = {"format": FORMAT, "timestamp": cut.timestamp, "members": members}
    if cut.spread is not None:
        fields["spread_us"] = round(cut.spread * 1_000_000)
    if cut.prefix is not None:
        fields["prefix"] = cut.prefix
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def cut_of(timestamp: int, pins: Mapping[str, Pin], spread: float | None) -> TokenCut:
    """Return the cut that a moment shows."""
    return TokenCut(timestamp, {name: _place(pin, timestamp) for name, pin in pins.items()}, spread)


def _place(pin: Pin, timestamp: int) -> TokenPlace:
    connection = pin.connection
    store_id = connection.store_id or b""
    if pin.moment is None:
        if pin.state != "absent":  # it was left out, or nothing is known
            return TokenPlace(store_id, NOTHING, 0, 0, 0)
        return TokenPlace(store_id, "absent", 0, 0, 0, connection.newest)
    mark = pin.moment.mark
    is_behind = pin.state == "behind"
    witness = None if is_behind or mark.timestamp == timestamp else connection.newest
    state = "behind" if is_behind else "seen"
    return TokenPlace(store_id, state, mark.timestamp, mark.ordinal, mark.revision, witness)


def decoded(token: str) -> TokenCut:
    """Return what a token names. Raises `InvalidOptionError`, `InvalidTypeError` for no token."""
    check_text("a token", token)
    try:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise ValueError("it is too long")
        found = json.loads(token)
        if found["format"] != FORMAT:
            raise ValueError(f"it has format {found['format']!r}, this version reads {FORMAT}")
        timestamp = _number(found["timestamp"])
        if not found["members"]:
            raise ValueError("it names no member")
        members = {
            name: _place_in(bytes.fromhex(store_id), str(state), *map(_number, numbers))
            for name, (store_id, state, *numbers) in found["members"].items()
        }
        spread = found.get("spread_us")
        spread = None if spread is None else _number(spread) / 1_000_000
        prefix = found.get("prefix")
        if not isinstance(prefix, str | None):
            raise ValueError(f"{prefix!r} is not a prefix")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise InvalidOptionError(
            f"{token[:40]!r} is not the token of a fleet's moment, as `moment.token` returns: {e}"
        ) from e
    return TokenCut(timestamp, members, spread, prefix)


def _place_in(
    store_id: bytes, state: str, timestamp: int, ordinal: int, revision: int, *seen: int
) -> TokenPlace:
    witness = None
    if seen:
        seen_ts, seen_ordinal, seen_revision = seen
        witness = Mark(seen_ts, seen_revision, seen_ordinal)
    return TokenPlace(store_id, state, timestamp, ordinal, revision, witness)


def _number(found: object) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= TIMESTAMP_MAX:
        raise ValueError(f"{found!r} is not a number of a token")
    return found


def check_store(connection: MemberLink, place: TokenPlace) -> None:
    """Raise `StoreRecreatedError` if a member is another store than when the token was made."""
    store_id = connection.store_id
    if store_id is not None and place.store_id and store_id != place.store_id:
        error = StoreRecreatedError(
            f"the token is of the store {place.store_id.hex()}, and this is {store_id.hex()}"
        )
        raise named(error, connection.name)


def check_resumed(cut: TokenCut, names: Sequence[str], prefix: str | None) -> None:
    """Raise unless a watch can go on at a cut without missing changes."""
    if cut.prefix is not None and cut.prefix != (prefix or ""):
        raise InvalidOptionError(
            f"the token is of a watch of the prefix {cut.prefix!r}, not {prefix or ''!r}: give that"
        )
    why = "the token shows nothing of it, so a watch cannot go on there: take another moment"
    unknown = {name: why for name in names if cut.places[name].state == NOTHING}
    if unknown:
        raise MembersBehindError(cut.timestamp, unknown)


def check_same(pin: Pin, place: TokenPlace) -> None:
    """Raise `StoreRestoredError` unless a member shows the same commit as when the token was made.

    Raises `StoreRecreatedError` if it is another store now.
    """
    check_store(pin.connection, place)
    if pin.moment is None:
        is_gone = pin.state == "absent" or pin.connection.is_empty
        is_same, now = not is_gone, "nothing"  # of a member that is missing nothing is known
    else:
        mark = pin.moment.mark
        is_same = (mark.timestamp, mark.ordinal, mark.revision) == place[2:5]
        now = f"revision {mark.revision}"
    if not is_same:
        error = StoreRestoredError(
            f"the token shows revision {place.revision}, and the member shows {now} there: the "
            "engine was restored since"
        )
        raise named(error, pin.connection.name)
