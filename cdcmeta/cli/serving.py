"""The command serve: CouchDB's HTTP interface to the databases of a store."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import snapkv
from cdcmeta.errors import InvalidArgumentError
from snapkv.cli.commands import patience

if TYPE_CHECKING:  # only `serve` needs the extra `http`
    from cdcmeta.couch_http import Login

HOST, PORT, BODY_BYTES_MAX, BULK_BYTES_MAX = "127.0.0.1", 5984, 8_000_000, 128_000_000
"""The defaults of `cdcmeta.couch_http`, repeated here so that --help needs no extra."""
PASSWORD_VARIABLE = "CDCMETA_PASSWORD"  # noqa: S105
PASSWORD_CHARACTERS_MAX = 1_024


Store = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="SNAPKV_STORE",
        help="The store, such as lmdb:./meta or etcd://HOST:PORT; created if missing.",
    ),
]
Name = Annotated[str, typer.Option(help="The name of the store there.")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 takes any free port.")]
User = Annotated[
    str | None,
    typer.Option(envvar="CDCMETA_USER", help="The only user; without one, no login is needed."),
]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="A file whose first line is the user's password; else the environment's "
        f"{PASSWORD_VARIABLE}.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Another host name for requests to a server without a login.",
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow other machines without a login.")]
CorsOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="An origin such as https://app.example, whose pages may use the server from "
        "browsers; * for all pages, without the browser's login.",
    ),
]
MaxBody = Annotated[
    int, typer.Option(metavar="BYTES", min=1, help="The largest document or other body.")
]
MaxBulk = Annotated[
    int, typer.Option(metavar="BYTES", min=1, help="The largest body of _bulk_docs.")
]


def serve(
    store: Store,
    name: Name = "default",
    host: Host = HOST,
    port: Port = PORT,
    user: User = None,
    password_file: PasswordFile = None,
    allow_host: AllowHost = None,
    insecure: Insecure = False,
    cors_origin: CorsOrigin = None,
    max_body: MaxBody = BODY_BYTES_MAX,
    max_bulk: MaxBulk = BULK_BYTES_MAX,
) -> None:
    """Serve the databases of a store with CouchDB's HTTP interface, until Ctrl-C or SIGTERM.

    It is reachable from this machine only, unless --host names another address; then it needs a
    login.
    """
    from cdcmeta.couch_http import Limits, Server
    from cdcmeta.couch_http.auth import checked_origins
    from cdcmeta.couch_http.errors import own_errors
    from snapkv.web import check_exposure

    login = _login(user, password_file)
    limits = Limits(
        body_bytes=max_body,
        bulk_bytes=max_bulk,
        bodies_bytes=max(
            max_bulk * 5 // 4, Limits().bodies_bytes
        ),  # a fifth is reserved for small bodies
    )
    try:
        with own_errors():
            check_exposure(host, login, insecure=insecure)
        origins = checked_origins(cors_origin or ())
    except InvalidArgumentError as e:
        raise typer.BadParameter(str(e)) from e
    logging.basicConfig(format="cdcmeta: %(message)s", level=logging.WARNING)
    with patience(store, "cdcmeta"):
        kv = snapkv.open(store, name=name)
    with kv:
        server = Server(
            kv,
            host=host,
            port=port,
            login=login,
            allow_hosts=allow_host or (),
            insecure=insecure,
            cors_origins=origins,
            limits=limits,
            ready=lambda: _report(f"serving {store} at {server.url}"),
        )
        if login is None and not server.local:
            _report("warning: anyone who reaches this address may read and write")
        server.run()


def _login(user: str | None, password_file: Path | None) -> Login | None:
    """Return the login. The password comes from a file or the environment, never an argument."""
    from cdcmeta.couch_http import Login

    password = os.environ.get(PASSWORD_VARIABLE)
    if password_file is not None:
        with password_file.open(encoding="utf-8") as file:
            password = file.readline(PASSWORD_CHARACTERS_MAX).rstrip("\r\n")
    if user is None and not password and password_file is None:
        return None
    try:
        return Login(user or "", password or "")
    except InvalidArgumentError as e:
        raise typer.BadParameter(
            f"{e}: give --user (or CDCMETA_USER) and --password-file (or {PASSWORD_VARIABLE})"
        ) from e


def _report(line: str) -> None:
    sys.stderr.write(f"cdcmeta: {line}\n")
    sys.stderr.flush()
