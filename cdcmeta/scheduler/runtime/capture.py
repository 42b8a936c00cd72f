"""A capture: a process that replicates tables of changefeeds, and schedules them while it leads."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from cdcmeta.argument_checks import check_store
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.agent import Agent
from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.executors.changefeed_executor import StoreExecutor
from cdcmeta.scheduler.executors.contracts import Function, TableSink, TableSource
from cdcmeta.scheduler.protocol.messages import Envelope, KnownOwner
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeed_records import RUNNING, Changefeed, Registration
from cdcmeta.scheduler.runtime.cluster_view import Registry
from cdcmeta.scheduler.runtime.leader_term import GRACE_S, OwnerWrites, Term
from cdcmeta.scheduler.runtime.reports import CaptureStatus, Reporter
from cdcmeta.scheduler.runtime.stores_and_sinks import Stores, open_sink, open_source, origin_of
from cdcmeta.scheduler.transport.mailbox import Post
from snapkv import Leader, SnapKVError, SnapshotKV
from snapkv.base.waiting import StopEvent, monotonic, pause, pause_unless
from snapkv.errors import CorruptStoreError

log = logging.getLogger("cdcmeta.scheduler")

MARGIN_SHARE = 1 / 3
"""A call to a sink begins only while the session has this share of its life left, ..."""
WRITE_SHARE = 0.8
"""... and a write to a store ends after this share of that."""
END_S = 0.2
"""The time before the session's end at which a call that still lasts ends the process, in
seconds."""
STAND_BACK_S = 30.0
"""The time for which an owner that could write nothing does not lead again, in seconds."""
LOOK_S = 0.05
REPORT_S = 2.0
HUNG_EXIT = 75
"""The exit code of a process that ended because a sink hung (EX_TEMPFAIL)."""


class _Running:
    """A changefeed on this capture: its agent, and the executor that the agent drives."""

    def __init__(self, feed: Changefeed, agent: Agent, executor: StoreExecutor) -> None:
        self.feed, self.agent, self.executor = feed, agent, executor
        self.reporter = Reporter(executor)
        self.closing: threading.Thread | None = None

    def close(self, timeout: float) -> None:
        """Begin to stop its tables."""
        if self.closing is None:
            self.executor.stop()
            self.closing = threading.Thread(
                target=self.executor.close, args=(timeout,), name="cdcmeta-close", daemon=True
            )
            self.closing.start()

    @property
    def is_closed(self) -> bool:
        """Whether nothing of it can write any more."""
        is_over = self.closing is not None and not self.closing.is_alive()
        return is_over and self.executor.is_stopped


class Life:
    """A capture from its registration until its session ends; `tick` is called by one thread.

    the session is made                                  -> the capture's epoch
    the records and the leader are read after that       -> an agent knows each owner that was
                                                            deposed before it registered
    a changefeed starts again: its tables stop           -> only then another agent begins
    the session may end soon: no call to a sink begins   -> no other capture has the tables yet
    the session ends while a call to a sink hangs        -> the process ends
    """

    def __init__(self, capture: Capture, ttl_s: float) -> None:
        """Register. Raises what a session raises."""
        self._capture, self._store, self._post = capture, capture._store, capture._post
        self._cluster, self._end_process = capture.cluster, capture._end_process
        said = Registration(self._cluster, capture.label, self._post.address, ttl_s)
        self.session = self._store.session(ttl_s, said.encode())
        self.name = records.capture_name(capture.label, self.session.id)
        self._election = self._store.election(records.space_of(self._cluster), session=self.session)
        try:
            self.registry = Registry(self._store, self._cluster, self._election)
        except BaseException:
            self.session.close()
            raise
        self.status = CaptureStatus(self.name, False, {}, {})
        """How it was at the last report; replaced, never changed in place."""
        self.is_leaving = False
        self._term: Term | None = None
        self._owner_writes: OwnerWrites | None = None
        self._feeds: dict[str, _Running] = {}
        self._to_self: list[tuple[str, Envelope]] = []
        self._reported: bytes | None = None
        self._reported_at = 0.0
        self._report_error: type[SnapKVError] | None = None
        self._stands_back_until = 0.0
        self._is_over = False
        self._threads = [
            threading.Thread(target=run, name=f"cdcmeta-{what}", daemon=True)
            for what, run in (("candidate", self._campaign), ("watchdog", self._watch_session))
        ]
        for thread in self._threads:
            thread.start()
        log.info("capture %s is registered at revision %d", self.name, self.session.revision)

    # --- what it is doing ---

    @property
    def is_alive(self) -> bool:
        """Whether the session lives."""
        return self.session.alive

    @property
    def is_leading(self) -> bool:
        """Whether this capture leads, as far as it knows."""
        return self._term is not None

    def may_write(self) -> bool:
        """Return whether a call to a sink may begin: it ends before the session can."""
        return self.session.left_s > self.session.ttl_s * MARGIN_SHARE

    def tables(self) -> dict[str, list[str]]:
        """Return the tables that it has, by changefeed."""
        return {id: running.agent.tables() for id, running in self._feeds.items()}

    # --- one tick ---

    def tick(self, now: int) -> None:
        """Take messages, do what they ask, send the answers; `now` in microseconds."""
        view = self.registry.view
        self._follow()
        to_owner: dict[str, list[Envelope]] = {}
        to_agent: dict[str, list[Envelope]] = {}
        owner = records.owner_name(self.name)
        own, self._to_self = self._to_self, []
        for id, envelope in own + self._post.receive():
            box = to_owner if envelope.header.to == owner else to_agent
            box.setdefault(id, []).append(envelope)
        for id, running in list(self._feeds.items()):
            if running.closing is None:
                for envelope in running.agent.tick(to_agent.get(id, ())):
                    self._send(id, envelope)
        self._lead()
        if self._term is not None:
            for id, envelope in self._term.tick(view, to_owner, now):
                self._send(id, envelope)
            if self._term.wants_to_resign:
                self.leave()
        self._report()

    def leave(self) -> None:
        """Ask for all tables to be moved away; another capture leads first."""
        if not self.is_leaving:
            log.info("capture %s leaves", self.name)
            self.is_leaving = True
            self._reported_at = 0.0
            self._election.wake()
        for running in self._feeds.values():
            running.agent.stop()

    @property
    def has_left(self) -> bool:
        """Whether it has no tables any more, or no other capture could take them."""
        view = self.registry.view
        reports = {name: view.others.get(records.report_key(name)) for name in view.captures}
        staying = [name for name in reports.keys() - {self.name} if not _is_leaving(reports[name])]
        return not staying or not any(self.tables().values())

    def close(self) -> None:
        """Stop all tables, then end the session; ends the process if a write hangs too long."""
        for running in self._feeds.values():
            running.close(self.session.ttl_s)
        until = monotonic() + self.session.ttl_s
        while not all(running.is_closed for running in self._feeds.values()):
            late_s = monotonic() - until
            if late_s >= self.session.ttl_s or (late_s >= 0 and self._is_writing()):
                log.critical("a sink hangs while %s ends", self.name)
                self._end_process(HUNG_EXIT)
                break
            pause(LOOK_S)
        self._is_over = True
        self._end_term()
        with suppress(SnapKVError):
            self._election.resign()
        self.registry.close()
        self.session.close()
        for thread in self._threads:
            thread.join(2 * LOOK_S)

    # --- changefeeds ---

    def _follow(self) -> None:
        """Begin with changefeeds that run, and stop changefeeds that do not run or that changed."""
        view = self.registry.view
        for id, running in list(self._feeds.items()):
            feed = view.feeds.get(id)
            runs = feed is not None and feed.state == RUNNING
            if not runs or (feed is not None and feed.epoch != running.feed.epoch):
                running.close(self.session.ttl_s)
            if running.is_closed:
                del self._feeds[id]
        for id, feed in view.feeds.items():
            if feed.state == RUNNING and id not in self._feeds:
                self._feeds[id] = self._begun(feed, view.leader)

    def _begun(self, feed: Changefeed, leader: Leader | None) -> _Running:
        executor = StoreExecutor(
            partial(self._open_executor, feed),
            feed.tables(),
            state_at=feed.state_at,
            states={table: begin.state_at for table, begin in feed.begins.items()},
            may_write=self.may_write,
        )
        known = KnownOwner()
        if leader is not None:
            known = KnownOwner(leader.value.decode(errors="replace"), leader.revision)
        agent = Agent(
            self.name,
            executor,
            epoch=self.session.revision,
            changefeed_epoch=feed.epoch,
            owner=known,
        )
        if self.is_leaving:
            agent.stop()
        return _Running(feed, agent, executor)

    def _open_executor(self, feed: Changefeed) -> tuple[TableSource, TableSink]:
        write_s = self.session.ttl_s * MARGIN_SHARE * WRITE_SHARE
        stores, functions = self._capture._stores, self._capture._functions
        source = open_source(feed, stores)
        origin = origin_of(feed, self._store, self._cluster)
        return source, open_sink(feed, stores, functions, write_s, origin=origin)

    def _send(self, id: str, envelope: Envelope) -> None:
        name = records.capture_of(envelope.header.to)
        if name == self.name:
            self._to_self.append((id, envelope))
            return
        to = self.registry.view.captures.get(name)
        if to is not None:
            self._post.send(to.said.address, id, envelope)

    # --- leading ---

    def _lead(self) -> None:
        """Begin a term after an election, and end it with the leadership."""
        leads = self._election.leading
        writes = self._owner_writes
        if writes is not None and writes.is_helpless:
            self._stands_back_until = monotonic() + STAND_BACK_S
        if self._stands_back_until > monotonic():
            leads = False
        if writes is not None and (not leads or writes.is_deposed):
            self._end_term()
        elif writes is None and leads and not self.is_leaving:
            revision, view = self._election.revision, self.registry.view
            if view.revision < revision:
                self.registry.look()
                return
            if any(view.places.values()) and monotonic() - self.registry.began < GRACE_S:
                return  # a capture may have vanished a moment before this one registered
            log.info("capture %s leads, from revision %d on", self.name, revision)
            self._owner_writes = OwnerWrites(self._store, self._cluster, self._election)
            self._term = Term(self.name, revision, self._capture._limits, self._owner_writes)

    def _end_term(self) -> None:
        writes, self._owner_writes, self._term = self._owner_writes, None, None
        if writes is not None:
            log.info("capture %s leads no more", self.name)
            writes.close()

    def _campaign(self) -> None:
        value = records.owner_name(self.name).encode()
        while self.session.alive and not self._is_over:
            try:
                if self.is_leaving or self._stands_back_until > monotonic():
                    self._election.resign()
                elif not self._election.leading:
                    self._election.campaign(value)  # until it leads, or leaves
                    self.registry.look()
            except SnapKVError:
                pass  # another one leads, or the store does not answer: try again
            pause(LOOK_S)

    # --- the session ---

    def _watch_session(self) -> None:
        """End the process if a call to a sink lasts longer than the session.

        One that is ended from outside, by an eviction, counts until it would have ended by itself:
        the owner waits for a whole time to live.
        """
        ends_at = monotonic() + self.session.left_s
        while not self._is_over:
            if (left_s := self.session.left_s) > 0:
                ends_at = monotonic() + left_s
            if ends_at - monotonic() <= END_S and self._is_writing():
                log.critical("a sink hangs while the session of %s ends", self.name)
                self._end_process(HUNG_EXIT)
                return
            pause(LOOK_S)

    def _is_writing(self) -> bool:
        feeds = list(self._feeds.values())
        return any(running.executor.busy_since() is not None for running in feeds)

    def _report(self) -> None:
        """Write what the tables do, for operators to see, if it has changed."""
        if monotonic() - self._reported_at < REPORT_S or not self.session.alive:
            return
        self._reported_at = monotonic()
        reports = {
            id: running.reporter.report(len(running.agent.tables()))
            for id, running in self._feeds.items()
        }
        scheduled = {} if self._term is None else self._term.scheduled()
        self.status = CaptureStatus(self.name, self.is_leading, reports, scheduled)
        feeds = {id: each.encode() for id, each in reports.items()}
        raw = records.encoded({"feeds": feeds, "leaves": self.is_leaving})
        if raw != self._reported:
            self._reported = raw
            threading.Thread(
                target=self._write_report, args=(raw,), name="cdcmeta-report", daemon=True
            ).start()

    def _write_report(self, raw: bytes) -> None:
        space = self._store.space(records.space_of(self._cluster))
        try:
            puts = {records.report_key(self.name): raw}
            space.commit(puts=puts, guards=[self.session.guard], timeout=REPORT_S)
            self._report_error = None
        except SnapKVError as e:
            self._reported = None  # it is written again
            if self._report_error is not type(e):
                self._report_error = type(e)
                log.error("capture %s cannot report: %s", self.name, e)


def _is_leaving(report: bytes | None) -> bool:
    try:
        return report is not None and bool(records.decoded(report).get("leaves"))
    except CorruptStoreError:
        return False


TICK_S = 0.05
TTL_S = 10.0
RETRY_S = 1.0
DRAIN_S = 30.0


class Capture:
    """Replicates tables until it is stopped; start as many as you like, on any machine.

    It registers with a session, takes part in the election of the owner, and schedules all
    changefeeds while it leads. It keeps what `docs/scheduler_core.md` lists under "What you
    promise". If its session ends, it stops its tables and registers anew. If a sink hangs until its
    session ends, it ends the process, with the exit code 75.

    `post` carries messages; `functions` has the functions that sinks `call:NAME` mean, by name.

    >>> import threading, snapkv
    >>> from cdcmeta.scheduler.runtime import Capture
    >>> from cdcmeta.scheduler.transport.local import LocalNetwork
    >>> with snapkv.open("memory:") as store:
    ...     capture = Capture(store, LocalNetwork().post("c1"), label="c1")
    ...     capture.start()
    ...     capture.stop(drain=False)
    """

    def __init__(
        self,
        store: SnapshotKV,
        post: Post,
        *,
        label: str,
        cluster: str = "default",
        store_url: str | None = None,
        store_name: str = "default",
        ttl: float = TTL_S,
        limits: Limits | None = None,
        functions: Mapping[str, Function] | None = None,
        tick_s: float = TICK_S,
        end_process: Callable[[int], Any] = os._exit,
    ) -> None:
        """Prepare a capture; nothing is written. Raises `InvalidArgumentError`.

        `store_url` is what the store was opened with, so that changefeeds may name it as well.
        """
        check_store(store)
        records.check_name("a capture", label)
        records.check_name("a cluster", cluster)
        if limits is not None and not isinstance(limits, Limits):
            raise InvalidArgumentError(f"limits= takes Limits(), not {limits!r}")
        self._store, self._post, self.cluster, self.label = store, post, cluster, label
        self._ttl_s, self._limits = ttl, limits or Limits()
        self._functions, self._tick_s = dict(functions or {}), tick_s
        self._end_process, self._stores = end_process, Stores(store, store_url, store_name)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._drain_s = DRAIN_S
        self.life: Life | None = None
        """The present registration; None before the first and between two."""
        self.error: BaseException | None = None
        """Why the thread of `start` ended."""

    @property
    def status(self) -> CaptureStatus | None:
        """How it was up to two seconds ago, for monitors; None while it is not registered."""
        life = self.life
        return None if life is None else life.status

    # --- in a thread of its own ---

    def start(self) -> None:
        """Run in a thread until `stop`."""
        self._thread = threading.Thread(target=self._run, name="cdcmeta-capture", daemon=True)
        self._thread.start()

    def stop(self, *, drain: bool = True, timeout: float = DRAIN_S) -> None:
        """Let other captures take the tables over, for `timeout` seconds at most; then end."""
        self._drain_s = timeout if drain else 0.0
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._run_until(self._stop)
        except BaseException as e:
            log.exception("capture %s ended", self.label)
            self.error = e

    # --- in the caller's thread ---

    def run(self, stop: StopEvent, *, drain_s: float = DRAIN_S) -> None:
        """Run until `stop` is set; then hand the tables over, for `drain_s` seconds at most.

        A signal handler may set `stop`. A store that does not answer is waited for. Raises errors
        that do not pass.
        """
        self._drain_s = drain_s
        self._run_until(stop)

    def _run_until(self, stop: StopEvent) -> None:
        try:
            while not stop.is_set():
                try:
                    life = Life(self, self._ttl_s)
                except SnapKVError as e:
                    log.warning("capture %s cannot register: %s", self.label, e)
                    pause_unless(stop, RETRY_S)
                    continue
                self.life = life
                try:
                    self._live(life, stop)
                finally:
                    life.close()
                    self.life = None
        finally:
            self._stores.close()
            self._post.close()

    def _live(self, life: Life, stop: StopEvent) -> None:
        until: float | None = None
        while life.is_alive:
            began = monotonic()
            if stop.is_set():
                until = began + self._drain_s if until is None else until
                if began >= until:
                    return
                life.leave()
                if life.has_left:
                    return
            life.tick(int(began * 1e6))
            pause(max(0.0, self._tick_s - (monotonic() - began)))
        log.warning("capture %s lost its session", life.name)
