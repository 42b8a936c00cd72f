"""The fixtures for tests of services, in a run of pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.pages import blocks_of

ROOT = Path(__file__).parents[2]

BEFORE = """
import sys

LOADED = set(sys.modules)  # before the next file is collected

def test_snapkv_is_not_imported_until_a_test_uses_it():
    assert "pytest_snapkv" in LOADED
    assert not [name for name in LOADED if name.partition(".")[0] == "snapkv"]
"""

USING = """
import snapkv, pytest

def test_a_store_on_a_manual_clock(snapkv_store, snapkv_clock):
    first = snapkv_store.save("a", b"1")
    assert snapkv.format_time(first) == "2026-01-01T00:00:00.000Z"
    snapkv_clock.advance(24 * 3_600_000)
    snapkv_store.save("a", b"2")
    assert snapkv_store.load("a", "-1d") == b"1"
    assert [v.writer for v in snapkv_store.history("a")] == ["pytest"] * 2
    assert snapkv_store.at("-1h", final=True).final
    snapkv_clock.advance(30 * 365 * 24 * 3_600_000)
    assert snapkv_store.save("a", b"3") > first

def test_each_test_has_an_empty_one(snapkv_store):
    assert list(snapkv_store.at().keys()) == []
    assert snapkv_store.resolved() == 0

def test_the_clock_alone(snapkv_clock):
    assert isinstance(snapkv_clock, snapkv.ManualClock)
    with snapkv.open("memory:", clock=snapkv_clock) as other:
        assert other.save("a", b"") == snapkv.pack(snapkv_clock.now_ms())

@pytest.fixture
def service(snapkv_store):
    return snapkv_store.with_codec(snapkv.codecs.json)

def test_a_fixture_of_the_service(service, snapkv_store):
    service.save("a", [1])
    assert snapkv_store.load("a") == b"[1]"
"""


@pytest.mark.slow
def test_the_fixtures_work_and_the_plugin_is_light(tmp_path: Path) -> None:
    (tmp_path / "pytest_snapkv.py").write_text((ROOT / "snapkv/pytest_plugin.py").read_text())
    (tmp_path / "test_before.py").write_text(BEFORE)
    (tmp_path / "test_using.py").write_text(USING)
    (recipe,) = [
        each for each in blocks_of("docs/howto/recipes.md") if "import pytest" in each.code
    ]
    (tmp_path / "test_recipe.py").write_text(recipe.code)
    options = ("-q", "-W", "error", "-p", "no:cacheprovider", "-p", "pytest_snapkv")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "test_before.py",
            "test_using.py",
            "test_recipe.py",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
