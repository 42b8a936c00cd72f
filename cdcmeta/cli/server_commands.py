"""The commands that run a server: capture, which replicates tables; serve, CouchDB's HTTP."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import snapkv
from cdcmeta.errors import InvalidArgumentError
from snapkv.cli import command_kit
from snapkv.cli.command_kit import MetricsOption, metrics_served, option
from snapkv.clock import SystemClock
from snapkv.times import understood

LISTEN, CLUSTER, TTL_S, DRAIN_S = "127.0.0.1:0", "default", 10.0, 30.0

StoreOption = Annotated[
    str,
    option(
        "--store URL",
        "The store, such as lmdb:./meta or etcd://HOST:PORT; created if missing.",
        envvar=command_kit.STORE_VARIABLE,
    ),
]
JsonOption = Annotated[bool, option("--json", "Print one JSON object on each line.")]
NameOption = Annotated[str, option("--name", "The name of the store there.")]
ClusterOption = Annotated[str, option("--cluster", "Captures of one cluster share changefeeds.")]
Listen = Annotated[str, option("--listen HOST:PORT", "Where other captures reach it; port 0: any.")]
Advertise = Annotated[
    str | None, option("--advertise HOST:PORT", "The address for other captures, if different.")
]
Label = Annotated[
    str | None, option("--label NAME", "What operators call it; the host by default.")
]
Ttl = Annotated[
    float, option("--ttl SECONDS", "How long its tables stay with it after its death.", min=1.0)
]
Drain = Annotated[
    float, option("--drain SECONDS", "How long it hands over when it is ended.", min=0.0)
]
Functions = Annotated[
    list[str] | None,
    option(
        "--function NAME=MODULE:FUNCTION",
        "A Python function that changefeeds may call as sink call:NAME.",
    ),
]
TlsCa = Annotated[str | None, option("--tls-ca PATH", "The authority of all captures.")]
TlsCert = Annotated[str | None, option("--tls-cert PATH", "This capture's certificate.")]
TlsKey = Annotated[str | None, option("--tls-key PATH", "The key of the certificate.")]
Insecure = Annotated[bool, option("--insecure", "Allow other machines to reach it without TLS.")]
Verbose = Annotated[bool, option("--verbose -v", "Log each decision.")]


def capture(
    store: StoreOption,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
    listen: Listen = LISTEN,
    advertise: Advertise = None,
    label: Label = None,
    ttl: Ttl = TTL_S,
    drain: Drain = DRAIN_S,
    functions: Functions = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
    metrics: MetricsOption = None,
    verbose: Verbose = False,
) -> None:
    """Replicate tables of changefeeds, until Ctrl-C or SIGTERM.

    Start several, on one machine or many: they share the tables, and take over from each other.
    When it is ended, other captures take over its tables first.
    """
    from cdcmeta.scheduler.runtime import Capture
    from cdcmeta.scheduler.transport.grpc_post import GrpcPost, Tls

    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(format="cdcmeta: %(message)s", level=level)
    known = dict(_function(each) for each in functions or ())
    paths = (tls_ca, tls_cert, tls_key)
    if any(paths) and not all(paths):
        raise typer.BadParameter("TLS needs --tls-ca, --tls-cert and --tls-key")
    tls = Tls(tls_ca, tls_cert, tls_key) if tls_ca and tls_cert and tls_key else None
    with ExitStack() as stack:
        hooks, registry = stack.enter_context(metrics_served(metrics, "cdcmeta"))
        kv = stack.enter_context(open_served_store(store, name, hooks=hooks))
        try:
            post = GrpcPost(listen, advertise=advertise, tls=tls, insecure=insecure)
        except InvalidArgumentError as e:
            raise typer.BadParameter(str(e)) from e
        running = Capture(
            kv,
            post,
            label=label or socket.gethostname().split(".")[0],
            cluster=cluster,
            store_url=store,
            store_name=name,
            ttl=ttl,
            functions=known,
        )
        if registry is not None:
            from cdcmeta.metrics import CaptureMetrics

            CaptureMetrics(running, registry=registry)
        _report(f"capture {running.label} listens at {post.address}")
        running.run(_Stop(), drain_s=drain)
    _report("the capture has ended")


class _Stop:
    """Is set by Ctrl-C and SIGTERM, without a lock; the second Ctrl-C interrupts."""

    def __init__(self) -> None:
        self._wanted = False
        signal.signal(signal.SIGTERM, self._hear)
        signal.signal(signal.SIGINT, self._hear)

    def is_set(self) -> bool:
        """Return whether the capture is to end."""
        return self._wanted

    def _hear(self, number: int, frame: Any) -> None:
        if self._wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._wanted = True


def _function(text: str) -> tuple[str, Any]:
    """Return name and function of NAME=MODULE:FUNCTION."""
    name, _, place = text.partition("=")
    module, _, attribute = place.partition(":")
    if not (name and module and attribute):
        raise typer.BadParameter(f"a function is NAME=MODULE:FUNCTION, not {text!r}")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise typer.BadParameter(f"{text!r}: {e}") from e
    return name, found


# --- serve ---

VARIABLES = "CDCMETA"
PORT, BODY_BYTES_MAX, BULK_BYTES_MAX = 5984, 8_000_000, 128_000_000
"""The defaults of `cdcmeta.couch_http`, repeated here so that --help needs no extra."""

User = Annotated[str | None, command_kit.user_option(VARIABLES)]
PasswordFile = Annotated[Path | None, command_kit.password_file_option(VARIABLES)]
CorsOrigin = Annotated[
    list[str] | None,
    option(
        "--cors-origin ORIGIN",
        "An origin such as https://app.example, whose pages may use the server from "
        "browsers; * for all pages, without the browser's login.",
    ),
]
MaxBody = Annotated[int, option("--max-body BYTES", "The largest document or other body.", min=1)]
MaxBulk = Annotated[int, option("--max-bulk BYTES", "The largest body of _bulk_docs.", min=1)]


def serve(
    store: StoreOption,
    name: NameOption = "default",
    host: command_kit.HostOption = command_kit.HOST,
    port: command_kit.PortOption = PORT,
    user: User = None,
    password_file: PasswordFile = None,
    allow_host: command_kit.AllowHostOption = None,
    insecure: command_kit.InsecureOption = False,
    cors_origin: CorsOrigin = None,
    max_body: MaxBody = BODY_BYTES_MAX,
    max_bulk: MaxBulk = BULK_BYTES_MAX,
    metrics: MetricsOption = None,
) -> None:
    """Serve the databases of a store with CouchDB's HTTP interface, until Ctrl-C or SIGTERM.

    It is reachable from this machine only, unless --host names another address; then it needs a
    login.
    """
    from cdcmeta.couch_http import Limits, Server
    from cdcmeta.couch_http.auth import checked_origins

    login = command_kit.login_for(host, user, password_file, prefix=VARIABLES, insecure=insecure)
    limits = Limits(
        body_bytes=max_body,
        bulk_bytes=max_bulk,
        # A fifth is reserved for small bodies.
        bodies_bytes=max(max_bulk * 5 // 4, Limits().bodies_bytes),
    )
    try:
        origins = checked_origins(cors_origin or ())
    except InvalidArgumentError as e:
        raise typer.BadParameter(str(e)) from e
    logging.basicConfig(format="cdcmeta: %(message)s", level=logging.WARNING)
    with (
        metrics_served(metrics, "cdcmeta") as (hooks, _),
        open_served_store(store, name, hooks=hooks) as kv,
    ):
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
        if hooks is not None:
            hooks.count_requests(server, "couch")
        server.run()


@contextmanager
def open_served_store(url: str, name: str, **options: Any) -> Iterator[snapkv.SnapshotKV]:
    """Open a store, with a line on the error stream if that takes long; close it in the end."""
    with command_kit.patience(url, "cdcmeta"):
        kv = snapkv.open(url, name=name, **options)
    with kv:
        yield kv


def time_meant(text: str) -> Any:
    """Return the time that a text names; the error stream has it if the text is not a date."""
    now_ms = SystemClock().now_ms()
    typed = understood(text, now_ms)
    if echo := typed.echo(typed.state, now_ms):
        typer.echo(f"cdcmeta: {echo}", err=True)
    return "-0s" if typed.state is None else typed.state


def _report(line: str) -> None:
    sys.stderr.write(f"cdcmeta: {line}\n")
    sys.stderr.flush()
