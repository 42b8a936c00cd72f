"""The options of `snapkv.record`, checked together, and the status of a recorder."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from snapkv.base.arguments import check_int, check_text, wrong_type
from snapkv.base.clocks import Clock
from snapkv.engine.contract import KeyValue
from snapkv.errors import InvalidOptionError, SnapKVError
from snapkv.hooks import Hooks, checked_hooks
from snapkv.layout import Layout, Prefixes, Selection, selection_of, stamp_of
from snapkv.store.location import DEFAULT_NAME, scheme_of
from snapkv.times import duration_ms, physical_ms

EVERY_MS_MIN = FLUSH_MS_MIN = 100
FLUSH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options of `snapkv.record`, which explains them."""

    url: str
    into: str
    observe: Prefixes | None = None
    exclude: Prefixes = ()
    name: str = DEFAULT_NAME
    into_name: str = DEFAULT_NAME
    every: str | float | timedelta = "1s"
    flush: str | float | timedelta = "60s"
    flush_bytes: int = FLUSH_BYTES
    keep: str | float | timedelta | None = None
    clock: Clock | None = None
    storage: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    into_options: Mapping[str, Any] = field(default_factory=dict)
    hooks: Hooks | Iterable[Hooks] | None = None
    redact: Sequence[str] = ()
    redact_key: str | None = None
    secrets: bool = False

    def __post_init__(self) -> None:
        check_text("url", self.url)
        check_text("into", self.into)
        if self.is_cluster and (self.observe is not None or self.options):
            raise InvalidOptionError(
                f"{self.url!r} has neither observe= nor options=: leave it out"
            )
        if self.is_cluster:
            if wrong := [each for each in self.excluded if each.startswith("/")]:
                raise InvalidOptionError(
                    f"exclude={wrong[0]!r} leaves nothing out: keys of a cluster's API begin "
                    "with the resource, such as leases/"
                )
        elif self.observed is None and self.exclude:
            raise InvalidOptionError("exclude= leaves keys out of what observe= names: give that")
        Layout(self.name)
        Layout(self.into_name)
        if duration_ms(self.every) < EVERY_MS_MIN:
            raise InvalidOptionError(f"every={self.every!r}: give {EVERY_MS_MIN} ms or more")
        if duration_ms(self.flush) < FLUSH_MS_MIN:
            raise InvalidOptionError(f"flush={self.flush!r}: give {FLUSH_MS_MIN} ms or more")
        if self.keep is not None:
            duration_ms(self.keep)
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))  # an iterator is read once
        check_int("flush_bytes", self.flush_bytes, least=1)
        same = self.into == self.url and self.name == self.into_name
        if same and self.observe is None:  # of a prefix, `open_recording` decides
            raise InvalidOptionError(f"into={self.into!r} is the source itself: name another place")
        self._check_redaction()
        if self.storage is not None and self.is_store:
            raise InvalidOptionError(
                f"storage= has options of an object store, and into={self.into!r} is a store: "
                "use into_options="
            )

    def _check_redaction(self) -> None:
        if isinstance(self.redact, str):
            raise wrong_type("redact", "a list of prefixes", self.redact)
        if self.is_cluster:
            if not self.redact:  # of its secrets there are digests anyway
                return
            raise InvalidOptionError(
                "redact= is for keys in an etcd; of a cluster's secrets the record has digests "
                "anyway: leave redact= out, and other resources by exclude="
            )
        if self.redact and self.observe is None:
            raise InvalidOptionError(
                "redact= is for keys of other programs, and a store is recorded: give observe=, or "
                "leave redact= out"
            )
        observed = self.observed and self.observed._replace(excluded=())
        for prefix in self.redact:
            if observed and not observed.has_some(prefix.encode()):  # values would be kept
                raise InvalidOptionError(
                    f"redact={prefix!r} is not the beginning of an observed key, so it would "
                    f"redact nothing of {self.observed}: give a prefix as keys have it, such as "
                    "/registry/secrets/"
                )
        if bool(self.redact) != (self.redact_key is not None):
            raise InvalidOptionError(
                "redact= and redact_key= belong together: give prefixes, and a file for the key of "
                "the digests that the record gets; readers of the record must not have that file"
            )

    @property
    def observed(self) -> Selection | None:
        """The keys of other programs that are recorded; None for a store."""
        if self.observe is None:
            return None
        return selection_of(self.observe, self.exclude, "observe")[0]

    @property
    def excluded(self) -> tuple[str, ...]:
        """The beginnings of names that are not recorded of a cluster."""
        found, _ = selection_of("", self.exclude, "observe")
        return tuple(each.decode() for each in found.excluded)

    @property
    def is_cluster(self) -> bool:
        """Whether the source is a Kubernetes cluster, through its API."""
        return self.url.startswith("kubernetes:")

    @property
    def is_store(self) -> bool:
        """Whether the target is a store, not an archive."""
        return scheme_of(self.into) not in (None, "archive")

    @property
    def archive(self) -> str:
        """The URL of the archive that is written."""
        return self.into.removeprefix("archive:")

    @property
    def place(self) -> str:
        """Where the record is, for people and other machines: a local path with its host."""
        local = {None, "archive", "lmdb"}
        if scheme_of(self.into) not in local or "://" in self.archive:
            return self.into
        path = self.archive.removeprefix("lmdb:")
        return f"{socket.gethostname()}:{os.path.abspath(path)}"


@dataclass(slots=True)
class RecordStatus:
    """What a recorder has done.

    `state` is "starting", "standby" (another recorder leads), "recording" or "waiting" (after
    `error`). `recorded` is the timestamp of the newest durable commit, `seen` of the newest one
    that was read; both with the source's revision. `bytes` are not durable yet. `gaps` are notes on
    what compaction took before it was recorded. `unread` are resources of a cluster that are not
    recorded, each with the reason.
    """

    state: str = "starting"
    commits: int = 0
    changes: int = 0
    recorded: int = 0
    recorded_revision: int = 0
    seen: int = 0
    seen_revision: int = 0
    bytes: int = 0
    gaps: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    error: SnapKVError | None = None
    has_secrets: bool = False
    """Whether it has recorded a Secret of Kubernetes in plain text."""

    def lag_s(self, now_ms: int) -> float:
        """Return how old the newest commit is that is not durable yet; 0.0 if all are."""
        if self.seen <= self.recorded:
            return 0.0
        return max(0.0, (now_ms - physical_ms(self.seen)) / 1_000)

    def note_seen(self, mark: KeyValue) -> None:
        """Note the newest mark that was read."""
        self.seen, self.seen_revision = stamp_of(mark.value), mark.mod_revision

    def note_recorded(self, mark: KeyValue) -> None:
        """Note the newest mark that is durable."""
        self.recorded, self.recorded_revision = stamp_of(mark.value), mark.mod_revision
        self.bytes = 0


Report = Callable[[RecordStatus], None]
