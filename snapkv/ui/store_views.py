"""The views of a store: each makes a page, or the plain data of its `.json`, of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Self

from snapkv.errors import CompactedError, InvalidOptionError, KeyNotFoundError
from snapkv.layout import Mark
from snapkv.model import Version
from snapkv.reading.text_search import CommitFilter, TextSearch
from snapkv.rendering import Blame
from snapkv.rendering.audit_log import AuditEvent
from snapkv.rendering.managed_fields import writers_of
from snapkv.rendering.paths import NONE
from snapkv.times import When, revision_of
from snapkv.ui import rendered_values
from snapkv.ui.commit_list import STEPS_MAX, CommitList, commit_at, steps_back, steps_on
from snapkv.ui.extra_views import ExtraViews
from snapkv.ui.fleet.site import FleetContext
from snapkv.ui.key_differences import (
    CHILDREN_MAX,
    ROWS_MAX,
    Attributed,
    Row,
    differences,
    row,
)
from snapkv.ui.key_listings import HITS_MAX, NODES_MAX, Hits, level, search
from snapkv.ui.key_versions import (
    VERSIONS_MAX,
    loud_versions_back,
    newest_versions,
    version_at,
    with_bytes,
)
from snapkv.ui.request_context import Context
from snapkv.ui.restore_preview import ROWS_MAX as PREVIEWED_MAX
from snapkv.ui.restore_preview import WAYS, Wanted
from snapkv.ui.url_state import State

OPEN_MAX = 10
"""The most differences of a page that are open from the beginning."""
OPEN_BYTES_MAX = 256 << 10
"""The same for the bytes of their values; all other rows have a link."""
VERSIONS_BLAMED_MAX = 200
BLAMED_VERSIONS_BYTES_MAX = 2 << 20
"""The most bytes of versions that a page compares for blame."""
BLAMED_LINES_MAX = 2_000
QUIET_BUDGET = 10.0
"""The time that a list of commits may take to pass ignored ones, in times of what counting may."""
SEEKING = 10.0
"""The time that a level of the tree may take, in times of what counting may: each folder is a round
trip."""
STEP_DROPS = ("to", "of", "after", "older", "follow")
"""The fields of the URL that a step leaves out."""


@dataclass(frozen=True, slots=True)
class Page:
    """A template and what it shows. `data` is what `.json` returns, `command` shows the same."""

    template: str
    title: str
    data: Any
    more: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""


View = Callable[[Context], Page]


def commits(c: Context) -> Page:
    """Show commits up to the moment, newest first: of a range, a prefix, a writer or a note."""
    state, prefix, ticks = c.state, c.state["prefix"], c.state["ticks"] == "1"
    found = steps_back(
        c.source,
        c.at,
        since=c.since if c.compared else None,
        prefix=prefix,
        wanted=c.wanted,
        limit=state.limit(STEPS_MAX, 1_000),
        budget=c.budget(1.0 if c.ignores is None else QUIET_BUDGET),
        ignores=c.ignores,
        quiet=None if prefix or ticks else c.quiet,
    )
    found = replace(found, steps=[c.attributed(step) for step in found.steps])
    return Page("commits.html", "Commits", found, command=c.source.command("log", *log_words(c)))


def log_words(c: Context) -> list[str]:
    """Return the options of `snapkv log` for the same commits."""
    words = ["--since", c.time_word(c.since)] if c.compared else []
    words += [*c.time_words("--until", c.at), *prefix_words(c)]
    for name, option in (("writer", "--writer"), ("note", "--grep")):
        words += [option, c.state[name]] if c.state[name] else []
    if c.state["writer"] or c.state["note"]:
        words.append("--ignore-case")
    words += ["--ticks"] if c.state["ticks"] == "1" else []
    return [*words, *ignore_words(c)]


def ignore_words(c: Context | FleetContext) -> list[str]:
    """Return the option of the command line that shows what only changed ignored paths."""
    return ["--ignore", NONE] if c.state["ignore"] == NONE else []


def changes(c: Context) -> Page:
    """Show what differs between the beginning of the range and the moment."""
    view = c.state.choice("view", "list", "tree")
    found = differences(
        c.source,
        c.since,
        c.at,
        c.state["prefix"],
        start=c.state["after"] or None,
        name=c.state["name"],
        limit=c.state.limit(ROWS_MAX, 2_000),
        children_max=c.state.part(CHILDREN_MAX),
        budget=c.budget(),
    )
    last = newest_of(c, found.rows)
    found = replace(found, rows=[replace(each, last=last.get(each.key)) for each in found.rows])
    words = ["diff", c.time_word(c.since), c.time_word(c.at)]
    more = {"view": view, "open": open_keys(c, found.rows), "way": way_of(c)}
    command = c.source.command(*words, *prefix_words(c))
    return Page("changes.html", "Changes", found, more, command)


def newest_of(c: Context, rows: Sequence[Row]) -> dict[str, VersionRow]:
    """Return the newest version of the key of each row, or its removal, up to the moment."""
    befores = {each.key: each.before for each in rows}
    kvs = c.source.reader.source(c.at, None, False).get([c.source.encode(key) for key in befores])
    keys = dict(zip(befores, kvs, strict=True))
    newest = newest_versions(c.source, keys, c.at, c.budget())
    return {key: VersionRow.of(c, key, each, befores[key]) for key, each in newest.items()}


def prefix_words(c: Context | FleetContext) -> list[str]:
    """Return the option of the command line with the prefix, none for all keys."""
    return ["--prefix", c.state["prefix"]] if c.state["prefix"] else []


def way_of(c: Context | FleetContext) -> str:
    """Return how differences are shown."""
    return c.state.choice("show", *rendered_values.WAYS)


def open_keys(c: Context, rows: list[Row]) -> set[str]:
    """Return the keys whose differences are open from the beginning."""
    return {each.key for each in rows[: open_rows(c, rows)]}


def open_rows(c: Context | FleetContext, rows: list[Row]) -> int:
    """Return how many differences are open from the beginning."""
    left = c.state.part(OPEN_BYTES_MAX)
    for number, each in enumerate(rows[:OPEN_MAX]):
        left -= (each.before_size or 0) + (each.after_size or 0)
        if left < 0 or not each.has_values:
            return number
    return len(rows[:OPEN_MAX])


def keys(c: Context) -> Page:
    """Show one level of the tree of keys at the moment."""
    found = level(
        c.source,
        c.at,
        c.state["prefix"],
        since=c.since if c.compared else None,
        compared=c.compared,
        after=c.state["after"] or None,
        name=c.state["name"],
        limit=c.state.limit(NODES_MAX, 2_000),
        budget=c.budget(SEEKING),
        counting=c.budget(),
    )
    words = ["ls", *([c.state["prefix"]] if c.state["prefix"] else [])]
    command = c.source.command(*words, *c.time_words("--at", c.at))
    return Page("keys.html", "Keys", found, command=command)


@dataclass(frozen=True, slots=True)
class VersionRow(Attributed):
    """A version without its value: `size` is None if the key was removed."""

    timestamp: int | None
    revision: int
    size: int | None
    writer: str | None
    note: str | None
    source_revision: int | None = None
    managers: tuple[str, ...] = ()
    audit: AuditEvent | None = None
    changed: str = ""
    """What differs from the version before it, on one line."""

    @classmethod
    def of(cls, c: Context, key: str, each: Version, before: bytes | None) -> Self:
        """Return a version without its value; `before` is the value before it."""
        return cls(
            each.ts,
            each.revision,
            None if each.value is None else len(each.value),
            each.writer,
            each.note,
            each.source_revision,
            writers_of(before, each.value),
            c.audited(key, each, each.ts, removed=each.value is None),
        )


@dataclass(frozen=True, slots=True)
class KeyData:
    """A key: its value at the moment, its versions up to it, and two that are compared.

    `uncompared` says that what was before the newest version was compacted. `blame` is the blame
    of a page of lines; the next page begins with the number `line`.
    """

    key: str
    value: bytes | None
    size: int | None
    revision: int | None
    versions: list[VersionRow]
    following: int | None
    complete: bool
    compacted: bool
    created: bool
    compared: Row | None = None
    before: str = ""
    after: str = ""
    uncompared: bool = False
    blame: list[Owed] | None = None
    line: int | None = None
    ignored: int = 0
    """The versions that were left out because only ignored paths differ."""


@dataclass(frozen=True, slots=True)
class Owed(VersionRow):
    """A path or a line of the newest version, and the version that wrote it."""

    place: str = ""
    text: str = ""

    @classmethod
    def line(cls, c: Context, key: str, each: Blame) -> Owed:
        """Return a path or a line without the value of its version."""
        place = each.place if isinstance(each.place, str) else ""
        found = cls.of(c, key, each.version, None)
        return replace(found, managers=each.managers, place=place, text=each.text)


def key(c: Context) -> Page:
    """Show one key: its value, its versions, any two compared, blame."""
    name = c.state["key"]
    if not name:
        raise InvalidOptionError("which key? The URL needs key=")
    show = c.state.choice("tab", "history", "value", "blame")
    budget, limit = c.budget(2), c.state.limit(VERSIONS_MAX, 1_000)
    if show == "blame":
        limit = c.state.part(VERSIONS_BLAMED_MAX)
    until: When | None = f"rev:{c.state['older']}" if c.state["older"] else c.at
    found, ignored = loud_versions_back(
        c.source, name, until, c.ignores, limit=limit, budget=budget
    )
    value, revision = version_at(c.source, name, c.at)
    if value is None and not found.versions and found.complete and not found.compacted:
        raise KeyNotFoundError(name)
    compared = before = after = None
    if c.state.has("b") or (found.versions and show == "history"):
        newest, *earlier = [each.revision for each in found.versions] or [0]
        older = earlier[0] if earlier else max(1, newest - 1)
        after = c.state["b"] or f"rev:{newest}"
        before = c.state["a"] or f"rev:{older}"
        try:
            values = [_value(c, name, text, found.versions) for text in (before, after)]
            compared = row(c.source, name, values[0], values[1])
        except CompactedError:
            if c.state.has("a") or c.state.has("b"):
                raise
            before = None
    owed, line = list[Owed](), None
    if show == "blame" and not c.source.hides(name):
        found = with_bytes(found, BLAMED_VERSIONS_BYTES_MAX)
        owed, line = owed_lines(c, name, found.versions)
    data = KeyData(
        name,
        None if c.source.hides(name) else value,
        None if value is None else len(value),
        revision,
        list(_version_rows(c, name, found.versions)),
        found.following,
        found.complete,
        found.compacted,
        found.created,
        compared,
        before or "",
        after or "",
        uncompared=after is not None and compared is None,
        blame=owed if show == "blame" else None,
        line=line,
        ignored=ignored,
    )
    words = {
        "value": ["get", name, *c.time_words("--at", c.at)],
        "history": ["history", name, *c.time_words("--until", until)],
        "blame": ["blame", name, *c.time_words("--at", c.at)],
    }[show]
    if show == "history" and (c.state.has("a") or c.state.has("b")):
        words = ["diff", data.before, data.after, "--prefix", name]
    too_large = (data.size or 0) > rendered_values.BLAMED_BYTES_MAX
    more = {"tab": show, "way": way_of(c), "too_large": too_large}
    return Page("key.html", c.shown_key(name), data, more, c.source.command(*words))


def _version_rows(c: Context, key: str, found: list[Version]) -> Iterator[VersionRow]:
    for each, older in zip_longest(found, found[1:]):
        made = VersionRow.of(c, key, each, None if older is None else older.value)
        if each.value is not None and not c.source.hides(key):
            before = None if older is None else older.value
            made = replace(made, changed=c.rendering.changed(before, each.value))
        yield made


def owed_lines(c: Context, key: str, found: list[Version]) -> tuple[list[Owed], int | None]:
    """Return a page of the lines of blame, and the number of the line that begins the next one."""
    blamed = c.rendering.blamed(found)
    start = c.state.number("line", 1, len(blamed) or 1) - 1
    end = start + c.state.part(BLAMED_LINES_MAX)
    lines = [Owed.line(c, key, each) for each in blamed[start:end]]
    return lines, end + 1 if end < len(blamed) else None


def _value(c: Context, name: str, text: str, versions: list[Version]) -> bytes | None:
    """Return the value at a moment; that of a version is known, even if it was compacted."""
    for each in versions:
        if text == f"rev:{each.revision}":
            return each.value
    return version_at(c.source, name, c.source.when(text))[0]


def commit(c: Context) -> Page:
    """Show one commit: its time, writer and note, and everything that it changed."""
    limit = c.state.limit(ROWS_MAX, 2_000)
    found = commit_at(
        c.source, c.at, prefix=c.state["prefix"], after=c.state["after"] or None, limit=limit
    )
    rows = found.rows if not (found.more or c.state["after"]) else []
    managers = writers_of(rows[0].before, rows[0].after) if len(rows) == 1 else ()
    found = replace(found, step=c.attributed(found.step, *managers))
    step = found.step
    if c.source.observed:
        before, after = f"rev:{found.since}", f"rev:{step.revision}"
        command = c.source.command("diff", before, after, *prefix_words(c))
    else:
        command = c.source.command("show", f"rev:{step.revision}", *prefix_words(c))
    more = {"open": open_keys(c, found.rows), "way": way_of(c)}
    return Page("commit.html", f"Commit {step.revision}", found, more, command)


def stepped(c: Context) -> str:
    """Return the URL of the same view one commit before or after the moment."""
    to = c.state.choice("to", "before", "after")
    path = c.state["of"] if view_of(c.site.extra_views, c.state["of"]) else "/"
    here = c.at
    where: dict[str, Any] = {"prefix": c.state["prefix"], "ignores": c.ignores}
    if to == "after":
        found = steps_on(c.source, here, **where, budget=c.budget(10))
    else:
        mark = c.source.mark(here)
        below: When = f"rev:{max(1, mark.revision - is_at(c, mark))}"
        quiet = None if c.state["prefix"] else c.quiet
        more: dict[str, Any] = {"limit": 1, "budget": c.budget(10), "quiet": quiet}
        found = steps_back(c.source, below, **where, **more)
    fields = {name: value for name, value in c.state.fields.items() if name not in STEP_DROPS}
    if found.steps:
        step = found.steps[0]
        fields["at"] = f"rev:{step.revision}" if c.source.observed else str(step.timestamp)
    elif not found.complete and found.following is not None:
        fields["at"] = f"rev:{found.following}"
    return State(path, fields).url()


def is_at(c: Context, mark: Mark) -> bool:
    """Return whether the moment is exactly the moment of a commit, not later."""
    if c.at is None:
        return False
    revision = revision_of(c.at)
    exact = c.source.timestamp(c.at) == mark.timestamp
    return exact if revision is None else revision == mark.revision


def searched(c: Context) -> Page:
    """Show what has a text: keys and values at the moment, or the commits up to it."""
    text, where = c.state["q"], c.state.choice("in", "both", "keys", "values", *IN_COMMITS)
    found: Hits | CommitList | None = None
    words: list[str] = []
    if text and where in IN_COMMITS:
        found = _commits_with(c, text, where)
        words = ["log", IN_COMMITS[where], text, "-i", *c.time_words("--until", c.at)]
    elif text:
        found = search(
            c.source,
            c.at,
            text,
            prefix=c.state["prefix"],
            where=where,
            after=c.state["after"] or None,
            limit=c.state.limit(HITS_MAX, 1_000),
            budget=c.budget(),
        )
        words = ["grep", text, "-i", *c.time_words("--at", c.at)] if where == "values" else []
    command = c.source.command(*words, *prefix_words(c)) if words else ""
    return Page("search.html", "Search", found, {"where": where}, command)


IN_COMMITS = {"changes": "-S", "commits": "--grep"}
"""Where a search looks in the past, and the option of `snapkv log` that does the same."""


def _commits_with(c: Context, text: str, where: str) -> CommitList:
    """Return the commits that changed how often a value has a text, or that say it."""
    wanted, search = CommitFilter(None, text, ignore_case=True), None
    if where == "changes":
        search = TextSearch.of(text, True, shows=lambda key: not c.source.hides(key))
    return steps_back(
        c.source,
        c.at,
        prefix=c.state["prefix"],
        wanted=lambda step: search is not None or (c.wanted(step) and wanted(step)),
        limit=c.state.limit(STEPS_MAX, 1_000),
        budget=c.budget(QUIET_BUDGET),
        ignores=c.ignores,
        text=search,
    )


def live(c: Context) -> Page:
    """Show commits as they happen."""
    words = ["watch", *([c.state["prefix"]] if c.state["prefix"] else [])]
    since = c.source.reader.timeline.head().timestamp
    return Page("live.html", "Live", {"since": str(since)}, command=c.source.command(*words))


def health(c: Context) -> Page:
    """Show the facts of the health strip, writers, sessions, leaders, and the engine's facts."""
    facts, store = c.site.health().as_json(), c.source.store
    if store is not None:
        names = "newest_writer", "writers", "sessions", "leaders", "recordings_lag_s"
        facts |= {name: fact for name, fact in store.info().items() if name in names}
    return Page("health.html", "Health", facts, command=c.source.command("status"))


def time_bar(c: Context) -> Page:
    """Show the time bar as numbers."""
    return Page("counts.html", "Time bar", c.bar)


PUT_BACK_MAX = 20
"""The most commands that a page shows to put objects back."""


def put_back(c: Context, rows: Sequence[Row]) -> list[str]:
    """Return the commands that put the first objects back as they were, into Kubernetes."""
    verbs = {"~": "replace", "+": "create"}
    return [
        c.source.command("get", row.key, *c.time_words("--at", c.at), "--as", "kubernetes")
        + f" | kubectl {verbs[row.kind]} -f -"
        for row in rows[:PUT_BACK_MAX]
        if row.kind in verbs
    ]


def restore(c: Context) -> Page:
    """Show what restoring the moment, or reverting commits, would change; and the form for it."""
    if c.site.restores is None:
        raise InvalidOptionError("restoring from this page is off: start it with --allow-restore")
    state, named = c.state, map(c.source.when, c.state["revert"].split(","))
    reverts = tuple(each for each in named if each is not None)
    if reverts and c.site.record is not None:
        raise InvalidOptionError("a record is not restored: only its recorder writes it")
    if not reverts and c.at is None:
        return Page("restore.html", "Restore", None)
    way = state.choice("conflicts", "", *WAYS)
    wanted = Wanted(c.at, "" if state["key"] else state["prefix"], state["key"], reverts, way)
    found = c.site.restores.preview(wanted, state.part(PREVIEWED_MAX))
    words = ["revert" if reverts else "restore"]
    words += map(c.time_word, found.timestamps or [found.timestamp])
    key = ["--key"] if wanted.reverts else []
    words += [*prefix_words(c), *([*key, wanted.key] if wanted.key else [])]
    words += [f"--{way}"] if way else []
    more: dict[str, Any] = {"open": open_keys(c, found.rows), "way": way_of(c), "unticked": set()}
    if c.site.record is not None:
        words.append("--dry-run")
        more["put_back"] = put_back(c, found.rows) if c.site.record.observed is not None else []
    title = "Revert" if wanted.reverts else "Restore"
    return Page("restore.html", title, found, more, c.source.command(*words))


VIEWS: dict[str, View] = {
    "/": commits,
    "/changes": changes,
    "/keys": keys,
    "/key": key,
    "/commit": commit,
    "/search": searched,
    "/live": live,
    "/health": health,
    "/bar": time_bar,
    "/restore": restore,
}


def view_of(extra: Sequence[ExtraViews] | None, path: str) -> View | None:
    """Return the view of a path, this package's own first; None without one."""
    return VIEWS.get(path) or next((x.views[path] for x in extra or () if path in x.views), None)
