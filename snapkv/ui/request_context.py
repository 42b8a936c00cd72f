"""One request: what is shown, the moment and the range that its URL names, and the time bar."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from markupsafe import Markup

from snapkv.errors import InvalidOptionError, NotObservedError
from snapkv.layout import SourceId
from snapkv.reading.text_search import CommitFilter
from snapkv.rendering.audit_log import AuditEvent, AuditLog, HasRevision
from snapkv.rendering.ignored_paths import IgnoredPaths
from snapkv.rendering.paths import NONE
from snapkv.times import When, end_of_ms, format_time, pack, physical_ms, revision_of
from snapkv.ui.commit_list import CommitSummary, look_at, times_back
from snapkv.ui.extra_views import ExtraViews, PresentLinks, Remembered, installed
from snapkv.ui.key_differences import REMOVED
from snapkv.ui.live_commits import LiveCommits
from snapkv.ui.page_source import Budget, Source, SourceHealth, health
from snapkv.ui.page_text import ago_text, time_html
from snapkv.ui.quiet_commits import QuietCommits
from snapkv.ui.rendered_values import Rendering
from snapkv.ui.restore_preview import Restores
from snapkv.ui.time_bar import ALL, BUCKETS_MAX, Bar, bar, span_of, width_ms
from snapkv.ui.url_state import TIMES, State

OF_PREFIX = ("/", "/changes", "/keys", "/commit", "/search", "/live", "/restore")
"""The views that show what has the prefix only."""
OF_KEYS = ("prefix", "key")
"""The fields of a URL that have a key, or the beginning of keys."""
CRUMBS_MAX = 20
"""The most parts of a prefix that a page links to."""
BUDGET_S = 0.1
"""The longest that a page counts or searches, in seconds; then it offers to continue."""
BAR_BUDGET = 5.0
"""The time that the time bar may look for ignored commits, in times of what counting may."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Which member of a fleet a site shows, and between which members a person may switch.

    `remark` says why it is shown otherwise than usual.
    """

    fleet: str
    member: str
    members: Sequence[str]
    remark: str = ""


@dataclass
class Site:
    """What a server shows: a source, and what is kept between its requests.

    `record` is what a recorder writes there: such a page previews restores, and says how to put an
    object back at the source. `writer` is the writer of restores without a login, None for the
    store's. `membership` is set if the source is a member of a fleet.
    """

    source: Source
    rendering: Rendering = field(default_factory=Rendering)
    health: Remembered[SourceHealth] = field(init=False)
    restores: Restores | None = field(init=False)
    record: SourceId | None = field(init=False)
    hub: LiveCommits = field(init=False)
    quiet: QuietCommits = field(init=False)
    present: PresentLinks = field(init=False)
    extra_views: Sequence[ExtraViews] | None = None
    """Views that other packages add; None: the views of all installed packages."""
    budget_s: float = BUDGET_S
    writer: str | None = None
    membership: Membership | None = None
    audit: AuditLog | None = None
    """The audit log of the API server whose objects it shows."""

    def __post_init__(self) -> None:
        self.hub = LiveCommits(self.source)
        self.quiet = QuietCommits(self.source.reader)
        if self.extra_views is None:
            self.extra_views = installed()
        self.health = Remembered(partial(health, self.source))
        store = self.source.store
        self.present = PresentLinks(self.extra_views, store)
        self.record = self.source.record
        shows = self.source.writable or self.record is not None
        self.restores = Restores(self.source, store) if store is not None and shows else None

    @property
    def salt(self) -> str:
        """What identifies the store, for cookies."""
        return self.source.reader.format.store_id.hex()

    def links(self, when: When | None) -> list[tuple[str, str]]:
        """Return the paths of the views and their labels, for a page of a moment."""
        found = [
            ("/", "Writes" if self.source.observed else "Commits"),
            ("/changes", "Changes"),
            ("/keys", "Keys"),
            ("/live", "Live"),
        ]
        found += self.present.at(when)
        label = "Restore" if self.record is None else "Put back"
        return [*found, ("/restore", label)] if self.restores else found


def word_of(timestamp: int) -> str:
    """Return a timestamp as the command line takes it: as a date if that is as exact."""
    exact = timestamp != end_of_ms(physical_ms(timestamp))
    return str(timestamp) if exact else format_time(timestamp)


@dataclass
class PageRequest:
    """A request of a page: the site, what its URL names, and the user."""

    site: Any
    state: State
    user: str | None = None
    token: str = ""

    def budget(self, parts: float = 1.0) -> Budget:
        """Return the time that a view may take, or a part of it; a link may give it 20 times."""
        more = 20.0 if self.state["look"] == "longer" else 1.0
        return Budget(self.site.budget_s * parts * more)

    def shown_key(self, key: str) -> str:
        """Return a key as people read it."""
        return key

    @cached_property
    def now_ms(self) -> int:
        """The time of now, in milliseconds."""
        raise NotImplementedError

    def ago(self, timestamp: int) -> Markup:
        """Return how long ago a time was; its title has the time."""
        return time_html(timestamp, ago_text(self.now_ms - physical_ms(timestamp)))

    @cached_property
    def rendering(self) -> Rendering:
        """How values are shown."""
        rendering: Rendering = self.site.rendering
        if self.state["ignore"] == NONE:
            rendering = replace(rendering, ignore=())
        return replace(rendering, share=self.state.share)


@dataclass
class Context(PageRequest):
    """A request of a page, and what its URL names."""

    site: Site

    def __post_init__(self) -> None:
        """Take names of keys in the URL, as people say them."""
        named = {name: self.state[name] for name in OF_KEYS if self.state[name]}
        keys = {name: self.source.names.key(text) for name, text in named.items()}
        if keys != named:
            self.state = replace(self.state, fields={**self.state.fields, **keys})

    @property
    def source(self) -> Source:
        """What is shown."""
        return self.site.source

    @cached_property
    def ignores(self) -> IgnoredPaths | None:
        """What decides which commits and versions are left out, None if all are shown."""
        return self.rendering.ignored_paths(self.source.redaction)

    @property
    def quiet(self) -> QuietCommits | None:
        """What remembers the commits that the site leaves out; None if the URL shows them."""
        return None if self.rendering.ignore != self.site.rendering.ignore else self.site.quiet

    @property
    def prefix(self) -> str:
        """The prefix of the keys, the whole one by default."""
        return self.state["prefix"] or self.source.root

    # --- the audit log ---

    @cached_property
    def audit(self) -> AuditLog | None:
        """The audit log, with what was added since the last request."""
        if self.site.audit is not None:
            with suppress(InvalidOptionError):  # a file that was removed: its events are kept
                self.site.audit.refresh()
        return self.site.audit

    def audited(
        self, key: str | None, of: HasRevision, timestamp: int | None, *, removed: bool
    ) -> AuditEvent | None:
        """Return the event of the audit log that wrote a version of a key, or a commit."""
        log, at_ms = self.audit, None if timestamp is None else physical_ms(timestamp)
        return None if log is None else log.made(of, key, at_ms, removed=removed)

    def attributed(self, step: CommitSummary, *managers: str) -> CommitSummary:
        """Add to a commit what managers and the audit log say of it."""
        kind, key = step.names[0] if step.total == 1 and step.names else ("", None)
        event = self.audited(key, step, step.timestamp, removed=kind == REMOVED)
        return replace(step, managers=managers, audit=event)

    def wanted(self, step: CommitSummary) -> bool:
        """Return whether the list of commits shows one: by prefix, writer and note of the URL."""
        state = self.state
        if (state["prefix"] and not step.counts) or (step.tick and state["ticks"] != "1"):
            return False
        if state["writer"].lower() not in (self.attributed(step).who or "").lower():
            return False
        return CommitFilter(None, state["note"] or None, ignore_case=True)(step)

    def shown_key(self, key: str) -> str:
        """Return a key as people read it: its name, if it is of an object of Kubernetes."""
        return self.source.names.name(key)

    # --- the moment and the range ---

    @cached_property
    def now_ms(self) -> int:
        """The time of now; of an archive, the time of its newest commit."""
        return self.source.now_ms()

    @cached_property
    def at(self) -> When | None:
        """The moment, None for now."""
        return self.source.when(self.state["at"])

    @cached_property
    def at_ms(self) -> int | None:
        """The moment in milliseconds, None for now."""
        return None if self.at is None else physical_ms(self.source.timestamp(self.at))

    @cached_property
    def span(self) -> tuple[int, int]:
        """The start and the end of the time bar, in milliseconds."""
        return span_of(self.source, self.state["span"], self.at_ms)

    @property
    def compared(self) -> bool:
        """Whether the URL names a range: its beginning, or a preset."""
        return self.state.has("from") or self.state["span"] not in ("", ALL)

    @cached_property
    def since(self) -> When:
        """The beginning of the range: what the URL names, or that of the span; never too early."""
        named = self.source.when(self.state["from"]) if self.state.has("from") else None
        if named is not None and revision_of(named) is not None:
            return named
        if named is None:
            named = 0 if not self.compared else max(0, pack(self.span[0]) - 1)
        timestamp = self.source.timestamp(named)
        earliest = self.source.earliest()
        if earliest is None:
            raise NotObservedError(timestamp, None)
        return max(timestamp, earliest)

    @cached_property
    def since_ms(self) -> int:
        """The beginning of the range in milliseconds."""
        return physical_ms(self.source.timestamp(self.since))

    @cached_property
    def bar(self) -> Bar:
        """The time bar, without what is known to be left out of the list; of a record it looks."""
        most = max(4, self.state.part(BUCKETS_MAX))
        if (filtered := self.filtered) is not None:
            low, high = (self.source.mark_at_ms(ms) for ms in self.span)
            wanted = self.wanted if self.state.path == "/" else None
            budget, ignores = self.budget(), self.ignores
            only, known_ms = times_back(self.source, low, high, filtered, wanted, budget, ignores)
            return bar(self.source, *self.span, buckets_max=most, only=only, known_ms=known_ms)
        quiet, (start, end) = self.site.quiet, self.span
        margin = width_ms(end - start, most)
        low, high = self.source.mark_at_ms(start - margin), self.source.mark_at_ms(end + margin)
        if self.site.record or quiet.ignored or quiet.ticks(low, high):
            ignores = self.site.rendering.ignored_paths(self.source.redaction)
            look_at(self.source, low, high, quiet, ignores, self.budget(BAR_BUDGET))
        left_out: dict[str, Any] = {"ignored": quiet.ignored} if self.ignores else {}
        left_out |= {} if self.state["ticks"] == "1" else {"ticks": quiet.ticks}
        return bar(self.source, start, end, buckets_max=most, **left_out)

    @cached_property
    def filtered(self) -> tuple[bytes, bytes] | None:
        """The stored keys to which the page, and with it the bar, is filtered; None: no filter."""
        state, source = self.state, self.source
        if state.path in ("/key", "/restore") and state["key"]:
            stored = source.encode(state["key"])
            return stored, stored + b"\0"
        if state.path in OF_PREFIX and state["prefix"]:
            return source.span(state["prefix"])
        named = state.path == "/" and (state["writer"] or state["note"])
        return source.own_span() if named else None

    # --- the same in a terminal ---

    def time_words(self, option: str, when: When | None) -> list[str]:
        """Return an option of the command line with a time, none for now."""
        return [] if when is None else [option, self.time_word(when)]

    def time_word(self, when: When | None) -> str:
        """Return a time as the command line takes it."""
        if when is None:
            return "now"
        if isinstance(when, str):
            return when
        return word_of(self.source.timestamp(when))

    # --- for templates ---

    @property
    def health(self) -> SourceHealth:
        """The facts of the health strip."""
        return self.site.health()

    def links(self) -> list[tuple[str, str]]:
        """Return the paths of the views and their labels."""
        return self.site.links(self.at)

    def elsewhere(self) -> State:
        """Return the state of the same view for another member of the fleet.

        A revision means something in one member only, so times take the place of those.
        """
        times = {
            name: str(self.source.timestamp(self.state[name]))
            for name in TIMES
            if self.state[name].startswith(("rev:", "rv:"))
        }
        return self.state.of_fleet(**times)

    def moment_html(self) -> Markup | str:
        """Return the moment as a date that a script can turn into local time."""
        if self.at is None:
            return "now"
        if isinstance(self.at, str) and revision_of(self.at) is not None:
            return Markup("<code>{}</code>").format(self.at)
        return time_html(self.source.timestamp(self.at))

    def since_html(self) -> Markup:
        """Return the beginning of the range, as `moment_html`."""
        return time_html(self.source.timestamp(self.since))

    def crumbs(self) -> list[tuple[str, str]]:
        """Return the parts of the prefix with the prefix that each ends, the last ones of many."""
        prefix, start = self.state["prefix"], len(self.source.root)
        for _ in range(prefix.count("/", start) - CRUMBS_MAX):
            start = prefix.index("/", start) + 1
        found = []
        while start < len(prefix):
            cut = prefix.find("/", start)
            end = len(prefix) if cut < 0 else cut + 1
            found.append((prefix[start:end], prefix[:end]))
            start = end
        return found

    def moment_text(self) -> str:
        """Return the moment for people."""
        if self.at is None:
            return "now"
        if isinstance(self.at, str) and revision_of(self.at) is not None:
            return self.at
        timestamp = self.source.timestamp(self.at)
        text = format_time(timestamp)
        return text if timestamp == end_of_ms(physical_ms(timestamp)) else f"{text} ({timestamp})"
