"""The command serve: CouchDB's HTTP interface to the databases of a store."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

import snapkv
from cdcmeta.errors import InvalidArgumentError
from snapkv.cli.kit import (
    HOST,
    STORE_VARIABLE,
    AllowHostOption,
    HostOption,
    InsecureOption,
    PortOption,
    login_for,
    password_file_option,
    patience,
    user_option,
)

VARIABLES = "CDCMETA"
PORT, BODY_BYTES_MAX, BULK_BYTES_MAX = 5984, 8_000_000, 128_000_000
"""The defaults of `cdcmeta.couch_http`, repeated here so that --help needs no extra."""

Store = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar=STORE_VARIABLE,
        help="The store, such as lmdb:./meta or etcd://HOST:PORT; created if missing.",
    ),
]
Name = Annotated[str, typer.Option(help="The name of the store there.")]
User = Annotated[str | None, user_option(VARIABLES)]
PasswordFile = Annotated[Path | None, password_file_option(VARIABLES)]
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
    host: HostOption = HOST,
    port: PortOption = PORT,
    user: User = None,
    password_file: PasswordFile = None,
    allow_host: AllowHostOption = None,
    insecure: InsecureOption = False,
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

    login = login_for(host, user, password_file, prefix=VARIABLES, insecure=insecure)
    limits = Limits(
        body_bytes=max_body,
        bulk_bytes=max_bulk,
        bodies_bytes=max(
            max_bulk * 5 // 4, Limits().bodies_bytes
        ),  # a fifth is reserved for small bodies
    )
    try:
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


def _report(line: str) -> None:
    sys.stderr.write(f"cdcmeta: {line}\n")
    sys.stderr.flush()
