"""Who changed an object, from the audit log of a Kubernetes API server."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from snapkv.errors import InvalidOptionError
from snapkv.rendering.audit_log import AuditEvent, AuditLog, Who
from snapkv.times import physical_ms, resolve

from .deployments import (
    CREATED,
    IMAGE,
    KEY,
    PATCHED,
    REMOVED,
    SCALED,
    Made,
    audit_log,
    versions,
)


def at(made: Made) -> int:
    return physical_ms(resolve(made.time, 0))


def found(log: AuditLog, revision: int, key: str | None = KEY) -> AuditEvent | None:
    made = versions()[revision]
    return log.find(key, revision, at(made), removed=made.value is None)


def text(log: AuditLog, revision: int) -> str | None:
    event = found(log, revision)
    return event and event.text()


def test_each_version_has_its_user(tmp_path: Path) -> None:
    log = AuditLog([audit_log(tmp_path / "audit.log")])
    assert text(log, CREATED) == "admin via kubectl"
    assert text(log, SCALED) == "admin via kubectl scale"
    assert text(log, PATCHED) == "admin as bob via kubectl"
    assert text(log, REMOVED) == "admin via kubectl (likely)"
    others = set(versions()) - {CREATED, IMAGE, SCALED, PATCHED, REMOVED}
    assert {text(log, revision) for revision in others} == {
        "serviceaccount kube-system/deployment-controller via kube-controller-manager"
    }
    assert log.broken == 0


def test_without_objects_it_is_likely(tmp_path: Path) -> None:
    log = AuditLog([audit_log(tmp_path / "audit.log", level="Metadata")])
    assert text(log, SCALED) == "admin via kubectl scale (likely)"
    assert text(log, IMAGE) == "admin via kubectl (likely)"
    event = found(log, PATCHED)
    assert event is not None
    assert event.as_json() == {
        "user": "admin",
        "verb": "patch",
        "agent": "kubectl/v1.37.2 (linux/amd64) kubernetes/$Format",
        "impersonated": "bob",
        "addresses": ["127.0.0.1"],
        "certain": False,
    }
    assert log.find(KEY, SCALED, at(versions()[SCALED]) + 60_000) is None
    assert log.find("/registry/deployments/shop/web", SCALED, at(versions()[SCALED])) is None


def test_a_revision_alone_is_enough_for_several_keys(tmp_path: Path) -> None:
    log = AuditLog([audit_log(tmp_path / "audit.log")])
    assert found(log, SCALED, key=None) is not None
    assert found(log, SCALED, key="deployments/shop/cart") is not None
    assert found(log, SCALED, key="/registry/deployments/shop/web") is None


def test_it_keeps_only_the_events_of_the_keys(tmp_path: Path) -> None:
    path = audit_log(tmp_path / "audit.log")
    assert found(AuditLog([path], [KEY]), SCALED) is not None
    assert found(AuditLog([path], ["/registry/pods/shop/cart"]), SCALED, key=None) is None


def test_a_request_that_changed_nothing_did_not_make_the_version(tmp_path: Path) -> None:
    later = versions()[IMAGE].audit | {"stageTimestamp": "2030-01-01T00:00:00.000000Z"}
    later["user"] = {"username": "eve"}
    path = audit_log(tmp_path / "audit.log")
    path.write_text(json.dumps(later) + "\n" + path.read_text())
    assert text(AuditLog([path]), IMAGE) == "admin via kubectl"
    path.write_text(json.dumps(later) + "\n")
    assert text(AuditLog([path]), IMAGE) is None


@pytest.mark.parametrize(
    "change",
    [
        {"responseStatus": {"code": 409}},
        {"stage": "RequestReceived"},
        {"verb": "get"},
        {"requestURI": "/apis/apps/v1/namespaces/shop/deployments/cart?dryRun=All"},
    ],
)
def test_requests_that_write_nothing_are_no_one(change: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text(json.dumps(versions()[IMAGE].audit | change) + "\n")
    assert text(AuditLog([path]), IMAGE) is None


def test_the_removal_of_all_objects_of_a_namespace_is_likely(tmp_path: Path) -> None:
    event = dict(versions()[REMOVED].audit, verb="deletecollection")
    event["objectRef"] = {k: v for k, v in event["objectRef"].items() if k != "name"}
    path = tmp_path / "audit.log"
    path.write_text(json.dumps(event) + "\n")
    assert text(AuditLog([path], [KEY]), REMOVED) == "admin via kubectl (likely)"
    assert text(AuditLog([path], [KEY]), SCALED) is None


def test_rotated_files_and_lines_that_are_cut(tmp_path: Path) -> None:
    lines = audit_log(tmp_path / "audit.log").read_bytes().splitlines(keepends=True)
    old = tmp_path / "audit-2026.log.gz"
    old.write_bytes(gzip.compress(b"".join(lines[:9])))
    (tmp_path / "audit.log").write_bytes(lines[9][:400] + b"\n" + b"".join(lines[9:])[:-20])
    log = AuditLog([tmp_path / "audit.log", old])
    assert text(log, SCALED) == "admin via kubectl scale"
    assert text(log, PATCHED) == "admin as bob via kubectl"
    assert log.broken == 2  # the cut one, and the last one
    old.write_bytes(gzip.compress(b"".join(lines))[:-2_000])
    AuditLog([old])  # what a compressed file has left


def test_it_reads_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    lines = audit_log(path).read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:100])
    log = AuditLog([path])
    assert text(log, SCALED) is None
    path.write_text("".join(lines))
    log.refresh()
    assert text(log, SCALED) == "admin via kubectl scale"
    path.rename(tmp_path / "audit-1.log")
    path.write_text("")
    log.refresh()
    assert text(log, SCALED) == "admin via kubectl scale"
    path.unlink()
    with pytest.raises(InvalidOptionError, match=r"audit.log: No such file or directory: give"):
        log.refresh()


def test_it_keeps_nothing_of_objects(tmp_path: Path) -> None:
    event = dict(versions()[IMAGE].audit, requestObject={"data": {"password": "hunter2"}})
    path = tmp_path / "audit.log"
    path.write_text(json.dumps(event) + "\n")
    log = AuditLog([path])
    assert text(log, IMAGE) is not None
    assert "hunter2" not in repr([vars(log), list(log._by_revision.values())])


def test_a_writer_of_the_store_is_the_writer() -> None:
    event = AuditEvent("ann", "", "kubectl/v1", (), "patch", "", 0)
    assert Who("bob", ("kubectl",), event).text == "bob"
    assert Who(None, ("kubectl-set",), event).text == "ann via kubectl-set"
    assert Who(None, ("kubectl-set",)).text == "kubectl-set"
    assert Who().text is None
