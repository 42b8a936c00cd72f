"""Streams that begin in an archive, and go over to the live engine without a seam."""

from functools import partial

import pytest
from archives import Archived
from reading.tabled import FOREVER, changes_of
from stream_queries import LIMITS, Checkpoint, Query, refused_by

from snapkv.archive import state_rows, writer
from snapkv.spark import read_tasks

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)
    monkeypatch.setattr(state_rows, "CHUNK_ROWS", 9)
    monkeypatch.setattr(read_tasks, "TASK_ROWS", 5)


@pytest.fixture
def made(place, store, clock, tmp_path):
    return partial(Archived, place, store, clock, tmp_path)


def changes_since(archived: Archived) -> list[tuple]:
    """The rows of all changes after the first moment of the archive."""
    return changes_of(archived.writing.plain, archived.since, FOREVER)


def backfill(archived: Archived, checkpoint: Checkpoint, url: str | None = None, **limit) -> Query:
    """A driver that begins with the first change of the archive."""
    more = archived.options if url is None else {}
    start = {"startingVersion": archived.first + 1}
    return Query(url or archived.place.url, checkpoint, **start, **more, **limit)


@pytest.mark.long_on("etcd")
@pytest.mark.long_after(1)
@pytest.mark.parametrize("limit", LIMITS)
def test_from_the_archive_over_to_live(made, limit):
    """Over restarts, and compaction of what only the archive has then."""
    archived, checkpoint = made(2), Checkpoint()
    archived.grow(3)
    archived.writing.steps(3)  # which no recorder has seen yet
    archived.compact(archived.first + 5)
    for n, _ in enumerate(backfill(archived, checkpoint, **limit).batches()):
        if n == 2:
            break
    archived.compact(archived.reached)
    backfill(archived, checkpoint, **limit).drained()
    assert checkpoint.rows() == changes_since(archived)
    archived.grow(2)
    backfill(archived, checkpoint, **limit).drained()
    assert checkpoint.rows() == changes_since(archived)
    assert refused_by("VERSION_COMPACTED", lambda: backfill_without(archived).drained())


def backfill_without(archived: Archived) -> Query:
    return Query(archived.place.url, startingVersion=archived.first + 1)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("limit", LIMITS)
def test_compaction_and_merges_at_any_time(made, limit):
    """A driver is about to read what compaction and merges take away."""
    archived, checkpoint = made(5), Checkpoint()
    archived.grow(3)
    archived.compact(archived.first + 3)
    query = backfill(archived, checkpoint, **limit)
    for n in range(30):
        if not query.log():
            archived.grow(1)
            continue
        if n % 3 == 1:
            archived.grow(2, steps=4)
            archived.merge()
        if n % 3 == 2:
            archived.compact(archived.reached)
        query.run()
        if n % 5 == 4:
            query = backfill(archived, checkpoint, **limit)
            query.run()
        query.commit()
    query.drained()
    assert checkpoint.rows() == changes_since(archived)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_an_archive_alone_brings_what_is_recorded(made):
    archived, checkpoint = made(6), Checkpoint()
    archived.grow(2)
    follow = partial(backfill, archived, checkpoint, archived.alone)
    follow().drained()
    assert checkpoint.rows() == changes_since(archived)
    archived.writing.steps(5)
    assert follow().drained() == [], "not recorded yet"
    archived.reach()
    archived.merge()
    follow().drained()
    assert checkpoint.rows() == changes_since(archived)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_a_checkpoint_goes_with_and_without_the_archive(made, place):
    """It names a store and a commit, which is the same in both."""
    archived, checkpoint = made(8), Checkpoint()
    archived.grow(2)
    backfill(archived, checkpoint, archived.alone).drained()
    archived.grow(1)
    Query(place.url, checkpoint, startingVersion=archived.first + 1).drained()
    archived.grow(1)
    backfill(archived, checkpoint).drained()
    assert checkpoint.rows() == changes_since(archived)
