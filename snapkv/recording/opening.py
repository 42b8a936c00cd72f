"""Opening a source and a target, and making sure that one recorder writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from snapkv.clock import HybridClock, monotonic
from snapkv.coordination.election import Election
from snapkv.engine.contract import Compare
from snapkv.engine.contract import Target as Compared
from snapkv.engine_urls import open_engine
from snapkv.errors import EngineBusyError
from snapkv.layout import raw_key
from snapkv.model import Held
from snapkv.recording.options import RecordOptions
from snapkv.recording.run import Recording
from snapkv.recording.sources import PrefixSource, Recorded, StoreSource
from snapkv.recording.status import RecordStatus
from snapkv.recording.store_target import StoreTarget
from snapkv.recording.targets import Target
from snapkv.store.core import Core
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV
from snapkv.store.watermarks import watermark_id

LEASE_S = 5.0
"""After a recorder was killed, the next one waits so long."""
CAMPAIGN_S = 1.0

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
    """
    into, guard = None, None
    if options.is_store:
        into = open_store(options.into, name=options.into_name, **options.into_options)
        stack.enter_context(into)
        leader = _lead(into, "record", stack, standby, options)
        target: Target = StoreTarget(into._core, leader)
    else:
        target = _archive(options)
    if options.observe is None:
        store = open_store(options.url, name=options.name, create=False, **options.options)
        stack.enter_context(store)
        source: Recorded = StoreSource(store._core)
        if into is None:
            held = _lead(
                store, f"record/{watermark_id(options.place).decode()}", stack, standby, options
            )
            guard = guard_of(store._core, held)
    else:
        source = _prefix_source(options, target, clock, stack)
    target.open(source.identity)
    recording = Recording(source, target, guard, options, status)
    stack.callback(recording.close)
    return recording


def _archive(options: RecordOptions) -> Target:
    """Open an archive; only that needs pyarrow."""
    from snapkv.archive.places import open_files
    from snapkv.recording.archive_target import ArchiveTarget

    return ArchiveTarget(open_files(options.archive, options.storage))


def guard_of(core: Core, held: Held) -> Compare:
    """Return the comparison that proves a leadership."""
    return Compare(core.layout.live.encode(held.key), Compared.CREATE, "=", held.revision)


def _prefix_source(
    options: RecordOptions, target: Target, clock: HybridClock, stack: ExitStack
) -> PrefixSource:
    observe, known = options.observe, target.known()
    prefix = raw_key(observe, "observe", text=isinstance(observe, str))
    engine = open_engine(options.url, create=False, options=dict(options.options))
    stack.callback(engine.close)
    name = options.name if known is None else known.name
    return PrefixSource(engine, prefix, name, clock, known)


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
