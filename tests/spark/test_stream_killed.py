"""kill -9 of a driver in the middle of a batch: the next one brings that batch again, and goes on.

One driver has a query of each kind, for most of the time goes into the start of Java.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from archive.histories import recorder
from drivers import Drivers, Stream, going_on
from feeds import Editing, text_of
from reading.tabled import FOREVER, Writing, changes_of
from store.engines import ENGINES, START_MS, Place

from snapkv import ManualClock
from snapkv.archive import state_rows, writer

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What each query brought, over a driver that was killed and the next one."""
    folder = tmp_path_factory.mktemp("killed")
    kind = replace(ENGINES["lmdb"], options={})
    with (
        pytest.MonkeyPatch.context() as patch,
        Place(kind, folder) as live,
        Place(kind, folder) as compacted,
        Place(kind, folder) as documents,
    ):
        patch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
        patch.setattr(writer, "BASE_FILE_ROWS", 7)
        patch.setattr(state_rows, "CHUNK_ROWS", 9)
        clocks = [ManualClock(START_MS) for _ in range(3)]
        stores = [
            place.open(clock=clock, writer="ann@test")
            for place, clock in zip((live, compacted, documents), clocks, strict=True)
        ]
        writing, archived = (
            Writing(store, clock, random.Random(9))
            for store, clock in zip(stores[:2], clocks[:2], strict=True)
        )
        editing = Editing(stores[2], clocks[2], random.Random(9))
        writing.steps(20)
        editing.steps(10)
        archived.steps(90)
        since = only_in_an_archive(archived, stores[1], compacted, folder / "archived")

        def write() -> None:
            writing.steps(1)
            archived.steps(1)
            editing.step()

        streams = [
            Stream(live.url, folder / "live", "snapkv"),
            Stream(compacted.url, folder / "archived", "snapkv from an archive"),
            Stream(documents.url, folder / "documents", "cdcmeta.changes"),
        ]
        with going_on(write) as stop, Drivers(folder, streams) as drivers:
            killed = drivers.killed_in_a_batch(stop)
        yield SimpleNamespace(
            streams=streams,
            killed=killed,
            writing=writing,
            archived=archived,
            editing=editing,
            since=since,
        )


def only_in_an_archive(writing, store, place, folder) -> int:
    """Record a store, compact it, and write on; return the first moment of the archive.

    The query begins there, and the engine has nothing of where it begins.
    """
    recording = recorder(store, folder / "archive")
    recording.catch_up()
    writing.steps(20)
    manifest = recording.writer.manifest
    since = store.at(revision=manifest.since).timestamp
    place.engine().compact(manifest.high)
    (folder / "start").write_text(str(manifest.since + 1))
    return since


@pytest.mark.parametrize("number", range(3), ids=["live", "archived", "documents"])
def test_the_batch_in_which_it_was_killed_comes_again(ended, number):
    batches = ended.streams[number].batches()
    assert len(batches[ended.killed[number]]) == 2
    assert all(attempt == tries[0] for tries in batches.values() for attempt in tries)
    assert sorted(batches) == list(range(len(batches)))


def brought(stream: Stream) -> list[tuple]:
    batches = stream.batches()
    return [row for number in sorted(batches) for row in batches[number][0]]


def changed_since(writing: Writing, since: int) -> list[tuple]:
    return [
        (key, value if value is None else value.hex(), *row)
        for key, value, *row, _ in changes_of(writing.plain, since, FOREVER)
    ]


def test_a_store(ended):
    stream = ended.streams[0]
    start = stream.start()
    version, since = start["rev"], start["ts"]
    state = ended.writing.plain.state(since)
    snapshot = [(key, value.hex(), "insert", version, None) for key, value in state.items()]
    assert brought(stream) == snapshot + changed_since(ended.writing, since)


def test_an_archive_and_the_store_above_it(ended):
    """Compaction left it nothing live of where it began."""
    assert brought(ended.streams[1]) == changed_since(ended.archived, ended.since)


def test_a_database_of_documents(ended):
    rows = brought(ended.streams[2])
    assert [row[0] for row in rows] == sorted({row[0] for row in rows}), "in order, none twice"
    newest = {row[1]: (row[0], row[2], row[5]) for row in rows}
    assert newest == {
        change.id: (str(change.seq), change.rev, text_of(change.doc))
        for change in ended.editing.db.changes(include_docs=True).rows
    }
