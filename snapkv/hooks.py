"""Hooks: what a store reports while it works, for metrics and traces.

A *hook* is a method of `Hooks`. A subclass overrides the hooks that it wants. `snapkv.open` takes
an object of it. Each hook gets an *event*, a frozen dataclass. Events contain no keys and no
values; the errors in them may name keys.

Caveats. A hook runs in the thread that caused its event, before that thread's call returns, so it
has to be quick. It must not call the store. An exception of a hook changes no outcome: the first
one of each hook is logged under `snapkv.hooks`, all are counted (`Stats.hook_errors`), and the hook
is called again for the next event. Hooks are called from several threads, also at the same time.

`snapkv.metrics` has hooks for Prometheus and OpenTelemetry; `docs/metrics.md` describes them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from snapkv.base.lifecycle import renew_in_children
from snapkv.errors import InvalidTypeError

log = logging.getLogger(__name__)

Outcome = Literal["committed", "conflict", "timeout", "unknown", "failed"]
"""How a commit ended for its caller: see `CommitEvent`."""
Path = Literal["ring", "block", "search", "head"]
"""How a moment was found: see `LookupEvent`."""
FenceOutcome = Literal["landed", "dead", "undecidable", "open"]
"""What a fence found out: see `FenceEvent`."""


@dataclass(frozen=True, slots=True)
class StoreLabel:
    """The store that an event is about. URLs contain no secrets."""

    url: str
    name: str


class StatsSource(Protocol):
    """An object with counts and gauges: an open store."""

    def stats(self) -> Any:
        """Return its `Stats`; no round trip."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    METHOD: ClassVar[str]
    """The hook that gets it."""

    store: StoreLabel


@dataclass(frozen=True, slots=True)
class OpenEvent(Event):
    """A store was opened. `handle` is the store; hold it weakly."""

    METHOD: ClassVar[str] = "on_open"

    handle: StatsSource


@dataclass(frozen=True, slots=True)
class CloseEvent(Event):
    """A store was closed; its `stats()` still answers."""

    METHOD: ClassVar[str] = "on_close"

    handle: StatsSource


@dataclass(frozen=True, slots=True)
class CommitEvent(Event):
    """A call of `commit`, `save` or another write has ended.

    `outcome` is "committed", "conflict" (a guard failed), "timeout" (it did not happen), "unknown"
    (`CommitUnknownError`) or "failed" (any other `error`). `duration_s` is what the caller waited.
    `members` is how many calls shared the transaction that ended it, 0 without one, and
    `lost_rounds` how often it had to be sent again because another commit was first. `timestamp` is
    None unless it was committed.
    """

    METHOD: ClassVar[str] = "on_commit"

    outcome: Outcome
    duration_s: float
    members: int
    lost_rounds: int
    timestamp: int | None
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class TickEvent(Event):
    """A tick has ended. The attributes are as in `CommitEvent`, which also has `members`."""

    METHOD: ClassVar[str] = "on_tick"

    outcome: Outcome
    duration_s: float
    lost_rounds: int
    timestamp: int | None
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class LostRoundEvent(Event):
    """A transaction came too late, because another process committed a larger timestamp.

    `lost` is how many rounds in a row its leader has lost, this one included; `members` is how many
    calls are sent again.
    """

    METHOD: ClassVar[str] = "on_lost_round"

    lost: int
    members: int


@dataclass(frozen=True, slots=True)
class FenceEvent(Event):
    """A fence, which finds out the outcome of a commit without an answer, has ended.

    `outcome` is "landed", "dead" (the commit never happened), "undecidable" (compaction took the
    answer) or "open" (the caller's deadline passed; another call may find it out). `timestamp` is
    the timestamp of the commit.
    """

    METHOD: ClassVar[str] = "on_fence"

    timestamp: int
    outcome: FenceOutcome
    duration_s: float


@dataclass(frozen=True, slots=True)
class LookupEvent(Event):
    """A moment was looked up by `at` or another read, or a key was read at a moment by `load`.

    `path` is "head" (now, or a time at or above the newest commit), "ring" (among the newest
    commits), "block" (beside a time that was searched before) or "search" (in the timestamp key's
    history). `operation` is "load", whose `duration_s` includes the read of the keys, or "at".
    """

    METHOD: ClassVar[str] = "on_lookup"

    operation: Literal["load", "at"]
    path: Path
    duration_s: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class WatchEvent(Event):
    """A watch has returned the changes of a commit, `lag_s` seconds after the commit's time."""

    METHOD: ClassVar[str] = "on_watch"

    timestamp: int
    changes: int
    lag_s: float


@dataclass(frozen=True, slots=True)
class FailoverEvent(Event):
    """Another endpoint of the cluster answers than before; `reason` is why the last one failed."""

    METHOD: ClassVar[str] = "on_failover"

    left: str
    entered: str
    reason: str


@dataclass(frozen=True, slots=True)
class CompactionEvent(Event):
    """The process compacted the history before `earliest`, the oldest time that remains.

    `waits_for` is the recording that kept it from going further, if any.
    """

    METHOD: ClassVar[str] = "on_compaction"

    revision: int
    earliest: int
    waits_for: str | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class RecordEvent(Event):
    """A recorder reports, each second and when its state changes; `store` is what it records.

    `state` is the state of a `RecordStatus`; `recorded` is the timestamp of the newest durable
    commit, `lag_s` the age of the newest one that is not durable yet (0.0 if all are). `commits`,
    `changes` and `gaps` count since it began; `pending_bytes` are not durable yet.
    """

    METHOD: ClassVar[str] = "on_record"

    into: str
    state: str
    commits: int
    changes: int
    gaps: int
    recorded: int
    lag_s: float
    pending_bytes: int


class Hooks:
    """Methods that a store calls while it works; all do nothing. Override the ones that you want.

    >>> import snapkv
    >>> class Slow(snapkv.Hooks):
    ...     def on_commit(self, event):
    ...         print(event.store.name, event.outcome, event.members, event.duration_s < 60)
    >>> with snapkv.open("memory:", hooks=Slow()) as store:
    ...     timestamp = store.save("a", b"1")
    default committed 1 True
    """

    def wants_lookups(self) -> bool:
        """Return whether `on_lookup` is to be called: by default, if a subclass overrides it."""
        return type(self).on_lookup is not Hooks.on_lookup

    def counts_lookups(self) -> bool:
        """Return whether stores count lookups for `stats()`, as with `stats=True`."""
        return False

    def on_open(self, event: OpenEvent) -> None:
        """Note that a store was opened."""

    def on_close(self, event: CloseEvent) -> None:
        """Note that a store was closed."""

    def on_commit(self, event: CommitEvent) -> None:
        """Note how a commit ended; called in its caller's thread."""

    def on_tick(self, event: TickEvent) -> None:
        """Note how a tick ended; called in its caller's thread."""

    def on_lost_round(self, event: LostRoundEvent) -> None:
        """Note a lost round; called in the thread that sends for the group."""

    def on_fence(self, event: FenceEvent) -> None:
        """Note how a fence ended; called in the thread that sends for the group."""

    def on_lookup(self, event: LookupEvent) -> None:
        """Note a lookup. If a subclass overrides it, each `load` costs some microseconds more."""

    def on_watch(self, event: WatchEvent) -> None:
        """Note that a watch returns changes; called in the thread that iterates."""

    def on_failover(self, event: FailoverEvent) -> None:
        """Note that calls go to another endpoint of the cluster."""

    def on_compaction(self, event: CompactionEvent) -> None:
        """Note that the process compacted history."""

    def on_record(self, event: RecordEvent) -> None:
        """Note what a recorder reports."""


def checked_hooks(hooks: Hooks | Iterable[Hooks] | None) -> tuple[Hooks, ...]:
    """Return hooks as a tuple. Raises `InvalidTypeError` for anything else."""
    if hooks is None:
        return ()
    listed = (hooks,) if isinstance(hooks, Hooks) else hooks
    if isinstance(listed, Iterable):
        found = tuple(listed)
        if all(isinstance(each, Hooks) for each in found):
            return found
    raise InvalidTypeError("hooks must be a snapkv.Hooks, a list of them, or None")


class Notifier:
    """Calls the hooks of one store; keeps their exceptions away from the store's callers."""

    def __init__(self, hooks: tuple[Hooks, ...], store: StoreLabel) -> None:
        self.store, self._hooks = store, hooks
        self.errors = 0
        """The number of calls of hooks that have raised."""
        self._calls = {name: _wanted(hooks, name) for name in vars(Hooks) if name[:3] == "on_"}
        self._logged: set[tuple[int, str]] = set()
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    @property
    def counts_lookups(self) -> bool:
        """Whether any of the hooks wants lookups to be counted, or to be called for each."""
        return self.wants(LookupEvent) or any(hooks.counts_lookups() for hooks in self._hooks)

    def wants(self, kind: type[Event]) -> bool:
        """Return whether any of the hooks is called for a kind of events."""
        return bool(self._calls[kind.METHOD])

    def __call__(self, event: Event) -> None:
        """Give an event to the hooks."""
        for hooks in self._calls[event.METHOD]:
            try:
                getattr(hooks, event.METHOD)(event)
            except Exception:
                self._note_error(hooks, event.METHOD)

    def _note_error(self, hooks: Hooks, method: str) -> None:
        which = id(hooks), method
        with self._lock:
            self.errors += 1
            is_first = which not in self._logged
            self._logged.add(which)
        if is_first:
            name = f"{type(hooks).__name__}.{method}"
            log.exception("the hook %s raised; it is called again, its next errors are not", name)


def _wanted(hooks: tuple[Hooks, ...], name: str) -> tuple[Hooks, ...]:
    """Return those hooks that override a method."""
    if name == LookupEvent.METHOD:
        return tuple(each for each in hooks if each.wants_lookups())
    return tuple(each for each in hooks if getattr(type(each), name) is not getattr(Hooks, name))
