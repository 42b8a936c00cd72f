"""Shared by all tests: how random tests are run, how long they may take, and servers for them."""

import gc
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from chains import CircleError, check_ends, checked_chains
from etcd_server import (
    KILLS_ETCD_MIN,
    EtcdPool,
    EtcdServer,
    close_shared_pool,
    etcd_version,
    shared_pool,
)
from hypothesis import HealthCheck, Phase, settings
from object_server import close_shared_server
from sampling import LEFT_ON_ETCD, LEFT_TO_SOAK, SOAK, left_on_etcd
from speeds import (
    ALL,
    FAST,
    LEFT_TO_ALL,
    LEFT_TO_LONG,
    MARKERS,
    SPEEDS,
    TEST,
    mark_long_cases,
    reason_to_leave,
    reason_to_leave_file,
)

# Java compiles for long runs; tests end before that pays, and its compiler takes half their time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "soak",
    parent=settings.get_profile("default"),
    max_examples=2_000,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

OWN_PROCESS = "SNAPKV_TEST_OWN_PROCESS"
OWN_PROCESS_S = 180
DESELECTED = pytest.StashKey[Counter[str]]()
FILES_LEFT = pytest.StashKey[Counter[str]]()

LONGEST = ("spark", "system")
NAME_CHARS_MAX = 200
SAMPLES = (LEFT_ON_ETCD, LEFT_TO_SOAK)
"""Reasons that leave tests to `make soak`."""

GC_THRESHOLDS = (20_000, 20, 20)
"""Python's (700, 10, 10) cost a fifth of the CPU of the exhaustive tests of the protocol."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--speed",
        choices=SPEEDS,
        default=ALL,
        help="fast: memory and LMDB only, without etcd, Java, Node or other processes; "
        "test: all but the long ones; long: those alone; all: all but what make soak adds",
    )


def pytest_configure(config: pytest.Config) -> None:
    # a shell ignores it for what it runs in the background, and processes inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    oldest = ".".join(map(str, KILLS_ETCD_MIN))
    config.addinivalue_line("markers", f"kills_etcd: needs etcd {oldest} or newer")
    config.addinivalue_line(
        "markers", "etcd_since(version, why): on etcd it needs this one, which mended a bug"
    )
    for marker in (*MARKERS, "soak: takes long; make soak runs it, or its name"):
        config.addinivalue_line("markers", marker)
    config.addinivalue_line("markers", "forks: runs in a process of its own, which it may fork")
    config.addinivalue_line("markers", "xdist_group(name): of xdist, which may not be there")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long value by how it begins: names go to each process and into each report."""
    if isinstance(val, str | bytes) and len(val) > NAME_CHARS_MAX:
        return f"{val[:20]!a} and so on, {len(val)}"
    return None


@pytest.hookimpl(tryfirst=True)  # before xdist, which sorts by groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out that are not for this run, and say which; begin with the longest.

    Tests that share a fixture of their module go to the same one of several processes, so that it
    is made once. Those processes mix the tests: those of one file often wait for the same, for the
    CPU or for the end of a lease, and all together.
    """
    for item in items:
        if isinstance(item, pytest.Function) and (group := group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    mark_long_cases(items)
    speed = speed_of(config)
    reasons = {item: reason_to_leave(item, speed) or reason_to_leave_out(item) for item in items}
    if not (SOAK or is_asked_for(config)):
        for item in left_on_etcd(items):
            reasons[item] = reasons[item] or LEFT_ON_ETCD
    if any(reasons.values()):
        config.hook.pytest_deselected(items=[item for item in items if reasons[item]])
        config.stash[DESELECTED] = Counter(filter(None, reasons.values()))
    kept = [item for item in items if not reasons[item]]
    if hasattr(config, "workerinput"):
        kept.sort(key=lambda item: crc32(item.nodeid.encode()))
    items[:] = sorted(kept, key=comes_late)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave whole files out that say themselves that they are not for this run."""
    reason = reason_to_leave_file(collection_path, speed_of(config))
    asked = (Path(arg).absolute() for arg in config.args)
    if reason and any(collection_path.is_relative_to(each) for each in asked):
        config.stash.setdefault(FILES_LEFT, Counter())[reason] += 1
    return bool(reason) or None


def speed_of(config: pytest.Config) -> str:
    speed = str(config.getoption("speed"))
    return ALL if speed == TEST and is_asked_for(config) else speed


def is_asked_for(config: pytest.Config) -> bool:
    """Return whether the command line names tests: then all of them run."""
    return bool(config.getoption("keyword")) or any("::" in arg for arg in config.args)


def group_of(item: pytest.Function) -> str:
    """Return the name of the tests that run in the same process, "" when it may be any.

    They share a fixture that is made once for their module, or a server that costs as long as the
    tests last: of S3's protocol, or of CouchDB's on etcd.
    """
    made = item._fixtureinfo.name2fixturedefs
    if any(found[-1].scope == "module" for found in made.values()):
        return item.module.__name__
    if item.get_closest_marker("xdist_group") is not None:
        return ""
    if "s3" in item.fixturenames or re.search(r"\bs3\b", item.name):
        return "s3"
    is_of_couch = "served" in made and item.path.parent.name == "couch_http"
    return "served on etcd" if is_of_couch and "etcd" in item.name else ""


def comes_late(item: pytest.Item) -> bool:
    """Return whether a test need not begin at once; Spark's follow each other in one process."""
    return item.path.parent.name not in LONGEST


def reason_to_leave_out(item: pytest.Item) -> str:
    """Return why the etcd at hand is too old for a test, "" when it is not."""
    if item.get_closest_marker("kills_etcd") and etcd_version() < KILLS_ETCD_MIN:
        return f"tests that kill etcd servers need {'.'.join(map(str, KILLS_ETCD_MIN))}"
    if item.get_closest_marker("soak") and not (SOAK or is_asked_for(item.config)):
        return LEFT_TO_SOAK
    marker = item.get_closest_marker("etcd_since")
    if marker is None or "etcd" not in item.nodeid:
        return ""
    since, why = marker.args
    return f"{why} needs {since}" if etcd_version() < tuple(map(int, since.split("."))) else ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Search for garbage rarely, never in modules and tests, and not before they are collected.

    Collecting the tests makes a million objects, most of which stay.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    speed, old = config.getoption("speed"), f"for etcd is {'.'.join(map(str, etcd_version()))}"
    tests, files = (config.stash.get(key, Counter()) for key in (DESELECTED, FILES_LEFT))
    for reason in sorted({*tests, *files}):
        if reason in SAMPLES:
            why = "a sample"
        elif reason == LEFT_TO_ALL:
            why = "left to make test-all"
        elif reason == LEFT_TO_LONG:
            why = "run by make test"
        else:
            why = "left to make test" if speed == FAST else old
        counts = [f"{files[reason]} files"] * (reason in files)
        counts += [str(tests[reason])] * (reason in tests)
        terminalreporter.write_line(f"{' and '.join(counts)} deselected, {why}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    close_shared_pool()
    close_shared_server()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # one of several processes: the first of them tells
        for name, key in (("deselected", DESELECTED), ("files", FILES_LEFT)):
            output[name] = dict(session.config.stash.get(key, Counter()))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process left out; all of them collect the same tests."""
    output = getattr(node, "workeroutput", {})
    for name, key in (("deselected", DESELECTED), ("files", FILES_LEFT)):
        node.config.stash[key] = Counter(output.get(name, {}))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that forks in a process of its own.

    A fork waits for all of gRPC, also for what other tests left there: one was seen to wait for
    ever, and a child to end inside it.
    """
    if pyfuncitem.get_closest_marker("forks") is None or OWN_PROCESS in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider"]
    group = pyfuncitem.get_closest_marker("xdist_group")  # xdist adds it to the name of the test
    name = pyfuncitem.nodeid.removesuffix(f"@{group.args[0]}" if group and group.args else "")
    done = subprocess.run(
        [*command, name],
        capture_output=True,
        text=True,
        timeout=OWN_PROCESS_S,
        cwd=pyfuncitem.config.rootpath,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        | {OWN_PROCESS: "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Check that the causes of each error that a test catches, or fails with, end."""
    with checked_chains():
        try:
            return (yield)
        except CircleError:
            raise
        except Exception as e:
            check_ends(e)
            raise


class FailingSubtests:
    """Subtests of which those that fail are reported: a report costs more than most of them do."""

    def __init__(self, subtests: pytest.Subtests) -> None:
        self._subtests = subtests

    @contextmanager
    def test(self, msg: str | None = None, **kwargs: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with self._subtests.test(msg, **kwargs):
                raise


@pytest.fixture
def subtests(subtests: pytest.Subtests) -> FailingSubtests:
    return FailingSubtests(subtests)


@pytest.fixture(scope="session")
def etcd_pool() -> EtcdPool:
    """New etcd servers, made ahead."""
    return shared_pool()


@pytest.fixture
def etcd(etcd_pool: EtcdPool) -> Iterator[EtcdServer]:
    """One new etcd server at revision 1."""
    with etcd_pool.taken() as server:
        yield server
