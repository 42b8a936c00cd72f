"""Reading a batch: the driver pins what it shows, and cuts it into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.spark.options import NOW, Options
from cdcmeta.spark.tasks import cut, feed_of
from snapkv.spark import errors
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.pinned import BACKWARDS, Commits, Present, moment_of, verified_reader
from snapkv.spark.tasks import Task


@dataclass(frozen=True, slots=True)
class Pinned:
    """The changes in (after, until] of the feed at a moment."""

    commits: Commits
    after: Seq
    until: Seq


def pin(options: Options, present: Present) -> Pinned:
    """Pin what a batch shows; every call with the same present returns the same.

    Raises `SourceError`.
    """
    reader = verified_reader(options.location, present.store, present.head)
    commits = moment_of(reader, options, present)
    with coded():
        state = feed_of(options).state(reader, commits)
        after = options.place_in(state, "since", "0", present.now_ms)
        until = state.end
        if "until" in options.texts:
            asked = options.place_in(state, "until", NOW, present.now_ms)
            if asked < after:
                raise SourceError(errors.INVALID_RANGE, f"{BACKWARDS}: {after} to {asked}")
            until = min(until, asked)
    return Pinned(commits, after, until)


def planned(options: Options, pinned: Pinned) -> Sequence[Task]:
    """Return the tasks that read the pinned changes. Raises `SourceError`."""
    commits = pinned.commits
    reader = verified_reader(options.location, commits.store, commits.high)
    with coded():
        held = commits.held(reader)
        feed = feed_of(options)
        return cut(reader, feed, held, pinned.after, pinned.until, options.partitions)
