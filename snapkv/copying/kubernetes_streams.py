"""Watches of a cluster's resources, a thread each, whose changes arrive in one queue.

A stream knows the revision of each object of its resource, so that it passes on no change twice,
and finds out what differs when the API server no longer has the changes after its position.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

from snapkv.base.concurrency import Work, here
from snapkv.base.waiting import monotonic, pause_unless
from snapkv.copying.kubernetes_api import (
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    UNAUTHORIZED,
    ApiStatusError,
    ApiWatch,
    KubernetesApi,
    Resource,
    WatchedChange,
    as_json,
    object_name,
    revision_of,
    translated,
)
from snapkv.errors import EngineUnavailableError, StoreRestoredError

WATCH_S = 300
"""The least seconds of one watch; the most are twice as many, as of other clients."""
PATIENCE_S = 3.0
"""The time for which a stream tries to connect again before the recorder waits for the server."""
RETRY_S = 0.2
RETRY_MAX_S = 30.0
DENIED_S = 300.0
"""The time after which what the account may not read is tried again, in seconds."""
JOIN_S = 2.0

PATIENCE = 6
"""The answers in a row with an error after which a resource is reported."""
LOST, NEW, LEFT_OUT = "lost", "recorded from here on", "not recorded from here on"

Encode = Callable[[Resource, dict[str, Any], bytes], bytes]
"""Returns the value that is recorded of an object, from the object and its JSON as it was sent."""


class RecordedObject(NamedTuple):
    """The newest recorded version of an object: resourceVersion, first revision, version."""

    revision: int
    created: int
    version: int


class ObjectChange(NamedTuple):
    """A change of an object; `value` is None if it was removed."""

    key: str
    value: bytes | None
    known: RecordedObject


class Arrival(NamedTuple):
    """What a stream has passed on: changes, and the position that it has with them.

    `order` is the place among the arrivals of all streams. Without changes it is a bookmark.
    `listed` says that these are the differences to a list: the changes before it are lost (`LOST`),
    or the resource, or a part of it, was not recorded before (`NEW`) or is not any more.
    """

    order: int
    number: int
    at: float
    stream: ResourceStream
    revision: int
    changes: tuple[ObjectChange, ...] = ()
    listed: str | None = None


class Trouble(NamedTuple):
    """Why a stream does not go on for now, or a resource is not there; an error ends all."""

    stream: ResourceStream
    error: Exception


class Inbox:
    """The queue of all streams."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[Arrival | Trouble] = SimpleQueue()
        self._lock = threading.Lock()  # held for two assignments
        self._number = self._newest = 0

    def put(
        self,
        stream: ResourceStream,
        revision: int,
        changes: tuple[ObjectChange, ...] = (),
        *,
        listed: str | None = None,
    ) -> None:
        """Add what a stream has; revisions of another order come after what has arrived."""
        with self._lock:
            self._number += 1
            number = self._number
            if not stream.apart:
                self._newest = max(self._newest, revision)
            order = self._newest if stream.apart else revision
        self.queue.put(Arrival(order, number, monotonic(), stream, revision, changes, listed))


class ResourceStream:
    """The changes of one resource, from a position on; None lists it first.

    `is_other` says that other keys of it were recorded up to there: it is listed at its position.
    `apart` says that it has revisions of its own: another API server has it, or
    another etcd. `settled` says that its watch has begun, or that it cannot begin for now.
    """

    def __init__(
        self,
        api: KubernetesApi,
        resource: Resource,
        position: int | None,
        inbox: Inbox,
        encode: Encode,
        *,
        apart: bool = False,
        denied: bool = False,
        is_other: bool = False,
        excluded: tuple[str, ...] = (),
    ) -> None:
        self.resource, self.position, self.apart = resource, position, apart
        self.objects: dict[str, RecordedObject] = {}
        self.settled = self._denied = denied
        self.watches = 0
        """The watches that have begun."""
        self._api, self._inbox, self._encode, self._excluded = api, inbox, encode, excluded
        self._stop = threading.Event()
        self._watch: ApiWatch | None = None
        self._work: Work | None = None
        self._cut_at: float | None = None
        self._lost = False  # changes after the position
        self._is_other = is_other

    def start(self) -> None:
        """Begin to read."""
        self._work = here().start(self._run, f"snapkv-{self.resource.name}")

    def stop(self) -> None:
        """Let the thread end."""
        self._stop.set()
        if (watch := self._watch) is not None:
            watch.close()

    def join(self, timeout: float = JOIN_S) -> None:
        """Wait until the thread has ended, or for some seconds."""
        if self._work is not None:
            self._work.join(timeout)

    @property
    def is_open(self) -> bool:
        """Whether a watch runs."""
        return self._watch is not None

    # --- the thread ---

    def _run(self) -> None:
        failures = 0
        if self._denied:
            pause_unless(self._stop, DENIED_S)
        while not self._stop.is_set():
            try:
                wait_s = self._try(failures)
            except Exception as e:  # the recorder raises it
                if not self._stop.is_set():
                    self._inbox.queue.put(Trouble(self, e))
                return
            finally:
                self._watch = None
            failures = failures + 1 if wait_s else 0
            pause_unless(self._stop, wait_s * random.uniform(0.5, 1.5))

    def _try(self, failures: int) -> float:
        """Follow the resource until a watch ends; return the seconds to wait before the next."""
        try:
            with translated(self._api.host):
                try:
                    self._follow()
                except ApiStatusError as e:
                    return self._wait_after(e, failures)
        except EngineUnavailableError:
            if self._stop.is_set():
                return 0.0
            self._cut_at = monotonic() if self._cut_at is None else self._cut_at
            if monotonic() - self._cut_at > PATIENCE_S:
                raise
            return RETRY_S
        return 0.0

    def _wait_after(self, e: ApiStatusError, failures: int) -> float:
        wait_s = min(RETRY_MAX_S, RETRY_S * (1 << min(failures, 16)))
        if e.status == GONE:
            again, self.position, self._lost, self.settled = self._lost, None, True, False
            return wait_s if again else 0.0
        if e.status == UNAUTHORIZED:  # opened anew, the client reads its configuration again
            raise EngineUnavailableError(f"{self._api.host} does not accept the credentials: {e}")
        if e.status in (FORBIDDEN, NOT_FOUND) or failures == PATIENCE:
            self._inbox.queue.put(Trouble(self, e))
        self.settled = True
        if e.status == FORBIDDEN and failures >= PATIENCE:  # rights may still be loading before
            return DENIED_S
        return max(wait_s, e.retry_s)

    def _follow(self) -> None:
        """Pass on the changes of one watch, until it ends."""
        if self._cut_at is not None and self.position is not None and not self.apart:
            newest = self._api.revision(self.resource.path)
            if newest < self.position:
                raise set_back(self._api.host, newest, self.position)
        if self.position is None or self._is_other:
            self._list()
        assert self.position is not None, "a list has one"
        seconds = random.randint(WATCH_S, 2 * WATCH_S)
        self._watch = watch = self._api.watch(self.resource, self.position, seconds)
        self._cut_at, self.settled = None, True
        self.watches += 1
        try:
            if self._stop.is_set():  # `stop` may have seen no watch
                return
            for change in watch:
                if self._stop.is_set():
                    return
                self._take(change)
        finally:
            watch.close()

    def _take(self, change: WatchedChange) -> None:
        revision = revision_of(change.object, self.resource.path)
        self.position = max(self.position or 0, revision)
        if change.type == "BOOKMARK":
            self._inbox.put(self, revision)
            return
        key = self._key(change.object)
        known = self.objects.get(key)
        if key.startswith(self._excluded) or (known is not None and known.revision >= revision):
            return
        if change.type != "DELETED":
            made = self._made(key, revision, change.object, change.value)
            self.objects[key] = made.known
            self._inbox.put(self, revision, (made,))
        elif known is not None:
            del self.objects[key]
            self._inbox.put(self, revision, (ObjectChange(key, None, known),))

    def _list(self) -> None:
        """Pass on what differs between the resource and what is known of it, in one arrival."""
        found: dict[str, ObjectChange | None] = {}
        for listed, items in self._api.pages(self.resource, self.position):
            for item in items:
                key, at = self._key(item), revision_of(item, self.resource.path)
                known = self.objects.get(key)
                if key.startswith(self._excluded):
                    continue
                if known is not None and known.revision > at and not self.apart:
                    raise set_back(f"{self._api.host}: {key}", at, known.revision)
                same = known is not None and known.revision == at
                found[key] = None if same else self._made(key, at, item, as_json(item))
            revision = listed
            if self._stop.is_set():
                return
        changes = [change for change in found.values() if change is not None]
        gone = [key for key in self.objects if key not in found]
        changes += [ObjectChange(key, None, self.objects.pop(key)) for key in gone]
        self.objects.update((each.key, each.known) for each in changes if each.value is not None)
        self.position, self._lost, was_lost = revision, False, self._lost
        self._is_other = False
        self._inbox.put(self, revision, tuple(sorted(changes)), listed=LOST if was_lost else NEW)

    def _key(self, found: Mapping[str, Any]) -> str:
        return f"{self.resource.name}/{object_name(found)}"

    def _made(self, key: str, revision: int, found: dict[str, Any], sent: bytes) -> ObjectChange:
        known = self.objects.get(key, RecordedObject(0, revision, 0))
        now = RecordedObject(revision, known.created, known.version + 1)
        return ObjectChange(key, self._encode(self.resource, found, sent), now)


def set_back(what: str, newest: int, recorded: int) -> StoreRestoredError:
    """Return the error that the API server's etcd was set back."""
    return StoreRestoredError(
        f"{what} is at revision {newest}, and {recorded} was recorded: its etcd was restored from "
        "a backup since; record into a new place"
    )
