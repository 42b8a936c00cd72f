"""Replicas that captures made: a mirror of keys and of databases, archives, and JSON lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import snapkv
from cdcmeta.changes import ChangesDB
from cdcmeta.scheduler.runtime import Changefeeds
from snapkv.cli.formats import counted
from snapkv.cli.tour.examiner import AskedDate
from system.everything.asking import documents
from system.everything.captures import LABELS
from system.everything.clones import History
from system.everything.filling import GIT_COMMIT
from system.everything.place import DOCUMENTS, Place
from system.everything.replication import Sighting, Story
from system.everything.report import PLACES, REPLICAS, Report

PLACE_PREFIX, SCHEDULER_SPACE = b"place/", "scheduler/default"
"""Where the scheduler's records say which capture has a table."""


def ask_replicas(report: Report, history: History, place: Place) -> None:
    """Compare the mirror with git's newest trees, and the number of archived commits."""
    newest = history.moments[-1]
    with snapkv.open(place.mirror_url, create=False) as mirror:
        found = dict(mirror.at().items())
    wrong = report.compare_contents("the mirror's keys", found, history.tree(newest.ms))
    report.add(REPLICAS, f"{counted(len(found), 'key')} in the mirror", "git", wrong)
    with snapkv.open(place.mirror_url, name=DOCUMENTS, create=False) as mirror:
        lines = documents([ChangesDB(mirror, each.name) for each in history.clones])
    wanted = {key: entry.line for key, entry in history.tree(newest.ms).items()}
    wrong = report.compare("the mirror's documents", lines, wanted)
    report.add(REPLICAS, f"{counted(len(lines), 'document')} in the mirror", "git", wrong)


def ask_archives(report: Report, history: History, place: Place) -> None:
    """Ask the archives that captures wrote, one for each clone, for each moment."""
    ids: dict[str, bytes] = {}
    states: dict[AskedDate, dict[str, bytes]] = {moment: {} for moment in history.moments}
    for each in history.clones:
        with snapkv.open_archive(str(place.replica(each.prefix))) as archive:
            for moment in history.moments:
                states[moment] |= dict(archive.at(moment.date).items())
            metas = [commit.meta for commit in archive.commits() if commit.meta]
            found = [str(meta[GIT_COMMIT]) for meta in metas]
        ids |= {f"{each.name}, commit {n}": oid.encode() for n, oid in enumerate(found)}
    for moment, state in states.items():
        report.state(history, moment, "captures' archives", state)
    wanted = {
        f"{each.name}, commit {n}": oid
        for each in history.clones
        for n, (oid, _) in enumerate(each.changing())
    }
    wrong = report.compare("the commits in the captures' archives", ids, wanted)
    report.add(REPLICAS, f"{counted(len(ids), 'commit')} in the captures' archives", "git", wrong)


def ask_places(
    report: Report, sightings: Sequence[Sighting], store: snapkv.SnapshotKV, way: str
) -> None:
    """Ask which capture had each table at moments at which the tour looked."""
    feeds = Changefeeds(store)
    for seen in sightings:
        found = {
            (feed.id, each.table): each.capture or ""
            for feed in feeds.list(as_of=seen.ts)
            for each in feeds.places(feed.id, as_of=seen.ts)
        }
        compare_places(report, seen, way, found)


def count_tables(report: Report, story: Story, since: int = 0) -> None:
    """Report how many tables each capture had; one that was killed has none later.

    `since` is the position of the first sighting to report.
    """
    for at, seen in [*enumerate(story.sightings)][since:]:
        counts = Counter(label_of(name) for name in seen.captures.values())
        for label in LABELS:
            report.add(PLACES, seen.label, f"tables on {label}", 0, str(counts[label]))
        dead = set(story.killed[:at])
        found = {
            f"{feed} {table}": b"" for (feed, table), name in seen.captures.items() if name in dead
        }
        report.compare(f"tables on killed captures {seen.label}", found, {})


def label_of(capture: str) -> str:
    """Return the label of a capture.

    >>> label_of("c1-28ed8eb38178ef0d")
    'c1'
    """
    return capture.rpartition("-")[0]


def captures_of(records: Mapping[bytes, bytes]) -> dict[tuple[str, str], str]:
    """Return the capture of each table, by changefeed and table, from the scheduler's records."""
    found: dict[tuple[str, str], str] = {}
    for key, value in records.items():
        if key.startswith(PLACE_PREFIX):
            feed, _, table = key.removeprefix(PLACE_PREFIX).decode().partition("/")
            found[feed, table] = json.loads(value)["capture"] or ""
    return found


def compare_places(
    report: Report, seen: Sighting, way: str, found: dict[tuple[str, str], str]
) -> None:
    """Compare the captures of all tables with those that the tour saw then."""
    named = {f"{feed} {table}": each.encode() for (feed, table), each in found.items()}
    wanted = {f"{feed} {table}": each.encode() for (feed, table), each in seen.captures.items()}
    wrong = report.compare(f"{way}: the captures {seen.label}", named, wanted)
    report.add(PLACES, seen.label, way, wrong)
