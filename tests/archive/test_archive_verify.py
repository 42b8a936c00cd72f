"""`verify` finds each kind of damage, and names the file."""

import json
import random
import re
from pathlib import Path

import pyarrow as pa
import pytest

from snapkv.archive import writer
from snapkv.archive.data_files import OpenFiles
from snapkv.archive.folder import Folder
from snapkv.archive.manifest import Manifest, existing, publish
from snapkv.archive.verify import verify
from snapkv.engine.contract import ALL_KEYS_END
from snapkv.errors import ArchiveError
from snapkv.layout import FIRST_KEY
from snapkv.times import format_time

from .histories import Recorder, Writing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("place", ["memory"], indirect=True),
    pytest.mark.parametrize("new_files", ["folder"], indirect=True),
]


@pytest.fixture
def recording(store, place, clock, files, monkeypatch):
    """An archive of several deltas, logs and bases."""
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    writing = Writing(place, store, clock, random.Random(3))
    store.save("z", b"the first that is known")
    recording = Recorder(store, files)
    for _ in range(9):
        recording.catch_up()
        writing.steps(8)
        while recording.writer.tidy():
            pass
    recording.catch_up()
    return recording


def path_of(files: Folder, file):
    return f"{files.url}/{file.path}"


def a_file(recording, kind, which=-1):
    return recording.writer.manifest.of_kind(kind)[which]


def test_a_whole_one(recording):
    found = verify(recording.writer.files)
    manifest = recording.writer.manifest
    assert len(manifest.of_kind("base")) > 1
    assert found == (
        len(manifest.files),
        sum(file.rows for file in manifest.files),
        sum(file.size for file in manifest.files),
        (),
    )


@pytest.mark.long_after(4)
@pytest.mark.parametrize("kind", ["base", "delta", "log"])
@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer", "empty"])
def test_bytes_that_changed(recording, kind, damage):
    file = a_file(recording, kind)
    path = path_of(recording.writer.files, file)
    with open(path, "rb+") as changed:
        if damage == "flipped":
            changed.seek(file.size // 2)
            (byte,) = changed.read(1)
            changed.seek(-1, 1)
            changed.write(bytes([byte ^ 1]))
        elif damage == "longer":
            changed.seek(0, 2)
            changed.write(b"x")
        else:
            changed.truncate(0 if damage == "empty" else file.size - 1)
    (problem,) = verify(recording.writer.files).problems
    assert problem == f"{file.path} differs from the {file.size} bytes that the manifest records"


@pytest.mark.parametrize("kind", ["base", "delta", "log"])
def test_a_file_that_is_missing(recording, kind):
    file = a_file(recording, kind)
    recording.writer.files.delete(file.path)
    assert verify(recording.writer.files).problems == (f"{file.path} is missing",)


def test_several_are_all_named(recording):
    gone = [a_file(recording, kind, 0) for kind in ("base", "delta", "log")]
    for file in gone:
        recording.writer.files.delete(file.path)
    assert set(verify(recording.writer.files).problems) == {f"{f.path} is missing" for f in gone}


def test_files_that_were_exchanged(recording):
    files = recording.writer.files
    one, other = (a_file(recording, "delta", n) for n in (0, 1))
    first, second = files.read(one.path), files.read(other.path)
    for file, data in ((one, second), (other, first)):
        files.delete(file.path)
        files.put_new(file.path, data)
    found = verify(files).problems
    assert sorted(problem.split()[0] for problem in found) == sorted([one.path, other.path])


# --- files as they were written, but with the wrong rows: only the comparison of all finds them ---


def rewritten(recording, file, change):
    """Publish the archive with a file's rows changed, and all checksums right."""
    made = recording.writer
    parts = list(OpenFiles(made.files, made.keys).within(file, FIRST_KEY, ALL_KEYS_END))
    rows = change(writer.joined(parts))
    encoding = writer._encoding(file.kind, file.low, file.high)
    encoding.add(rows.table, rows.stored.to_pylist())
    replaced = made._put(encoding, file.low, file.high)
    assert publish(made.files, made.manifest.following([replaced], [file]))
    return replaced


def without_a_row(rows):
    return type(rows)(*(column.slice(1) for column in rows))


def test_a_base_that_lacks_a_key(recording):
    lacking = rewritten(recording, a_file(recording, "base"), without_a_row)
    (problem,) = verify(recording.writer.files).problems
    assert problem == f"the base at revision {lacking.high} is not what the changes give"


@pytest.mark.parametrize("lost", [0, 2, 3, 4])
def test_a_delta_that_lacks_a_change(store, clock, files, lost):
    """No base needs to have it: the versions of its key do not rise one by one.

    What was lost before the key was removed, or is the last change of it, shows in a base only.
    """
    recording = Recorder(store, files)
    recording.catch_up()
    for step in ("a", "a", "b", None, "a", "a", "b", "z"):
        clock.advance(1)
        if step is None:
            store.commit(deletes=["a"])
        else:
            store.save(step, b"1")
        recording.catch_up()
    assert verify(files).problems == ()
    rewritten(recording, a_file(recording, "delta", lost), without_a_row)
    (problem,) = verify(files).problems
    assert " of key b'default/data/" in problem
    assert " after version " in problem


def test_a_delta_that_numbers_changes_otherwise(recording):
    def renumbered(rows):
        at = rows.table.column_names.index("change_ordinal")
        numbers = pa.array([n + 1 for n in rows.table["change_ordinal"].to_pylist()], pa.int32())
        return rows._replace(table=rows.table.set_column(at, "change_ordinal", numbers))

    wrong = rewritten(recording, a_file(recording, "delta"), renumbered)
    assert verify(recording.writer.files).problems == (
        f"{wrong.path} has changes with wrong ordinals",
    )


def test_a_manifest_with_a_hole(recording):
    """Readers refuse it, too."""
    made = recording.writer
    hole = made.manifest.of_kind("delta")[1]
    remaining = tuple(file for file in made.manifest.files if file != hole)
    found = Manifest(
        made.manifest.number + 1,
        made.source,
        made.manifest.since,
        made.manifest.since_timestamp,
        made.manifest.resolved,
        remaining,
    )
    assert publish(made.files, found)
    for read in (existing, verify):
        with pytest.raises(ArchiveError, match=f"the archive needs {hole.low} next"):
            read(made.files)


@pytest.mark.long_after(4)
@pytest.mark.parametrize("digest", [True, False], ids=["", "as older ones are"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"kind": "delta"', '"kind": "ddlta"'),
        ('"kind": "log"', '"kind": "delta"'),
        ('"since": ', '"since": -'),
        ('"since": ', '"since": "1", "": '),
        ('"gaps": []', '"gaps": [{"low": "a", "high": 2, "after": 1, "before": 2}]'),
    ],
)
def test_a_manifest_that_changed(recording, old, new, digest):
    """One bit may change the kind of a file, which nothing would read then."""
    files, number = recording.writer.files, recording.writer.manifest.number
    name = f"_manifest/{number:020}.json"
    text = files.read(name).decode()
    assert old in text
    head, _, tail = text.rpartition(old)
    changed = head + new + tail
    if not digest:
        changed = re.sub('"digest": "[0-9a-f]{64}"', '"digest": ""', changed)
        assert changed != text
    Path(f"{files.url}/{name}").write_text(changed)
    for read in (existing, verify):
        with pytest.raises(ArchiveError):
            read(files)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"created": ', '"created": 9'),
        ('"gaps": []', '"gaps": [{"low": 9, "high": 9, "after": 1, "before": 2}]'),
        ('"digest": "', '"digest": null, "was": "'),
    ],
)
def test_a_manifest_whose_digest_is_another(recording, old, new):
    files, number = recording.writer.files, recording.writer.manifest.number
    path = Path(f"{files.url}/_manifest/{number:020}.json")
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ArchiveError, match="a manifest is damaged"):
        existing(files)


def test_a_manifest_that_was_formatted_anew(recording):
    files, number = recording.writer.files, recording.writer.manifest.number
    path = Path(f"{files.url}/_manifest/{number:020}.json")
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert existing(files) == recording.writer.manifest


def test_a_manifest_without_files(recording):
    files, number = recording.writer.files, recording.writer.manifest.number
    path = Path(f"{files.url}/_manifest/{number:020}.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"files": [], "digest": ""}))
    with pytest.raises(ArchiveError, match="no base"):
        verify(files)


def test_a_manifest_that_is_lost(recording):
    """The archive is as it was before; an empty file says that it reached further."""
    made = recording.writer
    Path(f"{made.files.url}/_manifest/{made.manifest.number:020}.json").unlink()
    (problem,) = verify(made.files).problems
    assert problem.startswith(
        f"a manifest is lost that reached {format_time(made.manifest.resolved)}"
    )


def test_changes_in_a_gap_have_the_time_of_its_end(store, clock, place, files):
    """And the log has the lost commits at its first revisions: that is no damage."""
    store.save("a", b"1")
    store.save("b", b"1")
    recording = Recorder(store, files)
    recording.catch_up()
    clock.advance(1_000)
    store.save("b", b"2")
    for n in range(10):
        store.save("a", b"%d" % n)
    place.engine().compact(store.at().revision)
    recording = Recorder(store, files)
    recording.catch_up()
    assert recording.writer.manifest.gaps
    assert verify(files).problems == ()
