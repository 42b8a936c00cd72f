"""Archives that are read a batch at a time give what each of them gives alone."""

import random

import pyarrow.parquet as pq
import pytest
from archive.histories import recorder

import snapkv
from snapkv.archive import writer
from snapkv.archive.folder import Folder
from snapkv.archive.manifest import existing
from snapkv.archive.rows import DELTA
from snapkv.errors import ArchiveError
from snapkv.fleet import archive_batches
from snapkv.fleet.pin import Pin

from .histories import PREFIXES, Writing, own

pytestmark = pytest.mark.slow

NAMES = [f"m{n}" for n in range(7)]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(archive_batches, "BATCH", 3)
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 20)
    monkeypatch.setattr(writer, "BASE_FILE_ROWS", 3)
    monkeypatch.setattr(writer, "MERGED_FILES", 3)


class Archives:
    """Stores with random histories, and their archives, which are opened one by one, too."""

    def __init__(self, sites, rng):
        sites.add(*NAMES)
        self.sites, self.rng, self.writing = sites, rng, Writing(sites, rng)
        self.recorders = {name: recorder(sites[name], self.folder(name)) for name in NAMES}

    def folder(self, name):
        return self.sites.folder / "archives" / name

    def record(self):
        self.sites.later()
        self.sites.tick()
        for each in self.recorders.values():
            each.catch_up()
            while self.rng.random() < 0.6 and each.writer.tidy():
                pass

    def fleet(self):
        return self.sites.fleet({"archives": [str(self.sites.folder / "archives")]})

    def alone(self):
        """Return each archive, opened."""
        return {n: self.sites.keep(snapkv.open_archive(str(self.folder(n)))) for n in NAMES}


@pytest.fixture(params=range(3))
def archives(sites, request):
    print(f"seed {request.param}")
    found = Archives(sites, random.Random(request.param))
    for hour in range(4):
        # the last one is empty but for ticks, and "m1" begins late
        found.writing.steps(60, *(name for name in NAMES[:-1] if hour or name != "m1"))
        found.record()
    return found


def rows(reads, times, prefix=None):
    """Return the rows of members at their times, by their own snapshots."""
    found = []
    for name, each in reads.items():
        if (snapshot := own(each, times[name])) is not None:
            columns = snapshot.to_arrow(prefix).to_pydict().values()
            found += [(name, *row) for row in zip(*columns, strict=True)]
    return found


def rows_of(table):
    return list(zip(*table.to_pydict().values(), strict=True))


def opened_by(monkeypatch):
    """Return the names of archives that might be read as wholes and are opened from now on."""
    opened, snapshot = [], Pin.snapshot

    def noted(pin):
        if pin.small_archive is not None:
            opened.append(pin.connection.name)
        return snapshot(pin)

    monkeypatch.setattr(Pin, "snapshot", noted)
    return opened


@pytest.mark.long_after(1)
def test_batches_are_their_members(archives, monkeypatch):
    rng, reads = archives.rng, archives.alone()
    fleet = archives.fleet()
    newest = fleet.resolved()
    times = [ts for ts in archives.writing.times() if ts <= newest]
    expected, moments = {}, {}
    for ts in rng.sample(times, 8):
        for prefix in (None, rng.choice(PREFIXES)):
            expected[ts, prefix] = rows(reads, dict.fromkeys(NAMES, ts), prefix)
        moments[ts] = fleet.at(ts)
    opened = opened_by(monkeypatch)
    for (ts, prefix), found in expected.items():
        monkeypatch.setattr(archive_batches, "BYTES_MAX", rng.choice([1, 2_000, 64 << 20]))
        monkeypatch.setattr(archive_batches, "FILES_BYTES", rng.choice([1, 10_000, 64 << 20]))
        assert rows_of(moments[ts].to_arrow(prefix)) == found
        assert not opened
    some = rng.sample(NAMES, 4)
    found = [row for row in expected[ts, None] if row[0] in some]
    assert rows_of(moments[ts].to_arrow(members=some)) == found


@pytest.mark.long_after(1)
def test_differences_of_batches_are_their_members(archives, monkeypatch):
    rng, reads = archives.rng, archives.alone()
    fleet = archives.fleet()
    newest = fleet.resolved()
    times = [ts for ts in archives.writing.times() if ts <= newest]
    for a, b in [rng.sample(times, 2) for _ in range(8)]:
        prefix = rng.choice([None, *PREFIXES])
        diff = fleet.diff(a, b, prefix)
        expected = [
            ((name, each.key), each.before, each.after)
            for name in diff.compared
            for each in reads[name].diff(a, b, prefix or "")
        ]
        with monkeypatch.context() as patching:
            opened = opened_by(patching)
            patching.setattr(archive_batches, "BYTES_MAX", rng.choice([1, 2_000, 64 << 20]))
            assert [(each.key, each.before, each.after) for each in diff] == expected
        assert not opened


@pytest.mark.long_after(1)
def test_members_at_times_of_their_own(archives):
    """One archive ends before the moment, and a token names a commit of each member."""
    reads = archives.alone()
    archives.sites.later()
    late = archives.recorders.pop("m4")
    archives.writing.steps(40)
    archives.record()
    others = archives.alone() | {"m4": reads["m4"]}
    ts = existing(Folder(str(archives.folder("m0")))).resolved
    ended = existing(Folder(str(archives.folder("m4")))).resolved
    moment = archives.fleet().at(ts, behind="stale")
    expected = rows(others, dict.fromkeys(NAMES, ts) | {"m4": ended})
    assert moment.members["m4"].state == "behind"
    assert rows_of(moment.to_arrow()) == expected
    late.catch_up()
    again = archives.fleet().at(token=moment.token)
    assert rows_of(again.to_arrow()) == expected


@pytest.mark.long_after(1)
def test_a_damaged_file_is_an_error_of_its_member(archives):
    fleet = archives.fleet()
    moment = fleet.at()
    for file in archives.folder("m4").rglob("*/*-*.parquet"):
        found = pq.ParquetFile(file).metadata
        if file.parent.name == "log" or not found.num_rows:
            continue
        at = found.row_group(0).column(DELTA.names.index("value")).data_page_offset
        content = bytearray(file.read_bytes())
        content[at + 40] ^= 255
        file.chmod(0o600)
        file.write_bytes(content)
    earlier = max(each for each in archives.writing.times() if each < moment.timestamp)
    for read in (moment.to_arrow, lambda: list(fleet.diff(earlier - 1, moment.timestamp))):
        with pytest.raises(ArchiveError, match=r"(base|delta)/.* of the archive is damaged") as e:
            read()
        assert e.value.member == "m4"
    others = [name for name in NAMES if name != "m4"]
    assert moment.to_arrow(members=others).num_rows == sum(
        len(moment.of(name)) for name in others if moment.members[name].state != "absent"
    )


@pytest.mark.long_after(1)
def test_files_that_were_merged_meanwhile(archives, monkeypatch):
    monkeypatch.setattr(writer, "BASE_AFTER_ROWS_MIN", 1_000_000)
    recording = archives.recorders["m4"]
    for _ in range(3):
        archives.writing.steps(60)
        archives.sites.tick()
        for each in archives.recorders.values():
            each.catch_up()
    fleet, reads = archives.fleet(), archives.alone()
    moment, before = fleet.at(), fleet.at(min(archives.writing.stamps))
    expected = rows(reads, dict.fromkeys(NAMES, moment.timestamp))
    changed = [(each.key, each.before, each.after) for each in moment.diff(before)]
    old = recording.writer.manifest.files
    assert recording.writer.tidy()
    gone = {file.path for file in old} - {file.path for file in recording.writer.manifest.files}
    for path in gone:  # as the writer does after a while
        recording.writer.files.delete(path)
    opened = opened_by(monkeypatch)
    assert rows_of(moment.to_arrow()) == expected
    assert opened == ["m4"]
    assert [(each.key, each.before, each.after) for each in moment.diff(before)] == changed


@pytest.mark.long_after(1)
def test_an_opened_member_between_archives(archives):
    """A live member splits the batch that it is in."""
    reads = archives.alone() | {"m2": archives.sites["m2"]}
    members = {name: f"archive:{archives.folder(name)}" for name in NAMES}
    fleet = archives.sites.fleet(members | {"m2": archives.sites.urls["m2"]})
    moment = fleet.at()
    assert rows_of(moment.to_arrow()) == rows(reads, dict.fromkeys(NAMES, moment.timestamp))


@pytest.mark.long_after(1)
def test_a_batch_of_large_archives_is_short(archives, monkeypatch):
    """It is read ahead, so it takes memory."""
    plain, lengths = archive_batches._merged, []

    def merged(batch, merge):
        lengths.append(len(batch))
        return plain(batch, merge)

    monkeypatch.setattr(archive_batches, "_merged", merged)
    fleet = archives.fleet()
    moment = fleet.at(fleet.resolved())
    expected = rows_of(moment.to_arrow())
    assert max(lengths) > 1
    monkeypatch.setattr(archive_batches, "FILES_BYTES", 1)
    lengths.clear()
    assert rows_of(moment.to_arrow()) == expected
    assert set(lengths) == {1}
