"""One request of a page of the whole fleet: the members, the moment and the range that it names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from markupsafe import Markup

from snapkv.fleet.member import chosen
from snapkv.times import pack, physical_ms
from snapkv.ui.bar import ALL, span_until
from snapkv.ui.context import word_of
from snapkv.ui.fleet.site import FleetSite
from snapkv.ui.page_text import time_html
from snapkv.ui.rendered import Rendering
from snapkv.ui.source import Budget, typed
from snapkv.ui.state import State

MEMBERS_MAX = 50
"""The most members on a page, all of which it asks."""
SPAN = "1h"
"""The range, unless the URL names one."""


@dataclass
class FleetContext:
    """A request of a page of the whole fleet, and what its URL names."""

    site: FleetSite
    state: State
    user: str | None = None
    token: str = ""
    health: None = None

    def budget(self, parts: float = 1.0) -> Budget:
        """Return the time that a view may take to count; a link may give it twenty times."""
        more = 20.0 if self.state["look"] == "longer" else 1.0
        return Budget(self.site.budget_s * parts * more)

    @cached_property
    def rendering(self) -> Rendering:
        """How values are shown."""
        return replace(self.site.rendering, share=self.state.share)

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
