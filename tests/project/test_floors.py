"""Imports go downward only, and only listed modules import a client of another project."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.project.sources import statements

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

ROOT = Path(__file__).parents[2]

# From the ground up. A module imports its own room, and rooms on lines above its own.
FLOORS = [
    line.split()
    for line in """
        snapkv.errors snapkv.model
        snapkv.base
        snapkv.times snapkv.codecs snapkv.hooks snapkv.layout snapkv.tuples snapkv.rendering
        snapkv.clock snapkv.engine snapkv.web
        snapkv.committer snapkv.timeline snapkv.archive
        snapkv.reading
        snapkv.coordination
        snapkv.store
        snapkv.copying snapkv.fleet snapkv.aio snapkv.metrics
        snapkv snapkv.spark snapkv.ui
        snapkv.cli snapkv.pytest_plugin cdcmeta.errors
        cdcmeta.argument_checks
        cdcmeta.changes cdcmeta.generations cdcmeta.scheduler
        cdcmeta
        cdcmeta.couch_http cdcmeta.scheduler.executors cdcmeta.scheduler.transport cdcmeta.spark
        cdcmeta.scheduler.runtime
        cdcmeta.metrics
        cdcmeta.ui
        cdcmeta.cli
        snapkv.__main__ cdcmeta.__main__
    """.strip().splitlines()
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# What all rooms of cdcmeta import of snapkv; and what some import beyond that.
PUBLIC = """snapkv snapkv.clock snapkv.errors snapkv.metrics snapkv.model snapkv.times snapkv.tuples
    snapkv.base.extras snapkv.base.waiting snapkv.web"""
DOORS = {
    "cdcmeta.cli": "cli.command_kit",
    "cdcmeta.scheduler.executors": "copying.archive_target copying.copying_kit",
    "cdcmeta.spark": "spark.source_kit",
    "cdcmeta.ui": "ui ui.view_kit",
}

# What docs/architecture.md says of rooms: they do not import these, but for the modules named.
ABSENT = (
    ("snapkv.engine", "snapkv.times", set()),
    ("snapkv.engine", "snapkv.clock", set()),
    *(
        (f"cdcmeta.scheduler.{each}", "snapkv", set())
        for each in ("core", "owner", "agent", "protocol")
    ),
    *(
        (f"cdcmeta.generations.{each}", "snapkv.clock", set())
        for each in ("tokens", "streams", "topology")
    ),
)

# Where a client of another project may be imported; everything else goes through that module.
CLIENTS = {
    "lmdb": {"snapkv.engine.lmdb.client"},
    "msgpack": {
        "snapkv.codecs",
        "snapkv.layout",
        "snapkv.rendering.value_decoding",
        "snapkv.store.dump",
        "snapkv.store.recorder_watermarks",
        "snapkv.copying.store_commits",
        "snapkv.coordination.requests",
        "snapkv.spark.batch_commits",
        "snapkv.spark.value_formats",
        "cdcmeta.changes.database_layout",
        "cdcmeta.generations.generation_layout",
        "cdcmeta.generations.log_rows",
        "cdcmeta.scheduler.executors.store_sink",
        "cdcmeta.scheduler.protocol.encoding",
        "cdcmeta.scheduler.transport.grpc_post",
    },
    "sortedcontainers": {
        "snapkv.engine.memory",
        "snapkv.timeline.lookup",
        "cdcmeta.scheduler.core.policies",
    },
    "google": {"snapkv.engine.etcd", "snapkv.rendering.kubernetes"},
    "yaml": {"snapkv.cli.formats", "snapkv.rendering.yaml_text"},
    "greenlet": {"snapkv.base.greenlet_runtime"},
    "grpc": {
        "snapkv.engine.etcd.aio_client",
        "snapkv.engine.etcd.grpc_client",
        "cdcmeta.scheduler.transport.grpc_post",
    },
    "anyio": {"cdcmeta.couch_http", "snapkv.ui"},
    "jinja2": {"snapkv.ui.page_answers"},
    "markupsafe": {"cdcmeta.ui", "snapkv.ui"},
    "starlette": {"cdcmeta.couch_http", "snapkv.ui", "snapkv.web"},
    "httptools": {"snapkv.web.client_connection"},
    "uvicorn": {"snapkv.web.client_connection", "snapkv.web.http_server"},
    "typer": {"snapkv.cli", "cdcmeta.cli"},
    "rich": {
        "snapkv.cli",
        "cdcmeta.cli.changefeed_commands",
        "cdcmeta.cli.changefeed_status",
    },
    "numpy": {
        "snapkv.engine.lmdb.columns",
        "snapkv.timeline.timeline",
        "snapkv.reading.change_tables",
        "snapkv.archive.verify",
        "snapkv.archive.small_archives",
        "cdcmeta.generations",
        "cdcmeta.spark.stream_column",
    },
    "pyarrow": {
        "snapkv.archive",
        "snapkv.fleet.archive_batches",
        "snapkv.reading.arrow",
        "snapkv.engine.version_columns",
        "snapkv.engine.lmdb.columns",
        "snapkv.reading.change_tables",
        "snapkv.spark",
        "cdcmeta.spark",
    },
    "obstore": {"snapkv.archive.objects"},
    "opentelemetry": {"snapkv.metrics"},
    "prometheus_client": {"cdcmeta.metrics", "snapkv.metrics"},
    "pyiceberg": {"snapkv.archive.iceberg"},
    "pyspark": {"snapkv.spark", "cdcmeta.spark"},
    "time": {"snapkv.base.clocks", "snapkv.base.concurrency", "snapkv.base.waiting"},
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
    for node in statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else node.module


def room_of(module: str) -> str:
    room = module
    while room not in FLOOR_OF or (room in ("snapkv", "cdcmeta") and room != module):
        assert "." in room, f"{module} is on no floor: add it to FLOORS"
        room = room.rpartition(".")[0]
    return room


NAMES = {name for name, _ in modules()}


def test_imports_go_downward(subtests: pytest.Subtests) -> None:
    for module, path in modules():
        with subtests.test(module=module):
            room = room_of(module)
            for imported in imports(path):
                if root_of(imported) not in ("snapkv", "cdcmeta"):
                    continue
                other = room_of(imported)
                assert other == room or FLOOR_OF[other] < FLOOR_OF[room], (
                    f"{module} imports {imported}, which is not on a floor below: "
                    "move what both need to a lower floor"
                )


def test_cdcmeta_imports_what_is_listed(subtests: pytest.Subtests) -> None:
    unused = {room: {f"snapkv.{each}" for each in listed.split()} for room, listed in DOORS.items()}
    for module, path in modules():
        if root_of(module) != "cdcmeta":
            continue
        with subtests.test(module=module):
            room = room_of(module)
            more = {f"snapkv.{each}" for each in DOORS.get(room, "").split()}
            found = {i for i in imports(path) if root_of(i) == "snapkv"}
            strange = found - {*PUBLIC.split()} - more
            assert not strange, f"{module} imports {strange}"
            unused.get(room, set()).difference_update(found)
    assert not any(unused.values()), f"cdcmeta does not import {unused}: take them out of DOORS"


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


def test_every_room_exists() -> None:
    missing = [room for room in FLOOR_OF if room not in NAMES]
    assert not missing, f"rooms without a module: {missing}"


def test_no_two_modules_need_each_other() -> None:
    graph = {name: {i for i in imports(path) if i in NAMES} - {name} for name, path in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
