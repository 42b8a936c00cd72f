"""Reports of a capture: errors, rates and delays of its tables; the weights that follow from them.

A report is a record that the capture writes when it has changed. It has the fastest and the latest
tables only, in two digits, so an idle changefeed writes nothing and a large one little. Monitors
read a `CaptureStatus`: also what the capture schedules while it leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from math import log2
from typing import Any, NamedTuple

from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.states import SetState
from cdcmeta.scheduler.executors.changefeed_executor import Delay, StoreExecutor, WriteTotals
from cdcmeta.scheduler.owner.coordinator import Coordinator
from cdcmeta.scheduler.runtime.changefeed_records import decoded
from snapkv.base.waiting import monotonic
from snapkv.errors import CorruptStoreError

HALF_LIFE_S = 30.0
"""The time after which a second of load counts for half, in seconds."""
LEAST_ROWS = 0.01
"""The least rows a second of a table that does not count as idle."""


class Rate(NamedTuple):
    """Rows and bytes of values that a table writes in a second."""

    rows: float
    bytes: float


class _Average(NamedTuple):
    """A moving average that is right from its first sample on."""

    written: WriteTotals = WriteTotals(0, 0)
    rows: float = 0.0
    bytes: float = 0.0
    mass: float = 0.0


class Rates:
    """Moving averages of what tables write.

    >>> rates = Rates()
    >>> for second in range(3):
    ...     rates.look({"a": WriteTotals(60 * second, 600 * second)}, 60.0 * second)
    >>> rates.of_tables()
    {'a': Rate(rows=1.0, bytes=10.0)}
    """

    def __init__(self) -> None:
        self._averages: dict[str, _Average] = {}
        self._looked_at: float | None = None

    def look(self, written: Mapping[str, WriteTotals], now: float) -> None:
        """Take in what tables have written by `now`, in seconds of any clock. O(tables)."""
        before, self._looked_at = self._looked_at, now
        if before is None or now <= before:
            return
        passed = now - before
        kept = 0.5 ** (passed / HALF_LIFE_S)
        share, averages, self._averages = 1 - kept, self._averages, {}
        for table, each in written.items():
            if table not in averages and not each.rows:
                continue  # idle so far
            last, rows, bytes, mass = averages.get(table, _Average())
            last = last if each.rows >= last.rows else WriteTotals(0, 0)
            self._averages[table] = _Average(
                each,
                rows * kept + (each.rows - last.rows) / passed * share,
                bytes * kept + (each.bytes - last.bytes) / passed * share,
                mass * kept + share,
            )

    def of_tables(self) -> dict[str, Rate]:
        """Return the rates of the tables that are not idle, the fastest first."""
        averages = self._averages.items()
        found = {table: Rate(a.rows / a.mass, a.bytes / a.mass) for table, a in averages}
        busy = (item for item in found.items() if item[1].rows >= LEAST_ROWS)
        return dict(sorted(busy, key=lambda item: -item[1].rows))


LOOK_S = 5.0
"""The pause between two looks at rates and delays, in seconds."""
LATE_S = 10.0
"""The least delay of a table that is reported, in seconds."""
TABLES_MAX = 200
"""The most rates, delays and problems of a report: the first ones."""
TEXT_MAX = 500
"""The most characters of an error that a report has."""
STEP = 1.5
"""The factor by which a table's rate grows or shrinks before its weight changes."""


class FeedReport(NamedTuple):
    """What one capture reports of one changefeed."""

    tables: int
    error: str | None
    """Why the source or the sink cannot be used."""
    problems: Mapping[str, str]
    rates: Mapping[str, Rate]
    delays: Mapping[str, Delay]
    failing: int = 0
    """The number of tables with problems: `problems` has the first of them."""
    rest: Rate = Rate(0.0, 0.0)
    """What the busy tables write together that are not in `rates`."""

    def encode(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        rates = {table: [_rounded(each) for each in rate] for table, rate in self.rates.items()}
        delays = {table: [_rounded(s), what] for table, (s, what) in self.delays.items()}
        found = {"tables": self.tables, "error": self.error, "problems": dict(self.problems)}
        rest = [_rounded(each) for each in self.rest]
        return found | {"rates": rates, "delays": delays, "failing": self.failing, "rest": rest}

    def rates_of(self, tables: Iterable[str]) -> dict[str, Rate]:
        """Return the rates of tables; tables that are not listed share the rest."""
        unlisted = [table for table in tables if table not in self.rates]
        if not self.rest.rows or not unlisted:
            return dict(self.rates)
        share = Rate(self.rest.rows / len(unlisted), self.rest.bytes / len(unlisted))
        return {**self.rates, **dict.fromkeys(unlisted, share)}

    @classmethod
    def decode(cls, found: Mapping[str, Any]) -> FeedReport:
        """Return the report in a part of a record. Raises what a value of another form raises."""
        rates = {table: Rate(*map(float, each)) for table, each in found.get("rates", {}).items()}
        delays = {
            table: Delay(float(seconds), str(what))
            for table, (seconds, what) in found.get("delays", {}).items()
        }
        problems = found["problems"]
        failing, rest = int(found.get("failing", len(problems))), Rate(*found.get("rest", (0, 0)))
        return cls(int(found["tables"]), found["error"], problems, rates, delays, failing, rest)


def feed_reports(raw: bytes) -> dict[str, FeedReport]:
    """Return the reports in a capture's record, by changefeed. Raises `CorruptStoreError`."""
    feeds = decoded(raw).get("feeds", {})
    try:
        return {id: FeedReport.decode(found) for id, found in feeds.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise CorruptStoreError(f"not the report of a capture: {raw[:60]!r}") from e


class Reporter:
    """Makes the reports of one changefeed on one capture."""

    def __init__(self, executor: StoreExecutor) -> None:
        self._executor, self._rates = executor, Rates()
        self._looked_at = 0.0
        self._seen: tuple[dict[str, Rate], dict[str, Delay]] = {}, {}
        self._rest = Rate(0.0, 0.0)

    def report(self, tables: int) -> FeedReport:
        """Return what is to be reported now. O(tables), each `LOOK_S` seconds."""
        executor, now = self._executor, monotonic()
        error, problems = executor.error, executor.problems()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._rates.look(executor.written(), now)
            delays = sorted(executor.delays(LATE_S).items(), key=lambda item: -item[1].seconds)
            rates = list(self._rates.of_tables().items())
            self._seen = dict(rates[:TABLES_MAX]), dict(delays[:TABLES_MAX])
            rest = [rate for _, rate in rates[TABLES_MAX:]]
            self._rest = Rate(sum(each.rows for each in rest), sum(each.bytes for each in rest))
        shown = islice(sorted(problems.items()), TABLES_MAX)
        return FeedReport(
            tables,
            str(error)[:TEXT_MAX] if error is not None else None,
            {table: each.error[:TEXT_MAX] for table, each in shown},
            *self._seen,
            len(problems),
            self._rest,
        )


class Weights:
    """What each table of a changefeed weighs for its owner: 1, and its rows per second.

    >>> weights = Weights(["a", "b"])
    >>> weights.update({"a": Rate(30.0, 9_000.0)})
    >>> weights.of_tables
    {'a': 31.0, 'b': 1.0}
    """

    def __init__(self, tables: Iterable[str]) -> None:
        self.of_tables: Mapping[str, float] = dict.fromkeys(tables, 1.0)
        """Never changed in place."""

    def update(self, rates: Mapping[str, Rate]) -> None:
        """Follow the rates of busy tables; small changes count for nothing. O(tables).

        A table without a rate may have moved a moment ago: its weight is halved each time.
        """
        changed: dict[str, float] = {}
        for table, before in self.of_tables.items():
            rate = rates.get(table)
            weight = max(1.0, before / 2) if rate is None else 1.0 + rate.rows
            if abs(log2(weight / before)) > log2(STEP):
                changed[table] = weight
        if changed:
            self.of_tables = {**self.of_tables, **changed}


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


class Scheduled(NamedTuple):
    """A changefeed under an owner."""

    states: Mapping[str, int]
    """The number of tables in each state: absent, prepare, commit, replicating, removing."""
    checkpoint: int
    """The timestamp up to which all tables are replicated; 0 while it is not known."""
    resolved: int
    """The timestamp up to which the changes of all tables were read; 0 while it is not known."""

    @classmethod
    def of(cls, coordinator: Coordinator) -> Scheduled:
        """Return how a changefeed is. O(tables that are not replicating)."""
        progress = coordinator.progress
        return cls(
            table_states(coordinator.replication),
            progress.behind or max(progress.stored.checkpoint, progress.reported.checkpoint),
            progress.reported.resolved,
        )


class CaptureStatus(NamedTuple):
    """A capture from registration to the end of its session, as it was up to two seconds ago."""

    name: str
    """Its label and its session."""
    is_leading: bool
    reports: Mapping[str, FeedReport]
    """What it reports of each changefeed whose tables it has."""
    scheduled: Mapping[str, Scheduled]
    """The changefeeds that it schedules; none unless it leads."""


def table_states(replication: ReplicationManager) -> dict[str, int]:
    """Return how many tables are in each state. O(tables that are not replicating)."""
    counts = dict.fromkeys((state.name.lower() for state in SetState), 0)
    for table in replication.unsettled:
        counts[replication.sets[table].state.name.lower()] += 1
    counts["replicating"] = len(replication.sets) - len(replication.unsettled)
    return counts
