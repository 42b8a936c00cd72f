"""Options that many commands share, and opening the store that they name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from snapkv.cli.exits import CommandError
from snapkv.cli.output import tell_warning
from snapkv.clock import SystemClock
from snapkv.entry import open as open_store
from snapkv.observing import Observed, observe
from snapkv.store import SnapshotKV
from snapkv.times import resolve

STORE_VARIABLE = "SNAPKV_STORE"
WRITER_VARIABLE = "SNAPKV_WRITER"
DEFAULT_NAME = "default"


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
    typer.Option("--at", metavar="TIME", help="The moment to read: 2026-01-31T14:05:00Z, -5m."),
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
CountOption = Annotated[
    int | None, typer.Option("-n", "--count", metavar="N", min=0, help="At most so many.")
]


def moment(text: str | None) -> int | None:
    """Return the timestamp of a time on the command line; None for now.

    Relative times are settled here, once, so that all of a command means the same moment.
    """
    if text is None or text.strip() == "now":
        return None
    return resolve(text, SystemClock().now_ms())


@contextmanager
def opened(
    url: str | None, name: str | None, *, create: bool = False, writer: str | None = None
) -> Iterator[SnapshotKV]:
    """Open the store that the options name, and close it in the end."""
    place, name = _place(url), DEFAULT_NAME if name is None else name
    with warnings_told():
        store = open_store(place, name=name, writer=writer, create=create)
    with store:
        yield store


@contextmanager
def readable(
    url: str | None, name: str | None, observed: str | None
) -> Iterator[SnapshotKV | Observed[str]]:
    """Open the store that the options name, or what they say is observed, for reading."""
    if observed is None:
        with opened(url, name) as store:
            yield store
        return
    place, name = _place(url), DEFAULT_NAME if name is None else name
    with warnings_told():
        keys = observe(place, prefix=observed, name=name)
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
