"""What a watch of a fleet has to return: all commits with changes, in one order."""

from __future__ import annotations

import time

from snapkv.fleet import FleetChanges, Late

from .sites import WAIT_S


def of(item) -> tuple:
    """An item as plain values: its time, and the changes of each member."""
    assert isinstance(item, FleetChanges)
    assert list(item.members) == sorted(item.members)
    for changes in item.members.values():
        assert changes.commit.ts == item.timestamp
        assert {each.commit.ts for each in changes} == {item.timestamp}
    return item.timestamp, {name: plain(changes) for name, changes in item.members.items()}


def plain(changes) -> list:
    return [(each.key, each.value) for each in changes]


def own(sites, *names, prefix="", since=0) -> list:
    """The items of a watch, by the members' own watches."""
    rows: dict[int, dict] = {}
    for name in names or sites.stores:
        with sites[name].watch(prefix, since, timeout=0) as watch:
            for changes in watch:
                rows.setdefault(changes.commit.ts, {})[name] = plain(changes)
    return [(ts, dict(sorted(rows[ts].items()))) for ts in sorted(rows)]


def drained(watch) -> list:
    """The items that come until the watch has caught up; their times rise strictly."""
    found = [of(item) for item in watch]
    stamps = [ts for ts, _ in found]
    assert stamps == sorted(set(stamps))
    assert watch.timestamp >= max(stamps, default=0)
    return found


def taken(watch, count: int) -> list:
    """So many items, which have to come."""
    found, deadline = [], time.monotonic() + WAIT_S
    while len(found) < count:
        item = watch.next(1.0)
        if item is not None:
            found.append(item if isinstance(item, Late) else of(item))
        assert time.monotonic() < deadline, f"{len(found)} of {count} items came"
    return found
