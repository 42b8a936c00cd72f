"""Fixtures: a place for stores on each engine, its clock; a browser, and a git history."""

from pathlib import Path

import pytest
from couch_http.pouched import installed
from playwright.sync_api import sync_playwright
from store.conftest import clock as clock
from store.conftest import cluster as cluster
from store.conftest import place as place
from store.conftest import store as store

from .browsing import executable
from .git_history import GitHistory


@pytest.fixture(scope="module")
def axe(pytestconfig):
    cache = pytestconfig.rootpath / ".pytest_cache" / "pouch"
    return installed(cache, Path(__file__).parent / "axe")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def git(tmp_path_factory):
    return GitHistory(tmp_path_factory.mktemp("git") / "shop")


@pytest.fixture(scope="module")
def made(git, tmp_path_factory):
    """Return the URL of a store made from the repository, and the commits' timestamps."""
    url = f"lmdb:{tmp_path_factory.mktemp('store') / 'shop'}"
    return url, git.import_into(url)
