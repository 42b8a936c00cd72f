"""An archive that is read as a whole gives the states and differences of an open one."""

import random

import pytest

import snapkv
from snapkv.archive import writer
from snapkv.archive.data_files import ArchiveError
from snapkv.archive.folder import Folder
from snapkv.archive.manifest import existing
from snapkv.archive.small_archives import COLUMNS, SmallArchive, differences, states
from snapkv.errors import CompactedError

from .histories import Writing, recorder

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 30)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 7)


def whole(folder):
    files = Folder(str(folder))
    return SmallArchive(files, existing(files))


def state(archive, ts, prefix=""):
    """Return the rows in force in one archive."""
    table = states([archive.read(ts, ts)], prefix.encode())
    assert table.column_names == ["archive", *COLUMNS]
    assert not any(table["archive"].to_pylist())
    return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


def changes(archive, a, b, prefix=""):
    """Return what differs between two times of one archive."""
    table = differences([archive.read(min(a, b), max(a, b))], prefix.encode())
    keys, old, new = (table[name].to_pylist() for name in ("key", "before", "after"))
    before, after = (old, new) if a <= b else (new, old)
    return list(zip((key.decode() for key in keys), before, after, strict=True))


def rows(snapshot, prefix=""):
    found = snapshot.to_arrow(prefix)
    columns = (found[name].to_pylist() for name in found.column_names)
    key, value, created, revision, version = columns
    return list(zip((k.encode() for k in key), value, created, revision, version, strict=True))


def times_of(archive, rng, count):
    """Return commits' timestamps and some between them."""
    stamps = [commit.ts for commit in archive.commits()]
    picked = rng.sample(stamps, min(count, len(stamps)))
    return sorted({*picked, *(ts + rng.choice([-1, 1]) for ts in picked), stamps[-1]})


@pytest.mark.long_after(1)
@pytest.mark.parametrize("place", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", range(6))
def test_the_states_and_differences_of_a_random_history(place, store, clock, tmp_path, seed):
    print("seed", seed)
    rng = random.Random(seed)
    if seed % 2:  # the archive begins in the middle of a history
        clock.advance(1_000)
        store.save("k1", b"before")
        clock.advance(600_000)
        store.compact(store.save("k2", b"before"))
    writing = Writing(place, store, clock, rng)
    recording = recorder(store, tmp_path)
    for _ in range(rng.randrange(3, 9)):
        writing.steps(rng.randrange(1, 25))
        recording.catch_up()
        while rng.random() < 0.7 and recording.writer.tidy():
            pass
    read = whole(tmp_path)
    with snapkv.open_archive(str(tmp_path)) as archive:
        times = [t for t in times_of(archive, rng, 12) if t >= read.began]
        assert read.began == next(iter(archive.commits())).ts
        for ts in times:
            assert read.manifest.missing(ts) is None
            for prefix in ("", "k", "a"):
                assert state(read, ts, prefix) == rows(archive.at(ts), prefix)
        for _ in range(20):
            a, b = rng.choice(times), rng.choice(times)
            prefix = rng.choice(["", "k"])
            expected = [(d.key, d.before, d.after) for d in archive.diff(a, b, prefix)]
            assert changes(read, a, b, prefix) == expected


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_before_the_archive_begins_and_in_a_gap_nothing_is_there(place, store, clock, tmp_path):
    early = store.save("a", b"1")
    clock.advance(600_000)
    first = store.save("a", b"2")
    clock.advance(600_000)
    store.compact(first)
    recording = recorder(store, tmp_path)
    recording.catch_up()
    before = store.resolved()
    clock.advance(1_000)
    lost = store.save("a", b"3")
    clock.advance(600_000)
    last = store.save("a", b"4")
    clock.advance(600_000)
    store.save("b", b"5")
    store.compact(last, past_recordings=True)
    recorder(store, tmp_path).catch_up()
    read = whole(tmp_path)
    with snapkv.open_archive(str(tmp_path)) as archive:
        assert "begins at" in read.manifest.missing(early)
        with pytest.raises(CompactedError):
            archive.at(early).count()
        assert "gap" in read.manifest.missing(lost)
        with pytest.raises(snapkv.errors.HistoryGapError):
            archive.at(lost).count()
        for known in (before, last):
            assert read.manifest.missing(known) is None
            assert state(read, known) == rows(archive.at(known))


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_damaged_file_and_one_in_the_place_of_another_are_noticed(place, store, clock, tmp_path):
    recording = recorder(store, tmp_path)
    for n in range(3):
        ts = store.save("a", b"%d" % n)
        recording.catch_up()
    deltas = sorted((tmp_path / "delta").iterdir())
    content = deltas[0].read_bytes()
    deltas[0].write_bytes(deltas[1].read_bytes())
    with pytest.raises(ArchiveError, match="another file"):
        whole(tmp_path).read(ts, ts)
    broken = bytearray(content)
    broken[len(broken) // 3] ^= 255
    deltas[0].write_bytes(broken)
    with pytest.raises(ArchiveError, match="damaged"):
        whole(tmp_path).read(ts, ts)
    deltas[0].unlink()
    with pytest.raises(snapkv.errors.FileMissingError):
        whole(tmp_path).read(ts, ts)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_archives_together_at_times_of_their_own(tmp_path, seed):
    print("seed", seed)
    rng, clock = random.Random(seed), snapkv.ManualClock(1_790_000_000_000)
    reads, stamps = [], []
    for n in range(5):
        with snapkv.open(f"memory:together-{seed}-{n}", clock=clock) as store:
            recording = recorder(store, tmp_path / str(n))
            for _ in range(rng.randrange(4) if n else 0):  # the first one is empty
                for _ in range(rng.randrange(1, 12)):
                    clock.advance(rng.choice([0, 700]))
                    keys = rng.sample("abcdef", 3)
                    store.commit(puts={k: rng.randbytes(2) for k in keys[1:]}, deletes=keys[:1])
                recording.catch_up()
                while rng.random() < 0.5 and recording.writer.tidy():
                    pass
            recording.catch_up()
            stamps.append([commit.ts for commit in store.commits()] or [clock.now_ms() << 18])
        reads.append(whole(tmp_path / str(n)))
    for _ in range(20):
        spans = [sorted(rng.choices(each, k=2)) for each in stamps]
        read = [each.read(*span) for each, span in zip(reads, spans, strict=True)]
        for prefix in (b"", b"b"):
            for found in (states, differences):
                alone = [
                    row | {"archive": at}
                    for at, each in enumerate(read)
                    for row in found([each], prefix).to_pylist()
                ]
                assert found(read, prefix).to_pylist() == alone
