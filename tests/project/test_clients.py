"""Only listed modules import a client of another project."""

import sys

import pytest

from tests.project.imported import imports, modules, root_of

pytestmark = pytest.mark.xdist_group("sources")  # parsed once

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
    "yaml": {
        "snapkv.cli.formats",
        "snapkv.copying.kubernetes_api",
        "snapkv.rendering.yaml_text",
    },
    "kubernetes": {"snapkv.copying.kubernetes_api"},
    "urllib3": {"snapkv.copying.kubernetes_api"},
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
