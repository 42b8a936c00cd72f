"""Where a dump goes: only a regular file is ever replaced, and only by a complete dump."""

import io
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cases import cases

import snapkv
from snapkv import SnapKVError
from snapkv.base import files
from snapkv.engine.contract import KeyValue
from snapkv.errors import (
    CompactedError,
    InvalidFileError,
    InvalidOptionError,
    InvalidTypeError,
)
from snapkv.timeline import Moment


@pytest.fixture
def dumped(store):
    """A store with two keys, as bytes of a dump; the store is `store`."""
    store.multi_save({"a": b"1", "b": b"x" * 100_000})
    file = io.BytesIO()
    store.dump(file)
    return file.getvalue()


@pytest.fixture
def umask():
    """No umask at all, so that only what is asked for takes rights away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_fifo_is_written_to(store, dumped, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        with ThreadPoolExecutor(1) as reader:
            read = reader.submit(fifo.read_bytes)
            assert store.dump(tmp_path / name) == 2
        assert read.result(10) == dumped
    assert stat.S_ISFIFO(os.lstat(fifo).st_mode)
    assert sorted(os.listdir(tmp_path)) >= ["fifo", "link"]


def test_a_fifo_is_read_from(store, dumped, place, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    target = place.open(name="target")
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit((tmp_path / "fifo").write_bytes, dumped)
        target.load_dump(tmp_path / "fifo")
    assert written.result(10) == len(dumped)
    assert dict(target.at().items()) == dict(store.at().items())


def test_a_fifo_with_nobody_at_the_other_end_is_not_waited_for_for_ever(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "FIFO_WAIT_S", 0.1)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidFileError, match=r"opened this FIFO to read for 0\.1 s"):
        store.dump(tmp_path / "fifo")
    with pytest.raises(InvalidFileError, match=r"was written to this FIFO for 0\.1 s"):
        store.load_dump(tmp_path / "fifo")


def test_a_reader_that_goes_away(store, dumped, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def read_a_little():
        with fifo.open("rb", buffering=0) as file:
            file.read(10)

    with ThreadPoolExecutor(1) as reader:
        reader.submit(read_a_little)
        with pytest.raises(InvalidFileError, match="Broken pipe"):
            store.dump(fifo)


def test_a_device_is_written_to(store, tmp_path):
    device = tmp_path / "null"
    if os.geteuid() == 0:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    else:  # who cannot make a device cannot replace one either
        device.symlink_to("/dev/null")
    before = os.stat(device)
    assert store.dump(device) == 0
    after = os.stat(device)
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_rdev) == (before.st_ino, before.st_rdev)


def test_a_link_is_followed(store, dumped, tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_bytes(b"old")
    (tmp_path / "near").symlink_to("inner/file")
    (tmp_path / "far").symlink_to(tmp_path / "near")
    (tmp_path / "dangling").symlink_to("inner/new")
    for link, file in (("near", "file"), ("far", "file"), ("dangling", "new")):
        store.dump(tmp_path / link)
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / "inner" / file).read_bytes() == dumped
        (tmp_path / "inner" / file).write_bytes(b"old")
    assert sorted(os.listdir(tmp_path / "inner")) == ["file", "new"]


def test_links_that_lead_nowhere(store, tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "gone").symlink_to("no/such/folder")
    with pytest.raises(InvalidFileError):
        store.dump(tmp_path / "one")
    with pytest.raises(InvalidFileError):
        store.dump(tmp_path / "gone")
    assert all((tmp_path / name).is_symlink() for name in ("one", "two", "gone"))


@pytest.mark.parametrize("allowed", ["owner and group", "group", "nothing"])
def test_whose_a_replaced_file_is(store, tmp_path, monkeypatch, allowed):
    """Only root may give a file away; a group that cannot be kept loses its rights."""
    path, asked, real = tmp_path / "dump", [], os.chown
    path.write_bytes(b"old")
    path.chmod(0o640)
    mine = path.stat()

    def chown(fd, owner, group):
        asked.append((owner, group))
        if allowed == "nothing" or (allowed == "group" and owner != -1):
            raise PermissionError
        real(fd, owner, group)

    monkeypatch.setattr(os, "chown", chown)
    store.dump(path)
    tries = [(mine.st_uid, mine.st_gid), (-1, mine.st_gid)]
    assert asked == tries[: 1 if allowed == "owner and group" else 2]
    assert mode_of(path) == (0o600 if allowed == "nothing" else 0o640)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "/proc/thread-self/fd/{}"])
def test_a_descriptor_is_written_to_where_it_stands(store, dumped, tmp_path, name):
    with (tmp_path / "kept").open("wb", buffering=0) as file:
        file.write(b"before")
        (tmp_path / "link").symlink_to(name.format(file.fileno()))
        store.dump(tmp_path / "link")
        store.dump(name.format(file.fileno()))
        file.write(b"after")
        assert os.path.samestat(os.fstat(file.fileno()), os.stat(tmp_path / "kept"))
    assert (tmp_path / "kept").read_bytes() == b"before" + dumped + dumped + b"after"


def test_a_file_is_replaced_by_a_complete_dump_only(store, dumped, tmp_path, monkeypatch):
    def scan(*_, **__):
        yield [KeyValue(b"default/data/a", b"1", 2, 2, 1)]
        raise CompactedError(1 << 60, 2 << 60)

    (tmp_path / "d").write_bytes(b"precious")
    before = sorted(os.listdir(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(Moment, "pages", scan)
        for name in ("d", "new"):
            with pytest.raises(CompactedError):
                store.dump(tmp_path / name)
    assert (tmp_path / "d").read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == before
    store.dump(tmp_path / "d")
    assert (tmp_path / "d").read_bytes() == dumped


def test_several_dumps_to_one_file_at_once(store, dumped, tmp_path):
    start = threading.Barrier(4)

    def dump(_):
        start.wait(10)
        return store.dump(tmp_path / "d")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(dump, range(4))) == [2] * 4
    assert (tmp_path / "d").read_bytes() == dumped


def test_who_may_read_a_dump(store, dumped, tmp_path, umask):
    path = tmp_path / "d"
    store.dump(path)
    assert mode_of(path) == 0o600
    path.chmod(0o640)
    store.dump(path)
    assert mode_of(path) == 0o640, "what is replaced keeps its rights"
    store.dump(path, mode=0o604)
    assert mode_of(path) == 0o604


@cases(
    ("mode", "error"),
    [
        (0o755, InvalidOptionError),
        (0o044, InvalidOptionError),
        (0, InvalidOptionError),
        (-1, InvalidOptionError),
        (1 << 70, InvalidOptionError),
        (True, InvalidTypeError),
        ("0640", InvalidTypeError),
        (6.0, InvalidTypeError),
    ],
)
def test_modes_that_are_none(store, tmp_path, mode, error):
    with pytest.raises(error):
        store.dump(tmp_path / "d", mode=mode)
    assert not (tmp_path / "d").exists()


def test_a_long_name_is_a_name(store, dumped, tmp_path):
    store.dump(tmp_path / ("n" * 255))
    assert (tmp_path / ("n" * 255)).read_bytes() == dumped
    with pytest.raises(InvalidFileError):
        store.dump(tmp_path / ("n" * 256))


@cases("path", ["", "\0", "a\0b", "\ud800", ".", "/", "/dev", "none/x", "x" * 9_000])
def test_paths_of_no_file(store, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    for call in (store.dump, store.load_dump):
        with pytest.raises(InvalidFileError) as caught:
            call(path)
        assert isinstance(caught.value, SnapKVError)
    assert sorted(os.listdir(tmp_path)) == before


@cases("file", [None, 5, b"path", object(), [], io.StringIO()])
def test_what_is_no_file(store, file):
    for call in (store.dump, store.load_dump):
        with pytest.raises(InvalidTypeError):
            call(file)


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb", "writer.lock"])
def test_a_dump_never_replaces_a_file_of_a_store(tmp_path, store, dumped, name):
    path = tmp_path / "meta"
    with snapkv.open(f"lmdb:{path}") as other:
        other.save("k", b"1")
        before = (path / name).stat().st_ino
        (tmp_path / "link").symlink_to(path / name)
        for place in (path / name, tmp_path / "link"):
            with pytest.raises(InvalidFileError, match="is a file of an lmdb store"):
                store.dump(place)
        assert (path / name).stat().st_ino == before
    with snapkv.open(f"lmdb:{path}") as other:
        assert other.load("k") == b"1"


def test_a_folder_that_is_missing_is_not_a_file(tmp_path, store, dumped):
    with pytest.raises(InvalidFileError):
        store.dump(f"{tmp_path}/missing/")
    assert not (tmp_path / "missing").exists()


# --- errors of others, and files that take a part ---


class OwnError(OSError):
    """Somebody's who is called while a file is written."""


@pytest.mark.parametrize("error", [OwnError("mine"), BrokenPipeError(32, "a terminal went")])
@pytest.mark.parametrize("name", ["new", "/dev/null", "/dev/fd/{}"])
def test_an_error_of_progress_is_not_one_of_the_file(store, dumped, tmp_path, error, name):
    def progress(_):
        raise error

    with (tmp_path / "kept").open("wb") as file, pytest.raises(type(error)) as caught:
        store.dump(tmp_path / name.format(file.fileno()), progress=progress)
    assert caught.value is error
    assert not (tmp_path / "new").exists()


def test_an_error_of_the_block_is_not_one_of_the_file_that_is_read(dumped, tmp_path):
    (tmp_path / "d").write_bytes(dumped)
    error = OwnError("mine")
    with pytest.raises(OwnError) as caught, files.readable(tmp_path / "d"):
        raise error
    assert caught.value is error


class Raw(io.RawIOBase):
    """Takes as many bytes at a time as it is told, then none."""

    def __init__(self, takes, room=1 << 30):
        self.taken, self.takes, self.room = bytearray(), takes, room

    def writable(self):
        return True

    def write(self, data):
        part = bytes(data)[: min(self.takes, self.room - len(self.taken))]
        self.taken += part
        return len(part)


@pytest.mark.parametrize("takes", [1, 7, 4_096])
def test_a_file_that_takes_a_part_gets_the_rest(store, dumped, takes):
    raw = Raw(takes)
    assert store.dump(raw) == 2
    assert raw.taken == dumped


def test_a_file_that_takes_no_more(store, dumped):
    with pytest.raises(InvalidFileError, match="the file takes none of"):
        store.dump(Raw(1_000, room=50_000))


def test_a_file_that_would_block(store, dumped):
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with open(writing, "wb", buffering=0) as raw:  # noqa: SIM117
            with pytest.raises(InvalidFileError, match="would block"):
                store.dump(raw)
    finally:
        os.close(reading)


def test_a_file_whose_write_returns_nothing(store, dumped):
    """Wrappers of files forget to."""
    taken = bytearray()

    class Forgetful:
        def write(self, data):
            taken.extend(data)

    assert store.dump(Forgetful()) == 2
    assert taken == dumped
