"""A session of one's own: what it is set to, and what is said when there can be none."""

import os
import subprocess
import sys

import pytest

from snapkv.spark import local

pytestmark = pytest.mark.slow

START = "from snapkv.spark.local import local_session; local_session()"


def test_a_session_that_is_there_keeps_its_settings(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert local.local_session({"spark.sql.shuffle.partitions": "77"}) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_settings_go_before_ours(spark, monkeypatch):
    asked = []
    monkeypatch.setattr(local.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(local, "_start", lambda conf: asked.append(dict(conf.getAll())))
    local.local_session({"spark.app.name": "mine", "spark.sql.session.timeZone": "UTC"})
    assert asked[0]["spark.app.name"] == "mine"
    assert asked[0]["spark.sql.session.timeZone"] == "UTC"
    assert asked[0]["spark.ui.enabled"] == "false"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PATH": "/nowhere"}, "Java was not found"),
        ({"JAVA_HOME": "/nowhere"}, "/nowhere/bin/java"),
    ],
)
def test_without_java_it_says_so(variables, said):
    environment = {k: v for k, v in os.environ.items() if k != "JAVA_HOME"} | variables
    done = subprocess.run(
        [sys.executable, "-c", START],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    last = done.stderr.strip().split("\n")[-1]
    assert last.startswith("snapkv.spark.local.SparkStartError: ")
    assert said in last
    assert last.endswith("Spark needs Java 17 or newer")


@pytest.mark.long_after(2)
@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"PATH": "/nowhere"}, sys.executable),
        ({"PATH": "/nowhere", "PYSPARK_PYTHON": "another"}, "another"),
        ({"PATH": os.path.dirname(sys.executable)}, "None"),
    ],
)
def test_workers_run_the_python_that_imports_snapkv(variables, found):
    """Otherwise they would run the `python3` of the path, which may be one without snapkv."""
    program = "import os, snapkv.spark; print(os.environ.get('PYSPARK_PYTHON'))"
    environment = {k: v for k, v in os.environ.items() if k != "PYSPARK_PYTHON"} | variables
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, env=environment, text=True, timeout=120) == found + "\n"
