"""The page as a server: login, host names, and the application behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from snapkv.ui.app import Application
from snapkv.ui.context import Site
from snapkv.ui.fleet.site import FleetSite
from snapkv.web import HOST, Listener, Login, Server, protected

PORT = 7411


def ui_server(
    site: Site | FleetSite,
    *,
    host: str = HOST,
    port: int = PORT,
    login: Login | None = None,
    allow_hosts: Iterable[str] = (),
    insecure: bool = False,
    ready: Callable[[], None] = lambda: None,
) -> Server:
    """Return a server of a site, which listens already; `run()` serves until `stop()`.

    Port 0 takes any free port. The caller closes the store, or the site of a fleet and then the
    fleet. Raises `InvalidOptionError` if other machines could reach it without a login and without
    `insecure`, `OSError` if it cannot listen.
    """
    listener = Listener(host, port, login, insecure=insecure)
    inner = Application(site)
    app = protected(inner, listener, salt=site.salt, allow_hosts=allow_hosts)
    return Server(app, listener, ready=ready, stopping=inner.feeds.close)
