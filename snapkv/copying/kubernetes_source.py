"""The objects of a Kubernetes cluster as a source of steps, through its API.

Keys are `RESOURCE/NAMESPACE/NAME`, values the JSON that the API server sends. The first state is
that of one revision. From there on a watch of each resource brings the changes, which become steps
in the order of their resourceVersion: a change waits `WINDOW_S` for changes of other resources. One
that comes later gets the next free revision.

Each mark has the positions of all resources, in its stamp: a revision up to which all changes of
all resources are recorded, and the greater one of a resource with a later change. A restart watches
from there. A resource with revisions of its own has its own position always: an aggregated API, or
`events` where they are in another etcd.
"""

from __future__ import annotations

import hmac
import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import chain
from queue import Empty
from typing import Any
from uuid import UUID

from snapkv.base.waiting import monotonic, pause
from snapkv.clock import HybridClock
from snapkv.copying.kubernetes_api import (
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    ApiStatusError,
    KubernetesApi,
    Resource,
    as_json,
    object_name,
    revision_of,
    translated,
)
from snapkv.copying.kubernetes_streams import (
    JOIN_S,
    LEFT_OUT,
    LOST,
    Arrival,
    Encode,
    Inbox,
    ObjectChange,
    RecordedObject,
    ResourceStream,
    Trouble,
    set_back,
)
from snapkv.copying.sources import (
    ForeignSource,
    Pages,
    RecordedState,
    SourceCommit,
    SourceFollower,
)
from snapkv.engine.contract import KeyEvent, KeyValue
from snapkv.errors import AccessDeniedError, CompactedError, StoreRestoredError
from snapkv.layout import CLUSTER, Layout, SourceId, StampRecord, stamp_of
from snapkv.times import format_time

SPACE = "kubernetes"
RECORDED = b"resources"
"""The space and the key of a record that has the names of the resources that are recorded,
and what is left out of each, as in `pods -pods/kube-system/`."""
ALL = ""
"""In the positions of a mark, the revision up to which all resources are recorded."""
REFERENCE = ("namespaces", "nodes", "serviceaccounts", "pods", "configmaps")
"""Resources whose revisions are the cluster's, the first that the account may read."""
OF_ALL_ACCOUNTS = {"clustertrustbundles"}
"""The resources that each service account may read by default."""
CHANGING = "customresourcedefinitions", "apiservices"
"""The resources that define further resources."""
REDISCOVER_S = 0.3, 2.0, 10.0
REDISCOVER_EVERY_S = 600.0
WINDOW_S = 0.075
"""The time for which a change waits for earlier ones of other resources, in seconds."""
BEGIN_S, SETTLE_S = 10.0, 0.3
"""The longest time for which changes wait until all watches have begun, and for which after."""
QUIET_S = 1.0
"""The time after which all that existed before was brought, in seconds."""
STALE_S, CONFIRM_S = 180.0, 60.0
"""The age of a bookmark from which on a resource has a position of its own; and the time for which
a watch must have been open after a list answered a revision, to have brought all up to it."""
PLACED_S = 1.0
"""The longest that positions are kept without a look at the age of bookmarks, in seconds."""
DENIED = "this account may not list and watch it"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation that has the data of a secret that was applied, too."""
NAMES_MAX = 8
"""The most resources that a note names."""

Positions = dict[str, int]


class KubernetesSource(ForeignSource):
    """The objects that an account may list and watch, but for keys that begin as `excluded`."""

    def __init__(
        self,
        api: KubernetesApi,
        name: str,
        clock: HybridClock,
        encode: Encode,
        excluded: tuple[str, ...] = (),
        unread: dict[str, str] | None = None,
    ) -> None:
        """Ask which resources exist, and may be read; a round trip for each, and for each version.

        `attach` follows. Raises `AccessDeniedError` if the account may read none.
        """
        self.api, self.encode, self.excluded = api, encode, excluded
        self._recorded: Callable[[], Pages] = lambda: ()
        self.unread = {} if unread is None else unread
        """Which resources are not recorded, and why."""
        self.asked_at = math.inf
        self._known: tuple[dict[str, dict[str, RecordedObject]], dict[str, str]] | None = None
        with translated(api.host):
            api.check_ready()
            uid = api.cluster_id()
            self.discover()
            self._probe()
        super().__init__(SourceId(UUID(uid).bytes, name, 1, CLUSTER), clock)

    def attach(self, record: RecordedState, known: SourceId | None) -> None:
        """Take the record's name, if it has one, and what is recorded there."""
        if known is not None:
            self.identity, self.layout = self.identity._replace(name=known.name), Layout(known.name)
        self._recorded = record.recorded

    def discover(self) -> dict[str, Resource]:
        """Return the resources that are recorded, by name."""
        found = self.api.resources()
        self.resources = {
            each.name: each
            for each in sorted(found, key=lambda each: f"{each.name}/")
            if not f"{each.name}/".startswith(self.excluded)
        }
        return self.resources

    def _probe(self) -> None:
        """Find out which resources may be read, and which have revisions of their own."""
        self.denied: set[str] = set()
        first = [name for name in REFERENCE if name in self.resources]
        found: dict[str, int] = {}
        for name in dict.fromkeys((*first, *self.resources)):
            try:
                found[name] = self.api.revision(self.resources[name].path)
            except ApiStatusError as e:
                if e.status not in (FORBIDDEN, NOT_FOUND):
                    raise
                self.denied.add(name)
        if not found.keys() - OF_ALL_ACCOUNTS:
            raise AccessDeniedError(
                f"{self.api.host}: this account may not list any resource: give it the verbs get, "
                "list and watch of what it is to record"
            )
        self._reference = next(iter(found))
        least, most = found[self._reference], self.now()
        self.apart = {name for name, at in found.items() if not least <= at <= most}
        self._began = {name: at for name, at in found.items() if name in self.apart}
        self.unread.update((name, DENIED) for name in sorted(self.denied))

    def probe(self, resource: Resource) -> None:
        """Find out whether a resource that is new has revisions of its own; three round trips."""
        with suppress(ApiStatusError):
            least, at, most = self.now(), self.api.revision(resource.path), self.now()
            (self.apart.discard if least <= at <= most else self.apart.add)(resource.name)

    def now(self) -> int:
        """Return the newest revision of the cluster; one round trip."""
        return self.api.revision(self.resources[self._reference].path)

    # --- marks ---

    def compacted_revision(self) -> int:
        """Return 0: each resource finds out what it has lost."""
        return 0

    def newest(self, last: KeyValue) -> KeyValue:
        """Return a mark of now at the cluster's newest revision; one round trip."""
        with translated(self.api.host):
            revision, self.asked_at = self.now(), monotonic()
        return self.mark(revision, last)

    def first(self) -> KeyValue:
        """Return a mark of now at the cluster's newest revision."""
        with translated(self.api.host):
            revision = self.now()
        return self.mark(revision, None, positions={ALL: revision, **self._began})

    def after(self, last: KeyValue, compacted: int) -> KeyValue:
        """Return the mark: no revision is compacted for all resources."""
        return last

    def check(self, last: KeyValue, record: RecordedState) -> None:
        """Make sure that the cluster has the recorded revisions, and the newest recorded object.

        Two round trips, and a read of what is recorded.
        """
        shared = [at for name, at in positions_of(last).items() if name not in self.apart]
        with translated(self.api.host):
            newest = self.now()
            if newest < max(shared, default=0):
                raise set_back(self.api.host, newest, max(shared))
            self._check_object()

    def _check_object(self) -> None:
        self._known = known, _ = self._read_known()
        shared = [name for name in self.resources if name not in self.apart | self.denied]
        found = [(at, key) for name in shared for key, at in known.get(name, {}).items()]
        if not found:
            return
        (revision, _, _), key = max(found)
        name, _, rest = key.partition("/")
        selector = f"metadata.name={rest.rpartition('/')[2]}"
        try:
            pages = self.api.pages(self.resources[name], revision, fieldSelector=selector)
            there = {object_name(item): item for _, items in pages for item in items}
        except ApiStatusError:  # compacted meanwhile
            return
        if rest not in there or revision_of(there[rest], key) != revision:
            raise StoreRestoredError(
                f"{self.api.host} does not have {key} as it was recorded at revision {revision}: "
                "its etcd was restored from a backup since; record into a new place"
            )

    def _read_known(self) -> tuple[dict[str, dict[str, RecordedObject]], dict[str, str]]:
        data, own = self.layout.data.prefix, self.layout.space(SPACE).prefix + RECORDED
        objects: dict[str, dict[str, RecordedObject]] = {}
        names: dict[str, str] = {}
        for kv in (kv for page in self._recorded() for kv in page):
            if kv.key == own:
                names = {each.partition(" ")[0]: each for each in json.loads(kv.value)}
            elif kv.key.startswith(data):
                key = kv.key[len(data) :].decode()
                at = revision_of(json.loads(kv.value), key)
                known = RecordedObject(at, kv.create_revision, kv.version)
                objects.setdefault(key.partition("/")[0], {})[key] = known
        return objects, names

    # --- the first state ---

    def state(self, mark: KeyValue) -> Iterator[Sequence[KeyValue]]:
        """Yield the objects at a mark's revision in pages, sorted by key; then what is recorded."""
        recorded = [name for name in self.resources if name not in self.denied]
        with translated(self.api.host):
            try:
                for name in recorded:
                    yield from self._state_of(self.resources[name], mark)
            except ApiStatusError as e:
                if e.status == GONE:  # the state is read again, at a newer revision
                    raise CompactedError(mark.mod_revision, None, unit="revision") from e
                raise
        yield [self.names_at(recorded, mark.mod_revision)]

    def _state_of(self, resource: Resource, mark: KeyValue) -> Iterator[list[KeyValue]]:
        apart = resource.name in self.apart
        pages = self.api.pages(resource, None if apart else mark.mod_revision)
        listed: Iterable[list[dict[str, Any]]] = (items for _, items in pages)
        for items in [list(chain.from_iterable(listed))] if apart else listed:
            kvs = []
            for item in items:
                key = f"{resource.name}/{object_name(item)}"
                if not key.startswith(self.excluded):
                    value = self.encode(resource, item, as_json(item))
                    at = min(revision_of(item, key), mark.mod_revision)
                    kvs.append(KeyValue(self.layout.data.prefix + key.encode(), value, at, at, 1))
            yield sorted(kvs)  # some servers of resources apart do not sort

    def take_known(self) -> tuple[dict[str, dict[str, RecordedObject]], dict[str, str]]:
        """Return the recorded objects of each resource, and what is recorded."""
        (objects, names), self._known = self._known or self._read_known(), None
        return objects, names

    def names_at(self, names: Iterable[str], revision: int) -> KeyValue:
        """Return the key that has the names of the resources that are recorded."""
        key = self.layout.space(SPACE).prefix + RECORDED
        return KeyValue(key, as_json(sorted(map(self.scope_of, names))), revision, revision, 1)

    def scope_of(self, name: str) -> str:
        """Return the name of a resource, and what is left out of it."""
        return " -".join((name, *(each for each in self.excluded if each.startswith(f"{name}/"))))

    def follow(self, last: KeyValue) -> KubernetesFollower:
        """Watch all resources, each from its position in a mark on."""
        return KubernetesFollower(self, last)


def positions_of(mark: KeyValue) -> Positions:
    """Return the positions that a mark has."""
    return dict(StampRecord.decode(mark.value).positions or {})


class KubernetesFollower(SourceFollower):
    """The changes of all resources as steps, each with the time at which it was seen."""

    def __init__(self, source: KubernetesSource, last: KeyValue) -> None:
        self._source, self._last, self._inbox = source, last, Inbox()
        self._streams: dict[str, ResourceStream] = {}
        self._heap: list[tuple[int, int, Arrival]] = []
        self._arrived: deque[Arrival] = deque()
        self._ready: deque[list[Arrival]] = deque()
        self._changed_at: Positions = {}
        """Where the newest recorded change of a resource is."""
        self._bookmarks: dict[str, tuple[int, float]] = {}
        """The newest bookmark of a resource, and when it came."""
        self._absent: dict[str, dict[str, RecordedObject]] = {}
        """What is recorded of resources that the API server does not list."""
        self._confirming: dict[str, tuple[int, int]] = {}
        self._discover_at = [monotonic() + REDISCOVER_EVERY_S]
        self._confirm_at = monotonic() + CONFIRM_S
        self._began, self._open_at = monotonic(), math.inf
        positions = positions_of(last)
        self._base = positions.pop(ALL, 0)
        self._placed: Positions | None = None
        self._placed_until = 0.0
        objects, saved = source.take_known()
        self._saved = frozenset(saved)
        self._seen = dict.fromkeys(saved, stamp_of(last.value))
        self._recorded = {name for name in saved if saved[name] == source.scope_of(name)}
        for resource in source.resources.values():
            name = resource.name
            apart = name in source.apart
            at = positions.get(name) if apart else positions.get(name, self._base)
            self._add(resource, at if name in saved else None, objects.get(name, {}))
            if name in positions and name in saved:
                self._changed_at[name] = positions[name]
        for name in (saved.keys() | objects.keys()) - source.resources.keys():
            self._bookmarks[name] = positions.get(name, self._base), -math.inf
            self._absent[name] = objects.get(name, {})
            self._remove_absent(name)
            self._discover_soon()

    def _add(
        self, resource: Resource, position: int | None, objects: dict[str, RecordedObject]
    ) -> None:
        source, name = self._source, resource.name
        self._streams[name] = stream = ResourceStream(
            source.api,
            resource,
            position,
            self._inbox,
            source.encode,
            apart=name in source.apart,
            denied=name in source.denied,
            is_other=name in self._saved - self._recorded,
            excluded=source.excluded,
        )
        stream.objects = objects
        if position is not None:
            self._bookmarks[name] = position, monotonic()
        stream.start()

    # --- arrivals ---

    def has(self, revision: int) -> bool:
        """Return whether all that existed at a revision was brought, as far as can be seen.

        A bookmark of each resource proves it, and may come a minute later. So a second after the
        cluster was asked for the revision is enough if all watches have begun, and nothing waits.
        All watches are tried first, so that resources that may not be watched are named.
        """
        if self._open_at == math.inf or self._ready or not self._inbox.queue.empty():
            return False
        if any(order <= revision for order, _, _ in self._heap):
            return False
        since = max(self._source.asked_at, self._open_at)
        return self._base >= revision or monotonic() - since >= QUIET_S

    def next(self, timeout: float) -> SourceCommit | None:
        """Return the next step; None if `timeout` seconds bring none.

        Raises `EngineUnavailableError` if the API server does not answer, `StoreRestoredError`.
        """
        deadline = monotonic() + timeout
        self._look_around()
        while True:
            while self._ready:
                if (step := self._step(self._ready.popleft())) is not None:
                    return step
            self._receive(deadline - monotonic())
            self._release()
            if not self._ready and monotonic() >= deadline:
                return None

    def _receive(self, timeout: float) -> None:
        """Wait for arrivals; if some wait already, look when they are due."""
        queue = self._inbox.queue
        waiting = bool(self._heap)
        if waiting:
            pause(max(0.0, min(timeout, WINDOW_S)))
        try:
            found = queue.get(not waiting and timeout > 0, max(0.0, timeout))
            while True:
                if isinstance(found, Trouble):
                    self._troubled(found)
                else:
                    self._arrived.append(found)
                    heappush(self._heap, (found.order, found.number, found))
                found = queue.get_nowait()
        except Empty:
            pass

    def _troubled(self, trouble: Trouble) -> None:
        """Note why a resource is not recorded for now; raise what concerns all of them."""
        error, name = trouble.error, trouble.stream.resource.name
        if not isinstance(error, ApiStatusError):
            raise error
        if error.status == NOT_FOUND:
            self._discover_soon()
        elif error.status == FORBIDDEN:
            self._source.unread[name] = DENIED
        else:
            self._source.unread[name] = str(error)

    def _release(self) -> None:
        """Make ready what has waited for long enough, in order; differences to lists together."""
        now, horizon = monotonic(), -1
        if self._open_at == math.inf:
            settled = all(stream.settled for stream in self._streams.values())
            if not settled and now < self._began + BEGIN_S:
                return
            self._open_at = now + SETTLE_S
        if now < self._open_at:
            return
        while self._arrived and self._arrived[0].at <= now - WINDOW_S:
            horizon = max(horizon, self._arrived.popleft().order)
        joined: list[Arrival] | None = None
        since: set[ResourceStream] = set()  # the streams with an arrival after the joined ones
        while self._heap and self._heap[0][0] <= horizon:
            arrival = heappop(self._heap)[2]
            if arrival.listed == LOST:
                if joined is not None and arrival.stream not in since:
                    joined.append(arrival)
                    continue
                joined, since = [arrival], set()
                self._ready.append(joined)
            else:
                since.add(arrival.stream)
                self._ready.append([arrival])

    # --- steps ---

    def _step(self, arrivals: list[Arrival]) -> SourceCommit | None:
        for arrival in arrivals:
            self._note(arrival)
        changes = [change for arrival in arrivals for change in arrival.changes]
        lost = [each.stream.resource.name for each in arrivals if each.listed == LOST]
        gap = self._gap_note(lost) if lost else None
        for arrival in arrivals:
            self._seen[arrival.stream.resource.name] = stamp_of(self._last.value)
        if not changes and gap is None:
            return None
        note = gap
        if note is None and arrivals[0].listed:
            note = f"{arrivals[0].listed}: {arrivals[0].stream.resource.name}"
        revision = self._last.mod_revision + 1
        if not arrivals[0].stream.apart:
            revision = max(revision, arrivals[0].revision)
        return self._commit(revision, changes, note, gap)

    def _note(self, arrival: Arrival) -> None:
        name = arrival.stream.resource.name
        if self._streams.get(name) is not arrival.stream:  # it was removed meanwhile
            return
        if arrival.listed:
            self._recorded.add(name)
            self._placed = None
        self._source.unread.pop(name, None)
        if arrival.changes:
            self._changed_at[name] = arrival.revision
            if self._placed is not None and name in self._recorded:
                self._placed[name] = max(self._placed.get(name, 0), arrival.revision)
            if name in CHANGING:
                self._discover_soon()
        if arrival.listed or not arrival.changes:
            self._bookmarks[name] = arrival.revision, arrival.at
            self._base, self._placed = self._common_position(), None

    def _common_position(self) -> int:
        """Return the least bookmark; older ones are in the positions by name."""
        since, apart = monotonic() - STALE_S, self._source.apart
        fresh = [
            at
            for name, (at, seen) in self._bookmarks.items()
            if seen > since and name in self._recorded and name not in apart
        ]
        return min(fresh, default=self._base)

    def _positions(self) -> Positions:
        """Return the positions of all resources; between bookmarks only changed ones differ."""
        now, apart = monotonic(), self._source.apart
        if self._placed is None or now >= self._placed_until:
            self._placed, self._placed_until = {ALL: self._base}, now + PLACED_S
            for name in self._recorded:
                at, seen = self._bookmarks.get(name, (0, -math.inf))
                changed, stale = self._changed_at.get(name, 0), seen <= now - STALE_S
                if changed > self._base or stale or at < self._base or name in apart:
                    self._placed[name] = max(at, changed)
        return dict(self._placed)

    def _commit(
        self,
        revision: int,
        changes: Sequence[ObjectChange],
        note: str | None = None,
        gap: str | None = None,
    ) -> SourceCommit:
        data = self._source.layout.data.prefix
        events = []
        for key, value, (_, created, version) in changes:
            stored = data + key.encode()
            if value is None:
                events.append(KeyEvent(KeyValue(stored, b"", 0, revision, 0), True))
            else:
                kv = KeyValue(stored, value, min(created, revision), revision, version)
                events.append(KeyEvent(kv, False))
        if self._saved != self._recorded:
            self._saved = frozenset(self._recorded)
            events.append(KeyEvent(self._source.names_at(self._saved, revision), False))
        self._last = self._source.mark(
            revision,
            self._last,
            room=max(0, len(events) - 1),
            note=note,
            positions=self._positions(),
        )
        return SourceCommit(self._last, tuple(sorted(events)), gap)

    def _gap_note(self, names: list[str]) -> str:
        shown, more = sorted(names)[:NAMES_MAX], len(names) - NAMES_MAX
        of = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        since = min(self._seen.get(name, stamp_of(self._last.value)) for name in names)
        return (
            f"gap: the API server no longer has all changes of {of} since {format_time(since)}; "
            "what differs now is recorded"
        )

    def tick(self, *, own_revision: bool) -> SourceCommit | None:
        """Return a step without changes of objects."""
        new = self._base > self._last.mod_revision or self._saved != self._recorded
        if own_revision and not new:
            return None
        least = self._last.mod_revision + own_revision
        return self._commit(max(least, self._base), ())

    # --- resources that come and go ---

    def _discover_soon(self) -> None:
        now = monotonic()
        self._discover_at = [now + each for each in (*REDISCOVER_S, REDISCOVER_EVERY_S)]

    def _look_around(self) -> None:
        """Do what is due: find out which resources exist, and how far quiet watches are."""
        now = monotonic()
        if now >= self._discover_at[0]:
            self._discover_at = self._discover_at[1:] or [now + REDISCOVER_EVERY_S]
            with translated(self._source.api.host):
                self._discover()
        if now >= self._confirm_at:
            self._confirm_at = now + CONFIRM_S
            with translated(self._source.api.host):
                self._confirm()

    def _discover(self) -> None:
        found = self._source.discover()
        for name, resource in found.items():
            stream = self._streams.get(name)
            if stream is None:
                self._source.probe(resource)
                self._add(resource, None, self._absent.pop(name, {}))
            elif stream.resource != resource:  # another version is preferred now
                stream.stop()
                stream.join()
                self._add(resource, stream.position, stream.objects)
        for name in self._streams.keys() - found.keys():
            stream = self._streams.pop(name)
            stream.stop()
            stream.join()
            self._absent[name] = stream.objects
        for name in tuple(self._absent):
            self._remove_absent(name)

    def _remove_absent(self, name: str) -> None:
        """Record that a resource is gone or left out, and its objects with it, if that is certain.

        A server that starts does not list all of its groups yet. So a definition that is recorded
        must be gone, too.
        """
        objects = self._absent[name]
        is_left_out = f"{name}/".startswith(self._source.excluded)
        if not is_left_out and not self._is_gone(name):
            return
        del self._absent[name]
        self._recorded.discard(name)
        self._placed = None
        source, resource = self._source, Resource(name, "", "", "", name.partition(".")[2])
        stream = ResourceStream(source.api, resource, None, self._inbox, source.encode)
        gone = tuple(ObjectChange(key, None, known) for key, known in sorted(objects.items()))
        with translated(source.api.host):
            listed = LEFT_OUT if is_left_out else None
            self._inbox.put(stream, source.now(), gone, listed=listed)

    def _is_gone(self, name: str) -> bool:
        """Return whether no definition of a resource is recorded any more."""
        groups = []
        for each in CHANGING:
            stream = self._streams.get(each)
            if stream is None or not stream.is_open or f"{each}/{name}" in stream.objects:
                return False
            groups.append({key.partition(".")[2] for key in tuple(stream.objects)})
        group, (defined, served) = name.partition(".")[2], groups
        # one that another server has may come back
        return bool(group) and (group not in served or group in defined)

    def _confirm(self) -> None:
        """Ask for the newest revision of resources without bookmarks.

        A watch that stays open for another minute has brought all changes up to it.
        """
        now = monotonic()
        for name, stream in self._streams.items():
            asked = self._confirming.pop(name, None)
            _, seen = self._bookmarks.get(name, (0, -math.inf))
            if not stream.is_open or now - seen < 1.5 * CONFIRM_S:
                continue
            if asked is not None and asked[1] == stream.watches:
                self._inbox.put(stream, asked[0])
            with suppress(ApiStatusError):
                newest = self._source.api.revision(stream.resource.path)
                self._confirming[name] = newest, stream.watches

    # --- the end ---

    def close(self) -> None:
        """End all watches; a second or two."""
        for stream in self._streams.values():
            stream.stop()
        until = monotonic() + JOIN_S
        for stream in self._streams.values():
            stream.join(max(0.0, until - monotonic()))
        self._source.api.close()


def as_sent(resource: Resource, found: dict[str, Any], sent: bytes) -> bytes:
    """Return an object as the API server sent it."""
    return sent


class SecretDigests:
    """Replaces the values of secrets by digests with a key, without which they cannot be guessed.

    >>> digests, secret = SecretDigests(b"key"), {"metadata": {"name": "s"}, "data": {"a": "MTIz"}}
    >>> digests(Resource("secrets", "", "", "", ""), secret, b"")[:55]
    b'{"metadata":{"name":"s"},"data":{"a":"hmac-sha256:a41f7'
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def __call__(self, resource: Resource, found: dict[str, Any], sent: bytes) -> bytes:
        """Return an object as JSON, a secret without its values."""
        if resource.name != "secrets":
            return sent
        kept = dict(found)
        for part in ("data", "stringData"):
            if part in kept:
                kept[part] = {name: self._digest(value) for name, value in kept[part].items()}
        notes = kept["metadata"].get("annotations", {})
        if APPLIED in notes:
            applied = {**notes, APPLIED: self._digest(notes[APPLIED])}
            kept["metadata"] = {**kept["metadata"], "annotations": applied}
        return as_json(kept)

    def _digest(self, value: str) -> str:
        return "hmac-sha256:" + hmac.digest(self._key, value.encode(), "sha256").hex()
