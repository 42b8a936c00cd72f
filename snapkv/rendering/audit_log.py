"""The audit log of a Kubernetes API server: the users that changed objects.

An event says which user did what to which object, and from where. Its level decides how well it
can be joined with a commit: `RequestResponse` has the resourceVersion that the request made, which
is the revision of etcd. `Metadata` has none: then the object, the verb and the time have to fit,
which is likely, not certain; so it is of most removals.

Of objects in requests and answers it keeps nothing, so it holds no secret.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from sys import intern
from typing import Any, Protocol

from snapkv.errors import InvalidOptionError
from snapkv.rendering.kubernetes_names import key_of, name_of, resource_name

EVENTS_MAX = 500_000
"""The most events that are kept; the oldest ones go first."""
OF_OBJECT_MAX = 1_000
"""The most events of one object, or namespace, that are kept without a revision."""
LINE_BYTES_MAX = 64 << 20
LATER_MS = 5_000
"""The longest that an event may be after the commit that it made: by the clocks of two machines."""
NEAR_MS = range(-1_500, 1_001)
"""How far an event without a revision may be from the commit, in milliseconds: a ticker's time is
up to a second later."""

ACCOUNT = "system:serviceaccount:"
WRITES = re.compile(rb'"verb": ?"(?:create|update|patch|delete|deletecollection)"')
REMOVALS = frozenset(("delete", "deletecollection", "eviction"))
NO_WRITES = frozenset(("attach", "exec", "log", "portforward", "proxy", "token"))
"""The subresources whose requests change no object."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """A request that changed an object. `certain` says that it made this very version.

    `impersonated` is the user as which `user` acted, "" for none.
    """

    user: str
    impersonated: str
    agent: str
    addresses: tuple[str, ...]
    verb: str
    subresource: str
    at_ms: int
    certain: bool = True

    def text(self, managers: Sequence[str] = ()) -> str:
        """Return the user, and with which program: that of a manager if one is known.

        >>> AuditEvent("ann", "", "kubectl/v1.37.2 (linux/amd64)", (), "patch", "scale", 0).text()
        'ann via kubectl scale'
        """
        user = _short(self.user)
        if self.impersonated:
            user += f" as {_short(self.impersonated)}"
        by = ", ".join(managers) or self.agent.partition("/")[0]
        if self.subresource == "scale":
            by += " scale"
        return f"{user}{f' via {by}' if by else ''}{'' if self.certain else ' (likely)'}"

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        found = {"user": self.user, "verb": self.verb, "agent": self.agent}
        if self.subresource:
            found["subresource"] = self.subresource
        acted = {"impersonated": self.impersonated} if self.impersonated else {}
        return {**found, **acted, "addresses": list(self.addresses), "certain": self.certain}


def _short(user: str) -> str:
    """Return a user's name; of a service account's with its kind in short."""
    account = user.removeprefix(ACCOUNT)
    return user if account == user else f"serviceaccount {account.replace(':', '/')}"


@dataclass(frozen=True, slots=True)
class Who:
    """The origin of a commit: its writer; of other programs' objects the managers and the user."""

    writer: str | None = None
    managers: tuple[str, ...] = ()
    event: AuditEvent | None = None

    @property
    def text(self) -> str | None:
        """Return it on one line, None if nothing is known."""
        if self.writer or self.event is None:
            return self.writer or ", ".join(self.managers) or None
        return self.event.text(self.managers)

    def as_json(self) -> dict[str, Any]:
        """Return managers and user for programs, as far as they are known."""
        found: dict[str, Any] = {"managers": list(self.managers)} if self.managers else {}
        return found if self.event is None else {**found, "audit": self.event.as_json()}


class HasRevision(Protocol):
    """A version or a commit."""

    @property
    def revision(self) -> int:
        """Its revision."""

    @property
    def source_revision(self) -> int | None:
        """The revision that it recorded."""


class AuditLog:
    """The events of one audit log, in files of JSON lines, also compressed (`.gz`).

    It reads them once, from the beginning, and then what was added. With `keys` it keeps only the
    events of these objects. `broken` counts the lines that are not events, such as one that is cut.

    Raises `InvalidOptionError` for a file that cannot be read. Safe for threads.
    """

    def __init__(self, paths: Sequence[str | Path], keys: Collection[str] | None = None) -> None:
        self.broken = 0
        self._files = [_EventFile(Path(path)) for path in paths]
        names = None if keys is None else {name_of(key_of(key)) for key in keys}
        self._names = None if names is None else {name for name in names if name}
        parts = [re.escape(name.rpartition("/")[2].encode()) for name in self._names or ()]
        self._mention = re.compile(b'"name": ?"(?:%s)"|"deletecollection"' % b"|".join(parts))
        self._by_revision = OrderedDict[int, tuple[str, AuditEvent]]()
        self._by_object = OrderedDict[str, deque[AuditEvent]]()
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Read what was added to the files."""
        with self._lock:
            for file in self._files:
                for line in file.new_lines():
                    self._add(line)

    def _add(self, line: bytes) -> None:
        if not WRITES.search(line):
            return
        if self._names is not None and not self._mention.search(line):
            return
        try:
            event = json.loads(line)
            found = _read(event) if isinstance(event, dict) else None
        except (ValueError, TypeError, AttributeError, RecursionError):
            self.broken += 1
            return
        if found is None:
            return
        name, revision, who = found
        if self._names is not None and not name.endswith("/") and name not in self._names:
            return
        if revision is None:
            events = self._by_object.setdefault(name, deque(maxlen=OF_OBJECT_MAX))
            events.append(who)
            self._by_object.move_to_end(name)
        else:  # a later request that changed nothing has the same one
            before = self._by_revision.get(revision)
            if before is None or who.at_ms < before[1].at_ms:
                self._by_revision[revision] = name, who
        for kept in (self._by_revision, self._by_object):
            if len(kept) > EVENTS_MAX:
                kept.popitem(last=False)

    def made(
        self, of: HasRevision, key: str | None, at_ms: int | None, *, removed: bool = False
    ) -> AuditEvent | None:
        """Return the event that made a version of a key, or a commit; otherwise as `find`."""
        revision = of.source_revision or (None if key is None else of.revision)
        return self.find(key, revision, at_ms, removed=removed)

    def find(
        self, key: str | None, revision: int | None, at_ms: int | None, *, removed: bool = False
    ) -> AuditEvent | None:
        """Return the event that made a commit; None if the log has none.

        `key` is the one that it changed, None for several; `revision` its revision in etcd, `at_ms`
        its time. Without an event of that revision the nearest one of the object is likely.
        """
        name = None if key is None else name_of(key_of(key))
        latest = float("inf") if at_ms is None else at_ms + LATER_MS
        with self._lock:
            of, made = self._by_revision.get(revision or 0, ("", None))
            if made is not None and name in (None, of) and made.at_ms <= latest:
                return made
            if name is None or at_ms is None:
                return None
            places = [name, name.rpartition("/")[0] + "/"] if removed else [name]
            near = [
                event
                for place in places
                for event in self._by_object.get(place, ())
                if event.at_ms - at_ms in NEAR_MS and (not removed or event.verb in REMOVALS)
            ]
        if not near:
            return None
        return replace(min(near, key=lambda event: abs(event.at_ms - at_ms)), certain=False)


def _read(event: dict[str, Any]) -> tuple[str, int | None, AuditEvent] | None:
    """Return the object of an event, the revision that it made, and its user; None: no write."""
    of, status = event.get("objectRef") or {}, event.get("responseStatus") or {}
    subresource = of.get("subresource", "")
    if event.get("stage") != "ResponseComplete" or not of or subresource in NO_WRITES:
        return None
    if status.get("code", 200) >= 300 or "dryRun=" in event.get("requestURI", ""):
        return None
    verb = "eviction" if subresource == "eviction" else event["verb"]
    made = event.get("responseObject") or {}
    metadata = made.get("metadata") or {}
    name = of.get("name") or ("" if verb == "deletecollection" else metadata.get("name", ""))
    if not name and verb != "deletecollection":
        return None
    version = "" if made.get("kind") == "Status" or not name else metadata.get("resourceVersion")
    user, other = event.get("user") or {}, event.get("impersonatedUser") or {}
    parts = resource_name(of["resource"], of.get("apiGroup", "")), of.get("namespace"), name
    at = datetime.fromisoformat(event["stageTimestamp"])
    who = AuditEvent(
        intern(str(user.get("username", ""))),
        intern(str(other.get("username", ""))),
        intern(str(event.get("userAgent", ""))),
        tuple(intern(str(each)) for each in event.get("sourceIPs") or ()),
        intern(verb),
        intern(subresource),
        int(at.timestamp() * 1_000),
    )
    path = "/".join(part for part in parts[:2] if part)
    return f"{path}/{name}", int(version) if version else None, who


class _EventFile:
    """A file that grows: its lines that were not read yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._at, self._inode = path, 0, 0

    def new_lines(self) -> Iterator[bytes]:
        """Yield the new lines; a last line without an end is read again the next time."""
        try:
            found = self._path.stat()
            if found.st_ino != self._inode or found.st_size < self._at:
                self._at, self._inode = 0, found.st_ino  # it was rotated
            if found.st_size == self._at:
                return
            is_packed = self._path.suffix == ".gz"
            with gzip.open(self._path) if is_packed else self._path.open("rb") as file:
                file.seek(0 if is_packed else self._at)
                while line := file.readline(LINE_BYTES_MAX):
                    yield line
                    self._at += len(line) if line.endswith(b"\n") else 0
        except EOFError:  # a compressed file that is cut
            pass
        except OSError as e:
            advice = "give a file of the API server's --audit-log-path"
            raise InvalidOptionError(f"--audit {self._path}: {e.strerror or e}: {advice}") from e
        if self._path.suffix == ".gz":
            self._at = found.st_size
