"""The command ui: a page that shows the history of a store, in a browser."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapkv.cli.commands import gives, option
from snapkv.cli.difference_output import RenderingOptions, renders
from snapkv.cli.exits import CommandError
from snapkv.cli.fleet.chosen_fleet import FLEET_VARIABLE, FleetOptions
from snapkv.cli.server_options import (
    HOST,
    AllowHostOption,
    HostOption,
    InsecureOption,
    MetricsOption,
    PortOption,
    login_for,
    metrics_served,
    password_file_option,
    user_option,
)
from snapkv.cli.store_options import StoreOptions, takes
from snapkv.cli.terminal import report, report_warning
from snapkv.rendering.ignored_paths import effective
from snapkv.store.open import STORE_VARIABLE

if TYPE_CHECKING:  # only serving needs an extra, not the help
    from snapkv import ui as pages

VARIABLES = "SNAPKV_UI"
PORT = 7411
"""The default of `snapkv.ui`, repeated here so that --help needs no extra."""

User = Annotated[str | None, user_option(VARIABLES)]
PasswordFile = Annotated[Path | None, password_file_option(VARIABLES)]
AllowRestore = Annotated[bool, option("--allow-restore", "Let people restore from the page.")]


FleetOption = Annotated[
    Path | None,
    option(
        "--fleet FILE",
        "Instead of a store: a fleet, with its members in this TOML or JSON file; else the "
        f"environment's {FLEET_VARIABLE}.",
    ),
]
MembersOption = Annotated[
    str | None, option("--members PATTERNS", "Only these members of the fleet: eu-*,us-1.")
]


@takes("observe", "archive", "audit", "writer", "timeout")
@renders("redact", "kind", "decoder", "ignore")
def ui(
    ctx: typer.Context,
    options: StoreOptions,
    rendering: RenderingOptions,
    fleet: FleetOption = None,
    members: MembersOption = None,
    host: HostOption = HOST,
    port: PortOption = PORT,
    user: User = None,
    password_file: PasswordFile = None,
    allow_host: AllowHostOption = None,
    insecure: InsecureOption = False,
    allow_restore: AllowRestore = False,
    metrics: MetricsOption = None,
) -> None:
    """Serve a page that shows the history of a store in a browser, until Ctrl-C or SIGTERM.

    It is reachable from this machine only, unless --host names another address; then it needs a
    login. It changes nothing, except with --allow-restore.
    """
    from snapkv import ui

    names_store = given(ctx, "store", "name", "observe", "exclude", "archive", "audit")
    file = fleet_file(fleet, members, options.store, names_store=names_store)
    login = login_for(host, user, password_file, prefix=VARIABLES, insecure=insecure)
    opened: AbstractContextManager[pages.Site | pages.FleetSite]
    if file is None:
        opened = open_site(options, rendering, allow_restore)
    else:
        opened = open_fleet_site(file, members, options, rendering, allow_restore)
    logging.basicConfig(format="snapkv: %(message)s", level=logging.WARNING)
    with metrics_served(metrics) as (hooks, _), opened as site:
        server = ui.ui_server(
            site,
            host=host,
            port=port,
            login=login,
            allow_hosts=allow_host or (),
            insecure=insecure,
            ready=lambda: report(f"snapkv: open {server.url}"),
        )
        if login is None and not server.local:
            what = "this store" if file is None else "this fleet"
            report_warning(f"anyone who reaches this address may read {what}")
        if hooks is not None:
            hooks.count_requests(server, "ui")
        server.run()


def fleet_file(
    fleet: Path | None, members: str | None, store: str | None, *, names_store: bool
) -> Path | None:
    """Return the file of the fleet to serve, None for a store.

    That of the environment counts unless the command line names a store: `names_store`.
    """
    if fleet is None and not names_store and (named := os.environ.get(FLEET_VARIABLE)):
        if store:
            raise CommandError(
                f"{STORE_VARIABLE} and {FLEET_VARIABLE} are both set: give --store or --fleet"
            )
        fleet = Path(named)
    if fleet is not None and names_store:
        raise CommandError(
            "--fleet has the places of its members: leave --store, --name, --observe, "
            "--archive and --audit out"
        )
    if fleet is None and members is not None:
        raise CommandError("--members is of a fleet: give --fleet, too")
    return fleet


def given(ctx: typer.Context, *names: str) -> bool:
    """Return whether the command line has one of some options, before or after the command."""
    contexts = (ctx, ctx.parent) if ctx.parent is not None else (ctx,)
    return any(gives(each, name) for each in contexts for name in names)


def shown_values(rendering: RenderingOptions) -> tuple[pages.Rendering, pages.Redaction]:
    """Return how the page shows values, and which it does not; checks these options."""
    from snapkv import ui
    from snapkv.cli.difference_output import Renderer

    read_decoder = Renderer(rendering).read_decoder
    shown = ui.Rendering(rendering.kind, read_decoder, effective(rendering.ignore))
    return shown, ui.Redaction(rendering.redact or ())


@contextmanager
def open_site(
    options: StoreOptions, rendering: RenderingOptions, allow_restore: bool
) -> Iterator[pages.Site]:
    """Open a store, an archive or observed keys; yield their site."""
    from snapkv import ui

    if allow_restore and (options.observe or options.url.startswith("archive:")):
        raise CommandError(
            "--allow-restore needs a store that can be written: --observe and archives are only "
            "read; start without it"
        )
    shown, redaction = shown_values(rendering)
    with options.readable() as keys:
        source = ui.Source(keys, options.location.words, allow_restore, redaction)
        yield ui.Site(source, shown, writer=options.writer, audit=options.audit_log())


@contextmanager
def open_fleet_site(
    file: Path,
    members: str | None,
    options: StoreOptions,
    rendering: RenderingOptions,
    allow_restore: bool,
) -> Iterator[pages.FleetSite]:
    """Open the fleet of a file; yield its site."""
    from snapkv import ui

    shown, redaction = shown_values(rendering)
    chosen = FleetOptions(str(file), members, timeout=options.timeout)
    with (
        chosen.open_members() as opened,
        closing(ui.FleetSite(opened.fleet, file.stem, ("--fleet", str(file)), members)) as site,
    ):
        if allow_restore and not site.stores:
            raise CommandError(
                "--allow-restore needs a store that can be written: the members are archives and "
                "observed; start without it"
            )
        site.rendering, site.redaction = shown, redaction
        site.writable, site.writer = allow_restore, options.writer
        yield site
