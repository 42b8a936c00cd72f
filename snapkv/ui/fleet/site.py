"""A fleet as a server shows it: the site of each member, opened when a page asks for it."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from snapkv.errors import InvalidOptionError, SnapKVError
from snapkv.fleet.fleet import Fleet
from snapkv.fleet.link import AWAY
from snapkv.fleet.member import Member, chosen, location_of, named
from snapkv.fleet.open_member import Connection
from snapkv.reading.deadline import within
from snapkv.rendering import Redaction
from snapkv.store.observe import Keys, open_to_read
from snapkv.ui.context import BUDGET_S, Membership, Site
from snapkv.ui.contributed import ExtraViews, installed
from snapkv.ui.rendered import Rendering
from snapkv.ui.source import Source

AWAY_S = 10.0
"""A member that did not answer is asked again after so long: until then no page waits for it."""
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
        return bool(self.redaction.prefixes) and self.redaction.covers(key)

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

    def _site(self, connection: Connection, kept: Keys | None) -> Site:
        """Return the site that was made before, or a new one: of the engine, or of its archive."""
        place = connection.name, kept is not None
        with self._locks[connection.name]:
            if (found := self._sites.get(place)) is not None:
                return found
            keys = self._opened(connection) if kept is None else kept
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

    def _opened(self, connection: Connection) -> Keys:
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
