"""The command serve: CouchDB's HTTP interface to the databases of a store."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import snapkv
from cdcmeta.http.auth import Login
from cdcmeta.http.limits import Limits
from cdcmeta.http.server import HOST, PORT, Server

PASSWORD_VARIABLE = "CDCMETA_PASSWORD"  # noqa: S105
PASSWORD_CHARACTERS_MAX = 1_024


def serve(
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="SNAPKV_STORE",
            help="The store, as in lmdb:./meta or etcd://HOST:PORT; made when there is none.",
        ),
    ],
    name: Annotated[str, typer.Option(help="Which store of that place.")] = "default",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = HOST,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: any that is free.")] = PORT,
    user: Annotated[
        str | None, typer.Option(envvar="CDCMETA_USER", help="Who may come in; else everyone.")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A file whose first line is the user's password; else the environment's "
            f"{PASSWORD_VARIABLE}.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name, besides this machine's own, by which it may be asked without a login.",
        ),
    ] = None,
    max_body: Annotated[
        int, typer.Option(metavar="BYTES", min=1, help="The largest body of a request.")
    ] = Limits().body_bytes,
) -> None:
    """Serve the databases of a store as CouchDB would, until Ctrl-C or SIGTERM.

    It listens on this machine only, unless --host says otherwise.
    """
    login = _login(user, password_file)
    logging.basicConfig(format="cdcmeta: %(message)s", level=logging.WARNING)
    with snapkv.open(store, name=name) as kv:
        server = Server(
            kv,
            host=host,
            port=port,
            login=login,
            allow_hosts=allow_host or (),
            limits=Limits(body_bytes=max_body),
            ready=lambda: _tell(f"serving {store} at {server.url}"),
        )
        if login is None and not server.local:
            _tell("warning: anyone who reaches this address may read and write")
        server.run()


def _login(user: str | None, password_file: Path | None) -> Login | None:
    """Return who may come in. A password is never in the list of processes."""
    password = os.environ.get(PASSWORD_VARIABLE)
    if password_file is not None:
        with password_file.open(encoding="utf-8") as file:
            password = file.readline(PASSWORD_CHARACTERS_MAX).rstrip("\r\n")
    if user is None and password_file is None:
        return None
    if not user or ":" in user or not password:
        raise typer.BadParameter(
            f"a login is a user without a colon and a password: --user with --password-file or "
            f"{PASSWORD_VARIABLE}"
        )
    return Login(user, password)


def _tell(line: str) -> None:
    sys.stderr.write(f"cdcmeta: {line}\n")
    sys.stderr.flush()
