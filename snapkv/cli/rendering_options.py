"""The options that say how values and differences are shown, declared once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from snapkv.cli.exits import CommandError
from snapkv.cli.options import grouped
from snapkv.rendering import KINDS
from snapkv.rendering.lines import View

REDACT_VARIABLE = "SNAPKV_REDACT"


@dataclass(frozen=True, slots=True)
class Rendering:
    """The options of values and differences, in the order in which the help lists them."""

    stat: Annotated[bool, typer.Option("--stat", help="Only count what differs in each key.")] = (
        False
    )
    name_only: Annotated[bool, typer.Option("--name-only", help="Only print the keys.")] = False
    unified: Annotated[
        int | None,
        typer.Option(
            "--unified", "-U", metavar="N", min=0, help="Print N equal lines around each change."
        ),
    ] = None
    full: Annotated[
        bool, typer.Option("--full", help="Print all lines of the values that differ.")
    ] = False
    side_by_side: Annotated[
        bool, typer.Option("--side-by-side", help="Print before and after beside each other.")
    ] = False
    word: Annotated[bool, typer.Option("--word", help="Mark the words that differ.")] = False
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="PATH",
            help="A path that does not count, such as metadata.labels; kubernetes is a preset.",
        ),
    ] = None
    redact: Annotated[
        list[str] | None,
        typer.Option(
            "--redact",
            metavar="PREFIX",
            help="Print no values of keys that begin so, nor of those that the environment's "
            f"{REDACT_VARIABLE} lists.",
        ),
    ] = None
    kind: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="KIND",
            autocompletion=lambda: list(KINDS),
            help=f"Read values as {', '.join(KINDS)}, or by an installed decoder.",
        ),
    ] = None
    decoder: Annotated[
        str | None,
        typer.Option(
            "--decoder", metavar="COMMAND", help="Read values by a command, such as 'auger decode'."
        ),
    ] = None

    def __post_init__(self) -> None:
        given = {
            "--stat": self.stat,
            "--name-only": self.name_only,
            "--full": self.full,
            "--side-by-side": self.side_by_side,
            "--word": self.word,
        }
        chosen = [option for option, on in given.items() if on]
        if len(chosen) > 1:
            raise _exclude(chosen)
        if self.full and self.unified is not None:
            raise _exclude(["--full", "--unified"])
        if self.kind is not None and self.decoder is not None:
            raise _exclude(["--as", "--decoder"])

    @property
    def redacted(self) -> tuple[str, ...]:
        """Prefixes of keys whose values are not shown; an option never uncovers the variable's."""
        return (*os.environ.get(REDACT_VARIABLE, "").split(), *(self.redact or ()))

    @property
    def asked(self) -> bool:
        """Whether an option says how differences are shown."""
        return self.stat or self.name_only or self.view != "auto"

    @property
    def view(self) -> View:
        """The view of `snapkv.rendering`."""
        if self.side_by_side or self.word or self.full:
            return "side-by-side" if self.side_by_side else "words" if self.word else "full"
        return "auto" if self.unified is None else "unified"

    @property
    def shapes(self) -> bool:
        """Whether an option says how differences are found or laid out, or values are read."""
        return self.decodes or bool(self.ignore) or self.view != "auto"

    @property
    def decodes(self) -> bool:
        """Whether an option says how values are read."""
        return self.kind is not None or self.decoder is not None


def _exclude(options: list[str]) -> CommandError:
    return CommandError(f"{' and '.join(options)} exclude each other: give one of them")


def renders(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds the options `names` of `Rendering`; without names, all.

    The command gets them as its argument `rendering`.
    """
    return grouped(Rendering, "rendering", set(names) or None)
