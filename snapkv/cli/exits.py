"""The end of a command: exit codes, the code of each error, and signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType

from snapkv import errors as _errors
from snapkv.times import date_text


class Exit(IntEnum):
    """Exit codes of commands; scripts rely on them, so a code never changes its meaning."""

    DONE = 0
    NO = 1
    USAGE = 2
    CONFLICT = 3
    COMPACTED = 4
    NO_STORE = 5
    UNKNOWN = 6
    LATER = 7
    OUTPUT = 8
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS = {
    Exit.DONE: "done",
    Exit.NO: "no: key not found, differences (diff --exit-code), problems (check), "
    "too old (health), declined",
    Exit.USAGE: "an invalid command line, key, time, URL or file",
    Exit.CONFLICT: "a guard did not hold, or the store has keys already",
    Exit.COMPACTED: "the history asked for was compacted, or never observed",
    Exit.NO_STORE: "no usable store: missing, foreign, damaged, too new, read-only, denied",
    Exit.UNKNOWN: "unknown yet whether the commit happened",
    Exit.LATER: "failed for now: busy, unavailable, timed out, disk full, clock off, members of a "
    "fleet behind, a commit that watch cannot deliver",
    Exit.OUTPUT: "the output could not be written; the command may have succeeded",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
    Exit.PIPE_CLOSED: "the reader of the output ended",
}
"""The one table of exit codes: `snapkv --help` prints it, docs/cli.md repeats it."""


class CommandError(Exception):
    """The command cannot be done as asked; ends with `code`."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(message)
        self.code = code


class AdvisedError(CommandError):
    """The command cannot continue: `message` says why, `advice` what to do about it."""

    def __init__(self, message: str, advice: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(f"{message}. {advice}", code)
        self.message, self.advice = message, advice


_CODES: tuple[tuple[type[Exception], Exit], ...] = (
    (_errors.KeyNotFoundError, Exit.NO),
    (_errors.ConflictError, Exit.CONFLICT),
    (_errors.StoreNotEmptyError, Exit.CONFLICT),
    (_errors.CompactedError, Exit.COMPACTED),
    (_errors.HistoryGapError, Exit.COMPACTED),
    (_errors.NotObservedError, Exit.COMPACTED),
    (_errors.StoreNotFoundError, Exit.NO_STORE),
    (_errors.NotAStoreError, Exit.NO_STORE),
    (_errors.FormatError, Exit.NO_STORE),
    (_errors.CorruptStoreError, Exit.NO_STORE),
    (_errors.ArchiveTakenError, Exit.LATER),
    (_errors.ArchiveError, Exit.NO_STORE),
    (_errors.StoreRecreatedError, Exit.NO_STORE),
    (_errors.StoreRestoredError, Exit.NO_STORE),
    (_errors.ReadOnlyError, Exit.NO_STORE),
    (_errors.AccessDeniedError, Exit.NO_STORE),
    (_errors.CommitUnknownError, Exit.UNKNOWN),
    (_errors.CommitTimeoutError, Exit.LATER),
    (_errors.ClockSkewError, Exit.LATER),
    (_errors.NoSpaceError, Exit.LATER),
    (_errors.EngineBusyError, Exit.LATER),
    (_errors.EngineUnavailableError, Exit.LATER),
    (_errors.MembersBehindError, Exit.LATER),
    (_errors.LeaseNotFoundError, Exit.LATER),
    (_errors.SessionLostError, Exit.LATER),
    (_errors.SnapKVError, Exit.USAGE),  # all other errors are about the arguments
    (FileNotFoundError, Exit.USAGE),
    (FileExistsError, Exit.USAGE),
    (PermissionError, Exit.USAGE),
    (IsADirectoryError, Exit.USAGE),
    (NotADirectoryError, Exit.USAGE),
    (OSError, Exit.OUTPUT),
)
"""First match wins."""


def code_of(error: Exception) -> Exit | None:
    """Return the exit code of an error, None for an unexpected error."""
    if isinstance(error, CommandError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


def message_of(error: Exception) -> str:
    """Return the message of an error, with advice in terms of the command line.

    That of an error about a member of a fleet begins with the member's name.
    """
    message = _advice_of(error)
    member = getattr(error, "member", None)
    return message if member is None or message.startswith(member) else f"{member}: {message}"


def _advice_of(error: Exception) -> str:
    if isinstance(error, _errors.CommitUnknownError) and error.may_still_land:
        return f"{error}; 'snapkv resolve {error.timestamp} {error.nonce.hex()}' settles it"
    if isinstance(error, _errors.CompactedError):
        return str(error).replace("archive=", "--archive")
    if isinstance(error, _errors.RevertConflictError):
        return str(error).replace("theirs=True", "--theirs").replace("force=True", "--force")
    if isinstance(error, _errors.ReadOnlyError):
        return str(error).replace("open(force_fork=True)", "--force-fork")
    if isinstance(error, _errors.MembersBehindError):
        return f"{error}; --behind leave-out or stale shows the rest"
    if isinstance(error, _errors.NotObservedError) and error.first is not None:
        return f"{error}: write {date_text(error.first)} or a later time"
    if isinstance(error, OSError) and not isinstance(error, _errors.SnapKVError):
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{error.strerror or error}"
    return str(error)


# --- signals that end a command ---


class Interrupts:
    """Notices Ctrl-C while its block runs in the main thread; it raises `KeyboardInterrupt`.

    If that falls into an import inside an extension module, another error takes its place: pandas,
    which pyarrow imports when it first converts a value, reports a circular import. So `came` says
    whether an error is that of an interrupt.
    """

    came = False

    def __enter__(self) -> Interrupts:
        self._installed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._installed:
            signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise KeyboardInterrupt


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what it began is removed or closed.

    A second one ends the process at once. Where SIGTERM is ignored or has a handler, that stays.
    """

    def hear(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Let handled Ctrl-C and SIGTERM come after a block, which starts a child: none is lost."""
    heard = list[int]()
    is_main = threading.current_thread() is threading.main_thread()
    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    handled = {each: found for each in numbers if callable(found := signal.getsignal(each))}
    for number in handled:
        signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for number in heard[:1]:
            signal.raise_signal(number)
