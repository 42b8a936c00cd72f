"""Files that are not the archive's survive it, and no archive begins among them."""

import os
import random
import shutil
from pathlib import Path

import pytest

import snapkv
from snapkv.archive import iceberg, manifest, open_files, writer
from snapkv.archive.delta_lake import publish_delta
from snapkv.archive.folder import Folder
from snapkv.archive.manifest import newest
from snapkv.cli import main
from snapkv.engine.contract import Range
from snapkv.errors import ArchiveError, ArchiveTakenError, CompactedError

from .histories import LONG_OVER, Recorder, Writing
from .test_archive_recording import assert_recorded

embedded = pytest.mark.parametrize("place", ["memory"], indirect=True)
in_a_folder = pytest.mark.parametrize("new_files", ["folder"], indirect=True)

MINE = f"{7:020}-{9:020}-0a1b2c3d"
"""As the name of a data file."""
NAMES = [
    "customers.parquet",
    "sales/day=1/part-0.parquet",
    f"{MINE}.parquet",
    "base/2024.parquet",
    "base/year=2024/part-0.parquet",
    "delta/customers.parquet",
    f"delta/{MINE}.parquet.bak",
    f"delta/{MINE}-copy.parquet",
    f"delta/x/{MINE}.parquet",
    "delta/17-90-0a1b2c3d.parquet",
    f"log/{MINE.upper()}.parquet",
    f"other/delta/{MINE}.parquet",
    f"other/_manifest/{1:020}.json",
    f"base/base/{MINE}.parquet",
    "_manifest/README.md",
    "_manifest/x.parquet",
    f"_manifest/{1:020}.json.bak",
    f"_manifest/{1:020}-copy",
    f"_manifest/old/{1:020}.json",
    "_iceberg/changes/metadata/notes.json",
    "_iceberg/changes/metadata/view.metadata.json",
    "_iceberg/orders/metadata/v1.metadata.json",
    ".DS_Store",
    "a b/\u20ac.parquet",
]
"""Names that no writer of an archive makes in this place."""


class Aged:
    """Files of an archive of which all that exist when `age` is called are hours old."""

    def __init__(self, files):
        self._files, self._old = files, set()

    def __getattr__(self, name):
        return getattr(self._files, name)

    def age(self):
        self._old = {entry.name for entry in self._files.list("")}

    def list(self, folder):
        return [
            entry._replace(written=entry.written - 9_000 * (entry.name in self._old))
            for entry in self._files.list(folder)
        ]


def contents(files):
    return {entry.name: files.read(entry.name) for entry in files.list("")}


# --- every file below a place survives ---


@pytest.mark.slow
@pytest.mark.long_after(1)
@embedded
@pytest.mark.parametrize("seed", range(3))
def test_every_file_below_a_place_survives(place, store, clock, files, monkeypatch, seed):
    """Whatever is recorded, merged, dropped, cleaned and published, and whenever they came."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for module in (manifest, iceberg):
        monkeypatch.setattr(module, "GRACE_S", LONG_OVER)
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "MERGED_FILES", 3)
    aged, foreign = Aged(files), {}
    writing, recording = Writing(place, store, clock, rng), Recorder(store, aged)
    store.save("a", b"the first")
    recording.catch_up()
    begun = set(contents(files))
    for _ in range(8):
        for name in rng.sample(NAMES, 4):
            if name not in foreign:
                foreign[name] = rng.randbytes(rng.randrange(1, 9))
                assert files.put_new(name, foreign[name])
        aged.age()
        writing.steps(rng.randrange(1, 8))
        recording.catch_up()
        while recording.writer.tidy():
            pass
        if rng.random() < 0.3:
            recording.writer.keep(store.tick().ts)
        recording.writer.clean()
        if isinstance(files, Folder):
            publish_delta(files.url)
            iceberg.publish_iceberg(files.url)
        recording = Recorder(store, aged)  # an archive goes on, whatever lies beside it
        recording.catch_up()
    found = contents(files)
    assert {name: found.get(name) for name in foreign} == foreign
    assert not begun <= set(found), "the archive's own files do go"
    assert_recorded(store, files)


@pytest.mark.parametrize("where", ["beside", "below"])
def test_a_recorder_that_runs_three_times_deletes_only_its_own(tmp_path, where, monkeypatch):
    """As the first report of it: `snapkv record --into DIR --once`, with old files below DIR."""
    folder, other = tmp_path / "place", tmp_path / "other"
    with snapkv.open(f"lmdb:{tmp_path / 'store'}") as store:
        store.save("a", b"0")
    url = f"lmdb:{tmp_path / 'store'}"
    assert main(["record", "--store", url, "--into", str(folder), "--once"]) == 0
    if where == "below":
        assert main(["record", "--store", url, "--into", str(other), "--once"]) == 0
        shutil.copytree(other, folder / "archives" / "other")
    for name in ("customers.parquet", "sales/day=1/part-0.parquet", "delta/customers.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"not ours")
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in kept:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    for n in range(3):
        with snapkv.open(url) as store:
            store.save("a", b"%d" % n)
        assert main(["record", "--store", url, "--into", str(folder), "--once"]) == 0
    recorder = snapkv.record(url, into=str(folder))
    recorder.catch_up()
    assert {path for path in kept if not path.exists()} == set()
    if where == "below":
        with snapkv.open_archive(str(folder / "archives" / "other")) as archive:
            assert archive.load("a") == b"0"


# --- where an archive begins ---


@embedded
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("customers.parquet", "such as 'customers.parquet'"),
        ("sales/day=1/part-0.parquet", "such as 'sales/day=1/part-0.parquet'"),
        ("base/2024.parquet", "such as 'base/2024.parquet'"),
        (f"delta/{MINE}.parquet", "such as 'delta/"),
        (f"log/{MINE}.parquet", "such as 'log/"),
        (f"_manifest/{1:020}-0", "it has no manifest"),
        ("_delta_log/00000000000000000000.json", "such as '_delta_log/"),
        (f"teams/a/_manifest/{1:020}.json", "/teams/a is one"),
        (f".hidden/_manifest/{1:020}.json", "/.hidden is one"),
    ],
)
def test_no_archive_begins_among_other_files(store, files, name, message):
    """Nothing is written: not the state, and not what a capture writes first."""
    files.put_new(name, b"not ours")
    with pytest.raises(ArchiveError, match="cannot become an archive") as caught:
        Recorder(store, files)
    assert message in str(caught.value)
    assert contents(files) == {name: b"not ours"}


@embedded
@pytest.mark.parametrize("below", ["x", "x/y", "base", "_manifest"])
def test_no_archive_begins_below_another_one(store, new_files, files, s3, below):
    Recorder(store, files).catch_up()
    before = contents(files)
    storage = None if isinstance(files, Folder) else s3.storage
    with pytest.raises(ArchiveError, match="which it is in, is one"):
        Recorder(store, open_files(f"{files.url}/{below}", storage))
    assert contents(files) == before


@embedded
def test_no_archive_begins_below_another_one_by_a_link(store, tmp_path):
    Recorder(store, Folder(str(tmp_path / "archive"))).catch_up()
    (tmp_path / "archive" / "inner").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "archive" / "inner")
    with pytest.raises(ArchiveError, match="which it is in, is one"):
        Recorder(store, Folder(str(tmp_path / "link")))


@embedded
def test_what_systems_leave_in_empty_folders_keeps_no_archive_from_beginning(
    store, tmp_path, new_files, files
):
    for name in (".DS_Store", ".Trash-0/files/x", "lost+found/#12", "Thumbs.db", "desktop.ini"):
        files.put_new(name, b"any")
    files.put_new(f"_assignment/{7:020}-{1:020}", b"")  # of a capture that was killed just then
    if isinstance(files, Folder):
        (Path(files.url) / "lost+found").chmod(0)
        (Path(files.url) / "empty").mkdir()
    else:
        files.put_new("a-folder-of-the-console", b"")
    store.save("a", b"1")
    Recorder(store, files).catch_up()
    if isinstance(files, Folder):
        (Path(files.url) / "lost+found").chmod(0o700)
    assert_recorded(store, files)
    assert files.read("lost+found/#12") == b"any"


class KilledError(Exception):
    """The writer is killed before a file."""


@pytest.mark.long_after(1)
@embedded
@pytest.mark.parametrize("after", range(4))
def test_a_first_run_that_was_killed_keeps_no_later_one_from_beginning(store, files, after):
    """Not even several, and what they left goes when it is old."""
    for n in range(3):
        store.save("a", b"%d" % n)
        aged = Aged(files)
        left = after
        put_new = files.put_new

        def killed(name, data, put_new=put_new):
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return put_new(name, data)

        aged.put_new = killed
        recording = Recorder(store, aged)
        if newest(files) is None:
            with pytest.raises(KilledError):
                recording.catch_up()
    aged = Aged(files)
    Recorder(store, aged).catch_up()
    aged.age()
    store.save("a", b"the newest")
    recording = Recorder(store, aged)
    recording.catch_up()
    recording.writer.clean()
    named = {file.path for file in recording.writer.manifest.files}
    data = {entry.name for entry in files.list("") if not entry.name.startswith("_manifest/")}
    assert data == named
    assert_recorded(store, files)


@embedded
def test_of_two_recorders_that_begin_at_once_one_succeeds(store, files):
    """Both find the place empty; the files of the other one go when they are old."""
    store.save("a", b"1")
    first, second = Recorder(store, files), Recorder(store, files)
    first.catch_up()
    with pytest.raises(ArchiveTakenError):
        second.catch_up()
    store.save("a", b"2")
    Recorder(store, files).catch_up()
    assert_recorded(store, files)


@embedded
def test_a_recorder_that_begins_just_after_another_one_raises_that_it_is_taken(store, files):
    """Its first look found no manifest; then the other one published, and added a delta."""
    first = Recorder(store, files)
    looks = iter([[]])
    late = Aged(files)
    store.save("a", b"1")
    first.catch_up()
    store.save("a", b"2")
    first.catch_up()
    late.list = lambda folder: next(looks, files.list(folder))
    second = Recorder(store, late)
    with pytest.raises(ArchiveTakenError):
        second.catch_up()
    assert_recorded(store, files)


@embedded
def test_a_place_with_other_files_is_refused_after_four_requests(store, s3, proxy):
    files = open_files(s3.new_url(), s3.storage)
    for name in ("a", "b", "c/d"):
        files.put_new(name, b"not ours")
    proxy.seen.clear()
    with pytest.raises(ArchiveError, match="cannot become an archive"):
        Recorder(store, open_files(files.url, proxy.storage))
    assert len(proxy.seen) == 4, "manifests, those of the bucket, the first files, manifests"


@embedded
def test_what_lies_beside_an_archive_is_not_listed_when_it_is_cleaned(store, s3, proxy):
    files = open_files(s3.new_url(), proxy.storage)
    recording = Recorder(store, files)
    store.save("a", b"1")
    recording.catch_up()
    proxy.seen.clear()
    recording.writer.clean()
    lists = [path for method, path in proxy.seen if "list-type" in path]
    folders = sorted(path.partition("prefix=")[2].partition("&")[0] for path in lists)
    assert len(folders) == 4
    assert all(
        each.rstrip("%2F").endswith(("_manifest", "base", "delta", "log")) for each in folders
    )


# --- what a retention drops ---


@pytest.mark.long_after(1)
@embedded
@pytest.mark.parametrize("seed", range(4))
def test_keep_drops_what_is_before_a_time_and_nothing_else(place, store, clock, tmp_path, seed):
    """From the time on each moment stays; what goes is whole deltas, a tenth of all or more."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    files = Aged(Folder(str(tmp_path / "archive")))
    writing, recording = Writing(place, store, clock, rng), Recorder(store, files)
    store.save("a", b"the first")
    for _ in range(6):
        recording.catch_up()
        writing.steps(rng.randrange(1, 6))
    recording.catch_up()
    made, dropped = recording.writer, 0
    for before in sorted(rng.choice([c.ts, c.ts + 1]) for c in list(store.commits())[:-1]):
        was, marks = made.manifest, {c.revision: c.ts for c in store.commits()}
        ends = [d.high for d in was.of_kind("delta") if marks.get(d.high, before + 1) <= before]
        due = (
            ends and 10 * (marks[ends[-1]] - was.since_timestamp) >= was.resolved - marks[ends[-1]]
        )
        assert made.keep(before) is bool(due)
        now = made.manifest
        assert (now.since, now.resolved) == (ends[-1] if due else was.since, was.resolved)
        assert now.since_timestamp <= before
        assert {f.path for f in was.files if f.low > now.since} <= {f.path for f in now.files}
        assert all(file.high >= now.since for file in now.files)
        dropped += bool(due)
        assert_recorded(store, tmp_path / "archive")
    assert dropped, "the test drops something"


@embedded
def test_a_difference_from_before_the_archive_is_told_so(store, clock, tmp_path):
    """Both sides are read in one request, and one of them is kept."""
    recording = Recorder(store, Folder(str(tmp_path / "archive")))
    for value in (b"1", b"2", b"3", b"4"):
        store.save("a", value)
        recording.catch_up()
        clock.advance(1_000)
    first, *_, last = store.commits()
    with snapkv.open_archive(str(tmp_path / "archive")) as archived:
        old, new = archived.at(first.ts), archived.at(last.ts)
        assert recording.writer.keep(last.ts)
        archived.reader.engine.refresh()
        with pytest.raises(CompactedError):
            list(old.diff(new))
        both = [Range(archived.keyspace.encode("a"), revision=c.revision) for c in (first, last)]
        with pytest.raises(CompactedError):
            archived.reader.engine.read(both)
