"""Files of an archive: each appears whole, once, and a damaged one is noticed."""

from pathlib import Path

import pytest

from snapkv.archive import manifest as manifests
from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.folder import Folder
from snapkv.archive.manifest import File, Manifest, newest, publish, resolved
from snapkv.errors import ArchiveError, ArchiveTakenError, FileMissingError, FormatError
from snapkv.layout import SourceId

from .histories import LONG_OVER, recorder

SOURCE = SourceId(b"id", "default", 2)


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "archive"))


def base(at):
    return File("base", f"base/{at}.parquet", at, at, 0, 0, "")


def delta(low, high, kind="delta"):
    return File(kind, f"{kind}/{low}.parquet", low, high, 0, 0, "")


def manifest(number, *files):
    return Manifest(number, SOURCE, 5, 50, 90 + number, (base(5), delta(5, 5, "log"), *files))


def test_a_manifest_is_read_as_it_was_written(files):
    written = manifest(1, delta(6, 9), delta(6, 9, "log"))
    assert newest(files) is None
    assert publish(files, written)
    assert newest(files) == written
    assert newest(files, written) is None


def test_of_two_writers_one_publishes(files):
    assert publish(files, manifest(1))
    following = manifest(2)
    assert publish(files, following)
    assert not publish(files, manifest(2, delta(6, 7)))
    assert newest(files) == following


def test_a_writer_that_was_away_for_long_does_not_publish(files, monkeypatch):
    """Old manifests are deleted, so its number is free."""
    monkeypatch.setattr(manifests, "GRACE_S", LONG_OVER)
    for number in range(1, 30):
        assert publish(files, manifest(number))
    names = [Path(entry.name).name for entry in files.list("_manifest")]
    assert names == [f"{n:020}{end}" for n in range(22, 30) for end in (f"-{90 + n}", ".json")]
    assert resolved(files) == 119
    assert not publish(files, manifest(3, delta(6, 7)))
    assert newest(files) == manifest(29)
    assert len(files.list("_manifest")) == 16


@pytest.mark.parametrize(
    "wrong",
    [
        [delta(7, 9)],
        [delta(6, 9), delta(9, 12)],
        [delta(6, 9), delta(11, 12)],
        [delta(6, 9), delta(10, 9)],
        [delta(6, 9, "log"), delta(11, 12, "log")],
    ],
    ids=str,
)
def test_a_gap_or_an_overlap_is_an_error(wrong):
    with pytest.raises(ArchiveError, match="holds revisions"):
        manifest(1).following(wrong)


def test_a_manifest_needs_a_base_where_it_begins():
    with pytest.raises(ArchiveError, match="no base at revision 5"):
        manifest(1).following([], [base(5)])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"format": 1, "files": 7}', FormatError),
        (b'{"format": 3, "files": 7}', FormatError),
        (b'{"format": 2}', ArchiveError),
        (b"not json", ArchiveError),
        (b"[]", ArchiveError),
        (b"", ArchiveError),
    ],
)
def test_what_is_no_manifest_of_ours(files, text, error):
    files.put_new("_manifest/00000000000000000001.json", text)
    with pytest.raises(error):
        ArchiveEngine(files)


@pytest.mark.parametrize("path", ["../x.parquet", "/etc/passwd", "delta/../../x.parquet", "x"])
def test_a_manifest_that_names_a_file_outside_of_the_archive(files, path):
    stranger = delta(6, 9)._replace(path=path)
    files.put_new("_manifest/00000000000000000001.json", manifest(1, stranger).encode())
    with pytest.raises(ArchiveError, match="not a file of an archive"):
        ArchiveEngine(files)


def test_a_folder_without_an_archive(files):
    with pytest.raises(ArchiveError, match="no archive in"):
        ArchiveEngine(files)


# --- an archive of a store ---


@pytest.fixture
def archive(store, clock, tmp_path):
    for n in range(30):
        newest_commit = store.save(f"k{n}", b"%d" % n)
    clock.advance(600_000)
    store.compact(newest_commit)  # so that the archive begins with a base that has rows
    recording = recorder(store, tmp_path / "archive")
    recording.catch_up()
    for n in range(30):
        store.save(f"k{n}", b"again")
    recording.catch_up()
    return recording


embedded = pytest.mark.parametrize("place", ["memory"], indirect=True)


@embedded
@pytest.mark.parametrize("kind", ["base", "delta", "log"])
@pytest.mark.parametrize("how", ["missing", "truncated", "empty", "flipped", "exchanged"])
def test_a_damaged_file_is_an_error_and_never_wrong_data(store, archive, folder, kind, how):
    newest_of_kind = archive.writer.manifest.of_kind(kind)[-1]
    path = Path(folder.url) / newest_of_kind.path
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        middle = len(whole) // 3
        other = next(Path(folder.url).glob(f"{'base' if kind != 'base' else 'delta'}/*"))
        path.write_bytes(
            {
                "truncated": whole[:middle],
                "empty": b"",
                "flipped": flipped(whole),
                "exchanged": other.read_bytes(),
            }[how]
        )
    engine = ArchiveEngine(folder)
    high = engine.manifest.high
    start, end = engine.layout.data.range_of("")
    reads = {
        "base": lambda: list(engine.scan(start, end, revision=engine.manifest.since)),
        "delta": lambda: list(engine.scan(start, end, revision=high)),
        "log": lambda: engine.get(engine.layout.ts, high),
    }
    with pytest.raises((ArchiveError, FileMissingError)) as caught:
        reads[kind]()
    assert newest_of_kind.path in str(caught.value)


def flipped(whole: bytes) -> bytes:
    """Return the bytes with one bit changed in each of the first pages' bytes of data."""
    found = bytearray(whole)
    for at in range(40, min(200, len(found) - 600)):
        found[at] ^= 0x10
    assert found != whole
    return bytes(found)


@embedded
def test_of_two_recorders_one_goes_on(store, archive, tmp_path):
    other = recorder(store, tmp_path / "archive")
    store.save("a", b"1")
    other.catch_up()
    store.save("a", b"2")
    with pytest.raises(ArchiveTakenError):
        archive.catch_up()
    other.catch_up()
    assert ArchiveEngine(Folder(str(tmp_path / "archive"))).manifest.high == store.at().revision


@embedded
def test_the_archive_of_another_store(place, store, archive, tmp_path):
    with pytest.raises(ArchiveError, match="the record of another source"):
        recorder(place.open(name="other"), tmp_path / "archive")
