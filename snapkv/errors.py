"""Every error of snapkv, grouped by when it happens.

All derive from `SnapKVError`; each also derives from the builtin that a caller would
catch, and carries its facts as attributes, so that nobody needs to parse a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from snapkv.dates import dated


class SnapKVError(Exception):
    """Base of all errors of this package; they can be copied and pickled with their facts."""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[SnapKVError], args: tuple[object, ...], facts: dict[str, object]
) -> SnapKVError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ClockWarning(UserWarning):
    """A store's newest timestamp is far ahead of the clock."""


class PlainPasswordWarning(UserWarning):
    """A password goes over the network without TLS: whoever listens there can read it."""


class ServerWarning(UserWarning):
    """The server is of a version with known bugs that lose or hide data."""


# --- what the caller handed over is not usable; nothing was written --------------------


class InvalidKeyError(SnapKVError, ValueError):
    """The key or prefix cannot be stored: empty, no UTF-8 text, or too long for the engine."""

    def __init__(self, message: str, key: object = None) -> None:
        super().__init__(message)
        self.key = key


class InvalidTypeError(SnapKVError, TypeError):
    """An argument has the wrong type."""


class MissingExtraError(SnapKVError, ModuleNotFoundError):
    """A module that only some uses need is not installed; `extra` installs it."""

    def __init__(self, message: str, extra: str, purpose: str, *, module: str) -> None:
        super().__init__(f"{message}; for {purpose}: pip install 'snapkv[{extra}]'")
        self.extra, self.module = extra, module
        self.name = module


class InvalidTupleError(SnapKVError, ValueError):
    """A tuple that has no encoding, or bytes that are no packed tuple."""


class InvalidTimeError(SnapKVError, ValueError):
    """The argument is no time that can be understood: naive, out of range, or no time at all."""

    def __init__(self, message: str, when: object = None) -> None:
        super().__init__(message)
        self.when = when


class InvalidOptionError(SnapKVError, ValueError):
    """An option has a value that it cannot take."""


class UnknownOptionError(SnapKVError, TypeError):
    """`open()` got an option that this engine does not know; `known` lists those it does."""

    def __init__(self, option: str, known: Iterable[str]) -> None:
        self.option, self.known = option, tuple(sorted(known))
        super().__init__(f"unknown option {option!r}; known are: {', '.join(self.known)}")


class InvalidURLError(SnapKVError, ValueError):
    """The URL of a store names no engine, or not in the form that its engine takes."""

    def __init__(self, message: str, url: str) -> None:
        super().__init__(message)
        self.url = url


class InvalidFileError(SnapKVError, OSError):
    """The file of a dump cannot be read or written at that path."""


class FileMissingError(InvalidFileError, FileNotFoundError):
    """There is no file of a dump at that path, or no folder for it."""


class NotSupportedError(SnapKVError, NotImplementedError):
    """The engine of this store cannot do what was asked; the message names what can."""


class DuplicateKeyError(SnapKVError, ValueError):
    """One commit saves the same key twice."""

    def __init__(self, key: str | bytes) -> None:
        super().__init__(f"key {key!r} is saved twice in one commit")
        self.key = key


class CommitTooLargeError(SnapKVError, ValueError):
    """The commit does not fit into one transaction of this engine; it is never split silently.

    `what` names the limit, `size` is what the commit needs, `limit` what there is.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"commit too large: {what} is {size:,}, the engine takes {limit:,}")
        self.what, self.size, self.limit = what, size, limit


class NestedCommitError(SnapKVError, RuntimeError):
    """A function given to `commit()` tried to commit itself; it must only return operations."""


# --- what was asked for is not there ---------------------------------------------------


class KeyNotFoundError(SnapKVError, KeyError):
    """The key does not exist at that moment."""

    def __init__(self, key: str | bytes, timestamp: int | None = None) -> None:
        super().__init__(key)
        self.key, self.timestamp = key, timestamp

    def __str__(self) -> str:
        at = "" if self.timestamp is None else f" at {dated(self.timestamp)}"
        return f"no key {self.key!r}{at}"


class PrefixNotFoundError(KeyNotFoundError):
    """No key has the prefix, neither now nor at the moment asked for."""

    def __str__(self) -> str:
        then = "" if self.timestamp is None else f", neither now nor at {dated(self.timestamp)}"
        return f"no key begins with {self.key!r}{then}"


class OnlyStoresError(KeyNotFoundError):
    """An import found no foreign key with the prefix: all `left_out` ones are of snapkv stores."""

    def __init__(self, prefix: str, left_out: int) -> None:
        super().__init__(prefix)
        self.left_out = left_out

    def __str__(self) -> str:
        return f"no key {self.key!r} but {self.left_out:,} of snapkv stores, which are left out"


class CompactedError(SnapKVError, LookupError):
    """The moment asked for was compacted away and is in no archive.

    `requested` is the timestamp (or, from an engine, the revision) asked for; `earliest` the
    smallest one that can still be answered, None when it is unknown.
    """

    def __init__(self, requested: int, earliest: int | None, *, unit: str = "timestamp") -> None:
        by_time = unit == "timestamp"
        asked = f"the history at {dated(requested)}" if by_time else f"{unit} {requested}"
        known = "unknown" if earliest is None else dated(earliest) if by_time else str(earliest)
        super().__init__(f"{asked} was compacted; the earliest that remains is {known}")
        self.requested, self.earliest, self.unit = requested, earliest, unit


class FutureRevisionError(SnapKVError, LookupError):
    """The revision does not exist yet."""

    def __init__(self, requested: int, current: int) -> None:
        super().__init__(f"revision {requested} is in the future; the newest is {current}")
        self.requested, self.current = requested, current


class LeaseNotFoundError(SnapKVError, LookupError):
    """The lease has ended or never was; its keys are gone.

    Of a transaction that names several, etcd does not tell which: `lease` is one of them.
    """

    def __init__(self, lease: int) -> None:
        super().__init__(f"lease {lease:x} has ended")
        self.lease = lease


class NotObservedError(SnapKVError, LookupError):
    """Nobody had ticked yet at that moment, so nobody knows what foreign keys were then.

    `requested` is the timestamp asked for, `first` the earliest observed one, None when it is
    unknown.
    """

    def __init__(self, requested: int, first: int | None = None) -> None:
        known = "" if first is None else f"; observed since {dated(first)}"
        super().__init__(f"nobody had ticked yet at {dated(requested)}{known}")
        self.requested, self.first = requested, first


# --- the commit did not happen ---------------------------------------------------------


class ConflictError(SnapKVError, RuntimeError):
    """A guard of the commit did not hold; nothing of the commit was written.

    `failed` holds (guard, found) pairs: `found` is the revision at which the key was last
    written, 0 when it does not exist.
    """

    def __init__(self, failed: Iterable[tuple[Any, int]]) -> None:
        self.failed = tuple(failed)
        what = "; ".join(f"{guard} but found revision {found}" for guard, found in self.failed)
        super().__init__(f"guard failed: {what}")


class CrowdedError(ConflictError):
    """Others commit to the store so often that an import could not come between.

    `tries` is how often it tried to commit `writes` keys, `failed` the guard of the last time;
    `whole` says that `batches=True` would have made smaller commits.
    """

    def __init__(self, conflict: ConflictError, tries: int, writes: int, *, whole: bool) -> None:
        super().__init__(conflict.failed)
        self.tries, self.writes, self.whole = tries, writes, whole
        keys = "1 key" if writes == 1 else f"{writes:,} keys"
        message = f"others commit too often: {tries} tries of a commit of {keys} came too late"
        self.args = (message + ("; batches=True makes smaller ones" if whole else ""),)


class CommitTimeoutError(SnapKVError, TimeoutError):
    """The deadline passed before the commit was sent, or after it was proven never to land."""


class ClockSkewError(SnapKVError, RuntimeError):
    """A clock is too far from another one, or a time asked for too far in the future."""

    def __init__(self, message: str, skew_ms: int, limit_ms: int) -> None:
        super().__init__(message)
        self.skew_ms, self.limit_ms = skew_ms, limit_ms


class StoreNotEmptyError(SnapKVError, FileExistsError):
    """The store has keys where none may be."""


# --- the commit may have happened ------------------------------------------------------


class CommitUnknownError(SnapKVError, TimeoutError):
    """Nobody knows yet whether the commit happened; settle it with `store.resolve(...)`.

    `timestamp` and `nonce` name the commit, `batch` and `guards` the caller's part of it: each
    guard with the stored key it looks at, as `resolve` takes them, and none where no other part
    shares the commit, for then it landed only if they held.
    `may_still_land` is False when the outcome is fixed but the history that would tell was
    compacted; it stays True where nobody could look in time. Keep what `resolve` returns: after a
    later compaction the outcome may no longer be decided.
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


class OutcomeUnknown(SnapKVError, ConnectionError):
    """An engine's word to the committer: sent, and no answer that says what became of it.

    `retry` says whether a new attempt (under a new timestamp) is worth while once this one is
    proven dead; otherwise `cause` is what the caller is told. `answered` says that the engine is
    done with this very request: applied or not, nothing of it can land later, so a look tells.
    """

    def __init__(
        self,
        message: str,
        *,
        retry: bool,
        cause: SnapKVError | None = None,
        answered: bool = False,
    ) -> None:
        super().__init__(message)
        self.retry, self.cause, self.answered = retry, cause, answered


class Refused(SnapKVError, ConnectionRefusedError):
    """An engine's word to the committer: nothing of this was or ever will be applied."""

    def __init__(self, error: SnapKVError) -> None:
        super().__init__(str(error))
        self.error = error


# --- the store or its engine is in a state that we do not work with --------------------


class StoreClosedError(SnapKVError, ValueError):
    """The store was closed."""


class StoreNotFoundError(SnapKVError, FileNotFoundError):
    """There is no store at that place, and the caller did not want one made."""


class NotAStoreError(SnapKVError, ValueError):
    """What is at that place was not written by snapkv."""


class FormatError(SnapKVError, ValueError):
    """The store was written in a format that this version does not read.

    `found` and `supported` are format numbers.
    """

    def __init__(self, message: str, found: object, supported: int) -> None:
        super().__init__(message)
        self.found, self.supported = found, supported


class CorruptStoreError(SnapKVError, OSError):
    """What was read breaks a rule of the format; nothing is repaired silently."""


class StoreRecreatedError(SnapKVError, RuntimeError):
    """The timestamp key was deleted and made again: times and revisions no longer match."""


class StoreRestoredError(SnapKVError, RuntimeError):
    """The engine went back in time (restored from a backup, or replaced) under this reader."""


class NoSpaceError(SnapKVError, OSError):
    """The disk, its quota, or the engine's own space is full."""


class SessionLostError(SnapKVError, ConnectionError):
    """The session's lease has ended: its keys are gone, and others may hold what it held."""


class AccessDeniedError(SnapKVError, PermissionError):
    """The engine knows no such user or password, or the user lacks the right."""


class ReadOnlyError(SnapKVError, PermissionError):
    """The place of the store cannot be written."""


class EngineBusyError(SnapKVError, TimeoutError):
    """Another process holds what this call needs, for longer than the call may wait."""


class EngineUnavailableError(SnapKVError, ConnectionError):
    """The engine cannot be reached."""


class ReadTimeoutError(EngineUnavailableError, TimeoutError):
    """The engine could not answer a read within the `timeout` seconds that it was given."""

    def __init__(self, timeout: float, why: str) -> None:
        super().__init__(f"the read took longer than its timeout of {timeout:g} s: {why}")
        self.timeout = timeout
