"""The moments that the words of a command line name."""

from __future__ import annotations

from collections.abc import Callable

from snapkv.cli.terminal import tell
from snapkv.clock import SystemClock
from snapkv.observing.observe import Observed
from snapkv.store.store import SnapshotKV
from snapkv.times import When, format_time, revision_of
from snapkv.typed_times import TypedTime, understood


def moment(text: str | None) -> When | None:
    """Return the time whose state a text on the command line names; None for now.

    Times are resolved here, once, so that the whole command means the same moment, and the
    resolved time is shown. The store resolves revisions: see `settled`.
    """
    return _understood(text, lambda typed: typed.state)


def since(text: str | None) -> When | None:
    """Return the time after which a range begins, as `moment`; None for now."""
    return _understood(text, lambda typed: typed.since)


def start(text: str) -> When | None:
    """Return the first instant that a text names, as `moment`; None for now."""
    return _understood(text, lambda typed: typed.start)


def _understood(text: str | None, meant: Callable[[TypedTime], When | None]) -> When | None:
    if text is None:
        return None
    now_ms = SystemClock().now_ms()
    typed = understood(text, now_ms)
    when = meant(typed)
    if echo := typed.echo(when, now_ms):
        tell(f"snapkv: {echo}")
    return when


def settled(store: SnapshotKV | Observed[str], when: When | None) -> When | None:
    """Return a time unchanged; show the date of a revision."""
    if revision_of(when) is not None and (timestamp := store.timestamp_of(when or "")):
        tell(f"snapkv: {when} = {format_time(timestamp)}")
    return when


def settled_span(
    store: SnapshotKV | Observed[str], since_: str | None, after: When | None, up_to: When | None
) -> tuple[When | None, When | None]:
    """Return the ends of a span of time, as `settled`; `--since now` is the newest commit."""
    after, up_to = settled(store, after), settled(store, up_to)
    return (store.resolved() if since_ is not None and after is None else after), up_to
