"""A generation log in a store: list generations, switch them, and join as a member."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import snapkv
from cdcmeta import errors
from cdcmeta.argument_checks import check_seconds, check_store, checked_name
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.generation_layout import ConsumerId, Generation, Progress, Switch
from cdcmeta.generations.known_generations import DELAY_S_MAX, LEEWAY_S, Generations
from cdcmeta.generations.log_member import Member
from cdcmeta.generations.log_rows import trim
from cdcmeta.generations.streams import StreamId, limited_ring
from cdcmeta.generations.switching import SwitchCoordinator
from cdcmeta.generations.tokens import Sharding
from cdcmeta.generations.topology import Topology
from snapkv import AtRevision, Snapshot, SnapshotKV, Space, SpaceOps, When, format_time, pack
from snapkv.errors import EngineUnavailableError, StoreClosedError
from snapkv.model import Guard
from snapkv.times import PHYSICAL_MS_MAX

PROPAGATION_DELAY_S = 30.0
PATIENCE_S = 30.0
CLOCK_SKEW_S_MAX = 3_600.0
TIMEOUT_S = 120.0
TTL_S = 10.0


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of an expiry: generations marked and removed, and the number of rows trimmed."""

    marked: tuple[Generation, ...]
    removed: tuple[Generation, ...]
    rows: int = 0


class TableRow(NamedTuple):
    """A row of ScyllaDB's table for clients."""

    time: int
    streams: list[StreamId]
    expired: int | None


class GenerationLog:
    """The generations of one ring, in a store; all members vote on each switch, in two phases.

    A new generation operates from `2 * propagation_delay + leeway` seconds after its commit on, the
    first at once. `leeway` is how far clocks may be apart, `patience` how long a phase of a switch
    may take before other processes may end it. A member whose newest write is more than
    `clock_skew_max` seconds after the end of that phase has a wrong clock: the switch is aborted,
    because the generation would have to begin after that write. Use the same values in all
    processes.

    >>> import snapkv
    >>> from cdcmeta.generations import Sharding
    >>> with snapkv.open("memory:") as store:
    ...     log = GenerationLog(store)
    ...     first = log.regenerate_if_needed({100: Sharding(2), 110: Sharding(2)})
    ...     with log.member("node-1") as member:
    ...         member.stream(store.save("k", b"v"), 105).token
    101

    The constructor makes no round trip. Errors of the store are passed on.
    """

    def __init__(
        self,
        store: SnapshotKV,
        name: str = "default",
        *,
        propagation_delay: float = PROPAGATION_DELAY_S,
        leeway: float = LEEWAY_S,
        patience: float = PATIENCE_S,
        clock_skew_max: float = CLOCK_SKEW_S_MAX,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Raise `InvalidArgumentError`, `snapkv.errors.InvalidKeyError` (the name)."""
        check_seconds("propagation_delay", propagation_delay, most=DELAY_S_MAX)
        check_seconds("leeway", leeway, most=DELAY_S_MAX)
        check_seconds("patience", patience)
        check_seconds("clock_skew_max", clock_skew_max)
        checked_name("a log's name", name)
        check_store(store)
        self.store, self.name, self.leeway = store, name, leeway
        self._patience, self._clock_skew = patience, 2 * propagation_delay
        self._margin = pack(round(max(leeway, propagation_delay) * 1_000))
        self._space = store.space(layout.space_of(name))
        escaped = name.replace("%", "%25").replace("/", "%2F")  # not a prefix of another log's
        self._session_prefix = f"{layout.space_of(escaped)}/".encode()
        self._coordinator = SwitchCoordinator(
            store,
            self._space,
            self._session_prefix,
            delay_ms=round((2 * propagation_delay + leeway) * 1_000),
            patience_ms=round(patience * 1_000),
            skew_ms_max=round(clock_skew_max * 1_000),
            random_bytes=random_bytes,
        )

    @property
    def space(self) -> str:
        """The name of its space, to which tables are bound."""
        return self._space.name

    def __repr__(self) -> str:
        return f"<GenerationLog {self.name!r}>"

    # --- reading ---

    def generations(self, *, as_of: When | None = None) -> list[Generation]:
        """Return the generations listed now or at a time, oldest first."""
        return layout.generations_at(self._space.at(as_of))

    def at(self, when: When | None = None, *, revision: int | None = None) -> Snapshot[bytes]:
        """Return a snapshot of the log at a time or a revision."""
        return self._space.at(when, revision=revision)

    def timestamp_of(self, when: When) -> int:
        """Return the timestamp of a time, by the store's clock."""
        return self._space.timestamp_of(when)

    def operating_at(self, when: When) -> Generation | None:
        """Return the generation that operates at a time; None before the first remaining one."""
        time = self._space.timestamp_of(when)
        return next((each for each in reversed(self.generations()) if each.time <= time), None)

    def next_after(self, when: When) -> Generation | None:
        """Return the first generation that begins after a time, None if none exists yet."""
        time = self._space.timestamp_of(when)
        return next((each for each in self.generations() if each.time > time), None)

    def topology(self, generation: Generation, *, as_of: When | None = None) -> Topology:
        """Return a generation's ranges and streams, as they are stored now or at a time.

        One listing. Raises `GenerationNotFoundError` after it was removed, `CorruptTopologyError`.
        """
        return layout.topology_at(self._space.at(as_of), generation)

    def streams_of(self, generation: Generation) -> list[StreamId]:
        """Return a generation's streams in the order of the ring; raises as `topology`."""
        return [StreamId(bytes(raw)) for raw in self.topology(generation).ids]

    def table(self) -> Iterator[TableRow]:
        """Yield a row for each generation, newest first, as for ScyllaDB's clients."""
        for each in reversed(self.generations()):
            yield TableRow(each.time, self.streams_of(each), each.expired)

    # --- switching ---

    def make(
        self,
        ring: Mapping[int, Sharding],
        *,
        streams_max: int | None = None,
        limit: bool = False,
        timeout: float = TIMEOUT_S,
    ) -> Generation:
        """Make a generation for a ring, and return it when the switch has ended.

        Its `refines` is False if a range of the ring overlaps several of the previous one (a token
        was removed or moved): then a stream may continue several streams. Consumers read it all
        the same.

        A switch to the same ring under way is joined; another one is waited for. `streams_max` and
        `limit` as in `Topology.make`. Five commits, one for each MB of streams, and the time that
        the members take to answer.

        Raises `InvalidArgumentError`, `SwitchAbortedError` (a member could not answer, or not in
        time), `SwitchPendingError` (the timeout; the switch may still happen; the error names the
        members without an answer). Calls of the store may last beyond `timeout`.
        """
        check_seconds("timeout", timeout)
        checked = limited_ring(ring, streams_max, limit)
        return self._coordinator.make(checked, timeout, force=True)

    def regenerate_if_needed(
        self,
        ring: Mapping[int, Sharding],
        *,
        streams_max: int | None = None,
        limit: bool = False,
        timeout: float = TIMEOUT_S,
    ) -> Generation:
        """Return the newest generation if it was made for this ring, else make one.

        It compares tokens, shardings, and the number of streams that `streams_max` and `limit`
        allow. Concurrent calls make one generation. Raises as `make`.
        """
        check_seconds("timeout", timeout)
        checked = limited_ring(ring, streams_max, limit)
        return self._coordinator.make(checked, timeout, force=False)

    def repair(self, *, timeout: float = TIMEOUT_S) -> None:
        """Complete a switch whose coordinator died, or abort it after its deadline.

        Raises `InvalidArgumentError`, `SwitchPendingError`.
        """
        check_seconds("timeout", timeout)
        self._coordinator.finish(timeout)

    def pending(self, *, as_of: When | None = None) -> Switch | None:
        """Return the switch that is under way, or was at a time; None without one."""
        return layout.read_state(self._space, as_of).switch

    # --- consumers and expiry ---

    def expire(self, retention: float, *, ttl: float | None = None) -> Expired:
        """Mark superseded generations; remove them `retention` seconds after they were superseded.

        The log rows of removed generations are removed, too, in all tables of this log. With a
        `ttl`, so are all log rows older than `ttl` seconds, even if consumers have not read them
        (ScyllaDB keeps them for a day); such a consumer raises `LogTrimmedError`.

        A generation is superseded when its successor has operated for the larger of leeway and
        propagation delay: until then members whose clocks are behind this one may write to it. The
        current generation, later ones, and generations that a registered consumer has not passed
        are kept. One listing, and a commit for each generation and each thousand rows.

        It uses the clock of this process: a clock that is further ahead than leeway and delay
        removes generations that other processes still write to. Raises `ExpiryIncompleteError`
        if the rows of some tables could not be removed, after everything else.
        """
        check_seconds("retention", retention, most=PHYSICAL_MS_MAX // 1_000)
        if ttl is not None:
            check_seconds("ttl", ttl, most=PHYSICAL_MS_MAX // 1_000)
        now = self.timestamp_of("-0s")
        superseded, kept = max(0, now - self._margin), pack(round(retention * 1_000))
        done = expire(self._space, superseded, kept)
        state = self._space.at()
        oldest = min((each.time for each in layout.generations_at(state)), default=0)
        ages = [(max(0, oldest - 1), False)]
        if ttl is not None:
            ages.append((max(0, now - pack(round(ttl * 1_000))), True))
        tables = [layout.table_of(key) for key in state.keys(layout.TABLE_PREFIX)]
        rows, failed = self._trimmed(tables, ages)
        done = replace(done, rows=rows)
        if failed:
            raise errors.ExpiryIncompleteError(failed, done) from next(iter(failed.values()))
        return done

    def _trimmed(
        self, tables: Sequence[str], ages: Sequence[tuple[int, bool]]
    ) -> tuple[int, dict[str, Exception]]:
        """Trim tables up to ages (a time, and whether unread rows go); return rows and errors."""
        rows, failed = 0, dict[str, Exception]()
        for at, table in enumerate(tables):
            try:
                for until, unread in ages:
                    rows += trim(self.store, table, self.space, until, unread=unread)
            except (EngineUnavailableError, StoreClosedError) as e:
                failed |= dict.fromkeys(tables[at:], e)
                break
            except snapkv.SnapKVError as e:
                failed[table] = e
        return rows, failed

    def consumers(self) -> dict[ConsumerId, Progress]:
        """Return the registered consumers and their progress."""
        return layout.consumers_at(self._space.at())

    def forget(self, consumer: str, table: str = "default") -> bool:
        """Forget a consumer of a table, so that nothing is kept for it; return whether it existed.

        Also forgets a consumer of this name that an older version registered without its table.
        """
        snapshot = self._space.at()
        found = list(snapshot.keys(layout.consumers_prefix(table, consumer)))
        old = layout.consumer_key(ConsumerId(None, consumer))
        found += [old] * (snapshot.entries_of([old])[0] is not None)
        if found:
            self._space.commit(deletes=found)
        return bool(found)

    def progress_of(self, consumer: ConsumerId) -> tuple[Progress, int] | None:
        """Return a consumer's progress and the revision of its save, None if not registered.

        Raises `InvalidArgumentError` where the name is in use by another number of workers, or was
        registered by a version that did not record which table it reads.
        """
        snapshot = self._space.at()
        table, name, _, parts = consumer
        own_key = layout.consumer_key(consumer)
        if table is None:
            (own,) = snapshot.entries_of([own_key])
        else:
            entries = dict(snapshot.entries(layout.consumers_prefix(table, name)))
            own = entries.get(own_key)
            if own is None and entries:
                others = layout.consumer_of(next(iter(entries))).parts
                raise InvalidArgumentError(
                    f"consumer {name!r} of table {table!r} has {others} workers, not {parts}: "
                    "let all of them read to one moment, forget it, and register it with `since` "
                    "of that"
                )
            old = None
            if own is None:
                (old,) = snapshot.entries_of([layout.consumer_key(ConsumerId(None, name))])
            if old is not None:
                position = layout.decode(Progress, old.value).position
                raise InvalidArgumentError(
                    f"consumer {name!r} was registered by an older version, which did not record "
                    f"its table, and came to {position}: if it read table {table!r}, forget it and "
                    f"register it again with since={position}"
                )
        return None if own is None else (layout.decode(Progress, own.value), own.revision)

    def register(self, consumers: Sequence[ConsumerId], begin: Progress) -> None:
        """Register the workers of a consumer, all or none, beginning at `begin`.

        Expiry then keeps that generation. Raises `InvalidArgumentError` for a name in use,
        `GenerationNotFoundError` when the generation was removed meanwhile.
        """
        own = [layout.consumer_key(id) for id in consumers]
        key = layout.generation_key(begin.generation)
        while True:
            snapshot = self._space.at()
            generation, count, *known = snapshot.entries_of([key, layout.CONSUMERS, *own])
            if any(known):
                raise InvalidArgumentError(f"consumer {consumers[0].name!r} is registered already")
            if generation is None:
                raise errors.GenerationNotFoundError(
                    f"the generation from {format_time(begin.generation)} "
                    f"({begin.generation}) on was removed"
                )
            counted = layout.number(1 + (layout.number_of(count.value) if count else 0))
            puts = dict.fromkeys(own, layout.encode(begin)) | {layout.CONSUMERS: counted}
            guards: list[Guard] = [
                AtRevision(key, generation.revision),
                layout.unchanged(layout.CONSUMERS, layout.revision_of(count)),  # no other one
            ]
            with suppress(snapkv.ConflictError):
                self._space.commit(puts=puts, guards=guards)
                return

    def save(self, consumer: ConsumerId, revision: int, reached: Progress) -> int:
        """Save a consumer's progress if it is unchanged since a revision; return the next one.

        Raises `ConsumerTakenError` if another process saved meanwhile, and what `SnapshotKV.commit`
        raises. After an unknown outcome `SnapshotKV.resolve` returns the commit, whose revision is
        the next one.
        """
        own = layout.consumer_key(consumer)
        guards = [AtRevision(own, revision)]
        try:
            return self._space.commit(puts={own: layout.encode(reached)}, guards=guards).revision
        except snapkv.ConflictError as e:
            raise errors.ConsumerTakenError(consumer.name) from e

    # --- members ---

    def member(
        self, name: str = "", *, generations: Generations | None = None, ttl: float = TTL_S
    ) -> Member:
        """Return a new member: it has the generations, and every switch needs its vote.

        It counts while its session is alive: until `ttl` seconds after the last renewal. Members
        finish a switch whose coordinator died between the phases, after `patience` seconds. Three
        round trips, and one for each generation. Raises `InvalidArgumentError` (the name), and as
        `SnapshotKV.session`.
        """
        try:
            value = self._session_prefix + name.encode()
        except (AttributeError, UnicodeEncodeError) as e:
            raise InvalidArgumentError(f"a member's name is a text, not {name!r}") from e
        held = generations or Generations(leeway=self.leeway)
        return Member(
            self.store,
            self._space,
            value,
            held,
            ttl=ttl,
            patience=self._patience,
            clock_skew=self._clock_skew,
            finish=self._coordinator.finish,
        )


def expire(space: Space, now: int, retention: int) -> Expired:
    """Mark the generations that were superseded by `now`; remove them `retention` later.

    Keeps the current generation, and generations that a registered consumer has not passed. Costs a
    listing, and a commit for each one marked or removed. Times and `retention` are timestamps.
    """
    snapshot = space.at()
    (count,) = snapshot.entries_of([layout.CONSUMERS])
    same_consumers = layout.unchanged(layout.CONSUMERS, layout.revision_of(count))
    slowest = min((each.position for each in layout.consumers_at(snapshot).values()), default=now)
    marked: list[Generation] = []
    removed: list[Generation] = []
    for generation, later in pairwise(layout.generations_at(snapshot)):
        if later.time > now:
            break
        key = layout.generation_key(generation.time)
        (entry,) = snapshot.entries_of([key])
        assert entry is not None
        unmarked: Guard = AtRevision(key, entry.revision)
        if later.time + retention <= now and later.time - 1 <= slowest:
            rows = layout.rows_prefix(generation.id)
            if not _committed(space, SpaceOps({}, [key], [rows], [unmarked, same_consumers])):
                break  # not a later one first: its writes would seem to be this one's
            removed.append(generation)
        elif generation.expired is None:
            record = replace(generation, expired=now)
            ops = SpaceOps({key: layout.encode(record)}, guards=[unmarked])
            if _committed(space, ops):
                marked.append(record)
    return Expired(tuple(marked), tuple(removed))


def _committed(space: Space, ops: SpaceOps) -> bool:
    try:
        space.commit(lambda _: ops)
    except snapkv.ConflictError:
        return False
    return True
