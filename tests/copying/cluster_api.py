"""A server that answers as an API server does: discovery, lists with pages, and watches.

Its answers have the form of kube-apiserver 1.37's. A test decides what it forgets, denies and cuts.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

CORE = ("namespaces", "nodes", "pods", "secrets", "events")
WAIT_S = 30


class ClusterApi:
    """Objects of resources by path, with one history of all changes."""

    def __init__(self, uid: str = "11111111-2222-3333-4444-555555555555") -> None:
        self.revision, self.changed = 100, threading.Condition()
        self.log: list[tuple[int, str, str, dict[str, Any] | None]] = []
        self.paths = {f"/api/v1/{name}" for name in CORE} | {
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "/apis/apiregistration.k8s.io/v1/apiservices",
            "/apis/events.k8s.io/v1/events",
        }
        self.forgotten: dict[str, int] = {}
        """The revision up to which a path has no changes any more."""
        self.gone_as_event, self.denied, self.unwatched = False, set[str](), set[str]()
        self.apart: dict[str, int] = {}
        """What the revisions of a path are ahead of the cluster's."""
        self.cuts, self.bookmarks, self.watches = 0, 0, list[tuple[str, int]]()
        self.requests: list[str] = []
        self.uid = uid
        self.put("/api/v1/namespaces", "kube-system", uid=uid)
        self._port = 0
        self.start()

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._server.daemon_threads = True
        self._port = self._server.server_port
        self.up = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        with self.changed:
            self.up = False
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, folder: Any) -> str:
        cluster = {"server": f"http://127.0.0.1:{self._port}"}
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{"name": "here", "cluster": cluster}],
                    "users": [{"name": "user", "user": {"token": "secret"}}],
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "user"}}],
                }
            )
        )
        return str(path)

    # --- objects ---

    def put(self, path: str, name: str, *, uid: str = "", **fields: Any) -> int:
        """Create or replace an object; `name` may have a namespace."""
        namespace, _, own = name.rpartition("/")
        about = {"name": own, **({"namespace": namespace} if namespace else {}), "uid": uid}
        return self._change(path, name, {"metadata": about, **fields})

    def delete(self, path: str, name: str) -> int:
        return self._change(path, name, None)

    def _change(self, path: str, name: str, found: dict[str, Any] | None) -> int:
        with self.changed:
            self.revision += 1
            at = self.revision + self.apart.get(path, 0)
            if found is not None:
                found["metadata"]["resourceVersion"] = str(at)
            self.log.append((at, path, name, found))
            self.changed.notify_all()
            return at

    def bookmark(self) -> None:
        """Let each watch say how far it is."""
        with self.changed:
            self.bookmarks += 1
            self.changed.notify_all()

    def cut(self) -> None:
        """Cut each watch in the middle of a line."""
        with self.changed:
            self.cuts += 1
            self.changed.notify_all()

    def forget(self, path: str) -> None:
        """Drop the changes of a path, as a restart of the API server does."""
        self.forgotten[path] = self.newest(path)

    def newest(self, path: str) -> int:
        return self.revision + self.apart.get(path, 0)

    def state(self, path: str, revision: int) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for at, changed, name, value in self.log:
            if changed == path and at <= revision:
                found.pop(name, None)
                if value is not None:
                    found[name] = value
        return [value for _, value in sorted(found.items())]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ClusterApi

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        fields = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.api.requests.append(self.path)
        with suppress(BrokenPipeError, ConnectionResetError):
            self._answer(url.path, fields)

    def _answer(self, path: str, fields: dict[str, str]) -> None:
        api = self.api
        if not api.up:  # a connection that was kept
            self.close_connection = True
        elif path == "/readyz":
            self._send(200, {})
        elif path in api.denied or ("watch" in fields and path in api.unwatched):
            self._send(403, {"message": f"cannot list {path}"})
        elif path == "/api/v1/namespaces/kube-system":
            self._send(200, {"metadata": {"uid": api.uid}})
        elif path == "/apis":
            self._send(200, {"groups": self._groups()})
        elif path in api.paths:
            (self._watch if "watch" in fields else self._list)(path, fields)
        elif names := [each for each in api.paths if each.startswith(f"{path}/")]:
            self._send(200, {"resources": [_described(each) for each in sorted(names)]})
        else:
            self._send(404, {"message": "the server could not find the requested resource"})

    def _groups(self) -> list[dict[str, Any]]:
        found = {tuple(p.split("/")[2:4]) for p in self.api.paths if p.startswith("/apis/")}
        versions = [(group, {"groupVersion": f"{group}/{v}"}) for group, v in sorted(found)]
        return [
            {"name": group, "preferredVersion": each, "versions": [each]}
            for group, each in versions
        ]

    def _send(self, status: int, found: object) -> None:
        body = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _list(self, path: str, fields: dict[str, str]) -> None:
        revision, begin = self.api.newest(path), 0
        if "continue" in fields:
            revision, begin = map(int, fields["continue"].split("-"))
        elif "resourceVersion" in fields:
            assert fields["resourceVersionMatch"] == "Exact"
            revision = int(fields["resourceVersion"])
        items = self.api.state(path, revision)
        if "fieldSelector" in fields:
            name = fields["fieldSelector"].removeprefix("metadata.name=")
            items = [item for item in items if item["metadata"]["name"] == name]
        end = begin + int(fields.get("limit", "1000000"))
        about = {"resourceVersion": str(revision)}
        if end < len(items):
            about["continue"] = f"{revision}-{end}"
        self._send(200, {"kind": "List", "metadata": about, "items": items[begin:end]})

    def _watch(self, path: str, fields: dict[str, str]) -> None:
        api, position = self.api, int(fields["resourceVersion"])
        gone = position < api.forgotten.get(path, 0)
        if gone and not api.gone_as_event:
            self._send(410, {"message": "too old resource version"})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if gone:
            self._event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
            self._chunk(b"")
            return
        with api.changed:
            cuts, bookmarks = api.cuts, api.bookmarks
            api.watches.append((path, position))
        alive = {item["metadata"]["name"] for item in api.state(path, position)}
        while api.up:
            with api.changed:
                new = [each for each in api.log if each[1] == path and each[0] > position]
                if not new and (api.cuts, api.bookmarks) == (cuts, bookmarks):
                    api.changed.wait(WAIT_S)
            for at, _, name, value in new:
                own = name.rpartition("/")[2]
                kind = "DELETED" if value is None else "MODIFIED" if own in alive else "ADDED"
                (alive.discard if value is None else alive.add)(own)
                self._event(kind, value or _last(api, path, name, at))
                position = at
            if api.cuts != cuts:
                self._chunk(b'{"type":"MODIFIED","object":{"metadata":{"na')
                self.close_connection = True
                return
            if api.bookmarks != bookmarks:
                bookmarks, position = api.bookmarks, max(position, api.newest(path))
                self._event("BOOKMARK", {"metadata": {"resourceVersion": str(position)}})
        self.close_connection = True

    def _event(self, kind: str, found: dict[str, Any]) -> None:
        text = json.dumps({"type": kind, "object": found}, separators=(",", ":"))
        self._chunk(text.encode() + b"\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _last(api: ClusterApi, path: str, name: str, at: int) -> dict[str, Any]:
    """Return what a removed object was, with the revision of its removal, as a watch sends it."""
    was = [each[3] for each in api.log if each[1:3] == (path, name) and each[0] < at and each[3]]
    assert was[-1] is not None
    return {**was[-1], "metadata": {**was[-1]["metadata"], "resourceVersion": str(at)}}


def _described(path: str) -> dict[str, Any]:
    plural = path.rpartition("/")[2]
    return {"name": plural, "kind": plural.capitalize(), "verbs": ["get", "list", "watch"]}
