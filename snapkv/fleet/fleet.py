"""A fleet: many stores, observed prefixes and archives, read at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from snapkv import times
from snapkv.base.arguments import check_bool, check_int, check_seconds
from snapkv.base.clocks import Clock, SystemClock
from snapkv.base.files import FilePath
from snapkv.base.lifecycle import Closing
from snapkv.clock import HybridClock
from snapkv.errors import (
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    MembersBehindError,
    NotSupportedError,
)
from snapkv.fleet import merged_logs
from snapkv.fleet.description import members_of
from snapkv.fleet.difference import FleetDiff
from snapkv.fleet.fleet_watch import HOLD_BYTES, FleetWatch
from snapkv.fleet.member import Member, chosen, named, one_of
from snapkv.fleet.member_link import AWAY
from snapkv.fleet.members import (
    Behind,
    HistorySpan,
    Members,
    Policy,
    allowed,
    check_behind,
    in_ms,
    span_of,
)
from snapkv.fleet.merged_logs import MemberCommit, MemberSteps, MemberVersion
from snapkv.fleet.moment import FleetMoment, Wanted
from snapkv.fleet.open_member import OpenMember
from snapkv.fleet.pin import ABSENT, Pin
from snapkv.fleet.tick_rounds import Ticker, aligned
from snapkv.fleet.token import TokenCut, TokenPlace, check_resumed, check_same, decoded
from snapkv.times import When


class Fleet(Closing):
    """A read-only federation of members: stores, observed prefixes, archives.

    A member is *final* up to the timestamp of its newest commit or tick, or, of an archive, of
    the last recorded commit. No commit at or below it can come. A moment of the fleet is final if
    that is true of each of its members. Finality never comes from a clock.

    Commits of this process are in the order in which they were made, on whichever members, and so
    are commits that follow from what it has read (see `docs/fleet.md` for what that means). Two
    programs that talk to each other outside of the members have only their clocks.

    `behind` says what a call does about members that have no final state at a time:

    * "error": raise `MembersBehindError`, which names them;
    * "stale": show their newest state, and say so (`moment.final` is False);
    * "leave out": leave them out, and say so.

    A time is one as for a store, but no revision: that means something in one member only.
    Members that wait for a network are asked in parallel, at most 32 at a time, and each may take
    `timeout` seconds. One that did not answer counts as away for a second. A try to
    list a bucket may take as long, unless `storage` has a `timeout`.

    Safe for threads and usable as a context manager. Made by `snapkv.fleet.open`.
    """

    def __init__(self, members: Members, clock: HybridClock) -> None:
        self._members, self._clock = members, clock

    def __repr__(self) -> str:
        return f"<Fleet of {len(self._members.by_name)} members>"

    def __enter__(self) -> Self:
        self._members.check_open()
        return self

    def close(self) -> None:
        """Close the stores that the fleet has opened, and end its watches. May be repeated."""
        self._members.close()

    @property
    def members(self) -> list[str]:
        """The names of the members, sorted."""
        return list(self._members.by_name)

    def member(self, name: str) -> Member:
        """Return the description of a member. Raises `InvalidOptionError` for an unknown one."""
        return self._members.by_name[one_of(self._members.by_name, name)].member

    def connection(self, name: str) -> OpenMember:
        """Return the connection of a member; for layers of this package."""
        self._members.check_open()
        return self._members.by_name[one_of(self._members.by_name, name)]

    # --- finality ---

    def resolved(self, of: Policy = "all", *, members: Wanted = None) -> int:
        """Return the newest timestamp at which so many members have a final state.

        "all" is the minimum over the members that belong to the fleet then; "99%" and numbers
        ignore the members that are furthest behind. A member that is away holds it where its
        archive ends, or where it was seen last. One round trip of the slowest member; archives
        alone are asked by one listing of each bucket.

        Raises `MembersBehindError` if that is unknown for so many, which it names,
        `StoreRestoredError`, `InvalidOptionError`, `InvalidTypeError`.
        """
        self._members.check_open()
        return self._members.resolved(of, chosen(self.members, members))

    # --- moments ---

    def at(
        self,
        when: When | None = None,
        *,
        members: Wanted = None,
        behind: Behind = "error",
        final: bool = False,
        token: str | None = None,
    ) -> FleetMoment:
        """Return the moment of a time; without one, the newest that is final on all members.

        Unless `behind` is "error", members of which nothing is known do not count for that. Where
        members are observed prefixes, it is that of the newest round of ticks at or below the time,
        if they have one: its `timestamp` is that of the round. `final=True` first commits a tick on
        each store that is not final at the time; it raises for an archive or an observed prefix
        that is behind, which it cannot tick. With a `token` it is the cut that `moment.token`
        named, or an error.

        Costs as `at` of a store, of the slowest member; without a time as `resolved`, too.

        Raises `MembersBehindError` (see `behind`), `StoreRestoredError` (a member was restored
        since the fleet was opened, or since the token was made), `StoreRecreatedError`,
        `InvalidTimeError`, `InvalidOptionError`, `InvalidTypeError`, `NotSupportedError`
        (`final=True`), and what a member raises, whose name is the error's `member`.
        """
        self._members.check_open()
        if behind != "error":
            check_behind(behind)
        if final is not False:
            check_bool("final", final)
        if token is not None:
            if when is not None or members is not None or final:
                raise InvalidOptionError("a token names a time and members: give it alone")
            return self._at_token(token, behind)
        names = chosen(self.members, members)
        if when is None:
            timestamp = self._members.resolved("all", names, known_only=behind != "error")
        else:
            timestamp = self.timestamp_of(when)
        if final:
            self._finish(timestamp, names)
        pins = self._members.pins(names, timestamp)
        if when is not None and not times.is_number(when):
            timestamp, pins = in_ms(self._members, timestamp, pins)
        pins, spread = allowed(timestamp, pins, behind), None
        if self._members.observed > 1:
            timestamp, pins, spread = aligned(timestamp, pins, self._members)
            pins = allowed(timestamp, pins, behind)
        return FleetMoment(timestamp, pins, self._members, spread)

    def _finish(self, timestamp: int, names: list[str]) -> None:
        """Tick all members that are stores and not final at a time yet, in parallel."""
        pinned = self._members.each(names, lambda each: each.pin(timestamp))
        by_name = self._members.by_name
        late = [
            name
            for name, pin in pinned.items()
            if pin.state == "behind" or (pin.state == "missing" and by_name[name].is_empty)
        ]
        for name in late:
            member = by_name[name].member
            if member.prefix is not None or member.is_archive:
                what = "an archive" if member.is_archive else "observed"
                error = NotSupportedError(
                    f"{name} is {what}, so final=True cannot tick it: leave final=True out, or "
                    "run `snapkv fleet tick`"
                )
                raise named(error, name)
        self._members.each(late, lambda each: each.finish(timestamp))

    def _decoded(self, token: str) -> TokenCut:
        """Return what a token names, whose members are all of this fleet."""
        cut = decoded(token)
        for name in cut.places:
            if name not in self._members.by_name:
                raise InvalidOptionError(
                    f"the token names {name!r}, which is not a member of this fleet"
                )
        return cut

    def _at_token(self, token: str, behind: Behind) -> FleetMoment:
        timestamp, places, spread, _ = self._decoded(token)

        def pin(each: OpenMember) -> Pin:
            place = places[each.name]
            if not place.ordinal:
                return (
                    Pin(each, "absent", seen=ABSENT)
                    if place.state == "absent"
                    else each.missing(f"it was {place.state} when the token was made")
                )
            found = each.pin(place.timestamp, of_token=True)
            check_same(found, place)
            is_stale = place.state == "behind" and found.moment is not None
            return found.stale() if is_stale else found

        pins = self._members.each(list(places), pin)
        lost = {
            name: found.why
            for name, found in pins.items()
            if found.moment is None and places[name].ordinal
        }
        if lost and behind == "error":
            raise MembersBehindError(timestamp, lost)
        return FleetMoment(timestamp, pins, self._members, spread, None if lost else token)

    def ticker(self, *, members: Wanted = None, writer: str | None = None) -> Ticker:
        """Return what ticks the members that have an engine, all at one timestamp; no round trip.

        Keep one running (`snapkv fleet tick --every 1s`) where members are observed prefixes, in
        place of a ticker for each.

        >>> import snapkv
        >>> with snapkv.fleet.open({"eu": "memory:eu-ticks", "us": "memory:us-ticks"}) as fleet:
        ...     with fleet.ticker() as ticker:
        ...         round = ticker.tick()
        ...     round.ticked, fleet.resolved() == round.timestamp
        (('eu', 'us'), True)

        Raises `InvalidOptionError` if a member was given as an open store, or none has an engine.
        """
        self._members.check_open()
        names = chosen(self.members, members)
        return Ticker(
            [self._members.by_name[name].member for name in names], self._clock, writer=writer
        )

    def timestamp_of(self, when: When) -> int:
        """Return the timestamp of a time, by this process's clock; no round trip.

        Raises `InvalidTimeError` for a revision, and for a number that is not a timestamp.
        """
        now = times.pack(self._clock.now_ms())
        if type(when) is int and times.is_likely(when, now, now):
            return when
        if times.names_revision(when):
            raise InvalidTimeError(
                f"{when!r} is a revision, and each member has its own: give a time", when
            )
        timestamp = times.resolve(when, times.physical_ms(now))
        if times.is_number(when):
            known = max(each.known for each in self._members.by_name.values())
            if not times.is_likely(timestamp, max(known, now), now):
                raise times.unlikely(timestamp)
        return timestamp

    # --- what changed ---

    def diff(
        self,
        a: When | None,
        b: When | None = None,
        prefix: str | None = None,
        *,
        members: Wanted = None,
        behind: Behind = "error",
    ) -> FleetDiff:
        """Return the differences between two moments (None: the newest final one), lazily.

        Members that came, went, or are unknown at one of the two are named, not compared: see
        `FleetDiff`. Costs and raises as `at`, and as `Snapshot.diff` for each member.
        """
        names = chosen(self.members, members)
        before = self.at(a, members=names, behind=behind)
        after = self.at(b, members=names, behind=behind)
        return before.diff(after, prefix)

    def history(
        self,
        key: str | tuple[str, str],
        *,
        since: When | None = None,
        until: When | None = None,
        members: Wanted = None,
        behind: Behind = "error",
    ) -> MemberSteps[MemberVersion]:
        """Return an iterator of the versions of a key of all members, or of `(member, key)`.

        Of the time in (since, until]; without `until`, up to the newest moment that is final on all
        of them. In the order of times, oldest first, then of members; versions of which the time
        was compacted come first. Of members that are not final at `until`, "stale" reads what they
        have; the iterator's `late` names them.

        Costs a round trip to each member, and as `SnapshotKV.history` for each. Raises as that and
        as `at`.
        """
        self._members.check_open()
        if isinstance(key, tuple):
            if members is not None or len(key) != 2:
                raise InvalidTypeError("give (member, key) alone, or a key and members")
            members, key = [one_of(self._members.by_name, key[0])], key[1]
        names = chosen(self.members, members)
        span = self._history_span(since, until, names, behind)
        return merged_logs.versions(self._members, span, key)

    def commits(
        self,
        since: When | None = None,
        until: When | None = None,
        *,
        members: Wanted = None,
        behind: Behind = "error",
    ) -> MemberSteps[MemberCommit]:
        """Return an iterator of the commits and ticks of all members in (since, until].

        In the order of their timestamps, and of the members' names where these are equal. Ends,
        names late members and raises as `history`. Costs a round trip to each member, and as
        `SnapshotKV.commits` for each.
        """
        self._members.check_open()
        names = chosen(self.members, members)
        span = self._history_span(since, until, names, behind)
        return merged_logs.commits(self._members, span)

    def _history_span(
        self, since: When | None, until: When | None, names: list[str], behind: Behind
    ) -> HistorySpan:
        check_behind(behind)
        after = None if since is None else self.timestamp_of(since)
        if until is None:
            return span_of(self._members, names, after, None, behind)
        is_date, end = not times.is_number(until), self.timestamp_of(until)
        return span_of(self._members, names, after, end, behind, is_date=is_date)

    def watch(
        self,
        prefix: str | None = None,
        since: When | None = None,
        *,
        members: Wanted = None,
        behind: Literal["error", "leave out"] = "error",
        timeout: float | None = None,
        hold_bytes: int = HOLD_BYTES,
        resume: str | None = None,
    ) -> FleetWatch:
        """Return an iterator of the changes after `since` (None: after the newest final moment).

        Each item has all changes of one timestamp, on all members: timestamps strictly rise, none
        is missing and none is repeated. An item waits until all members are final at its time, so
        a member that is away stops the watch; with `behind="leave out"` it goes on without it after
        five seconds, and what that member changed comes later as `Late`. A watch from
        `item.timestamp` on continues without a gap; with "leave out", pass `watch.token` as
        `resume` instead. It follows the members of the token; new ones that `members` names, too,
        are followed from the token's time on.

        Changes that an engine has compacted are read from its archive, later ones from the engine
        again. At most `hold_bytes` of changes wait in memory for slower members; beyond it the
        faster ones are not read. One thread for each member. Iteration ends if `timeout` seconds
        bring nothing.

        Raises `CompactedError`, `StoreRestoredError`, `StoreRecreatedError`, whose `member` names
        the member.
        """
        self._members.check_open()
        if behind not in ("error", "leave out"):
            raise InvalidOptionError(f'behind must be "error" or "leave out", not {behind!r}')
        check_int("hold_bytes", hold_bytes, 1)
        names = chosen(self.members, members)
        places: Mapping[str, TokenPlace] = {}
        if resume is not None:
            if since is not None:
                raise InvalidOptionError("give since or resume, not both")
            cut = self._decoded(resume)
            after, places = cut.timestamp, cut.places
            resumed = [name for name in names if name in places]
            if not resumed:
                raise InvalidOptionError(
                    f"the token names none of the members {', '.join(names)}: leave members= out"
                )
            check_resumed(cut, resumed, prefix)
            names = resumed if members is None else names
        elif since is None:
            after = self._members.resolved("all", names, known_only=behind != "error")
        else:
            after = self.timestamp_of(since)
        return FleetWatch(
            self._members, names, prefix, after, places, behind == "leave out", timeout, hold_bytes
        )


MEMBER_TIMEOUT_S = 5.0
TIMEOUT_S_MAX = 3_600.0


def open(
    members: FilePath | Mapping[str, Any],
    *,
    timeout: float = MEMBER_TIMEOUT_S,
    clock: Clock | None = None,
) -> Fleet:
    """Open many stores, observed prefixes and archives, for reading all of them at one time.

    `members` is a mapping of names to what they name: the URL of a store, `s3://BUCKET/PATH` (also
    `gs://`, `az://`, `archive:FOLDER`) of an archive, an open store, or a mapping with `url` and,
    as needed, `name` (of the store), `prefix` (then the member are the keys that other programs
    write below it, at that store's ticks), `archive` (which answers what the engine does not),
    `storage`, `joined` and `left` (times), and options of the engine, as of `open`. Or it is the
    path of a TOML or JSON file with a table `members` of these, a table `defaults`, and a list
    `archives` of folders or buckets, in which each archive is a member.

    `timeout` (seconds) is what each member may take for a part of a call. A member that cannot be
    reached raises when something needs it. Members are opened now, in parallel; archives
    when they are needed.

    >>> import snapkv
    >>> with snapkv.open("memory:eu-plans") as eu, snapkv.open("memory:us-plans") as us:
    ...     first, second = eu.save("schema", b"v1"), us.save("schema", b"v2")
    ...     with snapkv.fleet.open({"eu": "memory:eu-plans", "us": "memory:us-plans"}) as fleet:
    ...         moment = fleet.at(first, behind="stale")
    ...         moment["eu", "schema"], moment.members["us"].state
    (b'v1', 'absent')

    Raises `InvalidFileError`, `FileMissingError`, `InvalidOptionError` (two members are one store,
    too), `InvalidTypeError`, `InvalidTimeError`; and as `open`, but for a member that cannot be
    reached. Errors about one member have its name as `member`.
    """
    hybrid = HybridClock(clock or SystemClock())
    return Fleet(open_members(members_of(members, hybrid.now_ms()), timeout, hybrid.wall), hybrid)


def open_members(members: Sequence[Member], timeout: float, clock: Clock) -> Members:
    """Return the members that were described, open as far as they can be reached."""
    check_seconds("timeout", timeout, above=0, most=TIMEOUT_S_MAX)
    found = Members(members, timeout, clock)
    try:
        live = [
            name
            for name, each in found.by_name.items()
            if not each.member.is_archive and each.member.has(times.TIMESTAMP_MAX)
        ]
        found.each(live, _open)
    except BaseException:
        found.close()
        raise
    return found


def _open(connection: OpenMember) -> None:
    try:
        connection.ask(lambda reads: None)
    except AWAY:
        return  # it may come back
