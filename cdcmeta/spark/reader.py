"""Reading a batch: what it shows is pinned on the driver, and cut into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.spark.options import NOW, Options
from cdcmeta.spark.tasks import cut, feed_of
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.pinned import BACKWARDS, Anchor, Commits, found_again, moment_of
from snapkv.spark.tasks import Task


@dataclass(frozen=True, slots=True)
class Pinned:
    """The changes in (after, until], as the feed was at a moment."""

    commits: Commits
    after: Seq
    until: Seq


def pin(options: Options, anchor: Anchor) -> Pinned:
    """Pin what a batch shows, which is the same however often this is asked.

    Raises `SourceError`.
    """
    reader = found_again(options.place, anchor.store, anchor.head)
    commits = moment_of(reader, options, anchor)
    with coded():
        state = feed_of(options).state(reader, commits)
        after = options.place_in(state, "since", "0", anchor.now_ms)
        until = state.end
        if "until" in options.given:
            asked = options.place_in(state, "until", NOW, anchor.now_ms)
            if asked < after:
                raise SourceError(codes.INVALID_RANGE, f"{BACKWARDS}: {after} to {asked}")
            until = min(until, asked)
    return Pinned(commits, after, until)


def planned(options: Options, pinned: Pinned) -> Sequence[Task]:
    """Return the tasks that read what was pinned. Raises `SourceError`."""
    commits = pinned.commits
    reader = found_again(options.place, commits.store, commits.high)
    with coded():
        held = commits.held(reader)
        feed = feed_of(options)
        return cut(reader, feed, held, pinned.after, pinned.until, options.partitions)
