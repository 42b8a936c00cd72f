"""One time line over many stores, observed prefixes and archives; it only reads.

A *fleet* is a federation of *members*. `at(time)` is one moment of all of them, `watch` brings
their changes in one order. Nothing is written, except by ticks.

* `description` reads who is in a fleet, `member_link` opens one member and keeps it open;
* `members` asks all members at once; `moment`, `difference`, `merged_logs`, `fleet_watch` answer;
* `tick_rounds` ticks all members at one timestamp, and finds such times; `archive_reach` lists how
  far archives reach.
"""

from snapkv.fleet.difference import FleetDiff, FleetDifference
from snapkv.fleet.fleet import Fleet, open
from snapkv.fleet.fleet_watch import FleetChanges, FleetWatch, Late
from snapkv.fleet.member import Member
from snapkv.fleet.merged_logs import MemberCommit, MemberSteps, MemberVersion
from snapkv.fleet.moment import FleetMoment
from snapkv.fleet.pin import Seen
from snapkv.fleet.tick_rounds import Round, Ticker

__all__ = [
    "Fleet",
    "FleetChanges",
    "FleetDiff",
    "FleetDifference",
    "FleetMoment",
    "FleetWatch",
    "Late",
    "Member",
    "MemberCommit",
    "MemberSteps",
    "MemberVersion",
    "Round",
    "Seen",
    "Ticker",
    "open",
]
