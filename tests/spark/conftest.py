"""One Spark for all tests, and stores on the engines that its workers can reach."""

import os
import sys
from collections import Counter
from dataclasses import replace
from importlib.metadata import version

import pytest
from direct import forget_all
from store.engines import ENGINES, SHARED, START_MS, Place

from snapkv import ManualClock

# Before the JVM starts: its workers are whatever `python3` is otherwise.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"

PYSPARK = version("pyspark")
DESELECTED = pytest.StashKey[Counter[str]]()


def pytest_configure(config):
    config.addinivalue_line("markers", "spark_since(version, why): PySpark has it since this one")
    if older_than("4.2"):  # which leaves it to the garbage collector to close its sockets
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.hookimpl(tryfirst=True)  # before xdist, which sorts by groups
def pytest_collection_modifyitems(config, items):
    """Leave tests out that the PySpark at hand is too old for; the summary says which.

    And give the rest one Spark: its tests go to the same one of several processes.
    """
    for item in items:
        if {"spark", "_one_spark"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("spark"))
    old = [item for item in items if reason_to_leave_out(item)]
    if old:
        items[:] = [item for item in items if item not in old]
        config.hook.pytest_deselected(items=old)
        config.stash[DESELECTED] = Counter(map(reason_to_leave_out, old))


def reason_to_leave_out(item):
    """Return why the PySpark at hand is too old for a test, "" when it is not."""
    marker = item.get_closest_marker("spark_since")
    if marker is None:
        return ""
    since, why = marker.args
    return f"{why} needs {since}" if older_than(since) else ""


def older_than(needed):
    ours, theirs = ([int(part) for part in text.split(".")[:2]] for text in (PYSPARK, needed))
    return ours < theirs


def pytest_terminal_summary(terminalreporter, config):
    for reason, number in config.stash.get(DESELECTED, Counter()).items():
        terminalreporter.write_line(f"{number} deselected, for PySpark is {PYSPARK}: {reason}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("snapkv tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(params=SHARED)
def place(request, tmp_path):
    kind = replace(ENGINES[request.param], options={})  # as readers of this process open it
    with Place(kind, tmp_path) as place:
        yield place
        forget_all()


@pytest.fixture
def clock():
    return ManualClock(START_MS)


@pytest.fixture
def store(place, clock):
    return place.open(clock=clock, writer="ann@test")
