"""A Spark of this machine alone: for trying things, and for scripts."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from snapkv.errors import SnapKVError

SETTINGS = {
    "spark.master": "local[*]",
    "spark.app.name": "snapkv",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",  # our errors say it all
}
NEEDS_JAVA = "Spark needs Java 17 or newer"


class SparkStartError(SnapKVError, RuntimeError):
    """Spark did not start on this machine; most often Java is missing or too old."""


def local_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return the Spark session of this process, or start one on this machine; takes seconds.

    Its workers run the Python of this process, and Spark's log is not shown. `settings` are Spark's
    and override `SETTINGS`; an existing session keeps its own. A `with` block stops it.

        with local_session({"spark.sql.session.timeZone": "UTC"}) as spark:
            spark.read.format("snapkv").load("lmdb:./meta").show()

    Raises `SparkStartError`.
    """
    if SparkContext._active_spark_context is None:
        _start(SparkConf().setAll([*(SETTINGS | dict(settings or {})).items()]))
    return SparkSession.builder.getOrCreate()


def _start(conf: SparkConf) -> None:
    # Set before the JVM starts, which passes them on. Otherwise workers would run `python3` of the
    # path, and Spark would resolve the machine's name, which may have no address.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
        raise SparkStartError(f"Java was not found: {NEEDS_JAVA}")
    with tempfile.TemporaryFile() as log:
        try:
            gateway = SparkContext._gateway or launch_gateway(conf, {"stderr": log})
            SparkContext(conf=conf, gateway=gateway)
        except (OSError, PySparkRuntimeError) as e:
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()
            said = next((line for line in lines if line and not line.startswith("WARNING")), "")
            raise SparkStartError(f"{said or e}; {NEEDS_JAVA}") from e
