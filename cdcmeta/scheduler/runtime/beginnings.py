"""The timestamps at which tables begin: the changefeed's checkpoint, unless an update put one in.

A changefeed has one checkpoint. An update notes in the record of the changefeed where each table
that it puts in begins, and where each one that it takes out has stopped at the earliest:

    checkpoint 50   update: without b/          stopped: b/ at 50
    checkpoint 70   update: with b/ and c/      begins: b/ at 50, c/ at the changefeed's start
    checkpoint 70   all tables have passed 70: the record of the checkpoint names this update
    checkpoint 71   `begins` no longer counts

So the stored checkpoint never goes back. A late write of an owner that has not seen the update does
not name it, and the tables still begin where the update says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cdcmeta.scheduler.runtime.records import Begin, Changefeed, Checkpoint

STOPPED_MAX = 10_000
"""The most tables that were taken out whose end a changefeed remembers."""


def stored_checkpoint(feed: Changefeed, found: Checkpoint | None) -> int:
    """Return the stored checkpoint, or that before anything is replicated."""
    first = feed.first_checkpoint
    return max(found.watermarks.checkpoint, first) if found and found.is_of(feed) else first


def begins_of(feed: Changefeed, found: Checkpoint | None) -> Mapping[str, Begin]:
    """Return where tables begin that have not passed the stored checkpoint, as far as is known."""
    is_passed = found is not None and found.is_of(feed) and found.epoch == feed.epoch
    return {} if is_passed else feed.begins


def floors_of(feed: Changefeed, found: Checkpoint | None) -> dict[str, int]:
    """Return the checkpoints of the tables whose own one is before the stored one."""
    return {table: begin.checkpoint for table, begin in begins_of(feed, found).items()}


def updated(before: Changefeed, after: Changefeed, found: Checkpoint | None) -> Changefeed:
    """Return `after` with where its tables begin; `found` is the checkpoint of `before`."""
    common, known = stored_checkpoint(before, found), begins_of(before, found)
    stopped = dict(before.stopped) if after.sink_key == before.sink_key else {}
    wanted, had = after.tables(), set(before.tables())
    for table in had.difference(wanted):
        at = known.get(table, Begin(common, before.state_at))
        stopped.pop(table, None)
        if at.checkpoint >= at.state_at and after.sink_key == before.sink_key:
            stopped[table] = at.checkpoint  # else its state is not complete: it begins anew
    begins = {table: known[table] for table in wanted if table in had and table in known}
    for table in wanted:
        if table not in had:  # also at the checkpoint: an owner may store a later one by now
            is_back = table in stopped
            begins[table] = Begin(stopped.pop(table)) if is_back else _first(after, common)
    latest = sorted(stopped.items(), key=lambda each: each[1])[-STOPPED_MAX:]
    return replace(after, begins=begins, stopped=dict(latest))


def _first(feed: Changefeed, common: int) -> Begin:
    """Return where a table begins that the changefeed never had."""
    if feed.state_at and common > feed.first_checkpoint:
        return Begin(common - 1, common)
    return Begin(feed.first_checkpoint, feed.state_at)
