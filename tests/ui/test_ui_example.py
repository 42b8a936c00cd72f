"""The example of a broken deployment finds out what happened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from etcd_server.programs import etcd_binary

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/kubernetes/investigate.py"
TIMEOUT_S = 240


@pytest.mark.long
@pytest.mark.etcd_since("3.5.8", "requests for progress are answered rightly, which")
def test_the_example_finds_what_broke_the_deployment_on_etcd():
    folders = (str(etcd_binary().parent), os.environ["PATH"], str(Path(sys.executable).parent))
    programs = os.pathsep.join(folders)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout
    assert "image nginx:1.27.2 -> nginx:1.72.3: that tag does not exist" in shown
    terminal, page = shown.split("4. The same on the page")
    for name in ("deployments/shop/web", "pods/shop/web-5f6c8-c3", "configmaps/shop/web"):
        assert f" {name}" in terminal
        assert f"/registry/{name}" in page
    assert "- /registry/pods/shop/web-7d4b9-b2" in page
    assert "the write before it: /registry/configmaps/shop/web" in page
