"""The manifests of the how-to for Kubernetes: whole, and with options that the recorder has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from snapkv.engine.etcd.options import VARIABLES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "howto" / "manifests"
KINDS = ["api", "etcd"]
SURFACE = (ROOT / "tests/project/surface/commands.txt").read_text()


def documents(kind: str) -> list[dict[str, Any]]:
    names = yaml.safe_load((FOLDER / kind / "kustomization.yaml").read_text())["resources"]
    assert sorted([*names, "kustomization.yaml"]) == sorted(
        p.name for p in (FOLDER / kind).iterdir()
    )
    return [
        each for name in names for each in yaml.safe_load_all((FOLDER / kind / name).read_text())
    ]


def pod_of(kind: str) -> dict[str, Any]:
    (deployment,) = [each for each in documents(kind) if each["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("kind", KINDS)
def test_each_object_is_in_the_namespace_of_the_manifests(kind: str) -> None:
    """Or has none, as a ClusterRole."""
    found = {each["kind"]: each["metadata"].get("namespace") for each in documents(kind)}
    without = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
    assert {name for kind, name in found.items() if kind not in without} == {"snapkv"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_mount_has_a_volume(kind: str) -> None:
    pod = pod_of(kind)
    (container,) = pod["containers"]
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}


def test_the_account_may_only_read() -> None:
    (role,) = [each for each in documents("api") if each["kind"] == "ClusterRole"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_recorder_has_options_that_exist(kind: str) -> None:
    (container,) = pod_of(kind)["containers"]
    command, *options = container["args"]
    assert command == "record"
    (record,) = re.findall(r"^\$ snapkv record\n(.*?)(?=^\$)", SURFACE, re.MULTILINE | re.DOTALL)
    for each in options:
        assert f" {each.partition('=')[0]}" in record, each


def test_the_recorder_of_etcd_has_variables_that_exist() -> None:
    (container,) = pod_of("etcd")["containers"]
    names = {each["name"] for each in container["env"]}
    assert names == {"SNAPKV_STORE", *(VARIABLES[each] for each in ("ca_cert", "cert", "key"))}
