"""Fixtures: a store on each engine with commits, and places for archives."""

import pytest
from object_server import S3Proxy, shared_server
from store.conftest import clock as clock
from store.conftest import place as place
from store.conftest import store as store

from snapkv.archive import open_files
from snapkv.archive.folder import Folder


@pytest.fixture
def s3():
    return shared_server()


@pytest.fixture
def proxy(s3):
    with S3Proxy(s3) as proxy:
        yield proxy


@pytest.fixture(params=["folder", "s3"])
def new_files(request, tmp_path):
    """Return a function that returns the files of a new place."""
    if request.param == "folder":
        folders = (Folder(str(tmp_path / f"archive-{n}")) for n in range(1_000))
        return lambda: next(folders)
    server = request.getfixturevalue("s3")
    return lambda: open_files(server.new_url(), server.storage)


@pytest.fixture
def files(new_files):
    return new_files()
