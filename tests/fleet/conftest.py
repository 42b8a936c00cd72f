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
def servers(monkeypatch, sites):
    """Engines that fleets open answer only while their servers are there."""
    servers = Servers()
    sites.passed = servers.passed
    servers.patch(monkeypatch)
    yield servers
    for url in list(servers.modes):
        servers.set(url, "here")


@pytest.fixture
def late(sites):
    """A fleet in which "us" is behind a time at which "eu" is final, and that time."""
    eu, us = sites.add("eu", "us")
    us.save("k", b"old")
    sites.later()
    ts = eu.save("k", b"new")
    return sites.fleet(), ts
