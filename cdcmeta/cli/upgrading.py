"""The command upgrade: moves what an older version stored to where this one writes it."""

from __future__ import annotations

import json
from importlib import import_module

import typer

import snapkv
from cdcmeta.cli.generations import JsonOption, NameOption, StoreOption
from snapkv.cli.kit import patience


def upgrade(store: StoreOption, name: NameOption = "default", as_json: JsonOption = False) -> None:
    """Move rows of CDC logs that an older version wrote to where this version writes them.

    Stop all writers of the older version before. Everything else in a store is read as it is. An
    interrupted upgrade is continued by the next one; a store without such rows stays as it is.
    """
    trimming = import_module("cdcmeta.generations.log_rows")  # needs NumPy
    with patience(store, "cdcmeta"):
        kv = snapkv.open(store, name=name, create=False)
    found = 0
    with kv:
        for space in list(kv.spaces("cdc/")):
            moved = trimming.upgrade(kv.space(space))
            found += moved
            table = space.removeprefix("cdc/")
            if as_json:
                typer.echo(json.dumps({"table": table, "moved": moved}))
            elif moved:
                typer.echo(f"table {table}: {moved:,} log {'row' if moved == 1 else 'rows'} moved")
    if not found and not as_json:
        typer.echo("nothing to upgrade")
