"""Recording: each revision once and in order, whatever ends the recorder, wherever."""

import itertools
import os
import random
from pathlib import Path

import pytest
from sampling import SOAK

from snapkv.archive import writer
from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.folder import Folder
from snapkv.archive.manifest import existing
from snapkv.archive.objects import ObjectStore
from snapkv.copying import archive_target
from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import Range
from snapkv.errors import ArchiveError, CompactedError, EngineUnavailableError
from snapkv.layout import prefix_end

from .histories import Recorder, Writing, recorder

pytestmark = pytest.mark.slow

embedded = pytest.mark.parametrize("place", ["memory"], indirect=True)


class Ended(BaseException):
    """The process ends here."""


class EndingFiles:
    """Files whose process ends before or after its `steps`-th change of them."""

    def __init__(self, files, steps, *, after):
        self.files, self.url = files, files.url
        self.left, self.after = steps, after

    def __getattr__(self, name):
        return getattr(self.files, name)

    def put_new(self, name, data):
        return self._step(lambda: self.files.put_new(name, data))

    def delete(self, name):
        self._step(lambda: self.files.delete(name))

    def _step(self, change):
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Ended
        done = change()
        if self.left < 0:
            raise Ended
        return done


def assert_recorded(store, place):
    """Assert that the archive has what the engine has: all states, and all changes once."""
    archive = ArchiveEngine(Folder(str(place)) if isinstance(place, os.PathLike) else place)
    engine, layout = store._core.engine, store._core.layout
    ranges = [key_range(layout.root + part) for part in (b"data/", b"space/", b"sys/ts")]
    high = archive.manifest.high
    assert high == store._core.timeline.head().revision
    for revision in range(archive.manifest.since, high + 1):
        wanted = [Range(*each, revision) for each in ranges]
        theirs = [result.kvs for result in engine.read(wanted).results]
        assert [result.kvs for result in archive.read(wanted).results] == theirs
    for each in ranges:
        events, found = (
            [(b.revision, b.events) for b in replayed(e, *each, archive.manifest.since + 1, high)]
            for e in (engine, archive)
        )
        assert found == events


def key_range(prefix):
    return prefix, prefix_end(prefix)


@embedded
@pytest.mark.parametrize(
    ("after", "apart"),
    [(False, 7), *(pytest.param(after, 2, marks=pytest.mark.long) for after in (False, True))],
    ids=["before", "before each second", "after each second"],
)
def test_it_goes_on_wherever_it_was_killed(
    place, store, clock, new_files, monkeypatch, after, apart
):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 10)
    writing = Writing(place, store, clock, random.Random(3))
    on_s3 = isinstance(new_files(), ObjectStore)
    for steps in itertools.count(0, 1 if SOAK else 7 if on_s3 else apart):
        whole = new_files()
        files = EndingFiles(whole, steps, after=after)
        store.save("z", b"%d" % steps)
        try:
            for _ in range(4):
                recording = Recorder(store, files)
                recording.catch_up()
                recording.writer.tidy()
                writing.steps(6)
        except Ended:
            Recorder(store, whole).catch_up()
            assert_recorded(store, whole)
            continue
        assert steps > 10, "there were that many steps to end at"
        return


class FailingFiles(EndingFiles):
    """Files of which one change fails, before or after it is made."""

    def _step(self, change):
        self.left -= 1
        if self.left == -1 and not self.after:
            raise EngineUnavailableError("no network")
        done = change()
        if self.left == -1:
            raise EngineUnavailableError("no network")
        return done


@pytest.mark.long_after(1)
@embedded
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_same_recorder_goes_on_after_an_error(store, tmp_path, after):
    """The manifest that it could not publish may be published."""
    failed = 0
    for steps in range(9):
        whole = Folder(str(tmp_path / f"{steps}"))
        recording = Recorder(store, whole)
        store.save("a", b"%d" % steps)
        recording.catch_up()
        store.save("b", b"%d" % steps)
        recording.writer.files = FailingFiles(whole, steps, after=after)
        try:
            recording.catch_up()
        except EngineUnavailableError:
            failed += 1
            store.save("c", b"%d" % steps)
            recording.catch_up()
        recording.writer.tidy()
        assert_recorded(store, whole)
    assert failed >= 4


@embedded
def test_parts_end_with_a_commit(place, store, clock, tmp_path, monkeypatch):
    monkeypatch.setattr(archive_target, "FLUSH_ROWS", 5)
    recording = recorder(store, tmp_path / "archive")
    recording.catch_up()
    Writing(place, store, clock, random.Random(1)).steps(60)
    recording.catch_up()
    deltas = recording.writer.manifest.of_kind("delta")
    assert len(deltas) > 5
    revisions = {c.revision for c in store.commits()}
    assert all(delta.high in revisions for delta in deltas)
    assert_recorded(store, tmp_path / "archive")


class Overtaken:
    """An engine whose first scans are overtaken by compaction."""

    def __init__(self, engine, times):
        self.engine, self.times = engine, times

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def scan(self, *range_, **rest):
        yield from self.engine.scan(*range_, **rest)
        self.times -= 1
        if self.times >= 0:
            raise CompactedError(5, 6, unit="revision")


@embedded
def test_compaction_that_overtakes_the_first_state(store, tmp_path):
    store.save("a", b"1")
    for times, folder in ((3, "late"), (100, "never")):
        recording = recorder(store, tmp_path / folder)
        recording.source.engine = Overtaken(store._core.engine, times)
        if folder == "late":
            recording.catch_up()
            assert_recorded(store, tmp_path / folder)
        else:
            with pytest.raises(CompactedError):
                recording.catch_up()


@embedded
def test_nothing_new_writes_nothing(store, tmp_path):
    store.save("a", b"1")
    recording = recorder(store, tmp_path)
    recording.catch_up()
    files = recording.writer.files.list("")
    recording.catch_up()
    assert recording.status.recorded_revision == store.at().revision
    assert recording.writer.files.list("") == files


@pytest.mark.parametrize("value", [b"", b"\0" * 100_000], ids=["empty", "large"])
def test_values_and_notes_come_back_as_they_were(place, store, tmp_path, value):
    recording = recorder(store, tmp_path / "archive")
    recording.catch_up()
    store.commit(puts={"a": value, "\u20ac": b"\xff"}, note="a \u20ac note")
    store.space("s/%2F").commit(puts={b"\xff\0": value})
    recording.catch_up()
    assert_recorded(store, tmp_path / "archive")


# --- what is left over ---


def aged(folder, seconds):
    """Let all files be older than they are."""
    for path in filter(Path.is_file, folder.rglob("*")):
        then = path.stat().st_mtime - seconds
        os.utime(path, (then, then))


@embedded
def test_what_no_manifest_names_is_cleaned_when_it_is_old(store, tmp_path, monkeypatch):
    recording = recorder(store, tmp_path)
    store.save("a", b"0")
    recording.catch_up()
    left = tmp_path / "delta" / f"{2:020}-{3:020}-0a1b2c3d.parquet"  # its recorder was killed
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"any")
    for n in range(20):
        store.save("a", b"%d" % n)
        recording.catch_up()
        recording.writer.tidy()
    assert recording.writer.clean() == 0, "nothing is old"
    aged(tmp_path, 4_000)
    store.save("a", b"the newest")
    recording.catch_up()
    before = set(tmp_path.rglob("*.parquet"))
    assert recording.writer.clean() > 1
    after = set(tmp_path.rglob("*.parquet"))
    assert left not in after < before
    assert recording.writer.clean() == 0
    assert_recorded(store, tmp_path)


@embedded
def test_a_manifest_and_its_files_stay_for_an_hour_after_they_were_replaced(store, tmp_path):
    """However many were published since: who reads with an old one has that time."""
    recording = recorder(store, tmp_path)
    store.save("a", b"0")
    recording.catch_up()
    aged(tmp_path, 4_000)  # what the archive begins with is old; its manifest is in force until now
    before = set(tmp_path.rglob("*.parquet"))
    for n in range(20):
        store.save("a", b"%d" % n)
        recording.catch_up()
        while recording.writer.tidy():
            pass
    named = {tmp_path / file.path for file in existing(recording.writer.files).files}
    assert before - named, "replaced"
    assert recording.writer.clean() == 0
    assert before <= set(tmp_path.rglob("*.parquet"))
    aged(tmp_path, 4_000)
    store.save("a", b"the newest")
    recording.catch_up()
    assert recording.writer.clean() > 0
    store.save("a", b"the newest but one")
    recording.catch_up()
    assert len(list(tmp_path.rglob("_manifest/*.json"))) <= 10


@embedded
def test_a_recorder_that_took_too_long_does_not_publish(store, tmp_path, monkeypatch):
    """What it wrote may have been cleaned away."""
    recording = recorder(store, tmp_path)
    recording.catch_up()
    store.save("a", b"1")
    now = itertools.count(0, 5_000)
    with monkeypatch.context() as patched:
        patched.setattr(writer, "monotonic", lambda: float(next(now)))
        with pytest.raises(ArchiveError, match="record again"):
            recording.catch_up()
    recording.catch_up()
    assert_recorded(store, tmp_path)
