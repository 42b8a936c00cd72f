"""A fleet as a server shows it: the site of each member, and a request of a page of all."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from markupsafe import Markup

from snapkv.errors import InvalidOptionError, SnapKVError
from snapkv.fleet.fleet import Fleet
from snapkv.fleet.member import Member, chosen, location_of, named
from snapkv.fleet.member_link import AWAY
from snapkv.fleet.open_member import OpenMember
from snapkv.reading.deadline import within
from snapkv.rendering import Redaction
from snapkv.store.open import Keys, open_to_read
from snapkv.times import pack, physical_ms
from snapkv.ui.extra_views import ExtraViews, installed
from snapkv.ui.page_source import Source, typed
from snapkv.ui.page_text import time_html
from snapkv.ui.rendered_values import Rendering
from snapkv.ui.request_context import BUDGET_S, Membership, PageRequest, Site, word_of
from snapkv.ui.time_bar import ALL, span_until
from snapkv.ui.url_state import State

AWAY_S = 10.0
"""The time after which a member that did not answer is asked again, in seconds: until then no page
waits for it."""
FROM_ARCHIVE = "Its engine does not answer now: this is what its archive has."


@dataclass
class FleetSite:
    """What a server shows of a fleet, and what is kept between its requests.

    `name` is for people, `words` name the fleet on the command line. `members` chooses some of
    them. With `writable`, pages may restore members that are stores; `writer` is the writer of such
    commits without a login. The caller closes the fleet, and this before it.
    """

    fleet: Fleet
    name: str = "fleet"
    words: Sequence[str] = ()
    members: str | None = None
    rendering: Rendering = field(default_factory=Rendering)
    redaction: Redaction = field(default_factory=Redaction)
    writable: bool = False
    writer: str | None = None
    extra_views: Sequence[ExtraViews] | None = None
    """Views that other packages add; None: the views of all installed packages."""
    budget_s: float = BUDGET_S

    def __post_init__(self) -> None:
        self.names = chosen(self.fleet.members, self.members)
        for name in self.names:
            self.fleet.connection(name).away_s = AWAY_S
        if self.extra_views is None:
            self.extra_views = installed()
        self._sites: dict[tuple[str, bool], Site] = {}
        self._joined: list[Keys] = []
        self._locks = {name: threading.Lock() for name in self.names}

    @property
    def salt(self) -> str:
        """What identifies the fleet, for cookies."""
        return f"fleet {self.name} {' '.join(self.names)}"

    @property
    def stores(self) -> list[str]:
        """The members that can be written."""
        return [name for name in self.names if kind_of(self.fleet.member(name)) == "store"]

    def command(self, *words: str, members: str | None) -> str:
        """Return the line of the command that shows the same in a terminal; "" without `words`.

        `members` are the patterns of the page's members, None for all that the site shows.
        """
        if not self.words:
            return ""
        if members is None:
            members = self.members
        elif self.members is not None:
            members = ",".join(chosen(self.names, members))
        chosen_words = [] if members is None else ["--members", members]
        return shlex.join(["snapkv", "fleet", *words, *self.words, *chosen_words])

    def hides(self, key: str) -> bool:
        """Return whether the values of a key are redacted."""
        return self.redaction.covers(key)

    def source_of(self, member: str, keys: Keys) -> Source:
        """Return the open keys of a member as its pages read them."""
        described = self.fleet.member(member)
        writable = self.writable and kind_of(described) == "store"
        return Source(keys, location_of(described).words, writable, self.redaction)

    def site_of(self, member: str) -> Site:
        """Return the site of a member whose engine answers, or of its archive if it does not.

        One round trip; the first time also the round trips of opening it. Raises
        `InvalidOptionError` for an unknown name, and as `open`; errors have the member's name.
        """
        if member not in self.names:
            raise InvalidOptionError(f"no member of this fleet is named {member[:80]!r}")
        connection, kept = self.fleet.connection(member), None
        try:
            try:
                connection.ask(lambda reads: reads.reader.timeline.head())
            except AWAY:
                kept = connection.archive_or_none()
                if kept is None:
                    raise
            return self._site(connection, kept)
        except SnapKVError as e:
            raise named(e, member)  # noqa: B904  (the same error)

    def _site(self, connection: OpenMember, kept: Keys | None) -> Site:
        """Return the site that was made before, or a new one: of the engine, or of its archive."""
        place = connection.name, kept is not None
        with self._locks[connection.name]:
            if (found := self._sites.get(place)) is not None:
                return found
            keys = self._open_keys(connection) if kept is None else kept
            source = self.source_of(connection.name, keys)
            if kept is not None:
                source.writable = False
            found = self._sites[place] = Site(
                source,
                self.rendering,
                extra_views=self.extra_views,
                budget_s=self.budget_s,
                writer=self.writer,
                membership=Membership(
                    self.name, connection.name, self.names, "" if kept is None else FROM_ARCHIVE
                ),
            )
            return found

    def _open_keys(self, connection: OpenMember) -> Keys:
        """Return the open keys of a member; of a store with an archive, joined with the archive."""
        member = connection.member
        if member.archive is None:
            return connection.reads()
        with within(connection.timeout):
            joined = open_to_read(location_of(member), read_timeout=connection.timeout)
        self._joined.append(joined)
        return joined

    def close(self) -> None:
        """Close what was opened beside the fleet; may be repeated."""
        for each in self._joined:
            each.close()


def kind_of(member: Member) -> str:
    """Return what a member is, in one word."""
    return "archive" if member.is_archive else "store" if member.prefix is None else "observed"


# --- a request ---

MEMBERS_MAX = 50
"""The most members on a page, all of which it asks."""
SPAN = "1h"
"""The range, unless the URL names one."""


@dataclass
class FleetContext(PageRequest):
    """A request of a page of the whole fleet, and what its URL names."""

    site: FleetSite
    health: None = None

    # --- members ---

    @cached_property
    def names(self) -> list[str]:
        """The members that the URL chooses, all by default."""
        return chosen(self.site.names, self.state["members"] or None)

    @cached_property
    def shown(self) -> list[str]:
        """The members of this page: the first ones from the name `start` on."""
        return self._from_start[: self._members_max]

    @property
    def following(self) -> str | None:
        """The first member of the next page."""
        return next(iter(self._from_start[self._members_max :]), None)

    @property
    def _members_max(self) -> int:
        return self.state.part(MEMBERS_MAX)

    @property
    def _from_start(self) -> list[str]:
        return [name for name in self.names if name >= self.state["start"]]

    def member_state(self, member: str) -> State:
        """Return the state of this view for one member."""
        return State(self.state.path, {**self.state.of_fleet().fields, "member": member})

    # --- the moment and the range ---

    @cached_property
    def now(self) -> int:
        """The timestamp of now, by this machine's clock."""
        return self.site.fleet.timestamp_of("-0s")

    @cached_property
    def now_ms(self) -> int:
        """The time of now, in milliseconds."""
        return physical_ms(self.now)

    @cached_property
    def at(self) -> int | None:
        """The moment, None for now."""
        return self._timestamp("at")

    @cached_property
    def until(self) -> int:
        """The timestamp of the moment, or of now."""
        return self.now if self.at is None else self.at

    @cached_property
    def since(self) -> int:
        """The beginning of the range: what the URL names, or that of the span, an hour without."""
        if self.state.has("from"):
            found = self._timestamp("from")
            return self.now if found is None else found
        if self.span == ALL:
            return 0
        start_ms, _ = span_until(self.span, physical_ms(self.until) + 1)
        return max(0, pack(start_ms) - 1)

    @property
    def span(self) -> str:
        """The span of the range."""
        return self.state["span"].strip() or SPAN

    def _timestamp(self, name: str) -> int | None:
        when = typed(self.state[name], lambda: physical_ms(self.now))
        return None if when is None else self.site.fleet.timestamp_of(when)

    # --- the same in a terminal ---

    def command(self, *words: str) -> str:
        """Return the line of the command that shows the same; "" if the fleet has no file."""
        return self.site.command(*words, members=self.state["members"] or None)

    # --- for templates ---

    def links(self) -> list[tuple[str, str]]:
        """Return the paths of the views of the whole fleet and their labels."""
        return [("/", "Members"), ("/changes", "Changes"), ("/key", "One key")]

    def moment_html(self) -> Markup | str:
        """Return the moment as a date that a script can turn into local time."""
        return "now" if self.at is None else time_html(self.at)

    def moment_text(self) -> str:
        """Return the moment for people."""
        return "now" if self.at is None else word_of(self.at)
