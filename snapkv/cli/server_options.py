"""The options of commands that serve HTTP: the address, the login, and metrics."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapkv.cli.commands import option
from snapkv.cli.terminal import report
from snapkv.errors import InvalidOptionError

if TYPE_CHECKING:  # only serving needs an extra, not the help
    from snapkv.metrics import Metrics
    from snapkv.web import Login

HOST = "127.0.0.1"
"""The default of `snapkv.web`, repeated here so that --help needs no extra."""
PASSWORD_CHARACTERS_MAX = 1_024

HostOption = Annotated[str, option("--host", "The address to listen on.")]
PortOption = Annotated[int, option("--port", "The port; 0 takes any free port.", min=0, max=65_535)]
AllowHostOption = Annotated[
    list[str] | None,
    option("--allow-host NAME", "Another host name for requests to a server without a login."),
]
InsecureOption = Annotated[bool, option("--insecure", "Allow other machines without a login.")]
MetricsOption = Annotated[
    str | None,
    option("--metrics HOST:PORT", "Serve metrics for Prometheus at this address, without a login."),
]


def user_option(prefix: str) -> Any:
    """Return the option --user; the environment's variable is `prefix` with _USER."""
    return typer.Option(
        "--user", envvar=f"{prefix}_USER", help="The only user; without one, no login is needed."
    )


def password_file_option(prefix: str) -> Any:
    """Return the option --password-file; the environment's variable is `prefix` with _PASSWORD."""
    return typer.Option(
        "--password-file",
        metavar="PATH",
        help="A file whose first line is the user's password; else the environment's "
        f"{prefix}_PASSWORD.",
    )


def login_for(
    host: str, user: str | None, password_file: Path | None, *, prefix: str, insecure: bool
) -> Login | None:
    """Return the login of a server on `host`; None without a user and a password.

    The password comes from a file or the environment, never from an argument, which other users of
    the machine can see. Raises `typer.BadParameter` for half a login, and for an address that other
    machines can reach without a login and without `insecure`.
    """
    from snapkv.web import Login, check_exposure

    password = os.environ.get(f"{prefix}_PASSWORD")
    if password_file is not None:
        password = _first_line(password_file)
    login = None
    try:
        if user is not None or password or password_file is not None:
            login = Login(user or "", password or "")
    except InvalidOptionError as e:
        raise typer.BadParameter(
            f"{e}: give --user (or {prefix}_USER) and --password-file (or {prefix}_PASSWORD)"
        ) from e
    try:
        check_exposure(host, login, insecure=insecure)
    except InvalidOptionError as e:
        raise typer.BadParameter(str(e)) from e
    return login


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline(PASSWORD_CHARACTERS_MAX).rstrip("\r\n")
    except UnicodeDecodeError as e:
        raise typer.BadParameter(f"{path} is not valid UTF-8: store the password as UTF-8") from e


@contextmanager
def metrics_served(
    address: str | None, program: str = "snapkv"
) -> Iterator[tuple[Metrics | None, Any]]:
    """Yield hooks whose metrics are served at an address, and their registry; None without one.

    Raises `MissingExtraError` without the extra `metrics`, `InvalidOptionError`.
    """
    if address is None:
        yield None, None
        return
    from snapkv.metrics import Metrics, metrics_server

    with metrics_server(address) as served:
        report(f"{program}: metrics at {served.url}")
        yield Metrics(served.registry), served.registry
