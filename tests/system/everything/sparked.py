"""The same questions for Spark: states and differences in batch, and all changes as a stream.

Spark names contents as git does, in the query itself, so that only ids come back from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from snapkv.cli.tour.examiner import AskedDate
from system.everything.clone_sparked import Started, content_id, error_line, named_by_git
from system.everything.clones import History
from system.everything.place import CAPTURES, STORE, Place
from system.everything.replicas import PLACE_PREFIX, SCHEDULER_SPACE, captures_of, compare_places
from system.everything.replication import Sighting, Story
from system.everything.report import (
    CHANGES,
    PLACES,
    STATES,
    Report,
    changed_ids,
    changes_of,
    line,
    pair_text,
)

BATCH, STREAM = "Spark", "Spark's stream"
STREAM_S = 120
PARTITIONS = 2
"""Each is a process of Python, and a machine that tours has few cores."""
ORDER = ("_commit_version", "_change_ordinal")


def ask_spark(report: Report, history: History, story: Story, place: Place, spark: Started) -> None:
    """Ask Spark for the newest moments, for what changed between them, and for all changes."""
    pairs = history.pairs()[-2:]
    asker = _Asker(report, history, place, spark)
    asker.ask_state(history.moments[-1])
    if pairs:
        asker.ask_state(pairs[0][0])
        asker.ask_changes(*pairs[0])
    asker.ask_stream(history.moments)
    asker.ask_places(story.sightings[-2:])


class _Asker:
    """Asks Spark, and compares; a failure of Spark counts as a mismatch."""

    def __init__(self, report: Report, history: History, place: Place, spark: Started) -> None:
        self._report, self._history, self._place, self._spark = report, history, place, spark
        self._opened = {"name": STORE, "archive": str(place.recorded)}
        self._more = self._opened | {"numPartitions": str(PARTITIONS)}
        self._states: dict[AskedDate, dict[str, bytes]] = {}
        cases = (
            f"WHEN startswith(key, '{each.prefix}') THEN {named_by_git('value', each.clone.head)}"
            for each in history.clones
        )
        self._columns = ("key", f"CASE {' '.join(cases)} END AS id")

    def ask_state(self, moment: AskedDate) -> None:
        """Ask for everything at a moment, which only the archive may have."""

        def ask() -> None:
            self._report.ids(self._history, moment, BATCH, self._ids(moment))

        self._answered(STATES, moment.date, BATCH, ask)

    def ask_changes(self, a: AskedDate, b: AskedDate) -> None:
        """Ask for both states, and for the writer of each key's newest change in between."""

        def ask() -> None:
            differ = changes_of(self._ids(a), self._ids(b), self._authors(a, b))
            found = {key: line(*change) for key, change in differ.items()}
            changes = self._history.changes(a.ms, b.ms)
            wanted = changed_ids(changes, self._history.authors(a.ms, b.ms), content_id)
            self._report.changed_lines(a, b, BATCH, found, wanted)

        self._answered(CHANGES, pair_text(a, b), BATCH, ask)

    def ask_stream(self, moments: Sequence[AskedDate]) -> None:
        """Read all changes as a stream, from the first commit on, and fold them to each moment."""

        def ask() -> None:
            rows = self._streamed()
            for moment in moments:
                state: dict[str, bytes] = {}
                for row in rows:
                    if row.ms <= moment.ms:
                        state.pop(row.key, None)
                        if row.kind != "delete":
                            state[row.key] = row.id.encode()
                self._report.ids(self._history, moment, STREAM, state)

        self._answered(STATES, moments[-1].date, STREAM, ask)

    def ask_places(self, sightings: Sequence[Sighting]) -> None:
        """Ask which capture had each table, in the records of the scheduler."""
        for seen in sightings:

            def ask(seen: Sighting = seen) -> None:
                compare_places(self._report, seen, BATCH, self._captures(seen.ts))

            self._answered(PLACES, seen.label, BATCH, ask)

    # --- what Spark runs ---

    def _ids(self, moment: AskedDate) -> dict[str, bytes]:
        if moment not in self._states:
            session, frames, _ = self._spark
            url = self._place.store_url
            frame = frames.read_snapshot(session, url, moment.date, **self._more)
            rows = frame.selectExpr(*self._columns).collect()
            self._states[moment] = {row.key: row.id.encode() for row in rows}
        return self._states[moment]

    def _authors(self, a: AskedDate, b: AskedDate) -> dict[str, str]:
        session, frames, _ = self._spark
        url = self._place.store_url
        changes = frames.read_changes(session, url, a.date, b.date, **self._more)
        commits = session.read.format("snapkv").options(view="commits", **self._opened).load(url)
        newest = (
            changes.join(commits, changes["_commit_version"] == commits["version"])
            .groupBy("key")
            .agg({"version": "max"})
            .withColumnRenamed("max(version)", "version")
            .join(commits, "version")
        )
        return {row.key: row.userName for row in newest.select("key", "userName").collect()}

    def _streamed(self) -> list[Any]:
        """Run a stream over everything until the newest commit, and return its rows in order."""
        session, folder = self._spark.session, self._place.folder / "spark"
        changes = session.readStream.format("snapkv").options(
            readChangeFeed=True, startingVersion=0, **self._more
        )
        query = (
            changes.load(self._place.store_url)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "changes"))
        )
        if not query.awaitTermination(STREAM_S):
            query.stop()
            raise TimeoutError(f"the stream did not end in {STREAM_S} s")
        columns = (*self._columns, "_change_type AS kind", "unix_millis(_commit_timestamp) AS ms")
        read = session.read.parquet(str(folder / "changes")).orderBy(*ORDER)
        return list(read.selectExpr(*columns).collect())

    def _captures(self, timestamp: int) -> dict[tuple[str, str], str]:
        session, frames, _ = self._spark
        archive = str(self._place.recorded_captures)
        more = {"name": CAPTURES, "space": SCHEDULER_SPACE, "archive": archive}
        url = self._place.captures_url
        frame = frames.read_snapshot(session, url, timestamp, PLACE_PREFIX, **more)
        return captures_of({bytes(row.key): bytes(row.value) for row in frame.collect()})

    def _answered(self, section: str, row: str, way: str, ask: Callable[[], None]) -> None:
        failures: tuple[type[Exception], ...] = (*self._spark.failures, TimeoutError)
        try:
            ask()
        except failures as e:
            self._report.failed(section, row, way, error_line(e))
