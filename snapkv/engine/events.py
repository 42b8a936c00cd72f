"""Events of keys: batches, watchers, and the events that a replay gives."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class KeyValue(NamedTuple):
    """One version of a key."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


class Event(NamedTuple):
    """A change of a key; a removal has an empty value, `version` 0 and `create_revision` 0."""

    kv: KeyValue
    is_delete: bool

    @property
    def existed(self) -> bool:
        """Whether the key existed before."""
        return self.is_delete or self.kv.version > 1


class WatchBatch(NamedTuple):
    """All events of one revision, in key order; without events: none up to `revision`."""

    revision: int
    events: tuple[Event, ...]


class Watcher(Protocol):
    """A stream of events, from one thread at a time.

    `reopened` counts reconnects before what `next` has returned last: a batch that was received
    before a reconnect is returned with the count of its own stream. After a reconnect the server
    may have been restored from a backup. The engine cannot detect that; callers that hold a mark
    must check it. 0 in embedded engines.
    """

    @property
    def reopened(self) -> int:
        """How often the watcher had reconnected before what `next` has returned last."""
        ...

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch; None when none comes in `timeout` seconds (None: no bound).

        Revisions rise strictly among batches with events. A batch without events reports progress,
        once for each new revision. Embedded engines report it with `timeout=0` too; etcd has to ask
        the server, and does so while a caller waits. Raises `CompactedError` (unit "revision") when
        the next event was compacted; `StoreClosedError` after `close()` of the watcher or of the
        engine, from any thread.
        """
        ...

    def close(self) -> None:
        """End the stream, also for a thread that waits in `next`."""
        ...


class Replay(NamedTuple):
    """What a range did in the revisions `first` to `last`; `before`: with the values before.

    `range_end` is as that of a `Range`. With `keys_only` values may be left out.
    """

    key: bytes
    range_end: bytes
    first: int
    last: int
    keys_only: bool = False
    before: bool = False
