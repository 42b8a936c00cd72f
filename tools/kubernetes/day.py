"""A day of a cluster in small: what people and controllers do, as steps that a trial plays.

`Day.play` runs each step once, in an order that a seed decides where the order is free.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable

from tools.kubernetes.cluster import Cluster

SHOP = "shop"
NODES = 3
CRONTAB_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "crontabs.stable.example.com"},
    "spec": {
        "group": "stable.example.com",
        "scope": "Namespaced",
        "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


class Day:
    """The steps of a day, for one cluster; `random_` decides names and numbers."""

    def __init__(self, cluster: Cluster, random_: random.Random) -> None:
        self.cluster, self.random = cluster, random_

    def play(self, between: Callable[[str], None] = lambda name: None) -> None:
        """Run all steps; call `between` with the name of each after it."""
        for step in (
            self.begin,
            self.roll_out,
            self.churn_settings,
            self.run_jobs,
            self.use_custom_resources,
            self.encrypt,
            self.scale_down,
            self.remove_namespace,
            self.remove_custom_resources,
            self.rotate_keys,
        ):
            step()
            between(step.__name__)

    def apply(self, *objects: object) -> None:
        """Apply objects as kubectl does."""
        self.cluster.kubectl("apply", "-f", "-", stdin=_list(objects))

    def begin(self) -> None:
        """Create namespaces, nodes and a shop of deployments, services and secrets."""
        for name in (SHOP, "staging", "short-lived"):
            self.apply(_object("v1", "Namespace", name))
        self.apply(*(_object("v1", "Node", f"n{each}") for each in range(NODES)))
        for name in ("web", "cart", "search"):
            self.apply(deployment(name, 2), _service(name))
        secret = _object("v1", "Secret", "database", SHOP)
        text = base64.b64encode(self.random.randbytes(48)).decode()
        self.apply({**secret, "data": {"password": text}})

    def roll_out(self) -> None:
        """Set images, and bind pods to nodes as a scheduler does."""
        kubectl = self.cluster.kubectl
        for number in range(26, 32):
            kubectl("-n", SHOP, "set", "image", "deployment/web", f"app=nginx:1.{number}")
            self._controlled("web")
            self._bind()
        kubectl("-n", SHOP, "rollout", "undo", "deployment/web")
        self.apply(_object("apps/v1", "StatefulSet", "store", SHOP) | {"spec": _set("store")})
        self.apply(_object("apps/v1", "DaemonSet", "agent", SHOP) | {"spec": _set("agent", False)})

    def _controlled(self, name: str) -> None:
        """Wait until the controller of deployments has taken the newest generation of one."""
        words = "-n", SHOP, f"deployment/{name}"
        generation = self.cluster.kubectl("get", *words, "-o", "jsonpath={.metadata.generation}")
        condition = f"jsonpath={{.status.observedGeneration}}={generation}"
        self.cluster.kubectl("wait", f"--for={condition}", *words, "--timeout=60s")

    def _bind(self) -> None:
        pods = json.loads(self.cluster.kubectl("-n", SHOP, "get", "pods", "-o", "json"))["items"]
        for pod in pods:
            name = pod["metadata"]["name"]
            if not pod["spec"].get("nodeName"):
                target = {"kind": "Node", "apiVersion": "v1", "name": f"n{self._below(NODES)}"}
                binding = _object("v1", "Binding", name, SHOP) | {"target": target}
                path = f"/api/v1/namespaces/{SHOP}/pods/{name}/binding"
                self.cluster.api(path, method="POST", body=binding)

    def _below(self, number: int) -> int:
        return self.random.randrange(number)

    def churn_settings(self) -> None:
        """Change, remove and make anew configurations, also with binary data."""
        path = f"/api/v1/namespaces/{SHOP}/configmaps"
        for number in range(60):
            name, text = f"settings-{self._below(8)}", "x" * self._below(3_000)
            data = {"text": text, "number": str(number)}
            binary = base64.b64encode(self.random.randbytes(64)).decode()
            found = _object("v1", "ConfigMap", name, SHOP)
            self.apply({**found, "data": data, "binaryData": {"blob": binary}})
            if self._below(5) == 0:
                self.cluster.api(f"{path}/{name}", method="DELETE")

    def run_jobs(self) -> None:
        """Run jobs, a cron job and what belongs to them."""
        for number in range(4):
            template = {"spec": _pod_spec() | {"restartPolicy": "Never"}}
            spec = {"template": template, "parallelism": 2}
            self.apply(_object("batch/v1", "Job", f"job-{number}", SHOP) | {"spec": spec})
        self.cluster.kubectl("-n", SHOP, "delete", "job", "job-1", "--wait=false")

    def use_custom_resources(self) -> None:
        """Define a custom resource, and change objects of it."""
        self.apply(CRONTAB_CRD)
        wait = ("wait", "--for=condition=established", "crd/crontabs.stable.example.com")
        self.cluster.kubectl(*wait, "--timeout=30s")
        for number in range(20):
            found = _object("stable.example.com/v1", "CronTab", f"tab-{self._below(6)}", SHOP)
            self.apply({**found, "spec": {"cronSpec": f"{number} * * * *"}})

    def encrypt(self) -> None:
        """Turn encryption of secrets on, and rewrite all of them."""
        self._write_secrets_with("aescbc", "key1")

    def rotate_keys(self) -> None:
        """Write all secrets with another provider and key."""
        self._write_secrets_with("secretbox", "key2")

    def _write_secrets_with(self, provider: str, name: str) -> None:
        secret = base64.b64encode(self.random.randbytes(32)).decode()
        new = {provider: {"keys": [{"name": name, "secret": secret}]}}
        self.cluster.encrypt_with(new, *self.cluster.encryption[:-1])
        self.cluster.restart_api()
        kubectl = self.cluster.kubectl
        kubectl("replace", "-f", "-", stdin=kubectl("get", "secrets", "-A", "-o", "json"))

    def scale_down(self) -> None:
        """Scale a deployment down by mistake: what the how-to looks for."""
        self.cluster.kubectl("-n", SHOP, "scale", "deployment/cart", "--replicas=0")

    def remove_namespace(self) -> None:
        """Remove a namespace with what is in it."""
        for number in range(5):
            self.apply(_object("v1", "ConfigMap", f"left-{number}", "short-lived"))
        self.cluster.kubectl("delete", "namespace", "short-lived", "--timeout=60s")

    def remove_custom_resources(self) -> None:
        """Remove a definition, and with it the objects of it."""
        crd = "crd/crontabs.stable.example.com"
        self.cluster.kubectl("delete", crd, "--timeout=60s")


def deployment(name: str, replicas: int) -> dict[str, object]:
    """Return a deployment of the shop."""
    return _object("apps/v1", "Deployment", name, SHOP) | {
        "spec": {**_set(name), "replicas": replicas}
    }


def _set(name: str, has_service: bool = True) -> dict[str, object]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": _pod_spec()}
    spec: dict[str, object] = {"selector": {"matchLabels": labels}, "template": template}
    return spec | ({"serviceName": name} if has_service and name == "store" else {})


def _pod_spec() -> dict[str, object]:
    return {"containers": [{"name": "app", "image": "nginx:1.25"}]}


def _service(name: str) -> dict[str, object]:
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return _object("v1", "Service", name, SHOP) | {"spec": spec}


def _object(version: str, kind: str, name: str, namespace: str = "") -> dict[str, object]:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _list(objects: tuple[object, ...]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
