"""The manifests of the how-to pages: whole, with options that exist, and good for an API server.

The API server is asked where `tools/kubernetes/build build/kubernetes` has built one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from snapkv.engine.etcd.options import VARIABLES
from tools.kubernetes.cluster import BUILT, Cluster, ClusterError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "howto" / "manifests"
KINDS = sorted(each.name for each in FOLDER.iterdir())
WARN = "pod-security.kubernetes.io/warn"
"""Makes the API server warn of what the manifests' own namespaces enforce."""
WITHOUT_SECRETS = {"api", "etcd"}
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
    workloads = [each for each in documents(kind) if each["kind"] in ("Deployment", "StatefulSet")]
    (spec,) = [each["spec"] for each in workloads]
    if workloads[0]["kind"] == "Deployment":
        assert spec["replicas"] == 1
        assert spec["strategy"] == {"type": "Recreate"}
    pod: dict[str, Any] = spec["template"]["spec"]
    return pod


@pytest.mark.parametrize("kind", KINDS)
def test_each_object_is_in_the_namespace_of_the_manifests(kind: str) -> None:
    """Or has none, as a ClusterRole."""
    found = {each["kind"]: each["metadata"].get("namespace") for each in documents(kind)}
    without = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
    assert {name for kind, name in found.items() if kind not in without} == {"snapkv"}


def test_the_pages_apply_one_folder_at_a_time() -> None:
    """kubectl takes one `-k`: of several the last one counts, without a word."""
    for page in (ROOT / "docs").rglob("*.md"):
        for line in re.findall("kubectl apply.*", page.read_text()):
            assert line.count(" -k ") <= 1, (page, line)


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
def test_a_program_has_options_that_exist(kind: str) -> None:
    (container,) = pod_of(kind)["containers"]
    command, *options = container["args"]
    of_program([*container.get("command", ["snapkv"]), command], options)
    program, command, *options = container["readinessProbe"]["exec"]["command"]
    of_program([program, command], options)


def of_program(command: list[str], options: list[str]) -> None:
    """Check that a command has options."""
    pattern = rf"^\$ {' '.join(command)}\n(.*?)(?=^\$|\Z)"
    (found,) = re.findall(pattern, SURFACE, re.MULTILINE | re.DOTALL)
    for each in options:
        assert f" {each.partition('=')[0]}" in found, each


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "api"])
def test_a_program_on_etcd_has_variables_that_exist(kind: str) -> None:
    (container,) = pod_of(kind)["containers"]
    names = {each["name"] for each in container["env"]} - {"POD"}
    assert names == {"SNAPKV_STORE", *(VARIABLES[each] for each in ("ca_cert", "cert", "key"))}


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_cannot_write_its_root_nor_gain_rights(kind: str) -> None:
    pod = pod_of(kind)
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    if kind != "etcd":  # only root reads the certificates of a node
        assert pod["securityContext"]["runAsNonRoot"]


@pytest.mark.parametrize("kind", [each for each in KINDS if each not in WITHOUT_SECRETS])
def test_the_page_makes_each_secret_that_is_mounted(kind: str) -> None:
    text = (ROOT / "docs/howto/run.md").read_text()
    mounted = {e["secret"]["secretName"] for e in pod_of(kind)["volumes"] if "secret" in e}
    made = set(re.findall(r"create secret generic (\S+)", text))
    assert "snapkv-etcd" in mounted
    assert mounted <= made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not os.access(BUILT / "kube-apiserver", os.X_OK):
        pytest.skip("no kube-apiserver: tools/kubernetes/build build/kubernetes makes one, with Go")
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.start_etcd()
        started.start_api()
        started.kubectl("create", "namespace", "snapkv")  # a dry run makes none
        yield started
    finally:
        started.stop()


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("kind", KINDS)
def test_an_api_server_takes_what_kustomize_makes(cluster: Cluster, kind: str) -> None:
    level = "privileged" if kind == "etcd" else "restricted"
    cluster.kubectl("label", "--overwrite", "namespace", "snapkv", f"{WARN}={level}")
    folder = ("-k", str(FOLDER / kind))
    answer = cluster.kubectl("apply", "--dry-run=server", "--warnings-as-errors", *folder)
    assert answer.count("(server dry run)") == len(documents(kind))
    image = cluster.kubectl("kustomize", str(FOLDER / kind)).count("registry.example.com/snapkv:1")
    assert image == 1


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
def test_an_api_server_rejects_a_manifest_that_is_wrong(cluster: Cluster) -> None:
    """Otherwise the test above would show nothing."""
    text = (FOLDER / "tick" / "ticker.yaml").read_text().replace("capabilities", "capabilitys")
    with pytest.raises(ClusterError, match="capabilitys"):
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    cluster.kubectl("label", "--overwrite", "ns", "snapkv", f"{WARN}=restricted")
    text = text.replace("capabilitys", "capabilities").replace("runAsNonRoot: true", "")
    words = ("apply", "--dry-run=server", "--warnings-as-errors", "-f", "-")
    with pytest.raises(ClusterError, match="runAsNonRoot"):
        cluster.kubectl(*words, stdin=text)
