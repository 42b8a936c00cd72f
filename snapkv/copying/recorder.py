"""The recorder: copies a source's history into a target, once or for as long as it runs.

`Recorder` opens a source and a target, and begins again after failures that pass.
`Recording` is one run: steps go from the source to the target while both answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeAlias

from snapkv.base.clocks import SystemClock
from snapkv.base.waiting import StopEvent, monotonic, pause, pause_unless
from snapkv.clock import HybridClock
from snapkv.coordination.election import Election
from snapkv.coordination.requests import transact
from snapkv.copying.record_options import RecordOptions, RecordStatus, Report
from snapkv.copying.recorded_values import KEY_BYTES_MIN, RecordedValues, digest_key
from snapkv.copying.sources import (
    PrefixSource,
    SourceCommit,
    SourceFollower,
    StoreSource,
    gap_note,
)
from snapkv.copying.store_commits import guard_of
from snapkv.copying.store_target import RecordTarget, StoreTarget
from snapkv.engine.contract import Compare, Engine, KeyValue, Put, Range, Txn
from snapkv.engine.contract import Target as Compared
from snapkv.engine.selected_ranges import selected
from snapkv.errors import (
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    FutureRevisionError,
    InvalidOptionError,
    NoSpaceError,
    SessionLostError,
    StoreNotFoundError,
    StoreRestoredError,
)
from snapkv.hooks import Notifier, RecordEvent, StoreLabel, checked_hooks
from snapkv.layout import FIRST_KEY, Layout, prefix_end, stamp_of
from snapkv.model import Held
from snapkv.reading.deadline import check_wait
from snapkv.store.location import COMMON_OPTIONS, open_engine
from snapkv.store.open import open as open_store
from snapkv.store.recorder_watermarks import Watermark, move, watermark_id
from snapkv.store.store import SnapshotKV
from snapkv.times import duration_ms

if TYPE_CHECKING:
    from snapkv.copying.kubernetes_source import KubernetesSource

Recorded: TypeAlias = "StoreSource | PrefixSource | KubernetesSource"
"""A source of steps."""
RETRY_S = 1.0
REPORT_S = 1.0
TEND_S = 60.0
LATER = (EngineUnavailableError, EngineBusyError, SessionLostError, NoSpaceError)
"""The errors that pass: the recorder begins again from what is durable."""


class Recorder:
    """Records a source, from `snapkv.record()`: once with `catch_up`, or until an event with `run`.

    Use it from one thread. It opens its source and target when it runs, and closes them when it
    returns.
    """

    def __init__(self, options: RecordOptions, report: Report | None = None) -> None:
        self.options, self.status = options, RecordStatus()
        self._report = report or (lambda status: None)
        self._reported = 0.0
        self._clock = HybridClock(options.clock or SystemClock())
        self._notify = Notifier(checked_hooks(options.hooks), StoreLabel(options.url, options.name))

    def catch_up(self, *, timeout: float | None = None) -> int:
        """Record all that exists now, durably; return the timestamp of the newest commit.

        `timeout` bounds the wait for another recorder that leads, in seconds; None waits for ever.
        Raises `EngineBusyError` after it, and the errors of `run`, also errors that pass.
        """
        check_wait(timeout)
        until = None if timeout is None else monotonic() + timeout

        def standby() -> bool:
            self._tell("standby")
            return until is None or monotonic() < until

        with ExitStack() as stack:
            recording = open_recording(self.options, self.status, self._clock, stack, standby)
            self._tell("recording")
            recording.catch_up(self._tell_now_and_then)
            self._tend(recording)
            self._tell("recording")
        return self.status.recorded

    def run(self, stop: StopEvent) -> None:
        """Record until `stop` is set; report failures that pass, and try again after them.

        What was read is durable on return. Raises `StoreRestoredError` if the source was set back,
        `ArchiveTakenError` if another recorder writes to the archive, `ArchiveError`,
        `AccessDeniedError`, and other errors that do not pass.
        """
        while not stop.is_set():
            try:
                with ExitStack() as stack:
                    self._run(stop, stack)
            except LATER as e:
                if stop.is_set() and self.status.state in ("starting", "standby"):
                    return
                self.status.error = e
                self._tell("waiting")
                if stop.is_set():
                    raise
                pause_unless(stop, RETRY_S)

    def _run(self, stop: StopEvent, stack: ExitStack) -> None:
        def standby() -> bool:
            self._tell("standby")
            return not stop.is_set()

        recording = open_recording(self.options, self.status, self._clock, stack, standby)
        self.status.error = None
        self._tell("recording")
        tended = monotonic()
        try:
            while not stop.is_set():
                recording.take(WAIT_S)
                self._tell_now_and_then()
                if monotonic() - tended >= TEND_S:
                    self._tend(recording)
                    tended = monotonic()
        except (*LATER, StoreRestoredError):  # what was taken before is of the history recorded
            with suppress(*LATER):  # the target may still answer
                recording.flush()
            raise
        recording.flush()
        self._tell("recording")

    def _tend(self, recording: Recording) -> None:
        keep = self.options.keep
        recording.tend(None if keep is None else self._clock.now_ms() - duration_ms(keep))

    def _tell(self, state: str) -> None:
        self.status.state = state
        self._reported = monotonic()
        self._report(status := self.status)
        event = RecordEvent(
            self._notify.store,
            self.options.place,
            state,
            status.commits,
            status.changes,
            len(status.gaps),
            status.recorded,
            status.lag_s(self._clock.now_ms()),
            status.bytes,
        )
        self._notify(event)

    def _tell_now_and_then(self) -> None:
        if monotonic() - self._reported >= REPORT_S:
            self._tell(self.status.state)


WAIT_S = 0.5
"""The longest wait for a step."""
NAP_S = 0.02
"""The time for which steps gather before they are taken, in seconds."""
RESUME_TRIES = 8
"""The most times that a state is read again because compaction overtook the scan."""


class Recording:
    """A source and a target that is open, and how far the steps have gone.

    For example, commits of the source are at revisions 5, 7 and 9, and the target has those up to
    7. The recording follows from 8 on, and takes the step of 9. Had the source been compacted at
    11 before, after one more commit at 10, then the commits at 9 and 10 are lost: the states at 7
    and 11 are compared, the differences are recorded with the mark of 10, and the gap is noted.
    """

    def __init__(
        self,
        source: Recorded,
        target: RecordTarget,
        guard: Compare | None,
        options: RecordOptions,
        status: RecordStatus,
    ) -> None:
        self._source, self._target, self._guard = source, target, guard
        self._options, self._status = options, status
        self._watermark: Watermark | None = None
        self._overtaken = self._took = False
        self._every_s, self._flush_s = (
            duration_ms(each) / 1_000 for each in (options.every, options.flush)
        )
        now = monotonic()
        self._flush_at, self._tick_at = now + self._flush_s, now + self._every_s
        self._last, self._follower = self._resume()

    # --- steps ---

    def take(self, timeout: float) -> None:
        """Take the next step, or a tick when one is due; flush what is due.

        Waits `timeout` seconds at most. Raises what source and target raise.
        """
        if self._overtaken:  # what was taken before is flushed first
            self.flush()
        now = monotonic()
        left = min(timeout, max(0.0, self._flush_at - now), max(0.0, self._tick_at - now))
        try:
            step = self._next(left)
        except CompactedError:
            self._overtaken = True
            return
        if step is None and self._target.settle_in() <= 0.0:
            self._target.settle()
            self._status.note_recorded(self._last)
            return
        if step is None and monotonic() >= self._tick_at:
            self._tick_at = monotonic() + self._every_s
            step = self._follower.tick(own_revision=not self._options.is_store)
        if step is not None:
            self._target.add(step)
            self._last = step.mark
            self._status.commits += 1
            self._status.changes += len(step.events)
            self._status.gaps += [] if step.gap is None else [step.gap]
            self._status.note_seen(step.mark)
            self._tick_at = monotonic() + self._every_s
            if not self._target.pending:
                self._status.note_recorded(step.mark)
        self._status.bytes = self._target.pending
        is_large = self._target.pending >= self._options.flush_bytes
        if monotonic() >= self._flush_at or self._target.is_full or is_large:
            self.flush()

    def _next(self, left: float) -> SourceCommit | None:
        """Return the next step, after `left` seconds at most.

        After a step it lets more of them come: to be woken for each costs more than the step.
        """
        if self._took:
            if (step := self._follower.next(0.0)) is not None:
                return step
            self._took = False
            pause(min(NAP_S, left, self._target.settle_in()))
        step = self._follower.next(min(left, self._target.settle_in()))
        self._took = step is not None
        return step

    def catch_up(self, each: Callable[[], None] = lambda: None) -> None:
        """Record all that exists now, durably; call `each` after each step."""
        newest = self._source.newest(self._last).mod_revision
        while not self._follower.has(newest):
            self.take(WAIT_S)
            each()
        self.flush()

    # --- durability ---

    def flush(self) -> None:
        """Make all that was taken durable; then let compaction of the source pass it."""
        self._flush_at = monotonic() + self._flush_s
        self._target.flush()
        self._note_durable(self._last)
        if self._overtaken:
            self._follower.close()
            self._last, self._follower = self._resume()
            self._overtaken = False

    def _note_durable(self, mark: KeyValue) -> None:
        """Note that all up to a mark is durable; of a store, let compaction pass it."""
        self._status.note_recorded(mark)
        if isinstance(self._source, PrefixSource):
            self._status.has_secrets = self._source.values.has_secrets
        if not isinstance(self._source, StoreSource) or self._source.is_archive:
            return
        into = self._options.place
        reached = Watermark(watermark_id(into), into, stamp_of(mark.value), mark.mod_revision)
        if reached != self._watermark:
            move(self._source.engine, self._source.layout, reached, self._guard)
            self._watermark = reached

    def tend(self, keep_before_ms: int | None) -> None:
        """Do what is due besides: merge files, drop what is older than a time."""
        self._target.tend(keep_before_ms)

    def close(self) -> None:
        """Stop following."""
        self._follower.close()

    # --- beginning ---

    def _resume(self) -> tuple[KeyValue, SourceFollower]:
        """Follow from the last durable mark, or from the one that ends a gap; return both."""
        for left in reversed(range(RESUME_TRIES)):
            try:
                mark = self._begin()
                follower = self._source.follow(mark)
                break
            except CompactedError:
                if not left:
                    raise
        self._status.note_seen(mark)
        self._note_durable(mark)
        return mark, follower

    def _begin(self) -> KeyValue:
        """Return the mark to follow from, after recording what compaction has left before it."""
        source, target = self._source, self._target
        last = target.last()
        if last is None:
            mark = source.first()
            target.begin(mark, source.state(mark))
            return mark
        source.check(last, target)
        at = source.compacted_revision()
        if source.moved is not None:  # an archive has one commit at most at each revision
            at = max(at, last.mod_revision + (not self._options.is_store))
        elif at <= last.mod_revision:
            return last
        mark = source.after(last, at)
        if source.moved is None and mark.version == last.version:  # no commit of it was lost
            return last
        try:
            target.close_gap(last, mark, source.state(mark))
        except FutureRevisionError as e:
            raise EngineBusyError(
                f"{self._options.place} is of other prefixes up to revision {last.mod_revision}, "
                "and nothing was written since: it takes the prefixes given with the next write"
            ) from e
        source.moved = None
        if mark.version > last.version + 1:
            self._status.gaps.append(gap_note(last, mark))
        return mark


LEASE_S = 5.0
"""The time that a recorder waits after another one was killed, in seconds."""
CAMPAIGN_S = 1.0
PROBE_S = 5.0
"""The longest time that the key stays with which two engines are compared, in seconds."""

Standby = Callable[[], bool]
"""Called each second while another recorder leads; says whether to go on waiting."""


def open_recording(
    options: RecordOptions,
    status: RecordStatus,
    clock: HybridClock,
    stack: ExitStack,
    standby: Standby,
) -> Recording:
    """Open what the options name, on a stack that closes it, and lead.

    Recorders into a store elect one there; recorders of a store into an archive elect one in the
    source. Keys of other programs are recorded without writing to their engine, so there only the
    manifest of the archive decides: the recorder that publishes second raises `ArchiveTakenError`.

    Raises `InvalidOptionError` if an observed prefix has the record's own keys.
    """
    _refuse_own_keys(options)
    into, guard = None, None
    cluster = _open_cluster(options, status, clock, stack)
    read = None if cluster else _open_source(options, stack)
    if options.is_store:
        into = open_store(options.into, name=options.into_name, **options.into_options)
        stack.enter_context(into)
        leader = _lead(into, "record", stack, standby, options)
        target: RecordTarget = StoreTarget(into._core, leader)
    else:
        from snapkv.archive import open_files  # only this needs pyarrow
        from snapkv.copying.archive_target import ArchiveTarget

        target = ArchiveTarget(open_files(options.archive, options.storage))
    if cluster is not None:
        cluster.attach(target, target.known())
        recorded: Recorded = cluster
    elif isinstance(read, SnapshotKV):
        recorded = StoreSource(read._core)
        if into is None:
            held = _lead(
                read, f"record/{watermark_id(options.place).decode()}", stack, standby, options
            )
            guard = guard_of(read._core, held)
    else:
        assert read is not None
        known = target.known()
        name = options.name if known is None else known.name
        assert options.observed is not None, "it was opened for that"
        source = PrefixSource(read, options.observed, name, clock, known)
        if options.redact and options.redact_key is not None:
            prefixes = [prefix.encode() for prefix in options.redact]
            source.values = RecordedValues(prefixes, digest_key(options.redact_key))
        if isinstance(target, StoreTarget):
            source.echo_ends, source.is_echo = target.echo_ends, target.is_echo
        recorded = source
    target.open(recorded.identity)
    recording = Recording(recorded, target, guard, options, status)
    stack.callback(recording.close)
    return recording


def _open_cluster(
    options: RecordOptions, status: RecordStatus, clock: HybridClock, stack: ExitStack
) -> KubernetesSource | None:
    """Open the API of a cluster, and ask what it has, if one is recorded."""
    if not options.is_cluster:
        return None
    from snapkv.copying.kubernetes_api import KubernetesApi
    from snapkv.copying.kubernetes_source import KubernetesSource, SecretDigests, as_sent

    api = KubernetesApi(options.url)
    stack.callback(api.close)
    path = options.redact_key
    key = os.urandom(KEY_BYTES_MIN) if path is None else digest_key(path)
    encode = as_sent if options.secrets else SecretDigests(key)
    return KubernetesSource(api, options.name, clock, encode, options.excluded, status.unread)


def _open_source(options: RecordOptions, stack: ExitStack) -> SnapshotKV | Engine:
    """Open the source and read from it, before a target is made that would stay empty."""
    if options.observed is None:
        store: SnapshotKV = open_store(
            options.url, name=options.name, create=False, **options.options
        )
        stack.enter_context(store)
        return store
    observed = options.observed
    engine = selected(
        open_engine(options.url, create=False, options=dict(options.options)), observed
    )
    stack.callback(engine.close)
    whole = observed.hull or FIRST_KEY, prefix_end(observed.hull)
    engine.read([Range(*whole, limit=1, keys_only=True)])
    return engine


def _refuse_own_keys(options: RecordOptions) -> None:
    """Raise `InvalidOptionError` if a recorder would record what it writes."""
    if options.observed is None or not options.is_store:
        return
    root = Layout(options.into_name).root
    if not options.observed.has_some(root):
        return
    own = {key: value for key, value in options.into_options.items() if key not in COMMON_OPTIONS}
    with ExitStack() as stack:
        source = open_engine(options.url, create=False, options=dict(options.options))
        stack.callback(source.close)
        try:
            target = open_engine(options.into, create=False, options=own, home=root)
        except StoreNotFoundError:  # a new directory
            return
        stack.callback(target.close)
        if _is_same(source, target, root):
            raise InvalidOptionError(
                f"observe={options.observe!r} has the keys of the record itself: "
                f"into={options.into!r} is the same engine, and the prefix covers its store "
                f"{options.into_name!r}: observe another prefix, leave its keys out, or choose "
                "another place"
            )


def _is_same(source: Engine, target: Engine, root: bytes) -> bool:
    """Return whether two engines are one: a key that is written to one appears in the other."""
    # clusters that were set up alike may have one id, and some servers have none (0)
    if source.get(root).header.cluster != target.get(root).header.cluster:
        return False
    probe = Put(root + b"live/probe/" + os.urandom(16).hex().encode(), b"")
    lease = target.grant(PROBE_S)
    try:
        absent = Compare(probe.key, Compared.CREATE, "=", 0)
        transact(target, Txn((absent,), (probe._replace(lease=lease.id),)))
        return source.get(probe.key).kv is not None
    finally:
        target.revoke(lease.id)


def _lead(
    store: SnapshotKV, name: str, stack: ExitStack, standby: Standby, options: RecordOptions
) -> Held:
    """Wait until no other recorder leads."""
    election: Election = stack.enter_context(store.election(name, ttl=LEASE_S))
    began = monotonic()
    while True:
        try:
            return election.campaign(timeout=CAMPAIGN_S).guard
        except EngineBusyError as e:
            if not standby():
                waited = monotonic() - began
                raise EngineBusyError(
                    f"another recorder writes to {options.place}; waited {waited:.0f} s for it: "
                    "end it, or wait longer"
                ) from e
