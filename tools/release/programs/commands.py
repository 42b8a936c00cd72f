"""Every command of both programs shows its help, and a store on disk is written and read."""

import sys

from typer.main import get_command

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.cli import app as cdcmeta_cli
from snapkv.cli import app as snapkv_cli

COMMANDS_MIN = 10


def lines(app) -> list[list[str]]:
    """Return the command lines of an app, each without its options."""
    found = [[]]
    for line in found:
        command = get_command(app)
        for word in line:
            command = command.commands[word]
        found += [[*line, word] for word in getattr(command, "commands", ())]
    return found


for cli in snapkv_cli, cdcmeta_cli:
    shown = lines(cli.app)
    failed = [line for line in shown if cli.main([*line, "--help"]) != 0]
    if failed or len(shown) < COMMANDS_MIN:
        sys.exit(f"{cli.__name__}: {len(shown)} commands, without help: {failed}")

with snapkv.open("lmdb:store") as store:
    first = store.save("a", b"1")
    store.save("a", b"2")
    ChangesDB(store, "db").create().put({"_id": "x"})
with snapkv.open("lmdb:store", create=False) as store:
    assert (store.load("a", first), store.load("a")) == (b"1", b"2")
    assert store.check().problems == ()
