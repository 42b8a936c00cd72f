"""A directory that cannot be written is read; writing is refused."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmdb_processes import may_unshare, on_mount, run
from lmdb_words import put

from snapkv.engine.lmdb import LmdbEngine

pytestmark = pytest.mark.slow

READ = """
engine = LmdbEngine(path, create=CREATE)
assert get(engine, b"a") == b"2" and get(engine, b"a", 2) == b"1"
assert [kv.key for page in engine.scan(b"\\0", b"\\0", revision=3) for kv in page] == [b"a"]
assert engine.watch(b"a", b"", start_revision=3).next(5).events[0].kv.value == b"2"
error = raises(Refused, lambda: put(engine, b"b"))
assert isinstance(error.error, ReadOnlyError), error.error
raises(ReadOnlyError, lambda: engine.compact(2))
assert engine.check() == [] and engine.info()["readonly"] == 1
reap(child(lambda: get(engine, b"a") == b"2" or sys.exit(3)))
engine.close()
raises(ReadOnlyError, lambda: LmdbEngine(os.path.join(path, "new")))
"""

NOBODY = """
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65_534)
    os.setuid(65_534)
"""


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other users may enter (those of pytest are closed to them)."""
    place = Path(tempfile.mkdtemp(prefix="snapkv-test-"))
    place.chmod(0o755)
    yield place
    for folder, _, _ in os.walk(place):
        os.chmod(folder, 0o755)
    shutil.rmtree(place)


def filled(path: Path) -> None:
    engine = LmdbEngine(path, mode=0o644)
    put(engine, b"a", b"1")
    put(engine, b"a", b"2")
    engine.close()


@pytest.mark.parametrize("create", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("lock_files", ["all", "no writer.lock", "none", "open"])
def test_a_folder_without_the_right_to_write(
    open_place: Path, create: bool, lock_files: str
) -> None:
    path = open_place / "store"
    filled(path)
    if lock_files in ("no writer.lock", "none"):
        (path / "writer.lock").unlink()
    if lock_files == "none":
        (path / "lock.mdb").unlink()
    for file in path.iterdir():
        file.chmod(0o666 if lock_files == "open" and file.name == "lock.mdb" else 0o444)
    path.chmod(0o555)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    run(NOBODY + READ.replace("CREATE", str(create)), path)
    after = {file.name: file.read_bytes() for file in path.iterdir()}
    for contents in (before, after):
        contents.pop("lock.mdb", None)
    assert before == after


def test_readers_without_rights_beside_a_writer(open_place: Path) -> None:
    """With a lock file that they may write, they are readers like others."""
    path = open_place / "store"
    filled(path)
    (path / "lock.mdb").chmod(0o666)
    (path / "writer.lock").chmod(0o444)
    path.chmod(0o555)
    run(
        """
        def reader():
            exec(NOBODY)
            engine = LmdbEngine(path)
            until(lambda: count(engine) == 40)
            for page in engine.scan(b"\\0", b"\\0", revision=3):
                assert [kv.value for kv in page] == [b"2"]
        pid = child(reader)
        engine = LmdbEngine(path)
        for i in range(39):
            put(engine, b"b%d" % i, b"x" * 1_000)
        reap(pid)
        """.replace("exec(NOBODY)", f"exec({NOBODY!r})"),
        path,
    )


def test_nothing_can_be_made_in_such_a_folder(open_place: Path) -> None:
    (open_place / "empty").mkdir()
    run(
        NOBODY
        + """
raises(ReadOnlyError, lambda: LmdbEngine(path))
raises(ReadOnlyError, lambda: LmdbEngine(os.path.join(path, "deeper", "still")))
raises(StoreNotFoundError, lambda: LmdbEngine(path, create=False))
""",
        open_place / "empty",
    )


def test_a_folder_that_may_not_be_looked_into(open_place: Path) -> None:
    path = open_place / "store"
    filled(path)
    path.chmod(0o700)
    code = NOBODY + "raises(ReadOnlyError, lambda: LmdbEngine(path))"
    if os.getuid() != 0:
        path.chmod(0o000)
    run(code, path)


@pytest.mark.parametrize("kind", ["read-only mount"] if may_unshare() else [])
def test_a_read_only_file_system(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    filled(path)
    bind = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"'
    for create in (False, True):
        run(READ.replace("CREATE", str(create)), path, wrapper=on_mount(bind, path))
    engine = LmdbEngine(path)
    put(engine, b"b")
    engine.close()
