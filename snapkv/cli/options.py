"""Options that many commands share, and opening the store that they name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import typer

from snapkv.cli.exits import CommandError
from snapkv.cli.output import patience, tell, tell_warning
from snapkv.cli.typed_times import TypedTime, understood
from snapkv.clock import SystemClock
from snapkv.files import check_mode
from snapkv.observing.observe import Observed, observe
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV
from snapkv.times import When, duration_ms, format_time, revision_of

STORE_VARIABLE = "SNAPKV_STORE"
WRITER_VARIABLE = "SNAPKV_WRITER"
DEFAULT_NAME = "default"
MODE_DIGITS_MAX = 5


def inherited(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Take an option that was not given to the command from before the command."""
    if value or ctx.parent is None or param.name is None:
        return value
    return ctx.parent.params.get(param.name)


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        callback=inherited,
        help="The store, as in lmdb:./meta or etcd://HOST:PORT; else the environment's "
        f"{STORE_VARIABLE}.",
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        callback=inherited,
        help=f"Which store of that place; else {DEFAULT_NAME!r}.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", callback=inherited, help="Answer in JSON, one document on each line."),
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Show times as timestamps, which name one commit exactly.")
]
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="The moment to read: 14:05, yesterday, 1h ago."),
]
NoteOption = Annotated[
    str | None, typer.Option("--note", metavar="TEXT", help="Why, for the commit log.")
]
WriterOption = Annotated[
    str | None,
    typer.Option(
        "--writer",
        metavar="TEXT",
        envvar=WRITER_VARIABLE,
        show_envvar=False,
        help=f"Who, for the commit log; else {WRITER_VARIABLE}, else user@host.",
    ),
]
ObserveOption = Annotated[
    str | None,
    typer.Option(
        "--observe",
        metavar="PREFIX",
        help="Instead of the store's keys: those that others write, at its ticks.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
TimeoutOption = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="Fail (code 7) when opening or reading takes longer than this, such as 500ms or 5s.",
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode",
        metavar="OCTAL",
        help="Who may read and write the new files, such as 640; else their owner only.",
    ),
]
CountOption = Annotated[
    int | None, typer.Option("-n", "--count", metavar="N", min=0, help="At most so many.")
]


def moment(text: str | None) -> When | None:
    """Return the moment that a text on the command line names as a state; None for now.

    Times are settled here, once, so that all of a command means the same moment; and what was
    understood is told. A revision is the store's to settle: see `settled`.
    """
    return _understood(text, lambda typed: typed.state)


def since(text: str | None) -> When | None:
    """Return the time after which a range begins, as `moment`; None for now."""
    return _understood(text, lambda typed: typed.since)


def start(text: str) -> When | None:
    """Return the first instant that a text names, as `moment`; None for now."""
    return _understood(text, lambda typed: typed.start)


def _understood(text: str | None, meant: Callable[[TypedTime], When | None]) -> When | None:
    if text is None:
        return None
    now_ms = SystemClock().now_ms()
    typed = understood(text, now_ms)
    when = meant(typed)
    if echo := typed.echo(when, now_ms):
        tell(f"snapkv: {echo}")
    return when


def settled(store: SnapshotKV | Observed[str], when: When | None) -> When | None:
    """Return a time as it is; of a revision, tell when that was."""
    if revision_of(when) is not None and (timestamp := store.timestamp_of(when or "")):
        tell(f"snapkv: {when} = {format_time(timestamp)}")
    return when


def file_mode(text: str | None) -> int | None:
    """Return the permissions of files on the command line, in octal; None for none."""
    if text is None:
        return None
    digits = text.removeprefix("0o")
    if not 0 < len(digits) <= MODE_DIGITS_MAX or not set(digits) <= set("01234567"):
        raise CommandError(f"--mode takes the digits of chmod, such as 640, not {text!r}")
    return check_mode(int(digits, 8))


def seconds(duration: str | None) -> float | None:
    """Return the seconds of a duration on the command line; None for none."""
    return None if duration is None else duration_ms(duration) / 1_000


@contextmanager
def opened(
    url: str | None,
    name: str | None,
    *,
    create: bool = False,
    writer: str | None = None,
    silent: bool = False,
    timeout: str | None = None,
) -> Iterator[SnapshotKV]:
    """Open the store that the options name, and close it in the end.

    Unless `silent`, it says what it waits for when that takes long.
    """
    place, name = _place(url), DEFAULT_NAME if name is None else name
    limit = seconds(timeout)
    with warnings_told(), nullcontext() if silent else patience(place):
        store = open_store(place, name=name, writer=writer, create=create, read_timeout=limit)
    if create and place.startswith("memory:"):
        tell_warning(f"a store in {place} is gone when this command ends; try lmdb:./meta")
    with store:
        yield store


@contextmanager
def readable(
    url: str | None, name: str | None, observed: str | None, timeout: str | None = None
) -> Iterator[SnapshotKV | Observed[str]]:
    """Open the store that the options name, or what they say is observed, for reading."""
    if observed is None:
        with opened(url, name, timeout=timeout) as store:
            yield store
        return
    place, name = _place(url), DEFAULT_NAME if name is None else name
    limit = seconds(timeout)
    with warnings_told(), patience(place):
        keys = observe(place, prefix=observed, name=name, read_timeout=limit)
    with keys:
        yield keys


def _place(url: str | None) -> str:
    if not url:
        raise CommandError(f"which store? Say --store lmdb:PATH or set {STORE_VARIABLE}")
    return url


@contextmanager
def warnings_told(*, again: bool = False) -> Iterator[None]:
    """Tell warnings of the block in a line each, when it went well; `again`: they were told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in () if again else caught:
        tell_warning(str(warning.message))
