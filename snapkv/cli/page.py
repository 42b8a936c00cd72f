"""The command ui: a page that shows the history of a store, in a browser."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from snapkv.cli.exits import CommandError
from snapkv.cli.options import StoreOptions, takes
from snapkv.cli.rendering import Rendering, renders
from snapkv.cli.serving import (
    HOST,
    AllowHostOption,
    HostOption,
    InsecureOption,
    PortOption,
    login_for,
    password_file_option,
    user_option,
)
from snapkv.cli.terminal import tell, tell_warning
from snapkv.store.open import DEFAULT_NAME

VARIABLES = "SNAPKV_UI"
PORT = 7411
"""The default of `snapkv.ui`, repeated here so that --help needs no extra."""

User = Annotated[str | None, user_option(VARIABLES)]
PasswordFile = Annotated[Path | None, password_file_option(VARIABLES)]
AllowRestore = Annotated[
    bool, typer.Option("--allow-restore", help="Let people restore from the page.")
]


@takes("observe", "archive", "writer", "timeout")
@renders("redact", "kind", "decoder", "ignore")
def ui(
    options: StoreOptions,
    rendering: Rendering,
    host: HostOption = HOST,
    port: PortOption = PORT,
    user: User = None,
    password_file: PasswordFile = None,
    allow_host: AllowHostOption = None,
    insecure: InsecureOption = False,
    allow_restore: AllowRestore = False,
) -> None:
    """Serve a page that shows the history of a store in a browser, until Ctrl-C or SIGTERM.

    It is reachable from this machine only, unless --host names another address; then it needs a
    login. It changes nothing, except with --allow-restore.
    """
    from snapkv import ui
    from snapkv.cli.differences import Renderer

    if allow_restore and (options.observe is not None or options.url.startswith("archive:")):
        raise CommandError(
            "--allow-restore needs a store that can be written: --observe and archives are only "
            "read; start without it"
        )
    login = login_for(host, user, password_file, prefix=VARIABLES, insecure=insecure)
    read_decoder = Renderer(rendering).read_decoder  # it checks the options
    shown = ui.Rendering(rendering.kind, read_decoder, tuple(rendering.ignore or ()))
    redaction = ui.Redaction(rendering.redact or ())
    logging.basicConfig(format="snapkv: %(message)s", level=logging.WARNING)
    with options.readable() as keys:
        source = ui.Source(keys, words_of(options), allow_restore, redaction)
        server = ui.ui_server(
            ui.Site(source, shown),
            host=host,
            port=port,
            login=login,
            allow_hosts=allow_host or (),
            insecure=insecure,
            ready=lambda: tell(f"snapkv: open {server.url}"),
        )
        if login is None and not server.local:
            tell_warning("anyone who reaches this address may read this store")
        server.run()


def words_of(options: StoreOptions) -> tuple[str, ...]:
    """Return the options that name the same store on another command line."""
    words = ["--store", options.url]
    if options.store_name != DEFAULT_NAME:
        words += ["--name", options.store_name]
    if options.observe is not None:
        words += ["--observe", options.observe]
    if options.archive is not None:
        words += ["--archive", options.archive]
    return tuple(words)
