"""From a cut to tasks: each member is split as one store is, by the planner of one store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from snapkv.fleet.member import Member
from snapkv.fleet.members import THREADS_MAX
from snapkv.layout import Mark
from snapkv.location import Location
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.batch_reader import plan
from snapkv.spark.errors import SourceError, of_member
from snapkv.spark.fleets.pinned import Cut, Place, start_of
from snapkv.spark.fleets.tasks import MemberTask
from snapkv.spark.options import HISTORY, SNAPSHOT, Options
from snapkv.spark.pinned import RESTORED, Commits, Present, holds, range_of
from snapkv.spark.timing import exact
from snapkv.store.observe import Keys, open_to_read

Asked = TypeVar("Asked")
Found = TypeVar("Found")


def planned(options: Options, cut: Cut) -> Sequence[MemberTask]:
    """Return the tasks that read a cut, or a range that ends with it, in the order of members.

    Members are planned in parallel. Raises `SourceError`, which names the member; if one was
    restored since the cut was made, too.
    """
    parts = in_parallel(cut.places, lambda place: _planned(options, cut, place))
    return [task for part in parts for task in part]


def _planned(options: Options, cut: Cut, place: Place) -> list[MemberTask]:
    name, where = place.member.name, place.location
    with (
        of_member(name),
        reading(open_to_read(where), where, place.store, place.mark) as (reader, location),
    ):
        own = own_options(options, cut, place.member, location)
        tasks = plan(reader, own, _commits_of(reader, own, cut, place))
        return [MemberTask.of(name, location, task) for task in tasks]


def _commits_of(reader: Reader, options: Options, cut: Cut, place: Place) -> Commits:
    if options.view == SNAPSHOT:
        low = reader.timeline.tracker.creation
        return Commits(place.store, low, place.mark, place.mark.revision)
    present = Present(place.store, place.mark, cut.now_ms)
    return range_of(reader, options, present, from_state=options.view == HISTORY)


def own_options(options: Options, cut: Cut, member: Member, location: Location) -> Options:
    """Return the options of one member: its part of a range begins when it joined.

    Its range ends with the commit that is pinned.
    """
    texts = {name: text for name, text in options.texts.items() if name != "endingTimestamp"}
    start = max(start_of(options, cut.now_ms) or 0, member.joined)
    if start and options.view != SNAPSHOT:
        texts["startingTimestamp"] = exact(start)
    return replace(options, location=location, texts=texts)


@contextmanager
def reading(
    opened: Keys, location: Location, store: bytes, mark: Mark
) -> Iterator[tuple[Reader, Location]]:
    """Give an open member's reader, and its location with its store's name; close it at the end.

    Raises `SourceError` if it is another store, or does not have the commit that was pinned.
    """
    with opened:
        reader = opened.reader
        if not holds(reader, store, mark):
            raise SourceError(errors.STORE_MISMATCH, RESTORED)
        yield reader, replace(location, name=reader.layout.name)


def in_parallel(asked: Sequence[Asked], ask: Callable[[Asked], Found]) -> list[Found]:
    """Return what a function returns for each, in order; raises the first error in that order."""
    if len(asked) < 2:
        return [ask(each) for each in asked]
    with ThreadPoolExecutor(min(THREADS_MAX, len(asked))) as pool:
        return list(pool.map(ask, asked))
