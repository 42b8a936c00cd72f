"""Fixtures: the members of a test's fleets; a server of S3's protocol."""

import pytest
from archive.conftest import proxy as proxy
from archive.conftest import s3 as s3

from .sites import Sites


@pytest.fixture
def sites(tmp_path):
    with Sites(tmp_path) as sites:
        yield sites
