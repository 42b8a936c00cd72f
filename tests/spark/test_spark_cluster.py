"""A cluster whose executors get snapkv in an archive of an environment, as the document has it."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pyspark
import pytest

import snapkv

pytestmark = pytest.mark.long

JOB = Path(__file__).with_name("cluster_job.py")
SPARK = Path(pyspark.__file__).parent
WAIT_S = 900


def environment(folder: Path) -> Path:
    """An environment with what this Python has installed, as an archive; and unpacked beside it."""
    made = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    (packages,) = made.glob("lib/python3*/site-packages")
    ours = sysconfig.get_path("purelib")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    packed = folder / "environment.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(made, arcname=".")
    return packed


def spark_home(folder: Path) -> Path:
    """Spark, with a folder of its own for what workers unpack."""
    home = folder / "spark"
    home.mkdir()
    for entry in SPARK.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


@pytest.mark.soak
def test_executors_get_the_package_in_an_archive(etcd, tmp_path):
    with snapkv.open(etcd.url) as store:
        store.commit(puts={f"k{n:03}": b"%d" % n for n in range(100)})
    packed, home, out = environment(tmp_path), spark_home(tmp_path), tmp_path / "out.json"
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", "local-cluster[2,1,1024]"),
        *("--archives", f"{packed}#environment"),
        *("--conf", "spark.ui.enabled=false"),
        *(str(JOB), etcd.url, str(out)),
    ]
    variables = os.environ | {
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": "./environment/bin/python",
        "PYSPARK_DRIVER_PYTHON": "./environment/bin/python",
    }
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            ended = process.wait(WAIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert ended == 0, log.read_text()[-3_000:]
    found = json.loads(out.read_text())
    with snapkv.open(etcd.url) as store:
        copied = dict(store.at().items("copy/"))
    assert found["read"] == 100
    assert copied == {f"copy/k{n:03}": b"%d" % n for n in range(100)}
    for python, folder in found["workers"]:
        assert python == f"{folder}/environment/bin/python"
        assert folder.startswith(str(home / "work"))
