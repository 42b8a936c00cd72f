"""The API server of a Kubernetes cluster: its resources, their objects and changes, as JSON.

The official client brings the configuration: kubeconfig and contexts, exec plugins, service
accounts, proxies and TLS. Answers are parsed here: its models are slow, and leave out fields that
they do not know.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from snapkv.base.extras import requires_extra
from snapkv.errors import (
    AccessDeniedError,
    ArchiveError,
    EngineUnavailableError,
    InvalidOptionError,
    SnapKVError,
)
from snapkv.rendering.kubernetes_names import resource_name

SCHEME = "kubernetes:"
IN_CLUSTER = "//in-cluster"
"""Behind the scheme: the cluster in which this process runs. Else it is a context, or nothing."""
CONNECT_S = 5.0
ANSWER_S = 60.0
"""The longest waits for a connection and for an answer, in seconds."""
PAGE = 500
"""The most objects in one answer."""
CHUNK_BYTES = 1 << 16
CONNECTIONS = 128
"""The most idle connections that are kept; each resource's watch has one."""
KEEP_IDLE = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # of macOS
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, getattr(socket, KEEP_IDLE), 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
)
CORE_EVENTS = "events", "events.k8s.io"
"""A resource that the API also serves in another group."""

OK, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, GONE = 200, 401, 403, 404, 410


class Resource(NamedTuple):
    """Objects that can be listed and watched: their name for people, and where the API has them."""

    name: str
    path: str
    kind: str
    api_version: str
    group: str


class ApiStatusError(Exception):
    """The API server answered with another status than 200."""

    def __init__(self, status: int, message: str, path: str, retry_s: float = 0.0) -> None:
        super().__init__(f"{path}: {status} {message}")
        self.status, self.retry_s = status, retry_s


class WatchedChange(NamedTuple):
    """An object of a watch: ADDED, MODIFIED, DELETED or BOOKMARK; `value` is as it was sent."""

    type: str
    object: dict[str, Any]
    value: bytes


class ApiWatch:
    """The changes of one resource, until the server ends the answer; `close` ends it, too."""

    def __init__(self, response: Any, path: str) -> None:
        self._response, self._path = response, path

    def __iter__(self) -> Iterator[WatchedChange]:
        """Yield what changed; raises `ApiStatusError` for an error, and what urllib3 raises.

        A line that was cut is left out: the next watch has it.
        """
        rest = b""
        for chunk in self._response.stream(CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                yield self._change(line)

    def _change(self, line: bytes) -> WatchedChange:
        event = json.loads(line)
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiStatusError(found.get("code", 500), found.get("message", ""), self._path)
        begin = b'{"type":"%s","object":' % kind.encode()
        whole = line.startswith(begin) and line.endswith(b"}}")
        return WatchedChange(kind, found, line[len(begin) : -1] if whole else as_json(found))

    def close(self) -> None:
        """End the answer; a thread that reads it comes back."""
        with suppress(ValueError, RuntimeError, OSError):  # it has ended
            self._response.shutdown()


class KubernetesApi:
    """Requests to the API server that a `kubernetes:` URL names; any number of threads."""

    def __init__(self, url: str) -> None:
        """Read the configuration; no request.

        Raises `MissingExtraError`, and `InvalidOptionError` without a usable configuration.
        """
        with requires_extra("kubernetes", "recording a cluster through its API"):
            import urllib3
            import yaml  # the client needs it
            from kubernetes import client, config
            from urllib3.connection import HTTPConnection
        self._configuration = settings = client.Configuration()
        place = url.removeprefix(SCHEME)
        try:
            if place == IN_CLUSTER:
                config.load_incluster_config(client_configuration=settings)
            else:
                config.load_kube_config(
                    os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION,
                    context=place or None,
                    client_configuration=settings,
                )
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError) as e:
            found = " ".join(str(e).split()).removesuffix(".")
            advice = (
                "outside of a pod, name a context of the kubeconfig"
                if place == IN_CLUSTER
                else "name a context of the kubeconfig (KUBECONFIG, ~/.kube/config), or "
                "--in-cluster in a pod"
            )
            raise InvalidOptionError(f"{url!r}: {found}: {advice}") from e
        if not settings.verify_ssl:  # the kubeconfig says so; else each request warns
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        settings.connection_pool_maxsize = CONNECTIONS
        settings.socket_options = [*HTTPConnection.default_socket_options, *KEEPALIVE]
        self._client = client.ApiClient(settings)
        self._credentials = threading.Lock()  # never held while its holder waits for a store
        self.host: str = settings.host

    def get(self, path: str, **fields: object) -> dict[str, Any]:
        """Return an answer; one round trip. Raises `ApiStatusError`."""
        found: dict[str, Any] = json.loads(self._send(path, fields, ANSWER_S).data)
        return found

    def pages(
        self, resource: Resource, at: int | None = None, **fields: object
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield the objects of a resource, now or at a revision, with the list's revision."""
        after: dict[str, object] = {}
        if at is not None:
            fields |= {"resourceVersion": at, "resourceVersionMatch": "Exact"}
        while True:
            page = self.get(resource.path, limit=PAGE, **(after or fields))
            items = page.get("items") or []
            about = {"kind": resource.kind, "apiVersion": resource.api_version}
            yield revision_of(page, resource.path), [about | item for item in items]
            if not (token := page["metadata"].get("continue")):
                return
            after = {"continue": token}

    def revision(self, path: str) -> int:
        """Return the newest revision that a resource has; one round trip."""
        return revision_of(self.get(path, limit=1), path)

    def watch(self, resource: Resource, revision: int, seconds: int) -> ApiWatch:
        """Return what changes a resource after a revision; the server ends it after some time."""
        fields = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": revision,
            "timeoutSeconds": seconds,
        }
        return ApiWatch(self._send(resource.path, fields, seconds + ANSWER_S), resource.path)

    def _send(self, path: str, fields: Mapping[str, object], wait_s: float) -> Any:
        """Return an answer whose body is not read; raises `ApiStatusError`."""
        import urllib3

        headers = {"Accept": "application/json", "User-Agent": "snapkv"}
        with self._credentials:  # a plugin or a file may have to bring a new token
            for setting in self._configuration.auth_settings().values():
                headers[setting["key"]] = setting["value"]
        response = self._client.rest_client.pool_manager.request(
            "GET",
            f"{self.host}{path}",
            fields=fields,
            headers=headers,
            preload_content=False,
            retries=False,
            timeout=urllib3.Timeout(connect=CONNECT_S, read=wait_s),
        )
        if response.status == OK:
            return response
        text, retry = response.data.decode(errors="replace"), response.headers.get("Retry-After")
        with suppress(ValueError, TypeError, KeyError):
            text = json.loads(text)["message"]
        wait = float(retry) if retry and retry.isdigit() else 0.0
        raise ApiStatusError(response.status, text.strip()[:400], path, wait)

    def resources(self) -> list[Resource]:
        """Return what can be listed and watched; a round trip for each version of each group."""
        found: dict[tuple[str, str], Resource] = {}
        versions = [("", "v1", "/api/v1")]
        for group in self.get("/apis")["groups"]:
            ordered = [group["preferredVersion"], *group["versions"]]
            names = dict.fromkeys(version["groupVersion"] for version in ordered)
            versions += [(group["name"], name, f"/apis/{name}") for name in names]
        for group_name, version, path in versions:
            try:
                listed = self.get(path)["resources"]
            except ApiStatusError:  # another server has the group, and does not answer
                continue
            for each in listed:
                plural, verbs = each["name"], each["verbs"]
                known = (plural, group_name) in found or (plural, group_name) == CORE_EVENTS
                if known or "/" in plural or not {"list", "watch"} <= set(verbs):
                    continue
                name = resource_name(plural, group_name)
                resource = Resource(name, f"{path}/{plural}", each["kind"], version, group_name)
                found[plural, group_name] = resource
        return list({resource.name: resource for resource in found.values()}.values())

    def check_ready(self) -> None:
        """Raise `ApiStatusError` if the server still starts: it does not list all groups then."""
        try:
            self._send("/readyz", {}, ANSWER_S).drain_conn()
        except ApiStatusError as e:
            if e.status not in (FORBIDDEN, NOT_FOUND):
                raise

    def cluster_id(self) -> str:
        """Return the UID of the namespace kube-system: a cluster has no other id of its own."""
        return str(self.get("/api/v1/namespaces/kube-system")["metadata"]["uid"])

    def close(self) -> None:
        """Close the connections that no request uses."""
        self._client.close()


def as_json(value: object) -> bytes:
    """Return compact JSON, with the fields in the order in which they came."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def revision_of(found: Mapping[str, Any], path: str) -> int:
    """Return an object's or a list's resourceVersion as a number.

    Raises `ArchiveError` if it is not one: then this server's changes have no order.
    """
    text = found["metadata"].get("resourceVersion", "")
    if not text.isdecimal():
        raise ArchiveError(
            f"{path}: resourceVersion {text!r} is not a number, so changes cannot be ordered by "
            "it: leave the resource out with --except"
        )
    return int(text)


def object_name(found: Mapping[str, Any]) -> str:
    """Return `NAMESPACE/NAME` of an object, or `NAME`."""
    about = found["metadata"]
    namespace = about.get("namespace")
    return f"{namespace}/{about['name']}" if namespace else str(about["name"])


@contextmanager
def translated(host: str) -> Iterator[None]:
    """Raise the errors of the block's requests as errors of snapkv."""
    with requires_extra("kubernetes", "recording a cluster through its API"):
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError
    try:
        yield
    except SnapKVError:
        raise
    except ApiStatusError as e:
        if e.status == UNAUTHORIZED:
            raise AccessDeniedError(
                f"{host} does not accept the credentials ({e}): log in again, or name another "
                "context"
            ) from e
        if e.status == FORBIDDEN:
            raise AccessDeniedError(
                f"{host}: {e}; give this account the verbs get, list and watch of what it is to "
                "record, and get of the namespace kube-system"
            ) from e
        raise EngineUnavailableError(f"{host}: {e}") from e
    except (HTTPError, ConfigException, OSError, ValueError) as e:
        raise EngineUnavailableError(f"{host} does not answer: {e}") from e
