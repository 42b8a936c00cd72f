"""A process with a fleet: what it asks, and what is compared with the members' histories."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import NamedTuple

from chains import check_ends
from fleet_claims import Claims, Line, check_shown
from fleet_histories import State, shown
from fleet_keys import connection_key, watch_key
from fleet_plan import Plan
from fleet_servers import READERS, Server

import snapkv
from snapkv.errors import MembersBehindError, SnapKVError, StoreRestoredError
from snapkv.fleet import FleetMoment
from snapkv.fleet.fleet_watch import FleetWatch
from snapkv.fleet.members import Behind
from snapkv.fleet.pin import Seen

HOUR_S = 3_600.0


class Held(NamedTuple):
    """A moment that somebody keeps, and what it has shown; None where it could not be read."""

    moment: FleetMoment
    token: str
    seen: dict[str, Seen]
    items: dict[str, State | None]


class Process:
    """A process with a fleet, and at most one watch.

    `call` is the context of a call of the fleet, in which others may go first.
    """

    def __init__(
        self,
        number: int,
        plan: Plan,
        servers: dict[str, Server],
        call: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.number, self._plan, self._servers, self._call = number, plan, servers, call
        members = {
            name: {"url": server.url(f"{READERS} {number}"), "joined": plan.joined_at(name)}
            for name, server in servers.items()
        }
        self.fleet = snapkv.fleet.open(members, clock=snapkv.ManualClock(0), timeout=HOUR_S)
        self.claims = Claims(servers)
        self.watch: FleetWatch | None = None
        self.line: Line | None = None

    @property
    def key(self) -> Hashable:
        """What the process knows, and what it was told."""
        connections = self.fleet._members.by_name.values()
        watch = None if self.watch is None else watch_key(self.watch)
        return (*map(connection_key, connections), self.claims.key, watch)

    # --- moments ---

    def look(self, when: int | None, *, final: bool = False) -> Held | None:
        """Return a moment, after it was compared with what the members have."""
        try:
            with self._call():
                moment = self.fleet.at(when, behind="stale", final=final)
        except SnapKVError as e:
            check_ends(e)
            self.check_error(e)
            return None
        members = dict(moment.members)
        for name, seen in members.items():
            check_shown(self._servers[name], seen, moment.timestamp, self._plan.joined_at(name))
            self._tell(name, seen, moment.timestamp)
            may_be_behind = not final if when is not None else not all(self._servers[name].lately)
            assert seen.state != "behind" or may_be_behind, f"{name}: {seen}"
        self.claims.check()
        items = {name: self._items(moment, name) for name in members}
        return Held(moment, moment.token, members, items)

    def _tell(self, name: str, seen: Seen, timestamp: int) -> None:
        server = self._servers[name]
        if seen.state == "absent" and timestamp >= self._plan.joined_at(name):
            self.claims.tell(name, timestamp, None)
        for history in (*server.lately, server.lost):
            for each in history or ():
                if (each.timestamp, each.revision) == (seen.timestamp, seen.revision):
                    self.claims.tell(name, timestamp if seen.final else each.timestamp, each)
                    return

    def _items(self, moment: FleetMoment, name: str) -> State | None:
        """Return what a moment shows of a member, None if that was restored."""
        try:
            items = tuple((key, value) for (_, key), value in moment.items(members=name))
        except SnapKVError as e:
            check_ends(e)
            self.check_error(e)
            return None
        seen = moment.members[name]
        if seen.state in ("live", "behind"):
            self.claims.check_items(name, seen.timestamp, items)
        else:
            assert items == (), items
        return items

    def check_policies(self) -> None:
        """Ask as callers do who take final moments only: the last of them, and the one after."""
        late = [(when, self._behind(when)) for when in self._plan.times]
        first = next((at for at, (_, names) in enumerate(late) if names), len(late))
        for when, names in late[max(0, first - 1) : first + 1]:
            try:
                moment = self.fleet.at(when)
            except MembersBehindError as e:
                named = set(e.members)
            except SnapKVError as e:
                check_ends(e)
                self.check_error(e)
                continue
            else:
                assert moment.final
                named = set()
            assert named ^ set(names) <= set(self._restored()), f"{named}, not {names}"

    def _behind(self, when: int) -> list[str]:
        return [
            name
            for name, server in self._servers.items()
            if shown(server.history, when, self._plan.joined_at(name)).state
            in ("behind", "missing")
        ]

    def _restored(self) -> list[str]:
        return [name for name, server in self._servers.items() if server.lost is not None]

    def check_error(self, error: SnapKVError) -> None:
        """Raise an error again that the members give no reason for."""
        if isinstance(error, StoreRestoredError) and error.member in self._restored():
            return
        if isinstance(error, MembersBehindError) and error.timestamp == 0:
            for name, server in self._servers.items():
                if not self._plan.joined_at(name) and not all(server.lately):
                    return  # no moment is known to be final while it has no commit
        raise error

    # --- what was told before ---

    def reread(self, held: Held) -> None:
        """Read a moment of this process again, and its token."""
        self._check_items(held, held.moment)
        self.reread_token(held)

    def reread_token(self, held: Held) -> None:
        """Read the token of a moment with each policy."""
        for behind in ("error", "stale", "leave out") if self._restored() else ("error",):
            self._check_token(held, behind)

    def _check_token(self, held: Held, behind: Behind) -> None:
        """Read a token: it is the same cut, or an error of which a restore is the reason."""
        try:
            found = self.fleet.at(token=held.token, behind=behind)
        except SnapKVError as e:
            check_ends(e)
            if not isinstance(e, MembersBehindError) or {*e.members}.isdisjoint(self._restored()):
                self.check_error(e)
            return
        assert found.timestamp == held.moment.timestamp
        for name, seen in held.seen.items():
            again = found.members[name]
            if again.state == "missing" and name in self._restored() and behind != "error":
                continue  # nothing is shown, and that is said
            same = (seen.state, seen.timestamp, seen.revision, seen.final)
            assert (again.state, again.timestamp, again.revision, again.final) == same, (
                f"{name}: the token shows {again}, not {seen}"
            )
        self._check_items(held, found)

    def _check_items(self, held: Held, moment: FleetMoment) -> None:
        for name, known in held.items.items():
            try:
                items = tuple((key, value) for (_, key), value in moment.items(members=name))
            except SnapKVError as e:
                check_ends(e)
                self.check_error(e)
                continue
            if moment.members[name].state == "missing":
                continue
            assert known is None or items == known, f"{name}: {items}, not {known}"
