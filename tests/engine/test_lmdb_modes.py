"""Who may read and write a store: its owner alone, unless `mode` says otherwise."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmdb_processes import run
from lmdb_words import put

from snapkv.engine.lmdb import LmdbEngine
from snapkv.errors import InvalidOptionError, InvalidTypeError

FILES = {"data.mdb", "lock.mdb", "writer.lock"}

BECOME_ANOTHER = """
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65_534)
    os.setuid(65_534)
"""


@pytest.fixture(params=[0, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other users may enter (those of pytest are closed to them)."""
    place = Path(tempfile.mkdtemp(prefix="snapkv-test-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def modes(path: Path) -> dict[str, int]:
    found = {name: stat.S_IMODE(os.stat(path / name).st_mode) for name in os.listdir(path)}
    return {"": stat.S_IMODE(os.stat(path).st_mode)} | found


@pytest.mark.parametrize(
    ("options", "files", "folder"),
    [
        ({}, 0o600, 0o700),
        ({"mode": 0o640}, 0o640, 0o750),
        ({"mode": 0o660}, 0o660, 0o770),
        ({"mode": 0o666}, 0o666, 0o777),
        ({"mode": 0o620}, 0o620, 0o720),
    ],
    ids=str,
)
def test_a_new_store_has_its_mode_whatever_the_umask(
    path: Path, umask: None, options: dict[str, int], files: int, folder: int
) -> None:
    engine = LmdbEngine(path, **options)
    put(engine, b"a")
    engine.close()
    assert modes(path) == dict.fromkeys(FILES, files) | {"": folder}


def test_a_store_that_exists_stays_as_it_is(path: Path) -> None:
    LmdbEngine(path).close()
    path.chmod(0o755)
    for name in FILES:
        (path / name).chmod(0o644)
    engine = LmdbEngine(path, mode=0o600)
    put(engine, b"a")
    engine.close()
    assert modes(path) == dict.fromkeys(FILES, 0o644) | {"": 0o755}


def test_files_that_are_made_later_are_like_the_data(path: Path, umask: None) -> None:
    LmdbEngine(path, mode=0o660).close()
    for name in FILES - {"data.mdb"}:
        (path / name).unlink()
    engine = LmdbEngine(path)
    put(engine, b"a")
    engine.close()
    assert modes(path) == dict.fromkeys(FILES, 0o660) | {"": 0o770}


def test_a_directory_that_was_there_stays_as_it_is(path: Path) -> None:
    path.mkdir(mode=0o755)
    LmdbEngine(path).close()
    assert modes(path) == dict.fromkeys(FILES, 0o600) | {"": 0o755}


def test_the_group_of_a_folder_is_inherited(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)
    LmdbEngine(tmp_path / "store", mode=0o660).close()
    assert modes(tmp_path / "store")[""] == 0o2770


SHARED = (
    BECOME_ANOTHER
    + """
engine = LmdbEngine(path, mode=0o666)
assert get(engine, b"a") == b"v" and not engine.info()["readonly"]
for _ in range(10):
    increment(engine, b"n")
assert engine.check() == []
engine.close()
"""
)


def test_another_user_shares_a_store_that_is_open_to_all(open_place: Path) -> None:
    path = open_place / "store"
    engine = LmdbEngine(path, mode=0o666)
    put(engine, b"a")
    run(SHARED, path)
    assert put(engine, b"b") == 13
    assert engine.check() == []
    engine.close()


CLOSED = (
    "from snapkv.engine.lmdb import LmdbEngine\n"
    + BECOME_ANOTHER
    + """
if os.getuid() == 65_534:
    for create in (True, False):
        error = raises(ReadOnlyError, lambda: LmdbEngine(path, create=create))
        assert "Permission denied" in str(error), error
"""
)


def test_another_user_cannot_open_what_is_not(open_place: Path) -> None:
    LmdbEngine(open_place / "store").close()
    run(CLOSED, open_place / "store")


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        (0o700, InvalidOptionError),
        (0o400, InvalidOptionError),
        (0, InvalidOptionError),
        (640, InvalidOptionError),
        (-1, InvalidOptionError),
        (True, InvalidTypeError),
        (None, InvalidTypeError),
        ("0640", InvalidTypeError),
    ],
)
def test_modes_that_are_none(path: Path, mode: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        LmdbEngine(path, mode=mode)
    assert not path.exists()
