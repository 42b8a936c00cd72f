"""Operations on changefeeds, and their status. Each operation is one commit; captures follow it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from cdcmeta.argument_checks import check_store, listed
from cdcmeta.errors import ChangefeedNotFoundError, InvalidArgumentError
from cdcmeta.scheduler.core.watermarks import Watermarks
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeed_records import Changefeed, Placement, Registration
from cdcmeta.scheduler.runtime.reports import FeedReport, Rate, feed_reports
from cdcmeta.scheduler.runtime.stores_and_sinks import check_sink, check_source
from snapkv import Absent, AtRevision, CompactedError, ConflictError, Entry, SnapshotKV, When
from snapkv.model import Guard

CHANGEABLE = ("sink", "prefixes", "databases", "state")
NAMED_MAX = 10
"""The most tables that an error names."""


class Changefeeds:
    """The changefeeds of a cluster of captures, in a store.

    >>> import snapkv
    >>> from cdcmeta.scheduler.runtime import Changefeeds
    >>> with snapkv.open("memory:") as store:
    ...     feeds = Changefeeds(store)
    ...     made = feeds.create("copy", "lmdb:./meta", "jsonl:./changes", ["orders/"], start=5)
    ...     [(each.id, each.state, each.prefixes) for each in feeds.list()]
    [('copy', 'running', ('orders/',))]
    """

    def __init__(self, store: SnapshotKV, cluster: str = "default") -> None:
        check_store(store)
        records.check_name("a cluster", cluster)
        self._store, self.cluster = store, cluster
        self._space = store.space(records.space_of(cluster))

    # --- records ---

    def create(
        self,
        id: str,
        source: str,
        sink: str,
        prefixes: Iterable[str] | None = None,
        *,
        start: int,
        with_state: bool = False,
        databases: Iterable[str] = (),
        log: str | None = None,
        ranges: int = 0,
        source_name: str = "default",
        sink_name: str = "default",
    ) -> Changefeed:
        """Create a changefeed that runs at once; one round trip.

        What an earlier one of this id has left in the shared store is deleted: a capture may have
        written it after the removal.

        The tables are `prefixes` (by default one, the whole store), changes `databases`, or
        `ranges` equal parts of a CDC `log`. `start` is a timestamp of the source: changes after it
        are replicated, and with `with_state` the tables as of it first. Raises
        `InvalidArgumentError`, also for a URL of an unknown form, and if the id is taken.
        """
        names = tuple(listed(databases, "databases"))
        if prefixes is None:
            prefixes = () if names or log is not None else ("",)
        feed = Changefeed(
            id,
            source,
            sink,
            tuple(listed(prefixes, "prefixes")),
            start,
            source_name,
            sink_name,
            with_state,
            names,
            log,
            ranges,
        )
        feed.check()
        check_source(source)
        check_sink(sink, names)
        key = _key(id)
        try:
            commit = self._space.commit(
                puts={key: feed.encode()},
                deletes=[records.CHECKPOINT + id.encode()],
                delete_prefixes=_prefixes(id),
                guards=[Absent(key)],
                note=f"create changefeed {id}",
            )
        except ConflictError as e:
            raise InvalidArgumentError(f"changefeed {id!r} exists already") from e
        return replace(feed, epoch=commit.revision, created=commit.revision)

    def get(self, id: str, *, as_of: When | None = None) -> Changefeed:
        """Return a changefeed; raises `ChangefeedNotFoundError`. One round trip."""
        records.check_name("a changefeed", id)
        entry = self._space.at(as_of).entries_of([_key(id)])[0]
        if entry is None:
            raise ChangefeedNotFoundError(id)
        return _feed(_key(id), entry)

    def list(self, *, as_of: When | None = None) -> list[Changefeed]:
        """Return all changefeeds, by id. One round trip."""
        found = self._space.at(as_of).entries(records.FEED)
        return [_feed(key, entry) for key, entry in found]

    def pause(self, id: str) -> Changefeed:
        """Let all captures stop its tables; the checkpoint stays."""
        return self.update(id, state=records.PAUSED)

    def resume(self, id: str) -> Changefeed:
        """Run it again from its checkpoint."""
        return self.update(id, state=records.RUNNING)

    def update(self, id: str, **values: Any) -> Changefeed:
        """Change `sink`, `prefixes`, `databases` or `state`; its tables start again.

        A table that was taken out and is put in again continues where it stopped. A new one begins
        at `start`; with `with_state`, with its state as of the checkpoint. Two round trips. Raises
        `ChangefeedNotFoundError`, `InvalidArgumentError`.
        """
        unknown = values.keys() - CHANGEABLE
        if unknown:
            raise InvalidArgumentError(f"{min(unknown)!r} of a changefeed cannot be changed")
        if not values:
            raise InvalidArgumentError(f"give what is to change: {', '.join(CHANGEABLE)}")
        for what in ("prefixes", "databases"):
            if what in values:
                values[what] = tuple(listed(values[what], what))
        while True:
            before, found = self._with_checkpoint(id)
            after = replace(before, **values)
            after.check()
            after = records.updated(before, after, found)
            if values.keys() != {"state"}:  # any changefeed can be stopped
                check_sink(after.sink, after.databases)
            guards: list[Guard] = [AtRevision(_key(id), before.epoch)]
            try:
                commit = self._space.commit(
                    puts={_key(id): after.encode()}, guards=guards, note=f"update changefeed {id}"
                )
            except ConflictError:
                continue  # another process changed it meanwhile
            return replace(after, epoch=commit.revision)

    def remove(self, id: str) -> None:
        """Remove a changefeed: its tables stop; the sink keeps what it has.

        One round trip. Raises `ChangefeedNotFoundError`.
        """
        self.get(id)
        self._space.commit(
            deletes=[_key(id), records.CHECKPOINT + id.encode()],
            delete_prefixes=_prefixes(id),
            note=f"remove changefeed {id}",
        )

    # --- requests; the owner does them ---

    def move(self, id: str, table: str, capture: str) -> None:
        """Ask for a table to be moved to a capture, given by its label or name."""
        check_table(self.get(id), table)
        to = self._capture(capture)
        key = records.ask_key(id, "move", table)
        self._space.commit(puts={key: to.encode()}, note=f"move {table} of {id} to {to}"[:4_000])

    def rebalance(self, id: str) -> None:
        """Ask for the tables to be spread evenly, at once."""
        self.get(id)
        key = records.ask_key(id, "rebalance")
        self._space.commit(puts={key: b""}, note=f"rebalance changefeed {id}")

    def drain(self, capture: str) -> None:
        """Ask for all tables of a capture to be moved away; it gets none until it restarts."""
        name = self._capture(capture)
        key = records.DRAIN + name.encode()
        self._space.commit(puts={key: b""}, note=f"drain capture {name}")

    # --- looking ---

    def checkpoint(self, id: str, *, as_of: When | None = None) -> Watermarks:
        """Return how far a changefeed is: everything up to its checkpoint is in the sink.

        It goes back when an update puts a table in that begins earlier, until that has caught up.
        """
        feed, found = self._with_checkpoint(id, as_of)
        first = feed.first_checkpoint
        known = found.watermarks if found is not None else Watermarks(first, first, 0)
        begins = records.floors_of(feed, found).values()
        return known._replace(checkpoint=min(known.checkpoint, *begins)) if begins else known

    def _with_checkpoint(
        self, id: str, as_of: When | None = None
    ) -> tuple[Changefeed, records.StoredCheckpoint | None]:
        """Return a changefeed and its stored checkpoint, if it has one. One round trip."""
        key = _key(id)
        entry, stored = self._space.at(as_of).entries_of([key, records.CHECKPOINT + id.encode()])
        if entry is None:
            raise ChangefeedNotFoundError(id)
        feed = _feed(key, entry)
        found = None if stored is None else records.checkpoint_of(stored.value)
        return feed, found if found is not None and found.is_of(feed) else None

    def places(
        self, id: str, *, as_of: When | None = None, limit: int | None = None
    ) -> Sequence[Placement]:
        """Return which capture replicates each table, now or at any moment, and why.

        With a `limit`, of so many tables, the first by name.
        """
        prefix = records.place_key(id, "")
        found = islice(self._space.at(as_of).items(prefix), limit)
        return [records.place_of(key, raw) for key, raw in found]

    def places_of(
        self, id: str, tables: Sequence[str], *, as_of: When | None = None
    ) -> Sequence[Placement | None]:
        """Return where some tables are or were, and since when; None for each that is not placed.

        One round trip for each 128 tables, and for each commit that placed some of them.
        """
        keys = [records.place_key(id, table) for table in tables]
        entries = self._space.at(as_of).entries_of(keys)
        times = {entry.revision: 0 for entry in entries if entry is not None}
        for revision in times:
            with suppress(CompactedError):
                times[revision] = self._store.timestamp_of(f"rev:{revision}")
        return [
            None if entry is None else records.place_of(key, entry.value, times[entry.revision])
            for key, entry in zip(keys, entries, strict=True)
        ]

    def history(self, id: str, table: str) -> Iterator[Placement]:
        """Yield the placements of a table, oldest first, as far as history reaches."""
        key = records.place_key(id, table)
        for version in self._space.history(key):
            if version.value is not None:
                yield records.place_of(key, version.value, version.ts or 0)

    def reports(self, *, as_of: When | None = None) -> dict[str, dict[str, FeedReport]]:
        """Return what each live capture reports, by capture and changefeed. Two round trips.

        As of a time, what was on record then: the owner removes that of a capture soon after its
        end.
        """
        alive = set(self.captures()) if as_of is None else None
        found = self._space.at(as_of).items(records.REPORT)
        named = {key.removeprefix(records.REPORT).decode(): raw for key, raw in found}
        return {
            name: feed_reports(raw) for name, raw in named.items() if alive is None or name in alive
        }

    def captures(self) -> dict[str, Registration]:
        """Return the registered captures by name. One round trip."""
        found = records.registered(self._store.sessions(), self.cluster)
        return {name: each.said for name, each in found.items()}

    def _capture(self, name: str) -> str:
        """Return the name of a live capture, from its name or its label."""
        alive = self.captures()
        found = [each for each, said in alive.items() if name in (each, said.label)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(alive)) or "none"
        what = "several captures have" if found else "no capture has"
        raise InvalidArgumentError(f"{what} the name {name!r}; registered are: {known}")


def check_table(feed: Changefeed, table: str) -> None:
    """Raise `InvalidArgumentError`, with the first tables, for one that a changefeed lacks."""
    tables = feed.tables()
    if table in tables:
        return
    named = ", ".join(tables[:NAMED_MAX])
    more = f" and {len(tables) - NAMED_MAX:,} more" if len(tables) > NAMED_MAX else ""
    raise InvalidArgumentError(
        f"changefeed {feed.id!r} has no table {table!r}; its tables: {named}{more}"
    )


def _feed(key: bytes, entry: Entry) -> Changefeed:
    return records.feed_of(key, entry.value, entry.revision, entry.created)


def _prefixes(id: str) -> list[bytes]:
    """Return the prefixes of a changefeed's other records."""
    return [b"%b%b/" % (each, id.encode()) for each in (records.PLACE, records.ASK)]


def _key(id: str) -> bytes:
    records.check_name("a changefeed", id)
    return records.FEED + id.encode()


NOT_PLACED = "not placed yet"
NO_CAPTURE = "no capture of its cluster is alive: start one with `cdcmeta capture`"
GONE = "its capture is gone, and no other one has it yet"


class Problems(NamedTuple):
    """The severity of what is wrong with a changefeed."""

    tables: int
    captures: int
    has_no_capture: bool = False
    """As `has_no_capture` says; one problem more."""

    @classmethod
    def of(
        cls, reports: Mapping[str, Mapping[str, FeedReport]], id: str, *, no_capture: bool = False
    ) -> Problems:
        """Count the tables with an error, and the captures that cannot use source or sink."""
        found = [feeds[id] for feeds in reports.values() if id in feeds]
        named = {table for report in found for table in report.problems}
        unnamed = sum(max(0, report.failing - len(report.problems)) for report in found)
        unusable = sum(report.error is not None for report in found)
        return cls(len(named) + unnamed, unusable, no_capture)

    def __str__(self) -> str:
        named = zip(self, ("table", "capture"), strict=False)
        counts = [f"{count:,} {what}{'s' * (count > 1)}" for count, what in named if count]
        return ", ".join([*counts, *["no capture"] * self.has_no_capture])


class ChangefeedStatus:
    """What captures report of a changefeed, and what is wrong with it, in words.

    While the changefeed runs, each of the `alive` captures that has some of its tables (`holders`)
    should report, and each table should be on one that is alive. `alive` is None for a moment in
    the past, of which that is not known; `no_capture` is what `has_no_capture` says.
    """

    def __init__(
        self,
        feed: Changefeed,
        holders: Iterable[str],
        reports: Mapping[str, Mapping[str, FeedReport]],
        alive: Container[str] | None,
        *,
        no_capture: bool = False,
    ) -> None:
        id, self._alive, self._runs = feed.id, alive, feed.state == records.RUNNING
        self.rates: dict[str, Rate] = {}
        self.late: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.captures: list[str] = [NO_CAPTURE] * no_capture
        expected = [each for each in sorted(set(holders)) if self._runs and self._lives(each)]
        for capture in expected:
            if id not in reports.get(capture, {}):
                self.captures.append(f"{capture} does not report: its log says why")
        for capture, found in reports.items():
            if id in found:
                self._add(capture, found[id])

    def _add(self, capture: str, report: FeedReport) -> None:
        self.rates |= report.rates
        self.problems |= report.problems
        self.late |= {
            table: f"{delay.seconds:,.0f} s, not {delay.what}"
            for table, delay in report.delays.items()
        }
        if report.error:
            self.captures.append(f"{capture}: {report.error}")
        elif len(report.delays) > 1:
            longest = max(delay.seconds for delay in report.delays.values())
            count = f"{len(report.delays)} of {report.tables} tables are late"
            self.captures.append(f"{capture} is slow: {count}, by up to {longest:,.0f} s")

    def problem(self, place: Placement) -> str:
        """Return what is wrong with a table, an empty text if nothing is known."""
        if place.table in self.problems:
            return self.problems[place.table]
        if not self._runs:
            return ""  # a placement on record means nothing until it is resumed
        if place.capture is None:
            return f"no capture has it: {place.why}"
        return "" if self._alive is None or self._lives(place.capture) else GONE

    def _lives(self, capture: str) -> bool:
        return self._alive is not None and capture in self._alive


def has_no_capture(feeds: Changefeeds, feed: Changefeed, alive: Sized | None) -> bool:
    """Return whether captures have begun with a changefeed that runs, and none is alive.

    One that waits for its first capture has not lost one. `alive` is None if that is not known.
    One round trip if no capture is alive, else none.
    """
    if alive is None or len(alive) or feed.state != records.RUNNING:
        return False
    return bool(feeds.places(feed.id, limit=1))


def placed(feeds: Changefeeds, feed: Changefeed, as_of: When | None = None) -> list[Placement]:
    """Return where all tables of a changefeed are, also tables that were not placed yet."""
    known = {each.table: each for each in feeds.places(feed.id, as_of=as_of)}
    return [known.get(table, Placement(table, None, NOT_PLACED)) for table in feed.tables()]
