"""Every error of snapkv, grouped by when it happens.

All derive from `SnapKVError`. Each also derives from the builtin that a caller would catch, and
has its facts as attributes, so that no caller needs to parse a message.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

E = TypeVar("E", bound=BaseException)

NAMED_MAX = 10
"""The most members of a fleet, or keys, that one message names."""

LOGICAL_BITS = 18
TIMESTAMP_MAX = (1 << 64) - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def date_of(timestamp: int) -> datetime:
    """Return the UTC datetime of a timestamp, to the millisecond."""
    return EPOCH + timedelta(milliseconds=timestamp >> LOGICAL_BITS)


def date_text(timestamp: int) -> str:
    """Return ISO text in UTC with milliseconds.

    >>> date_text(445644802596110336)
    '2023-11-14T22:13:29.903Z'
    """
    return date_of(timestamp).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dated(timestamp: int) -> str:
    """Return a timestamp for a message: its date, and the number itself in brackets.

    >>> dated(445644802596110336)
    '2023-11-14T22:13:29.903Z (445644802596110336)'
    """
    if not 0 <= timestamp <= TIMESTAMP_MAX:  # making an error message must not fail
        return str(timestamp)
    return f"{date_text(timestamp)} ({timestamp})"


class SnapKVError(Exception):
    """Base of all errors of this package; copies and pickles keep their facts.

    `member` names the member of a fleet that the error is about, None for other errors.
    """

    member: str | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[SnapKVError], args: tuple[object, ...], facts: dict[str, object]
) -> SnapKVError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


def another(error: E) -> E:
    """Return a copy of an error, for another caller or another call: the same facts, notes, cause.

    One object that several threads raise mixes their contexts; one that is raised again and again
    has a traceback that grows. An error that cannot be copied is returned itself.
    """
    try:
        found = copy.copy(error)
    except Exception:  # of another library
        return error
    if hasattr(error, "__notes__"):
        found.__notes__ = [*error.__notes__]
    found.__cause__, found.__suppress_context__ = error.__cause__, error.__suppress_context__
    return found


def raise_cause(error: BaseException) -> NoReturn:
    """Raise the cause of the error that is handled; without that as its context, a circle."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


class ClockWarning(UserWarning):
    """A store's newest timestamp is far ahead of the clock."""


class ServerWarning(UserWarning):
    """The server has a version with known bugs, or gets a password over a network without TLS."""


# --- an argument cannot be used; nothing was written ------------------------------------


class InvalidKeyError(SnapKVError, ValueError):
    """A key or prefix is empty, not valid UTF-8, too long, or saved twice in one commit."""

    def __init__(self, message: str, key: object = None) -> None:
        super().__init__(message)
        self.key = key


class InvalidTypeError(SnapKVError, TypeError):
    """An argument has the wrong type, or an option is unknown.

    Of an unknown option, `option` is its name and `known` lists the options that exist.
    """

    def __init__(self, message: str, *, option: str = "", known: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.option, self.known = option, tuple(sorted(known))


class MissingExtraError(SnapKVError, ModuleNotFoundError):
    """An optional dependency is not installed; `extra` names what installs it."""

    def __init__(self, message: str, extra: str, purpose: str, *, module: str) -> None:
        super().__init__(f"{message}; for {purpose}: pip install 'snapkv[{extra}]'")
        self.extra, self.module = extra, module
        self.name = module


class InvalidTupleError(SnapKVError, ValueError):
    """A tuple cannot be encoded, or bytes are not a packed tuple."""


class InvalidTimeError(SnapKVError, ValueError):
    """A time is naive, out of range, or not written as a time."""

    def __init__(self, message: str, when: object = None) -> None:
        super().__init__(message)
        self.when = when


class InvalidOptionError(SnapKVError, ValueError):
    """The value of an option, such as a URL or a number, cannot be used."""


class InvalidValueError(SnapKVError, ValueError):
    """The codec of a view cannot encode a value; `key` and `codec` name the two."""

    def __init__(self, message: str, *, key: object = None, codec: str = "") -> None:
        super().__init__(message)
        self.key, self.codec = key, codec


class InvalidFileError(SnapKVError, OSError):
    """The file of a dump or backup cannot be read or written."""


class FileMissingError(InvalidFileError, FileNotFoundError):
    """The file of a dump, or its folder, does not exist."""


class NotSupportedError(SnapKVError, NotImplementedError):
    """The call is not possible with this engine, or at this point; the message says what is."""


class CommitTooLargeError(SnapKVError, ValueError):
    """The commit does not fit into one transaction of this engine; it is never split silently.

    `what` names the measure, `size` is what the commit needs, `limit` what the engine takes.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"commit too large: {what} is {size:,}, and the engine accepts at most {limit:,}"
        )
        self.what, self.size, self.limit = what, size, limit


# --- the key, the moment or the revision does not exist ---------------------------------


class KeyNotFoundError(SnapKVError, KeyError):
    """The key does not exist at that moment, or no key has the prefix."""

    def __init__(self, key: str | bytes, timestamp: int | None = None, *, reason: str = "") -> None:
        super().__init__(key)
        self.key, self.timestamp, self.reason = key, timestamp, reason

    def __str__(self) -> str:
        at = "" if self.timestamp is None else f" at {dated(self.timestamp)}"
        return self.reason or f"no key {self.key!r}{at}"


class DecodeError(SnapKVError, ValueError):
    """A stored value is not what the codec of a view reads; the store's own reads return its bytes.

    `key`, `revision` (the one that wrote the value) and `codec` name the value and its reader.
    """

    def __init__(self, key: object, revision: int, codec: str, why: str) -> None:
        super().__init__(
            f"the codec {codec} cannot decode the value of {key!r} at revision {revision}: {why}"
        )
        self.key, self.revision, self.codec = key, revision, codec


class CompactedError(SnapKVError, LookupError):
    """The moment was compacted, and no archive has it; or it is before a record or archive begins.

    `requested` is the timestamp (or, from an engine, the revision) that was asked for; `earliest`
    is the smallest one that can still be read, None when it is unknown. `archive` says what the
    archive of the store has, or that the store is a record; None for any other store.
    """

    def __init__(
        self,
        requested: int,
        earliest: int | None,
        *,
        unit: str = "timestamp",
        archive: str | None = None,
    ) -> None:
        by_time = unit == "timestamp"
        asked = f"the history at {dated(requested)}" if by_time else f"{unit} {requested}"
        known = "unknown" if earliest is None else dated(earliest) if by_time else str(earliest)
        lost = "was compacted, and no archive= has it"
        why = lost if archive is None else f"is not kept, and {archive}"
        super().__init__(f"{asked} {why}; the earliest that remains is {known}")
        self.requested, self.earliest, self.unit, self.archive = requested, earliest, unit, archive


class HistoryGapError(SnapKVError, LookupError):
    """The moment is in a gap of an archive: it was compacted before it was recorded.

    The changes of the gap fell between the timestamps `after` and `before`; both can be read.
    """

    def __init__(self, after: int, before: int) -> None:
        super().__init__(
            f"the archive has a gap between {dated(after)} and {dated(before)}: what changed there "
            "was compacted before it was recorded; read one of these two moments"
        )
        self.after, self.before = after, before


class FutureRevisionError(SnapKVError, LookupError):
    """The revision does not exist yet."""

    def __init__(self, requested: int, current: int) -> None:
        super().__init__(f"revision {requested} is in the future; the newest is {current}")
        self.requested, self.current = requested, current


class LeaseNotFoundError(SnapKVError, LookupError):
    """The lease has ended or never existed; it has no keys.

    etcd does not report which lease of a transaction is missing: then `lease` is one of them.
    """

    def __init__(self, lease: int) -> None:
        super().__init__(f"lease {lease:x} has ended; open a new session, or put its key again")
        self.lease = lease


class NotObservedError(SnapKVError, LookupError):
    """No tick had been committed yet at that moment, so the state of foreign keys is unknown.

    `requested` is the timestamp that was asked for, `first` the earliest observed one, None when
    it is unknown.
    """

    def __init__(self, requested: int, first: int | None = None) -> None:
        known = "" if first is None else f"; observed since {dated(first)}"
        super().__init__(f"no tick had been committed yet at {dated(requested)}{known}")
        self.requested, self.first = requested, first


class MembersBehindError(SnapKVError, LookupError):
    """Some members of a fleet have no final state at that moment.

    `members` maps their names to the reason; `timestamp` is the moment.
    """

    def __init__(self, timestamp: int, members: Mapping[str, str], *, asked: str = "") -> None:
        by_reason: dict[str, list[str]] = {}
        for name, why in list(members.items())[:NAMED_MAX]:
            by_reason.setdefault(why, []).append(name)
        listed = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
        if (more := len(members) - NAMED_MAX) > 0:
            listed += f"; and {more:,} more"
        what = asked or f"{dated(timestamp)} is not final"
        super().__init__(f"{what} on {len(members):,} of the fleet's members: {listed}")
        self.timestamp, self.members = timestamp, dict(members)


# --- the commit did not happen ---------------------------------------------------------


class ConflictError(SnapKVError, RuntimeError):
    """A guard of the commit did not hold; nothing of the commit was written.

    `failed` holds (guard, found) pairs: `found` is the revision at which the key was last
    written, 0 when it does not exist. `tries` counts the commits that a call such as `update` made.
    """

    def __init__(
        self, failed: Iterable[tuple[Any, int]], message: str = "", *, tries: int = 1
    ) -> None:
        self.failed, self.tries = tuple(failed), tries
        what = "; ".join(f"{guard} but found revision {found}" for guard, found in self.failed)
        super().__init__(message or f"guard failed: {what}")


class RevertConflictError(ConflictError):
    """Keys that a revert would put back changed again later; nothing was written.

    `conflicts` maps each of them to the newest commit that changed it; `named` is that as text.
    """

    def __init__(self, conflicts: Mapping[str, Any]) -> None:
        self.conflicts = dict(conflicts)
        named = [
            f"{key!r} at {dated(each.ts)} by {each.writer}"
            + (f" ({each.note!r})" * bool(each.note))
            for key, each in list(conflicts.items())[:NAMED_MAX]
        ]
        named += [f"{len(conflicts) - NAMED_MAX:,} more"] if len(conflicts) > NAMED_MAX else []
        self.named = "; ".join(named)
        why = f"what the commits changed was changed again later: {self.named}"
        advice = "theirs=True leaves such keys as they are, force=True puts them back, too"
        super().__init__((), f"{why}: {advice}")


class CommitTimeoutError(SnapKVError, TimeoutError):
    """The deadline passed, and the commit did not and will not happen."""


class ClockSkewError(SnapKVError, RuntimeError):
    """A clock differs too much from another one, or a time is too far in the future."""

    def __init__(self, message: str, skew_ms: int, limit_ms: int) -> None:
        super().__init__(message)
        self.skew_ms, self.limit_ms = skew_ms, limit_ms


class StoreNotEmptyError(SnapKVError, FileExistsError):
    """The store has keys where the call needs an empty store or prefix."""


# --- the commit may have happened ------------------------------------------------------


class CommitUnknownError(SnapKVError, TimeoutError):
    """It is not known whether the commit happened; `store.resolve(...)` finds out.

    `timestamp` and `nonce` identify the commit, `batch` and `guards` the caller's member of
    its group, as `resolve` takes them. Each guard comes with its stored key; `guards` is empty when
    the commit has no other parts, because then it landed only if they held.
    `may_still_land` is False when the outcome is fixed but the history that shows it was
    compacted; it is True when snapkv could not find out in time. Keep the answer of `resolve`:
    after a later compaction the outcome may be impossible to find.
    """

    def __init__(
        self,
        timestamp: int,
        nonce: bytes,
        *,
        may_still_land: bool,
        batch: int = 0,
        guards: tuple[Any, ...] = (),
        why: str = "",
    ) -> None:
        state = "may still land" if may_still_land else "can no longer be decided"
        super().__init__(
            f"outcome of commit {dated(timestamp)}, nonce {nonce.hex()}, unknown: "
            f"it {state}{why and ': ' + why}"
        )
        self.timestamp, self.nonce, self.may_still_land = timestamp, nonce, may_still_land
        self.batch, self.guards = batch, guards


# --- the store or its engine cannot be used in its present state -------------------------


class StoreClosedError(SnapKVError, ValueError):
    """The store was closed."""


class StoreNotFoundError(SnapKVError, FileNotFoundError):
    """The URL holds no store, and the call does not create one."""


class NotAStoreError(SnapKVError, ValueError):
    """The URL names data that is not a store of snapkv."""


class FormatError(SnapKVError, ValueError):
    """A store, dump or archive has a format that this version does not read.

    `found` and `supported`, the newest that this version reads, are format numbers.
    """

    def __init__(self, what: str, found: object, supported: int) -> None:
        is_newer = isinstance(found, int) and found > supported
        advice = "a newer snapkv" if is_newer else "the version that wrote it"
        super().__init__(
            f"{what} has format {found!r}, and this version reads {supported}: use {advice}"
        )
        self.found, self.supported = found, supported


class CorruptStoreError(SnapKVError, OSError):
    """Stored bytes break a rule of the format; snapkv repairs nothing silently."""


class ArchiveError(SnapKVError, OSError):
    """The files of an archive are missing, damaged, or of another store."""


class ArchiveTakenError(ArchiveError):
    """Another recorder writes to the archive: this one has to stop."""


class StoreRecreatedError(SnapKVError, RuntimeError):
    """The timestamp key was deleted and created anew: times and revisions no longer match."""


class StoreRestoredError(SnapKVError, RuntimeError):
    """The engine was replaced by an older copy of itself while this store was open."""


class NoSpaceError(SnapKVError, OSError):
    """The disk, its quota, or the engine's own space is full."""


class SessionLostError(SnapKVError, ConnectionError):
    """The session's lease has ended: its keys are gone, and another session may lead."""


class AccessDeniedError(SnapKVError, PermissionError):
    """The engine rejects the user or the password, or the user lacks the right."""


class ReadOnlyError(SnapKVError, PermissionError):
    """The store cannot be written where it is, or is a record, which only its recorder writes."""


class EngineBusyError(SnapKVError, TimeoutError):
    """Another thread or process holds a lock for longer than this call may wait."""


class EngineUnavailableError(SnapKVError, ConnectionError):
    """The engine cannot be reached."""


class ReadTimeoutError(EngineUnavailableError, TimeoutError):
    """The engine did not answer a read within `timeout` seconds."""

    def __init__(self, timeout: float, why: str) -> None:
        super().__init__(f"the read took longer than its timeout of {timeout:g} s: {why}")
        self.timeout = timeout
