"""One key in all members of a fleet: which have it, and with what value; equal values together."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from snapkv.errors import InvalidKeyError, SnapKVError
from snapkv.ui.differences import VALUES_BYTES_MAX
from snapkv.ui.fleet.member_moments import Cut
from snapkv.ui.fleet.site import FleetSite


@dataclass(frozen=True, slots=True)
class SameValue:
    """A value and the members that have it; None if it is redacted, or too large for the page.

    Redacted values are together if they have the same size.
    """

    members: list[str]
    value: bytes | None
    size: int
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class FleetValues:
    """The values of a key at a moment, the most common one first.

    `without` has the members without the key, `absent` the members that do not belong to the fleet
    at the moment, `unknown` the members whose value is not known, with the reason. `behind` are
    shown at their newest state, which is not final at the moment. `following` begins the next page.
    """

    key: str
    timestamp: int
    values: list[SameValue] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)
    following: str | None = None


def fleet_values(site: FleetSite, cut: Cut, key: str, following: str | None) -> FleetValues:
    """Return the values of a key in the members of a cut; a read of each.

    Raises `InvalidKeyError` if no member can have such a key.
    """
    if (moment := cut.moment) is None:
        return FleetValues(key, 0, unknown=cut.failed, following=following)
    found = FleetValues(
        key, moment.timestamp, unknown=dict(cut.failed), behind=cut.behind, following=following
    )
    same: dict[object, SameValue] = {}
    invalid: InvalidKeyError | None = None
    hidden, held = site.hides(key), 0
    for name, seen in moment.members.items():
        if seen.state in ("absent", "missing"):
            if seen.state == "absent":
                found.absent.append(name)
            else:
                found.unknown[name] = seen.error or seen.state
            continue
        try:
            value = moment.everywhere(key, [name]).get(name)
        except InvalidKeyError as e:  # outside of the prefix that the member observes
            invalid, value = e, None
        except SnapKVError as e:
            found.unknown[name] = str(e)
            continue
        if value is None:
            found.without.append(name)
            continue
        kind: object = len(value) if hidden else sha256(value).digest()
        if kind not in same:
            held += len(value)
            shown = None if hidden or held > VALUES_BYTES_MAX else value
            same[kind] = SameValue([], shown, len(value), hidden)
        same[kind].members.append(name)
    if invalid is not None and not same:
        raise invalid
    found.values.extend(sorted(same.values(), key=lambda each: (-len(each.members), each.members)))
    return found
