"""etcd's JSON gateway: a way to a node that shares no code with what is tested."""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from etcd_server.node import EtcdServer


class GatewayError(Exception):
    """etcd refused a call; `text` is its own."""

    def __init__(self, path: str, status: int, text: str) -> None:
        super().__init__(f"{path}: {status} {text}")
        self.status, self.text = status, text


class Pair(NamedTuple):
    """One version of a key, as etcd tells it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys that begin with `prefix`."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def _text(data: bytes) -> str:
    return b64encode(data).decode()


class Gateway:
    """Calls to one node, each on a connection of its own; safe for threads."""

    def __init__(
        self, port: int, *, tls: ssl.SSLContext | None = None, timeout_s: float = 5.0
    ) -> None:
        self._port, self._tls, self._timeout_s = port, tls, timeout_s
        self._token: str | None = None

    # --- the wire ---

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send one HTTP request; OSError when nobody answers, `GatewayError` for a refusal."""
        where = ("127.0.0.1", self._port)
        connection = (
            http.client.HTTPSConnection(*where, timeout=self._timeout_s, context=self._tls)
            if self._tls
            else http.client.HTTPConnection(*where, timeout=self._timeout_s)
        )
        try:
            headers = {"Authorization": self._token} if self._token else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as e:
            raise ConnectionError(f"{path}: {e!r}") from e
        finally:
            connection.close()
        if answer.status != 200:
            raise GatewayError(path, answer.status, content.decode(errors="replace"))
        return content

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Post JSON, return JSON."""
        content = self.request("POST", path, json.dumps(body or {}).encode())
        answer: dict[str, Any] = json.loads(content)
        return answer

    # --- keys ---

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        """Write a key as a stranger would; return the revision."""
        body = {"key": _text(key), "value": _text(value), "lease": str(lease)}
        return int(self.call("/v3/kv/put", body)["header"]["revision"])

    def range(self, key: bytes, range_end: bytes = b"", *, revision: int = 0) -> list[Pair]:
        """Return the pairs of [key, range_end), linearizable."""
        body = {"key": _text(key), "range_end": _text(range_end), "revision": str(revision)}
        return [
            Pair(
                b64decode(kv["key"]),
                b64decode(kv.get("value", "")),
                int(kv["create_revision"]),
                int(kv["mod_revision"]),
                int(kv["version"]),
                int(kv.get("lease", 0)),
            )
            for kv in self.call("/v3/kv/range", body).get("kvs", ())
        ]

    def get(self, key: bytes, *, revision: int = 0) -> Pair | None:
        """Return a key's pair; None when it is absent."""
        return next(iter(self.range(key, revision=revision)), None)

    def delete(self, key: bytes, range_end: bytes = b"") -> int:
        """Remove a key or a range; return how many keys went."""
        body = {"key": _text(key), "range_end": _text(range_end)}
        return int(self.call("/v3/kv/deleterange", body).get("deleted", 0))

    def revision(self) -> int:
        """Return the newest revision."""
        answer = self.call("/v3/kv/range", {"key": _text(b"\0"), "count_only": True})
        return int(answer["header"]["revision"])

    def compact(self, revision: int) -> None:
        """Compact, and wait until the space is free."""
        self.call("/v3/kv/compaction", {"revision": str(revision), "physical": True})

    def revoke(self, lease: int) -> None:
        """End a lease."""
        self.call("/v3/lease/revoke", {"ID": str(lease)})

    # --- the node ---

    def version(self) -> dict[str, str]:
        """Return what the node says of its version, and the cluster's."""
        answer: dict[str, str] = json.loads(self.request("GET", "/version"))
        return answer

    def status(self) -> dict[str, Any]:
        """Return the node's Maintenance.Status."""
        return self.call("/v3/maintenance/status")

    def vote(self) -> tuple[str, str | None]:
        """Return the node's member id, and that of the leader it believes in."""
        status = self.status()
        return status["header"]["member_id"], status.get("leader")

    def defragment(self) -> None:
        """Give the space of compacted revisions back to the quota."""
        self.call("/v3/maintenance/defragment")

    def alarms(self) -> list[str]:
        """Return the names of the alarms raised, such as NOSPACE."""
        answer = self.call("/v3/maintenance/alarm", {"action": "GET"})
        return [alarm["alarm"] for alarm in answer.get("alarms", ())]

    def disarm(self) -> None:
        """Take all alarms back."""
        alarms = self.call("/v3/maintenance/alarm", {"action": "GET"}).get("alarms", ())
        for alarm in alarms:
            self.call("/v3/maintenance/alarm", {**alarm, "action": "DEACTIVATE"})

    def save_snapshot(self, path: Path) -> None:
        """Write a backup of the whole node, as `etcdctl snapshot save` does.

        It holds all that was acknowledged before. A node alone backs up what it has applied,
        and another node may have acknowledged more: a linearizable read waits for that.
        """
        self.revision()
        content = self.request("POST", "/v3/maintenance/snapshot", b"{}")
        answers = [json.loads(line) for line in content.splitlines() if line]
        path.write_bytes(b"".join(b64decode(answer["result"]["blob"]) for answer in answers))

    # --- users ---

    def log_in(self, user: str, password: str) -> str:
        """Make all later calls as this user; return the token."""
        answer = self.call("/v3/auth/authenticate", {"name": user, "password": password})
        self._token = answer["token"]
        return answer["token"]

    def log_out(self) -> None:
        """Make all later calls as nobody."""
        self._token = None


Permission = tuple[str, str]
"""A prefix of keys, and read, write or readwrite."""


def enable_auth(
    server: EtcdServer,
    users: Mapping[str, tuple[str, Sequence[Permission] | None]],
) -> None:
    """Make users with passwords and permissions, turn authentication on, log `gateway` in as root.

    `users` maps a name to its password and permissions; None for all (the role root). There must
    be a user root.
    """
    call = server.gateway.call
    call("/v3/auth/role/add", {"name": "root"})
    for user, (password, permissions) in users.items():
        call("/v3/auth/user/add", {"name": user, "password": password})
        role = "root" if permissions is None else f"role-of-{user}"
        for number, (prefix, kind) in enumerate(permissions or ()):
            if number == 0:
                call("/v3/auth/role/add", {"name": role})
            key = prefix.encode()
            permission = {
                "permType": kind.upper(),
                "key": _text(key or b"\0"),
                "range_end": _text(prefix_end(key)),
            }
            call("/v3/auth/role/grant", {"name": role, "perm": permission})
        if permissions is None or permissions:
            call("/v3/auth/user/grant", {"user": user, "role": role})
    call("/v3/auth/enable")
    server.gateway.log_in("root", users["root"][0])
