"""Imports go downward only."""

from graphlib import TopologicalSorter

import pytest

from tests.project.imported import NAMES, imports, modules, root_of

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

# From the ground up. A module imports its own room, and rooms on lines above its own.
FLOORS = [
    line.split()
    for line in """
        snapkv.errors
        snapkv.base snapkv.model
        snapkv.times snapkv.codecs snapkv.hooks snapkv.layout snapkv.tuples snapkv.rendering
        snapkv.clock snapkv.engine snapkv.web
        snapkv.timeline snapkv.archive
        snapkv.committer
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


def room_of(module: str) -> str:
    room = module
    while room not in FLOOR_OF or (room in ("snapkv", "cdcmeta") and room != module):
        assert "." in room, f"{module} is on no floor: add it to FLOORS"
        room = room.rpartition(".")[0]
    return room


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


def test_every_room_exists() -> None:
    missing = [room for room in FLOOR_OF if room not in NAMES]
    assert not missing, f"rooms without a module: {missing}"


def test_no_two_modules_need_each_other() -> None:
    graph = {name: {i for i in imports(path) if i in NAMES} - {name} for name, path in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
