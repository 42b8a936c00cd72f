"""Fixtures: the members of a test's fleets; a server of S3's protocol."""

import pytest
from archive.conftest import proxy as proxy
from archive.conftest import s3 as s3

from .leaving import Servers
from .sites import Sites


@pytest.fixture
def sites(tmp_path):
    with Sites(tmp_path) as sites:
        yield sites


@pytest.fixture
def servers(monkeypatch):
    """Engines that are opened from now on answer only while their servers are there."""
    servers = Servers()
    servers.patch(monkeypatch)
    yield servers
    for url in list(servers.modes):
        servers.set(url, "here")
