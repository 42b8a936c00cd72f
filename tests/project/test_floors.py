"""Imports go downward only, and only listed modules import a client of another project."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# From the ground up: a module imports its own unit, and units on floors below. A unit is a module,
# or a package with all that no floor names of its parts. `snapkv` and `cdcmeta` alone are their
# public names.
FLOORS = (
    ("snapkv._version", "snapkv.dates"),
    ("snapkv.errors",),
    (
        "snapkv.arguments",
        "snapkv.concurrency",
        "snapkv.extras",
        "snapkv.lifecycle",
        "snapkv.model",
        "snapkv.text",
    ),
    ("snapkv.codecs", "snapkv.hooks", "snapkv.loops", "snapkv.times", "snapkv.tuples"),
    ("snapkv.clock", "snapkv.layout", "snapkv.typed_times"),
    ("snapkv.files", "snapkv.rendering", "snapkv.web"),
    ("snapkv.engine",),
    ("snapkv.committer", "snapkv.timeline"),
    ("snapkv.archive", "snapkv.reading"),
    ("snapkv.engine_urls",),
    ("snapkv.coordination", "snapkv.observing"),
    ("snapkv.store",),
    ("snapkv.fleet",),
    (
        "snapkv.aio",
        "snapkv.importing",
        "snapkv.metrics",
        "snapkv.recording",
        "snapkv.ui",
    ),
    ("snapkv",),
    ("snapkv.pytest_plugin", "snapkv.spark", "cdcmeta.errors"),
    ("snapkv.cli", "cdcmeta.arguments"),
    ("cdcmeta.changes", "cdcmeta.generations", "cdcmeta.scheduler"),
    ("cdcmeta",),
    (
        "cdcmeta.couch_http",
        "cdcmeta.scheduler.executors",
        "cdcmeta.scheduler.transport",
        "cdcmeta.spark",
    ),
    ("cdcmeta.scheduler.runtime",),
    ("cdcmeta.metrics",),
    ("cdcmeta.ui",),
    ("cdcmeta.tour",),
    ("cdcmeta.cli",),
    ("snapkv.__main__", "cdcmeta.__main__"),
)
FLOOR_OF = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}

# What cdcmeta may import of snapkv: public modules, and six that both packages share.
CDCMETA_MAY_IMPORT = {
    "snapkv",
    "snapkv.cli.commands",
    "snapkv.cli.formats",
    "snapkv.cli.serving",
    "snapkv.clock",
    "snapkv.errors",
    "snapkv.extras",
    "snapkv.metrics",
    "snapkv.model",
    "snapkv.times",
    "snapkv.tuples",
    "snapkv.web",
    "snapkv.typed_times",
}
CDCMETA_EXECUTORS_MAY_IMPORT = {
    *CDCMETA_MAY_IMPORT,
    "snapkv.archive.engine",
    "snapkv.archive.places",
    "snapkv.archive.publishing",
    "snapkv.coordination.requests",
    "snapkv.engine.contract",
    "snapkv.layout",
    "snapkv.reading.view",
    "snapkv.recording.archive_target",
    "snapkv.recording.sources",
    "snapkv.recording.store_target",
    "snapkv.recording.targets",
}
CDCMETA_SPARK_MAY_IMPORT = {
    *CDCMETA_MAY_IMPORT,
    "snapkv.layout",
    "snapkv.reading.arrow",
    "snapkv.reading.reader",
    "snapkv.reading.spans",
    "snapkv.spark.batch_commits",
    "snapkv.spark.cuts",
    "snapkv.spark.decoding",
    "snapkv.spark.encoding",
    "snapkv.spark.errors",
    "snapkv.spark.limits",
    "snapkv.spark.location",
    "snapkv.spark.micro_batches",
    "snapkv.spark.offset",
    "snapkv.spark.pinned",
    "snapkv.spark.reader",
    "snapkv.spark.schema",
    "snapkv.spark.sessions",
    "snapkv.spark.sink",
    "snapkv.spark.sink_options",
    "snapkv.spark.source_options",
    "snapkv.spark.tasks",
    "snapkv.spark.timing",
}

CDCMETA_UI_MAY_IMPORT = {
    *CDCMETA_MAY_IMPORT,
    "snapkv.engine.contract",
    "snapkv.engine.replay",
    "snapkv.reading.history",
    "snapkv.ui",
    "snapkv.ui.differences",
    "snapkv.ui.source",
    "snapkv.ui.text",
    "snapkv.ui.versions",
    "snapkv.ui.views",
}

CDCMETA_TOUR_MAY_IMPORT = {
    *CDCMETA_MAY_IMPORT,
    "snapkv.archive.tables",
    "snapkv.cli.exits",
    "snapkv.cli.formats",
    "snapkv.cli.tour.comparing",
    "snapkv.cli.tour.errors",
    "snapkv.cli.tour.filling",
    "snapkv.cli.tour.git",
    "snapkv.cli.tour.moments",
    "snapkv.cli.tour.place",
    "snapkv.cli.tour.printing",
    "snapkv.cli.tour.sparked",
    "snapkv.layout",
    "snapkv.ui",
}

MORE_MAY_BE_IMPORTED = {
    "cdcmeta.scheduler.executors": CDCMETA_EXECUTORS_MAY_IMPORT,
    "cdcmeta.spark": CDCMETA_SPARK_MAY_IMPORT,
    "cdcmeta.tour": CDCMETA_TOUR_MAY_IMPORT,
    "cdcmeta.ui": CDCMETA_UI_MAY_IMPORT,
}

# What docs/architecture.md says of units: they do not import these, but for the modules named.
ABSENT = (
    ("snapkv.engine", "snapkv.times", set()),
    ("cdcmeta.scheduler.core", "snapkv", set()),
    ("cdcmeta.scheduler.owner", "snapkv", set()),
    ("cdcmeta.scheduler.agent", "snapkv", set()),
    ("cdcmeta.scheduler.protocol", "snapkv", set()),
    ("cdcmeta.generations.model", "snapkv.clock", {"cdcmeta.generations.model.metadata"}),
)

# Where a client of another project may be imported; everything else goes through that module.
CLIENTS = {
    "lmdb": {"snapkv.engine.lmdb.client"},
    "msgpack": {
        "snapkv.codecs",
        "snapkv.layout",
        "snapkv.rendering.msgpack_bytes",
        "snapkv.store.dump",
        "snapkv.store.watermarks",
        "snapkv.recording.store_commits",
        "snapkv.coordination.requests",
        "snapkv.spark.batch_commits",
        "snapkv.spark.decoding",
        "snapkv.spark.encoding",
        "cdcmeta.changes.layout",
        "cdcmeta.generations.log.layout",
        "cdcmeta.generations.cdc.rows",
        "cdcmeta.scheduler.executors.sinks.stores",
        "cdcmeta.scheduler.protocol.encoding",
        "cdcmeta.scheduler.transport.grpc_post",
    },
    "sortedcontainers": {
        "snapkv.engine.memory.engine",
        "snapkv.timeline.anchors",
        "cdcmeta.scheduler.core.policies",
    },
    "google": {"snapkv.engine.etcd", "snapkv.rendering.protobuf"},
    "yaml": {"snapkv.cli.formats", "snapkv.rendering.yaml_text"},
    "greenlet": {"snapkv.loops"},
    "grpc": {
        "snapkv.engine.etcd.aio_client",
        "snapkv.engine.etcd.grpc_client",
        "cdcmeta.scheduler.transport.grpc_post",
    },
    "anyio": {"cdcmeta.couch_http", "snapkv.ui"},
    "jinja2": {"snapkv.ui.pages"},
    "markupsafe": {"cdcmeta.ui", "snapkv.ui"},
    "starlette": {"cdcmeta.couch_http", "snapkv.ui", "snapkv.web"},
    "httptools": {"snapkv.web.connection"},
    "uvicorn": {"snapkv.web.connection", "snapkv.web.server"},
    "typer": {"snapkv.cli", "cdcmeta.cli"},
    "rich": {
        "snapkv.cli",
        "cdcmeta.cli.changefeeds",
        "cdcmeta.cli.changefeed_status",
        "cdcmeta.tour.show",
    },
    "duckdb": {"cdcmeta.tour.duck"},
    "numpy": {
        "snapkv.engine.lmdb.columns",
        "snapkv.engine.lmdb.change_scan",
        "snapkv.timeline.arrays",
        "snapkv.reading.marks",
        "snapkv.reading.change_tables",
        "snapkv.archive.verify",
        "snapkv.archive.whole",
        "cdcmeta.generations",
        "cdcmeta.spark.streams",
    },
    "pyarrow": {
        "snapkv.archive",
        "snapkv.fleet.tables",
        "snapkv.reading.arrow",
        "snapkv.engine.arrow",
        "snapkv.engine.lmdb.columns",
        "snapkv.engine.lmdb.change_scan",
        "snapkv.engine.lmdb.changes",
        "snapkv.reading.change_tables",
        "snapkv.spark",
        "cdcmeta.spark",
    },
    "obstore": {"snapkv.archive.objects"},
    "opentelemetry": {"snapkv.metrics"},
    "prometheus_client": {"cdcmeta.metrics", "snapkv.metrics"},
    "pyiceberg": {"snapkv.archive.iceberg"},
    "py4j": {"snapkv.spark.local"},
    "pyspark": {"snapkv.spark", "cdcmeta.spark"},
    "time": {"snapkv.clock", "snapkv.concurrency"},  # the latter only waits
    "pytest": {"snapkv.pytest_plugin"},
    "typing_extensions": {"snapkv.model"},  # for type checkers only
}


def found_modules() -> Iterator[tuple[str, Path]]:
    for package in ("snapkv", "cdcmeta"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def modules() -> list[tuple[str, Path]]:
    return list(found_modules())


@cache
def imports(path: Path) -> list[str]:
    return list(found_imports(path))


def found_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else node.module


def unit_of(module: str) -> str:
    unit = module
    while unit not in FLOOR_OF or (unit in ("snapkv", "cdcmeta") and unit != module):
        assert "." in unit, f"{module} is on no floor: add it to FLOORS"
        unit = unit.rpartition(".")[0]
    return unit


NAMES = {name for name, _ in modules()}


def test_imports_go_downward(subtests: pytest.Subtests) -> None:
    for module in sorted(NAMES):
        with subtests.test(module=module):
            path = dict(modules())[module]
            unit = unit_of(module)
            for imported in imports(path):
                if imported.partition(".")[0] not in ("snapkv", "cdcmeta"):
                    continue
                other = unit_of(imported)
                assert other == unit or FLOOR_OF[other] < FLOOR_OF[unit], (
                    f"{module} imports {imported}, which is not on a floor below: "
                    "move what both need to a lower floor"
                )


def test_cdcmeta_imports_what_is_listed(subtests: pytest.Subtests) -> None:
    imported = set()
    for module, path in modules():
        if module.partition(".")[0] != "cdcmeta":
            continue
        with subtests.test(module=module):
            allowed = MORE_MAY_BE_IMPORTED.get(unit_of(module), CDCMETA_MAY_IMPORT)
            found = {i for i in imports(path) if root_of(i) == "snapkv"}
            assert not found - allowed, f"{module} imports {found - allowed}"
            imported |= found
    listed = CDCMETA_SPARK_MAY_IMPORT | CDCMETA_EXECUTORS_MAY_IMPORT | CDCMETA_TOUR_MAY_IMPORT
    unused = listed - imported
    assert not unused, f"cdcmeta does not import {unused}: take them out of the list"


def root_of(module: str) -> str:
    return module.partition(".")[0]


def test_what_architecture_says_is_absent_is_absent(subtests: pytest.Subtests) -> None:
    for unit, absent, but in ABSENT:
        with subtests.test(unit=unit, absent=absent):
            found = {
                name
                for name, path in modules()
                if f"{name}.".startswith(f"{unit}.")
                and any(f"{i}.".startswith(f"{absent}.") for i in imports(path))
            }
            assert found == but


def test_every_client_is_listed() -> None:
    ours = {"snapkv", "cdcmeta", *sys.stdlib_module_names, *CLIENTS}
    for module, path in modules():
        strangers = {i for i in imports(path) if root_of(i) not in ours}
        assert not strangers, f"{module} imports {strangers}: list its client in CLIENTS"


def test_a_client_enters_by_its_modules(subtests: pytest.Subtests) -> None:
    for client in sorted(CLIENTS):
        with subtests.test(client=client):
            users = {
                name for name, path in modules() for i in imports(path) if i.split(".")[0] == client
            }
            allowed = CLIENTS[client]
            strangers = {
                u for u in users if not any(u == a or u.startswith(a + ".") for a in allowed)
            }
            assert not strangers, (
                f"{client} is imported by {strangers}; go through {sorted(allowed)}"
            )
            assert users, f"no module imports {client}: take it out of CLIENTS"


def test_every_unit_exists() -> None:
    missing = [unit for unit in FLOOR_OF if unit not in NAMES]
    assert not missing, f"units without a module: {missing}"


def test_no_two_modules_need_each_other() -> None:
    graph = {name: {i for i in imports(path) if i in NAMES} - {name} for name, path in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
