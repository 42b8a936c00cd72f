"""Opening a source and a target, and making sure that one recorder writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from snapkv.base.waiting import monotonic
from snapkv.clock import HybridClock
from snapkv.coordination.election import Election
from snapkv.coordination.requests import transact
from snapkv.copying.options import RecordOptions
from snapkv.copying.run import Recording
from snapkv.copying.sources import PrefixSource, Recorded, StoreSource
from snapkv.copying.status import RecordStatus
from snapkv.copying.store_target import StoreTarget
from snapkv.copying.targets import Target
from snapkv.engine.contract import Compare, Engine, Put, Range, Txn
from snapkv.engine.contract import Target as Compared
from snapkv.errors import EngineBusyError, InvalidOptionError, StoreNotFoundError
from snapkv.layout import FIRST_KEY, Layout, prefix_end, raw_key
from snapkv.location import COMMON_OPTIONS, open_engine
from snapkv.model import Held
from snapkv.store.core import Core
from snapkv.store.open import open as open_store
from snapkv.store.recorder_watermarks import watermark_id
from snapkv.store.store import SnapshotKV

LEASE_S = 5.0
"""After a recorder was killed, the next one waits so long."""
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
    read = _source_opened(options, stack)
    if options.is_store:
        into = open_store(options.into, name=options.into_name, **options.into_options)
        stack.enter_context(into)
        leader = _lead(into, "record", stack, standby, options)
        target: Target = StoreTarget(into._core, leader)
    else:
        target = _archive(options)
    if isinstance(read, SnapshotKV):
        recorded: Recorded = StoreSource(read._core)
        if into is None:
            held = _lead(
                read, f"record/{watermark_id(options.place).decode()}", stack, standby, options
            )
            guard = guard_of(read._core, held)
    else:
        known = target.known()
        name = options.name if known is None else known.name
        source = PrefixSource(read, _prefix(options), name, clock, known)
        if isinstance(target, StoreTarget):
            source.echo_ends, source.is_echo = target.echo_ends, target.is_echo
        recorded = source
    target.open(recorded.identity)
    recording = Recording(recorded, target, guard, options, status)
    stack.callback(recording.close)
    return recording


def _archive(options: RecordOptions) -> Target:
    """Open an archive; only that needs pyarrow."""
    from snapkv.archive.places import open_files
    from snapkv.copying.archive_target import ArchiveTarget

    return ArchiveTarget(open_files(options.archive, options.storage))


def guard_of(core: Core, held: Held) -> Compare:
    """Return the comparison that proves a leadership."""
    return Compare(core.layout.live.encode(held.key), Compared.CREATE, "=", held.revision)


def _source_opened(options: RecordOptions, stack: ExitStack) -> SnapshotKV | Engine:
    """Open the source and read from it, before a target is made that would stay empty."""
    if options.observe is None:
        store: SnapshotKV = open_store(
            options.url, name=options.name, create=False, **options.options
        )
        stack.enter_context(store)
        return store
    prefix = _prefix(options)
    engine = open_engine(options.url, create=False, options=dict(options.options))
    stack.callback(engine.close)
    engine.read([Range(prefix or FIRST_KEY, prefix_end(prefix), limit=1, keys_only=True)])
    return engine


def _prefix(options: RecordOptions) -> bytes:
    return raw_key(options.observe, "observe", text=isinstance(options.observe, str))


def _refuse_own_keys(options: RecordOptions) -> None:
    """Raise `InvalidOptionError` if a recorder would record what it writes.

    Only a prefix that has keys of the target's name costs more than a look: two connections and up
    to five round trips.
    """
    if options.observe is None or not options.is_store:
        return
    root, prefix = Layout(options.into_name).root, _prefix(options)
    if not (root.startswith(prefix) or prefix.startswith(root)):
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
                f"{options.into_name!r}: observe another prefix, or choose another place"
            )


def _is_same(source: Engine, target: Engine, root: bytes) -> bool:
    """Return whether two engines are one, whatever their URLs.

    Clusters that were set up alike may have one id, and some servers have none (0): so a key that
    is written to one has to appear in the other. It is below `root`, and removed at once.
    """
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
