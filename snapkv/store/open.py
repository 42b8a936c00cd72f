"""Opening a store, by a URL, on an engine or through an etcd3 client, and observed keys."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from snapkv.base.arguments import check_bool, check_known, check_text, wrong_type
from snapkv.base.clocks import Clock, SystemClock
from snapkv.base.waiting import bounded
from snapkv.clock import MAX_CLOCK_SKEW_S, HybridClock
from snapkv.codecs import Codec
from snapkv.committer import COMMIT_TIMEOUT_S, check_writer
from snapkv.engine.contract import (
    Compare,
    Engine,
    Header,
    KeyValue,
    OutcomeUnknown,
    Put,
    Range,
    Refused,
    Target,
    Txn,
)
from snapkv.engine.etcd.options import LIMITS, EtcdOptions
from snapkv.engine.selected_ranges import selected
from snapkv.errors import (
    CorruptStoreError,
    InvalidOptionError,
    InvalidTypeError,
    NotAStoreError,
    StoreNotFoundError,
)
from snapkv.hooks import Hooks, Notifier, OpenEvent, StoreLabel, checked_hooks
from snapkv.layout import (
    FormatRecord,
    Layout,
    RawKeyspace,
    StampRecord,
    selection_of,
)
from snapkv.model import K, V
from snapkv.reading.deadline import check_wait, within
from snapkv.reading.decoding import Decoding
from snapkv.reading.lookup_meter import Meter
from snapkv.reading.observed_prefix import Observed, Observer
from snapkv.reading.reader import Reader
from snapkv.store.location import COMMON_OPTIONS, DEFAULT_NAME, Location, open_engine
from snapkv.store.store import SnapshotKV
from snapkv.store.store_writer import StoreWriter, check_timeout
from snapkv.timeline import RING_SLOTS, Timeline
from snapkv.timeline.tracker import Tracker
from snapkv.times import duration_ms

STORE_VARIABLE = "SNAPKV_STORE"
"""The environment variable with the URL of the store, for `open()` and for both command lines."""
R = TypeVar("R", bound=Reader)


@dataclass(slots=True, kw_only=True)
class Settings:
    """The options of a store on any engine, checked as a whole before anything is opened."""

    name: str = DEFAULT_NAME
    ring_slots: int = RING_SLOTS
    clock: Clock | None = None
    retain: str | float | timedelta | None = None
    writer: str | None = None
    commit_timeout: float = COMMIT_TIMEOUT_S
    read_timeout: float | None = None
    max_clock_skew: float = MAX_CLOCK_SKEW_S
    create: bool = True
    archive: str | None = None
    storage: Mapping[str, Any] | None = None
    hooks: Hooks | Iterable[Hooks] | None = None
    stats: bool = False
    force_fork: bool = False
    layout: Layout = field(init=False)
    writer_name: str = field(init=False)
    hybrid: HybridClock = field(init=False)
    skew_ms: int = field(init=False)
    retain_ms: int | None = field(init=False)
    checked_hooks: tuple[Hooks, ...] = field(init=False)

    def __post_init__(self) -> None:
        if self.clock is not None and not callable(getattr(self.clock, "now_ms", None)):
            raise InvalidTypeError(f"clock must have now_ms(); {type(self.clock).__name__} has not")
        self.skew_ms = duration_ms(self.max_clock_skew)
        self.hybrid = HybridClock(self.clock or SystemClock(), self.skew_ms)
        if self.clock is not None:
            self.hybrid.now_ms()
        if self.archive is not None:
            check_text("archive", self.archive)
        if self.storage is not None:
            if not isinstance(self.storage, Mapping):
                raise wrong_type("storage", "a dict of options", self.storage)
            if self.archive is None:
                raise InvalidOptionError("storage= is for an archive: pass archive=, too")
        check_bool("create", self.create)
        check_bool("stats", self.stats)
        check_bool("force_fork", self.force_fork)
        self.checked_hooks = checked_hooks(self.hooks)  # an iterator is read once
        self.writer_name = default_writer() if self.writer is None else self.writer
        check_writer(self.writer_name, may_be_empty=True)
        check_timeout(self.commit_timeout)
        check_wait(self.read_timeout)
        self.retain_ms = None if self.retain is None else duration_ms(self.retain)
        self.layout = Layout(self.name)


def open(
    url: str | None = None,
    *,
    codec: Codec[V] | None = None,
    name: str = DEFAULT_NAME,
    ring_slots: int = RING_SLOTS,
    clock: Clock | None = None,
    retain: str | float | timedelta | None = None,
    writer: str | None = None,
    commit_timeout: float = COMMIT_TIMEOUT_S,
    read_timeout: float | None = None,
    max_clock_skew: float = MAX_CLOCK_SKEW_S,
    create: bool = True,
    archive: str | None = None,
    storage: Mapping[str, Any] | None = None,
    hooks: Hooks | Iterable[Hooks] | None = None,
    stats: bool = False,
    force_fork: bool = False,
    **options: Any,
) -> SnapshotKV[V]:
    """Open a store; create it if it does not exist. One round trip if it exists.

    `url` is `memory:` (private), `memory:NAME` (shared in the process), `lmdb:PATH` or
    `etcd://HOST:PORT,HOST:PORT`; without it, the environment's `SNAPKV_STORE`. `codec`
    encodes and decodes values (`snapkv.codecs`), as `SnapshotKV.with_codec`. `name` separates
    stores in one engine. `ring_slots` is how many of the newest commits answer lookups without a
    round trip. `retain` (such as "7d") makes commits compact older history, of the whole engine.
    `writer` is the name of the writer in the commit log (default user@host); a commit may name
    another one. Seconds: `commit_timeout`, `max_clock_skew`, and `read_timeout`, which bounds the
    opening and each read without a `timeout` of its own (None: only each request is bounded, see
    the class). `archive` is the URL of this store's archive, which answers what is older than
    compaction: a folder, `s3://BUCKET/PATH`, `gs://` or `az://`; `storage` are options of its
    object store. That costs two requests there, and a round trip more. `hooks` are called while the
    store works (see `snapkv.hooks`). With `stats=True`, `stats()` also counts lookups, for less
    than a microsecond each. Stores with the machine's clock (`clock=None`) issue timestamps above
    all that any of them has issued or seen, within `max_clock_skew`; see `commit_after`.
    A record of another source rejects commits (`ReadOnlyError`), because one ends its recording;
    with `force_fork=True` it takes them, and becomes a store of its own.
    Further options are the engine's: for lmdb `durability` ("sync",
    "relaxed", "none"), `map_bytes`, `mode` (permissions of the files of a new store, 0o600),
    `request_bytes_max`; for etcd the login (`user`, `password`), TLS (`tls`, `ca_cert`, `cert`,
    `key`) and the server's limits (`max_request_bytes`, `max_txn_ops`): `docs/etcd.md` lists them.

    Raises `InvalidOptionError`, `InvalidTypeError` for an unknown option, `StoreNotFoundError`
    (with `create=False`), `ArchiveError`, `StoreRestoredError` (the archive is of another history),
    `FormatError`, `NotAStoreError`, `CorruptStoreError`, `ReadOnlyError`,
    `EngineUnavailableError`, `ReadTimeoutError`, `AccessDeniedError`.
    """
    if storage is not None and archive is None:
        options["storage"], storage = storage, None  # of an archive: URL
    settings = Settings(
        name=name,
        ring_slots=ring_slots,
        clock=clock,
        retain=retain,
        writer=writer,
        commit_timeout=commit_timeout,
        read_timeout=read_timeout,
        max_clock_skew=max_clock_skew,
        create=create,
        archive=archive,
        storage=storage,
        hooks=hooks,
        stats=stats,
        force_fork=force_fork,
    )
    url = environment_url() if url is None else url
    if codec is not None:
        Decoding(codec)  # checks it before anything is opened
    home = settings.layout.ts
    engine = partial(open_engine, url, create=create, options=options, home=home)
    store = _store(url, engine, settings)
    if codec is not None:
        return store.with_codec(codec)
    return store  # type: ignore[return-value]  # of bytes


def environment_url() -> str:
    """Return the URL of the environment. Raises `InvalidOptionError` without one."""
    url = os.environ.get(STORE_VARIABLE)
    if not url:
        raise InvalidOptionError(
            f"open() needs a URL, and the environment has no {STORE_VARIABLE}: "
            "set that, or pass a URL such as lmdb:./meta"
        )
    return url


def open_on(engine: Engine, **options: Any) -> SnapshotKV:
    """Open a store on an engine, which is closed with it; `options` as for `open`.

    >>> from snapkv.engine.memory import MemoryEngine
    >>> with open_on(MemoryEngine(), name="plans") as store:
    ...     timestamp = store.save("a", b"1")

    Raises as `open`, after closing the engine.
    """
    with ExitStack() as on_error:
        on_error.callback(engine.close)
        check_known(options, [each.name for each in fields(Settings) if each.init])
        settings = Settings(**options)
        on_error.pop_all()
    return _store(engine.url, lambda: engine, settings)


def open_archive(
    url: str, *, storage: Mapping[str, Any] | None = None, **options: Any
) -> SnapshotKV:
    """Open an archive alone, read-only: no server is needed.

    `url` is a folder, `s3://BUCKET/PATH`, `gs://` or `az://`; `storage` are options of its object
    store, whose credentials come from the environment otherwise. `options` as for `open`. Two
    requests. The same as `open("archive:" + url)`.

    Raises `ArchiveError` if nothing was recorded there, and as `open`. Writes raise
    `ReadOnlyError`.
    """
    check_text("url", url)
    return open(f"archive:{url}", codec=None, storage=storage, **options)


def from_etcd3(
    client: Any, *, user: str | None = None, password: str | None = None, **options: Any
) -> SnapshotKV:
    """Open a store through an `etcd3` client (python-etcd3 0.12) that a service has.

    The client's channel and token are used. `user` and `password` are needed to renew a token,
    because the client does not keep them; environment variables are not used for them. Closing the
    store leaves the client open. A client has one endpoint, so failover is impossible, and it
    cannot be used in a forked child. `options` as for `open`; of etcd's, only the server's
    limits, such as `max_txn_ops`. Needs the extra `etcd3`.

        client = etcd3.client(host="localhost", port=2379)
        store = snapkv.from_etcd3(client, name="catalogue")

    Raises `InvalidTypeError` if `client` is not such a client, and as `open`.
    """
    from snapkv.engine.etcd.etcd3_adapter import engine_on

    check_known(options, (*COMMON_OPTIONS, "storage", *LIMITS))
    layout = Layout(options.get("name", DEFAULT_NAME))
    limits = {option: options.pop(option) for option in LIMITS if option in options}
    given = EtcdOptions(user=user, password=password, **limits)
    return open_on(engine_on(client, layout.ts, given), **options)


def _store(url: str, engine: Callable[[], Engine], settings: Settings) -> SnapshotKV:
    make = partial(
        StoreWriter,
        writer=settings.writer_name,
        commit_timeout_s=settings.commit_timeout,
        max_clock_skew_ms=settings.skew_ms,
        retain_ms=settings.retain_ms,
        force_fork=settings.force_fork,
    )
    core = open_reader(make, url, engine, settings)
    store = SnapshotKV(core)
    if core.notify is not None:
        core.notify(OpenEvent(core.notify.store, store))
    return store


def open_reader(
    make: Callable[..., R], url: str, opener: Callable[[], Engine], settings: Settings
) -> R:
    """Return what `make` makes of the parts of an open store; close the engine if that fails."""
    seconds = settings.read_timeout
    with nullcontext() if seconds is None else within(seconds), ExitStack() as on_error:
        engine = opener()
        on_error.callback(engine.close)
        if settings.archive is not None:
            from snapkv.archive.live_and_archive import joined  # it needs pyarrow

            engine = joined(engine, settings.archive, settings.storage)
        layout, clock = _layout(engine, settings), settings.hybrid
        tracker = Tracker(
            engine,
            layout.ts,
            ring_slots=settings.ring_slots,
            on_seen=clock.merge,
            unmarked=clock.unmarked,
        )
        timeline = Timeline(tracker)
        ts, stamp, record, header = open_keys(
            engine, layout, settings.writer_name, create=settings.create
        )
        if (check := getattr(engine, "check_source", None)) is not None:  # it has an archive
            check(layout, record, ts.create_revision)
        tracker.open(ts, header)
        notify = None
        if settings.checked_hooks:
            notify = Notifier(settings.checked_hooks, StoreLabel(url, layout.name))
        counted = settings.stats or (notify is not None and notify.counts_lookups)
        reader = make(
            url,
            engine,
            layout,
            record,
            clock,
            timeline,
            read_timeout=settings.read_timeout,
            notify=notify,
            meter=Meter(timeline, notify) if counted else None,
        )
        if (report := getattr(engine, "report_failovers", None)) is not None:
            report(reader.failed_over)
        if isinstance(reader, StoreWriter):
            reader.may_be_record = stamp.source is not None
            reader.warn_if_ahead()
        on_error.pop_all()
    return reader


# --- the two keys that make a store of an engine's keys ---

OPEN_TRIES = 3
OPEN_TIMEOUT_S = 10.0


def open_keys(
    engine: Engine, layout: Layout, writer: str, *, create: bool
) -> tuple[KeyValue, StampRecord, FormatRecord, Header]:
    """Return the two keys of a store and what they say, and the header; made if need be.

    One round trip for a store that exists. Raises `StoreNotFoundError` (with `create=False`),
    `FormatError`, `NotAStoreError`, `CorruptStoreError`.
    """
    for _ in range(OPEN_TRIES):
        answer = engine.read([Range(layout.ts), Range(layout.format)])
        stamps, formats = answer.results
        ts = stamps.kvs[0] if stamps.kvs else None
        if formats.kvs:
            record = FormatRecord.decode(formats.kvs[0].value)
            if ts is None:
                raise CorruptStoreError(f"store {layout.name!r} has lost its timestamp key")
            return ts, StampRecord.decode(ts.value), record, answer.header
        if ts is not None:
            raise NotAStoreError(
                f"{layout.ts!r} exists without a format record: not a snapkv store"
            )
        if not create:
            raise StoreNotFoundError(f"no store named {layout.name!r} in {engine.url}")
        _create(engine, layout, writer)
    raise CorruptStoreError(f"store {layout.name!r} was created, but cannot be found")


def _create(engine: Engine, layout: Layout, writer: str) -> None:
    """Write both keys if neither exists; another process may do so at the same time."""
    stamp = StampRecord(0, os.urandom(16), writer, "created").encode()
    record = FormatRecord(os.urandom(16)).encode()
    txn = Txn(
        (Compare(layout.ts, Target.CREATE, "=", 0), Compare(layout.format, Target.CREATE, "=", 0)),
        (Put(layout.ts, stamp), Put(layout.format, record)),
    )
    try:
        engine.transact(lambda _: txn, layout.ts, timeout=bounded(OPEN_TIMEOUT_S))
    except Refused as e:
        e.reraise()
    except OutcomeUnknown as e:
        if not e.retry and e.cause is not None:
            raise e.cause from e


def default_writer() -> str:
    """Return user@host, the default writer of commits."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _layout(engine: Engine, settings: Settings) -> Layout:
    """Return the layout of a store; an archive holds one, whose name may be left out."""
    own: Layout = getattr(engine, "layout", settings.layout)
    if settings.name not in (DEFAULT_NAME, own.name):
        raise StoreNotFoundError(
            f"{engine.url} is the archive of {own.name!r}, not of {settings.name!r}"
        )
    return own


# --- opening keys that other programs write, for reading any moment of them ---

Keys = SnapshotKV | Observed[str]
"""Text keys that can be read as of any moment."""

OBSERVE_OPTIONS = ("prefix", "exclude", "name", "ring_slots", "clock", "read_timeout", "hooks")


def observe(
    url: str,
    *,
    prefix: K | Collection[K],
    exclude: K | Collection[K] = (),
    name: str = DEFAULT_NAME,
    ring_slots: int = RING_SLOTS,
    clock: Clock | None = None,
    read_timeout: float | None = None,
    hooks: Hooks | Iterable[Hooks] | None = None,
    **options: Any,
) -> Observed[K]:
    """Open keys that other programs write into an engine, for reading any moment of them.

    `prefix` selects the keys: with a str prefix, keys are text, with a bytes prefix, bytes. An
    empty prefix selects all keys of the engine, including the keys of snapkv's stores. It may be a
    list of prefixes; keys that begin with `exclude`, a prefix or a list, are left out. The times
    come from the store `name` in the same engine: keep `snapkv tick --every 1s` running there, or
    commit to that store. It writes nothing, and creates no store. `url`, `ring_slots`, `clock`,
    `read_timeout` and further options are as for `snapkv.open`. Of `hooks`, only the hooks of
    lookups, watches and failovers are called. One round trip.

    >>> import snapkv
    >>> with snapkv.open("memory:cluster") as ticker:
    ...     tick = ticker.tick()
    ...     with snapkv.observe("memory:cluster", prefix="/registry/") as registry:
    ...         len(registry.at(tick.ts))
    0

    Several prefixes, or exceptions, are watched as one range, from the first key to the last one:
    changes in between cost traffic, and on etcd the user needs the right to read them.

    Raises `StoreNotFoundError` if the store whose ticks it needs does not exist,
    `InvalidOptionError` for an exception outside of the prefixes; and as `open`.
    """
    selection, text = selection_of(prefix, exclude, "prefix")
    space = RawKeyspace(selection.hull, text, None if selection.is_one else selection)
    settings = Settings(
        name=name,
        ring_slots=ring_slots,
        clock=clock,
        read_timeout=read_timeout,
        create=False,
        hooks=hooks,
    )

    def engine() -> Engine:
        return selected(_open_engine(url, settings.layout.ts, options), selection)

    try:
        return Observed(open_reader(Observer, url, engine, settings), space)
    except StoreNotFoundError as e:
        raise StoreNotFoundError(
            f"{e}; observing needs its ticks: keep `snapkv tick --every 1s` running there"
        ) from e


def open_to_read(location: Location, **options: Any) -> Keys:
    """Open what exists at a location, to read it; `options` as for `open`. Raises as that."""
    options |= location.options
    if location.prefix is not None:
        return observe(
            location.url,
            prefix=location.prefix,
            exclude=location.exclude,
            name=location.name,
            **options,
        )
    return open(
        location.url,
        codec=None,
        name=location.name,
        create=False,
        archive=location.archive,
        storage=dict(location.storage) or None,
        **options,
    )


def _open_engine(url: str, home: bytes, options: dict[str, Any]) -> Engine:
    """Open the engine that a URL names; options of `open` without effect here are unknown."""
    try:
        return open_engine(url, create=False, options=options, home=home)
    except InvalidTypeError as e:
        if e.known:  # an option of `open` that has no use here must not be listed
            check_known((e.option,), {*OBSERVE_OPTIONS, *(set(e.known) - set(COMMON_OPTIONS))})
        raise
