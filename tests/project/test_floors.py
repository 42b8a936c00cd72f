"""Imports go downward only, and each third-party client enters by one module of a package."""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Longest prefix wins. A module imports its own row's package, and rows with a smaller number.
FLOORS = {
    "snapkv.dates": -0.1,
    "snapkv.errors": 0.0,
    "snapkv._version": 0.0,
    "cdcmeta.errors": 0.2,
    "snapkv.extras": 0.1,
    "snapkv.times": 0.1,
    "snapkv.records": 0.1,
    "snapkv.typed_times": 0.2,
    "snapkv.model": 0.1,
    "snapkv.closing": 0.1,
    "snapkv.forks": 0.1,
    "snapkv.full_keys": 0.2,
    "snapkv.clock": 1.0,
    "snapkv.tuples": 1.0,
    "snapkv.files": 1.1,
    "snapkv.deadline": 1.1,
    "snapkv.engine": 2.0,
    "snapkv.engine.base": 2.0,
    "snapkv.engine.limits": 1.9,
    "snapkv.engine.columns": 1.9,
    "snapkv.engine.apply": 2.1,
    "snapkv.engine.rules": 2.1,
    "snapkv.engine.leases": 2.1,
    "snapkv.engine.arrow": 2.05,
    "snapkv.arrow": 2.1,
    "snapkv.engine.overlay": 2.15,
    "snapkv.engine.scanned": 2.15,
    "snapkv.engine.memory_check": 2.15,
    "snapkv.engine.memory": 2.2,
    "snapkv.engine.lmdb": 2.2,
    "snapkv.engine.etcd": 2.2,
    "snapkv.committer": 3.0,
    "snapkv.timeline": 3.0,
    "snapkv.additions": 4.0,
    "snapkv.sources": 3.9,
    "snapkv.snapshot": 4.0,
    "snapkv.reading": 4.05,
    "snapkv.revisions": 4.06,
    "snapkv.core": 4.1,
    "snapkv.history": 4.2,
    "snapkv.changed": 4.1,
    "snapkv.commit_times": 4.1,
    "snapkv.tables": 4.3,
    "snapkv.watch": 4.3,
    "snapkv.observed_watch": 4.35,
    "snapkv.leased": 4.2,
    "snapkv.session": 4.35,
    "snapkv.leaders": 4.4,
    "snapkv.candidacy": 4.4,
    "snapkv.election": 4.45,
    "snapkv.view": 4.4,
    "snapkv.space": 4.45,
    "snapkv.restoring": 4.45,
    "snapkv.opening": 4.4,
    "snapkv.check": 4.4,
    "snapkv.dump": 4.4,
    "snapkv.observing": 4.5,
    "snapkv.store": 4.5,
    "snapkv.entry": 4.55,
    "snapkv.foreign": 4.4,
    "snapkv.import_plan": 4.52,
    "snapkv.import_writing": 4.53,
    "snapkv.importing": 4.55,
    "snapkv.spark": 7.2,
    "snapkv.spark.codes": 7.0,
    "snapkv.spark.local": 7.0,
    "snapkv.spark.timing": 7.01,
    "snapkv.spark.given": 7.015,
    "snapkv.spark.sessions": 7.02,
    "snapkv.spark.decoding": 7.01,
    "snapkv.spark.place": 7.01,
    "snapkv.spark.options": 7.02,
    "snapkv.spark.keys": 7.03,
    "snapkv.spark.shape": 7.04,
    "snapkv.spark.limits": 7.04,
    "snapkv.spark.offset": 7.04,
    "snapkv.spark.pinned": 7.04,
    "snapkv.spark.tasks": 7.05,
    "snapkv.spark.reader": 7.06,
    "snapkv.spark.micro_batches": 7.065,
    "snapkv.spark.stream": 7.07,
    "snapkv.spark.source": 7.08,
    "snapkv.spark.frames": 7.1,
    "snapkv": 4.6,  # the facade: public names
    "cdcmeta.arguments": 5.0,
    "cdcmeta": 6.6,  # the facade: public names
    "cdcmeta.generations": 6.3,
    "cdcmeta.generations.tokens": 6.0,
    "cdcmeta.generations.streams": 6.01,
    "cdcmeta.generations.batches": 6.01,
    "cdcmeta.generations.making": 6.02,
    "cdcmeta.generations.topology": 6.03,
    "cdcmeta.generations.rules": 6.0,
    "cdcmeta.generations.metadata": 6.04,
    "cdcmeta.generations.layout": 6.02,
    "cdcmeta.generations.listing": 6.04,
    "cdcmeta.generations.following": 6.045,
    "cdcmeta.generations.member": 6.05,
    "cdcmeta.generations.switching": 6.05,
    "cdcmeta.generations.progress": 6.045,
    "cdcmeta.generations.binding": 6.03,
    "cdcmeta.generations.expiry": 6.05,
    "cdcmeta.generations.rows": 6.02,
    "cdcmeta.generations.windows": 6.03,
    "cdcmeta.generations.trimming": 6.046,
    "cdcmeta.generations.cdclog": 6.05,
    "cdcmeta.generations.log": 6.1,
    "cdcmeta.generations.consumer": 6.2,
    "cdcmeta.scheduler": 6.3,
    "cdcmeta.scheduler.states": 6.0,
    "cdcmeta.scheduler.limits": 6.0,
    "cdcmeta.scheduler.captures": 6.0,
    "cdcmeta.scheduler.tasks": 6.01,
    "cdcmeta.scheduler.executor": 6.01,
    "cdcmeta.scheduler.simulated": 6.03,
    "cdcmeta.scheduler.replication_set": 6.02,
    "cdcmeta.scheduler.holding": 6.02,
    "cdcmeta.scheduler.messages": 6.02,
    "cdcmeta.scheduler.encoding": 6.03,
    "cdcmeta.scheduler.fencing": 6.03,
    "cdcmeta.scheduler.transport": 6.03,
    "cdcmeta.scheduler.watermarks": 6.03,
    "cdcmeta.scheduler.replication": 6.03,
    "cdcmeta.scheduler.policies": 6.04,
    "cdcmeta.scheduler.policies.facts": 6.03,
    "cdcmeta.scheduler.scheduling": 6.05,
    "cdcmeta.scheduler.cluster": 6.03,
    "cdcmeta.scheduler.wanted": 6.04,
    "cdcmeta.scheduler.deadlines": 6.025,
    "cdcmeta.scheduler.failures": 6.025,
    "cdcmeta.scheduler.outbox": 6.02,
    "cdcmeta.scheduler.coordinator": 6.06,
    "cdcmeta.scheduler.agent": 6.06,
    "cdcmeta.changes": 6.3,
    "cdcmeta.changes.sequence": 6.0,
    "cdcmeta.changes.revisions": 6.0,
    "cdcmeta.changes.selector": 6.0,
    "cdcmeta.changes.layout": 6.01,
    "cdcmeta.changes.documents": 6.02,
    "cdcmeta.changes.state": 6.03,
    "cdcmeta.changes.feed": 6.04,
    "cdcmeta.changes.reading": 6.05,
    "cdcmeta.changes.following": 6.05,
    "cdcmeta.changes.editing": 6.05,
    "cdcmeta.changes.writing": 6.06,
    "cdcmeta.changes.local": 6.07,
    "cdcmeta.changes.relocation": 6.07,
    "cdcmeta.changes.database": 6.1,
    "cdcmeta.spark": 7.6,
    "cdcmeta.spark.codes": 7.5,
    "cdcmeta.spark.shape": 7.5,
    "cdcmeta.spark.offset": 7.5,
    "cdcmeta.spark.options": 7.51,
    "cdcmeta.spark.tasks": 7.52,
    "cdcmeta.spark.reader": 7.53,
    "cdcmeta.spark.stream": 7.53,
    "cdcmeta.spark.source": 7.54,
    "cdcmeta.spark.streams": 7.54,
    "cdcmeta.spark.frames": 7.55,
    "snapkv.cli": 8.0,
    "cdcmeta.http": 8.2,
    "cdcmeta.http.limits": 8.0,
    "cdcmeta.http.errors": 8.0,
    "cdcmeta.http.login": 8.0,
    "cdcmeta.http.origins": 8.0,
    "cdcmeta.http.moments": 8.0,
    "cdcmeta.http.pacing": 8.005,
    "cdcmeta.http.waking": 8.005,
    "cdcmeta.http.threads": 8.0,
    "cdcmeta.http.routing": 8.0,
    "cdcmeta.http.service": 8.01,
    "cdcmeta.http.streaming": 8.01,
    "cdcmeta.http.bodies": 8.01,
    "cdcmeta.http.call": 8.02,
    "cdcmeta.http.params": 8.03,
    "cdcmeta.http.answers": 8.03,
    "cdcmeta.http.splitting": 8.03,
    "cdcmeta.http.multipart": 8.03,
    "cdcmeta.http.local_listing": 8.055,
    "cdcmeta.http.forms": 8.04,
    "cdcmeta.http.feed": 8.05,
    "cdcmeta.http.databases": 8.05,
    "cdcmeta.http.documents": 8.05,
    "cdcmeta.http.backwards": 8.04,
    "cdcmeta.http.listing": 8.05,
    "cdcmeta.http.bulk": 8.06,
    "cdcmeta.http.session": 8.05,
    "cdcmeta.http.updates": 8.05,
    "cdcmeta.http.auth": 8.07,
    "cdcmeta.http.hosts": 8.07,
    "cdcmeta.http.app": 8.08,
    "cdcmeta.http.connection": 8.08,
    "cdcmeta.http.server": 8.09,
    "cdcmeta.cli": 8.3,
    "snapkv.__main__": 8.4,
    "cdcmeta.__main__": 8.4,
}

# What packages above snapkv may import of it; cdcmeta.spark also goes through snapkv.spark.
PUBLIC = {
    "snapkv",
    "snapkv.cli.commands",
    "snapkv.clock",
    "snapkv.errors",
    "snapkv.extras",
    "snapkv.model",
    "snapkv.times",
    "snapkv.tuples",
    "snapkv.typed_times",
}

# Where a client of another project may be imported; everything else goes through that module.
CLIENTS = {
    "lmdb": {"snapkv.engine.lmdb.mdb"},
    "msgpack": {
        "snapkv.records",
        "snapkv.dump",
        "snapkv.leased",
        "snapkv.spark.decoding",
        "cdcmeta.changes.layout",
        "cdcmeta.generations.layout",
        "cdcmeta.generations.rows",
        "cdcmeta.scheduler.encoding",
    },
    "sortedcontainers": {
        "snapkv.engine.memory",
        "snapkv.timeline.anchors",
        "cdcmeta.scheduler.policies",
    },
    "google": {"snapkv.engine.etcd"},
    "grpc": {"snapkv.engine.etcd.rpc"},
    "anyio": {"cdcmeta.http"},
    "starlette": {"cdcmeta.http"},
    "httptools": {"cdcmeta.http.connection"},
    "uvicorn": {"cdcmeta.http.connection", "cdcmeta.http.server"},
    "typer": {"snapkv.cli", "cdcmeta.cli"},
    "rich": {"snapkv.cli"},
    "numpy": {
        "snapkv.engine.lmdb.columns",
        "snapkv.timeline.arrays",
        "cdcmeta.generations",
        "cdcmeta.spark.streams",
    },
    "pyarrow": {
        "snapkv.arrow",
        "snapkv.engine.arrow",
        "snapkv.engine.lmdb.columns",
        "snapkv.spark",
        "cdcmeta.spark",
    },
    "pyspark": {"snapkv.spark", "cdcmeta.spark"},
    "time": {"snapkv.clock"},
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


def row_of(module: str) -> str:
    matches = [row for row in FLOORS if module == row or module.startswith(row + ".")]
    if "snapkv" in matches and module != "snapkv" and len(matches) == 1:
        raise AssertionError(f"{module} stands on no floor: add it to FLOORS")
    return max(matches, key=len)


NAMES = {name for name, _ in modules()}


def test_imports_go_downward(subtests: pytest.Subtests) -> None:
    for module in sorted(NAMES):
        with subtests.test(module=module):
            path = dict(modules())[module]
            row = row_of(module)
            for imported in imports(path):
                if imported.partition(".")[0] not in ("snapkv", "cdcmeta"):
                    continue
                target = row_of(imported)
                assert target == row or FLOORS[target] < FLOORS[row], (
                    f"{module} (floor {FLOORS[row]}) imports {imported} (floor {FLOORS[target]}): "
                    "move what both need to a lower floor"
                )


def test_cdcmeta_goes_through_public_names() -> None:
    for module, path in modules():
        if module.partition(".")[0] != "cdcmeta" or module.startswith("cdcmeta.spark"):
            continue
        private = {i for i in imports(path) if i.startswith("snapkv")} - PUBLIC
        assert not private, f"{module} imports {private}"


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
            assert users, f"nobody imports {client}: take it out of CLIENTS"


def test_every_row_exists() -> None:
    missing = [row for row in FLOORS if row not in NAMES]
    assert not missing, f"rows without a module: {missing}"


def test_no_two_modules_need_each_other() -> None:
    graph = {name: {i for i in imports(path) if i in NAMES} - {name} for name, path in modules()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle
