"""The units of systemd: programs with options that exist, and as systemd reads them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "docs/howto/systemd").iterdir())
SURFACE = (ROOT / "tests/project/surface/commands.txt").read_text()
PROGRAMS = "/opt/snapkv/bin/"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_program_with_options_that_exist(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    program, command, *words = shlex.split(line)
    assert program.startswith(PROGRAMS)
    pattern = rf"^\$ {program.removeprefix(PROGRAMS)} {command}\n(.*?)(?=^\$|\Z)"
    (found,) = re.findall(pattern, SURFACE, re.MULTILINE | re.DOTALL)
    for each in words:
        assert not each.startswith("--") or f" {each}" in found, each


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_has_the_credentials_that_it_uses(unit: Path) -> None:
    text = unit.read_text()
    loaded = set(re.findall(r"^LoadCredential=([^:]+):", text, re.MULTILINE))
    assert set(re.findall(r"%d/([\w.]+)", text)) == loaded


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_reads_a_unit_without_a_complaint(unit: Path, tmp_path: Path) -> None:
    assert verified(unit.read_text(), tmp_path / unit.name) == ""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_complains_about_a_setting_that_does_not_exist(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    text = UNITS[0].read_text().replace("[Service]", "[Service]\nRestartSecs=5s")
    assert "RestartSecs" in verified(text, tmp_path / UNITS[0].name)


def verified(text: str, unit: Path) -> str:
    """Return what systemd says of a unit whose program is installed here."""
    unit.write_text(text.replace(PROGRAMS, f"{Path(sys.executable).parent}/"))
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr
