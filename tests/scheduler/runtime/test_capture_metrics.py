"""What Prometheus reads of captures: the tables they have, the changefeeds that one schedules."""

import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from etcd_server import eventually
from prometheus_client import CollectorRegistry

import snapkv
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.metrics import CaptureMetrics
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.states import NO_PROGRESS
from cdcmeta.scheduler.runtime import Capture, Changefeeds
from cdcmeta.scheduler.runtime import capture as capture_module
from cdcmeta.scheduler.runtime.reports import table_states
from cdcmeta.scheduler.transport.local import LocalNetwork

pytestmark = pytest.mark.slow

TABLES = ["a/", "b/", "c/"]
HERE = {"cluster": "default", "capture": "c1"}


def test_a_capture_that_leads_and_replicates(monkeypatch):
    monkeypatch.setattr(capture_module, "REPORT_S", 0.05)
    registry = CollectorRegistry()
    with snapkv.open("memory:") as store:
        post = LocalNetwork().post("c1")
        capture = Capture(
            store,
            post,
            label="c1",
            store_url="memory:",
            functions={"write": lambda *_: None},
            tick_s=0.02,
        )
        CaptureMetrics(capture, registry=registry)

        def value(name, labels=HERE):
            return registry.get_sample_value(name, labels)

        assert value("cdcmeta_capture_registered") == 0
        capture.start()
        Changefeeds(store).create("copy", "memory:", "call:write", TABLES, start=store.resolved())
        saved = store.save("a/1", b"1")
        feed = {"cluster": "default", "changefeed": "copy"}
        replicating = feed | {"state": "replicating"}
        eventually(lambda: value("cdcmeta_changefeed_tables", replicating) == 3)
        assert value("cdcmeta_changefeed_tables", feed | {"state": "prepare"}) == 0
        assert value("cdcmeta_capture_registered") == 1
        assert value("cdcmeta_capture_leading") == 1
        held = HERE | {"changefeed": "copy"}
        eventually(lambda: value("cdcmeta_tables", held) == 3)
        for name in ("failing_tables", "late_tables", "table_delay_seconds", "unusable"):
            assert value(f"cdcmeta_{name}", held) == 0, name
        at = snapkv.to_datetime(saved).timestamp()
        checkpoint = "cdcmeta_changefeed_checkpoint_timestamp_seconds"
        eventually(lambda: (value(checkpoint, feed) or 0) >= at)
        assert 0 <= value("cdcmeta_changefeed_checkpoint_lag_seconds", feed) < 60
        assert 0 <= value("cdcmeta_changefeed_resolved_lag_seconds", feed) < 60
        capture.stop(drain=False)
        assert capture.error is None
        assert value("cdcmeta_capture_registered") == 0
        assert value("cdcmeta_tables", held) is None


def test_the_command_serves_them(tmp_path):
    store = f"lmdb:{tmp_path / 'meta'}"
    words = [
        "capture",
        "--store",
        store,
        "--label",
        "c1",
        "--metrics",
        "127.0.0.1:0",
        "--drain",
        "0",
    ]
    command = [sys.executable, "-m", "cdcmeta.cli", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = re.search(
                r"metrics at (http://127\.0\.0\.1:\d+/metrics)$", process.stderr.readline()
            )

            def is_leading():
                with urllib.request.urlopen(said[1], timeout=20) as answer:
                    text = answer.read().decode()
                assert f'snapkv_open_stores{{store="default",url="{store}"}} 1.0' in text
                return 'cdcmeta_capture_leading{capture="c1",cluster="default"} 1.0' in text

            assert said
            assert "listens" in process.stderr.readline()
            eventually(is_leading)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_the_states_of_new_tables():
    replication = ReplicationManager(revision=5)
    for table in TABLES:
        replication.create_set(table, NO_PROGRESS)
    found = table_states(replication)
    assert found == {"absent": 3, "prepare": 0, "commit": 0, "replicating": 0, "removing": 0}


def test_what_is_no_capture_and_a_registry_that_has_them():
    registry = CollectorRegistry()
    CaptureMetrics(registry=registry)
    with pytest.raises(InvalidArgumentError, match="give one object all captures"):
        CaptureMetrics(registry=registry)
    with pytest.raises(InvalidArgumentError, match="takes captures"):
        CaptureMetrics("c1")
