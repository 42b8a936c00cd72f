"""The moments that the words of a command line name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from snapkv.base.clocks import SystemClock
from snapkv.cli.exits import CommandError
from snapkv.cli.formats import ZONES, time_text
from snapkv.cli.terminal import report
from snapkv.layout import CREATION_ORDINAL
from snapkv.model import Version
from snapkv.reading.observed_prefix import Observed
from snapkv.store.store import SnapshotKV
from snapkv.timeline import Timeline
from snapkv.times import When, revision_of, understood


def moment(text: str | None, meant: Literal["state", "since", "start"] = "state") -> When | None:
    """Return the time that a text on the command line names; None for now.

    `meant` is one of the times of a `TypedTime`: that of a state, the one after which a range
    begins, or the first instant. Times are resolved here, once, so that the whole command means the
    same moment, and the resolved time is shown. The store resolves revisions: see `settled`.
    """
    if text is None:
        return None
    now_ms = SystemClock().now_ms()
    typed = understood(text, now_ms, ZONES.typed)
    when: When | None = getattr(typed, meant)
    if echo := typed.echo(when, now_ms, ZONES.shown):
        report(f"snapkv: {echo}")
    mixed = typed.is_local and ZONES.typed is None and ZONES.shown is UTC
    if mixed and isinstance(when, datetime) and when.astimezone().utcoffset():
        ZONES.remark = f"(times are UTC, but {text!r} is local time: --local shows local times)"
    return when


def settled(store: SnapshotKV | Observed[str], when: When | None) -> When | None:
    """Return a time unchanged; show the date of a revision, of observed keys that of its ticks.

    A revision of the source of a record (`rv:4`) becomes the revision of its commit.
    """
    if not isinstance(when, str) or (revision := store.reader.revision_of(when)) is None:
        return when
    if isinstance(store, Observed):
        if place := _among_ticks(store.reader.timeline, revision):
            report(f"snapkv: {when} {place}")
    elif timestamp := store.timestamp_of(f"rev:{revision}"):
        report(f"snapkv: {when} = {time_text(timestamp)}")
    return f"rev:{revision}"


def _among_ticks(timeline: Timeline, revision: int) -> str:
    """Return which ticks a revision is between: a foreign write has no time of its own."""
    before = timeline.at_revision(revision).mark
    ticked = before.ordinal > CREATION_ORDINAL
    if ticked and before.revision == revision:
        return f"= {time_text(before.timestamp)}"
    after = timeline.following(before)
    if after is None:
        return f"is after the newest tick, {time_text(before.timestamp)}" if ticked else ""
    if not ticked:
        return f"is before the first tick, {time_text(after.timestamp)}"
    ticks = f"{time_text(before.timestamp)} and {time_text(after.timestamp)}"
    return f"is between the ticks {ticks}"


def up_to(store: SnapshotKV | Observed[str], when: When) -> Callable[[Version], bool]:
    """Return whether a version is not newer than a time; of observed keys, than a revision.

    A version without a time is older than all that can be asked for.
    """
    if isinstance(store, Observed) and (revision := revision_of(when)) is not None:
        return lambda version: version.revision <= revision
    timestamp = store.timestamp_of(when)
    return lambda version: version.ts is None or version.ts <= timestamp


def settled_range(
    store: SnapshotKV | Observed[str], since_: str | None, after: When | None, until: When | None
) -> tuple[When | None, When | None]:
    """Return the ends of a span of time, as `settled`; `--since now` is the newest commit."""
    after, until = settled(store, after), settled(store, until)
    after = store.resolved() if since_ is not None and after is None else after
    if after is not None and until is not None:
        check_span(store.timestamp_of(after), store.timestamp_of(until))
    return after, until


def check_span(since: int | None, until: int | None) -> None:
    """Raise `CommandError` for a span of time that ends before it begins."""
    if since is not None and until is not None and since > until:
        raise CommandError(
            f"--since {time_text(since)} is after --until {time_text(until)}: exchange the two"
        )
