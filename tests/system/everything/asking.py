"""The questions, asked of the store itself: as it is, as a stream, and with its archive.

`ask_store` asks for whole states and for differences; `Stream` follows the commits and has each
state on its way; `ask_log` reads the rows of the CDC log, over generations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import snapkv
from cdcmeta.changes import ChangesDB
from cdcmeta.generations import CdcLog, GenerationLog, LogRow, StreamConsumer
from snapkv.base.waiting import monotonic
from snapkv.cli.exits import AdvisedError, Exit
from snapkv.cli.tour.examiner import AskedDate
from snapkv.errors import CompactedError
from system.everything.clones import History
from system.everything.report import STATES, Changed, Report, changes_of

STREAM_S = 60.0
"""How long a stream may take to bring what is in the store."""
WAIT_S = 0.5
WINDOW_S = 7 * 86_400.0
"""Git has few commits in a second, and each window is a commit of the consumer's progress."""
COMPACTED = "compacted"


def ask_store(
    report: Report,
    history: History,
    store: snapkv.SnapshotKV,
    moments: Sequence[AskedDate],
    way: str,
) -> None:
    """Ask for the keys and the documents at some moments."""
    databases = [ChangesDB(store, each.name) for each in history.clones]
    for moment in moments:
        report.state(history, moment, way, dict(store.at(moment.date).items()))
        lines = documents(databases, moment.date)
        report.lines(history, moment, f"{way}'s documents", lines)


def ask_differences(
    report: Report,
    history: History,
    store: snapkv.SnapshotKV,
    pairs: Sequence[tuple[AskedDate, AskedDate]],
    way: str,
) -> None:
    """Ask what differs between moments, and for the writer of the newest change of each key."""
    for a, b in pairs:
        authors = _writers(store, a, b)
        found = {
            each.key: Changed(each.before, each.after, authors.get(each.key, "?"))
            for each in store.diff(a.date, b.date)
        }
        report.changed(history, a, b, way, found)


def ask_compacted(
    report: Report, store: snapkv.SnapshotKV, moments: Sequence[AskedDate], way: str
) -> None:
    """Ask for moments that the store alone no longer has."""
    for moment in moments:
        try:
            store.at(moment.date)
            note = "has it"
        except CompactedError:
            note = COMPACTED
        report.add(STATES, moment.date, way, 0, note)


def documents(databases: Sequence[ChangesDB], as_of: snapkv.When | None = None) -> dict[str, bytes]:
    """Return the lines of `git ls-tree` that the documents have, by key."""
    return {
        database.name + each.id: each.doc["line"].encode()
        for database in databases
        if database.exists(as_of=as_of)
        for each in database.documents(include_docs=True, as_of=as_of)
        if each.doc is not None
    }


class Stream:
    """Follows a store from its first commit, and answers for each moment that it passes."""

    def __init__(self, store: snapkv.SnapshotKV) -> None:
        self._store = store
        self._watch = store.watch(since=0)
        self._pending: list[snapkv.Changes[str]] = []
        self._state: dict[str, bytes] = {}
        self._writes: list[tuple[int, str, str]] = []
        self._states: dict[AskedDate, Mapping[str, bytes]] = {}

    def close(self) -> None:
        """End the watch."""
        self._watch.close()

    def pass_by(
        self, report: Report, history: History, moments: Sequence[AskedDate], way: str
    ) -> None:
        """Follow to the newest commit, and compare the state at moments on the way there."""
        self._pull()
        for moment in moments:
            while self._pending and self._pending[0].commit.ts <= moment.ts:
                self._apply(self._pending.pop(0))
            self._states[moment] = dict(self._state)
            report.state(history, moment, way, self._state)

    def differences(
        self,
        report: Report,
        history: History,
        pairs: Sequence[tuple[AskedDate, AskedDate]],
        way: str,
    ) -> None:
        """Compare what the stream brought between moments that it has passed."""
        for a, b in pairs:
            authors = {key: who for ts, key, who in self._writes if a.ts < ts <= b.ts}
            found = changes_of(self._states[a], self._states[b], authors)
            report.changed(history, a, b, way, found)

    def _pull(self) -> None:
        newest, deadline = self._store.resolved(), monotonic() + STREAM_S
        while self._watch.timestamp < newest:
            changes = self._watch.next(WAIT_S)
            if changes is not None:
                self._pending.append(changes)
            elif monotonic() > deadline:
                raise AdvisedError(
                    f"a watch did not bring the newest commit in {STREAM_S:.0f} s",
                    "Run the tour again.",
                    Exit.LATER,
                )

    def _apply(self, changes: snapkv.Changes[str]) -> None:
        for change in changes:
            self._writes.append((changes.commit.ts, change.key, changes.commit.writer or "?"))
            if change.value is None:
                self._state.pop(change.key, None)
            else:
                self._state[change.key] = change.value


def ask_log(
    report: Report, history: History, log: GenerationLog, rows: CdcLog, moments: Sequence[AskedDate]
) -> None:
    """Read the CDC log's rows, generation after generation, and compare the state at each moment.

    Also compares the number of rows with git's, and the generation of each window with that which
    operated at the time of its rows.
    """
    consumer = StreamConsumer(log, rows, "tour", window=WINDOW_S)
    found, misplaced = list[LogRow](), 0
    for window in consumer:
        found += window.rows
        misplaced += sum(
            log.operating_at(row.timestamp) != window.generation for row in window.rows[:1]
        )
    state: dict[str, bytes] = {}
    at = 0
    for moment in moments:
        while at < len(found) and found[at].timestamp <= moment.ts:
            key, value = found[at].key.decode(), found[at].value
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
            at += 1
        report.lines(history, moment, "CDC log", state)
    counts = {"rows": b"%d" % len(found), "rows of another generation": b"%d" % misplaced}
    wanted = {"rows": b"%d" % history.change_count(), "rows of another generation": b"0"}
    report.compare("the rows of the CDC log", counts, wanted)


def _writers(store: snapkv.SnapshotKV, a: AskedDate, b: AskedDate) -> dict[str, str]:
    """Return the writer of each key's newest change after a moment, up to another: two tables."""
    commits = store.commits_to_arrow(since=a.date, until=b.date)
    names = dict(zip(commits["version"].to_pylist(), commits["userName"].to_pylist(), strict=True))
    changes = store.changes_to_arrow(since=a.date, until=b.date)
    pairs = zip(changes["key"].to_pylist(), changes["_commit_version"].to_pylist(), strict=True)
    return {key: names[version] for key, version in pairs}
