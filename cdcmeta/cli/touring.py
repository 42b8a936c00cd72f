"""The command tour: all parts at work on git histories, and checked against git."""

from __future__ import annotations

from typing import Annotated

import typer

INTO = ".tour-all"

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH]...", help="Git clones; without any, the tour makes three small ones."
    ),
]
Into = Annotated[
    str,
    typer.Option(
        metavar="DIR", help="The folder for everything; what an earlier tour left there is removed."
    ),
]
Embedded = Annotated[
    bool, typer.Option("--embedded", help="Use lmdb, also where etcd is installed.")
]
NoSpark = Annotated[
    bool, typer.Option("--no-spark", help="Do not ask Spark, which takes some seconds.")
]


def tour(
    paths: Paths = None, into: Into = INTO, embedded: Embedded = False, no_spark: NoSpark = False
) -> None:
    """Replicate git histories while captures are killed, ask about the past, and compare with git.

    Each commit becomes keys, documents and rows of a CDC log, at git's time. Three captures
    replicate them; two are killed, the ring changes, and the store is compacted. Then the store,
    its archives, duckdb, Spark and the page answer: what did the clones look like, what changed,
    which author changed it, which capture replicated what? If etcd is installed, the tour starts
    an etcd for itself. It ends with 1 when an answer differs from git's. The clones are not
    changed.
    """
    from cdcmeta.tour import run_tour

    raise typer.Exit(run_tour(paths or (), into, embedded=embedded, spark=not no_spark))
