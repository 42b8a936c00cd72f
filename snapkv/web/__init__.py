"""What every HTTP server of the project needs to listen safely.

A *listener* is a bound socket; one that other machines can reach needs a *login*, whose requests
have a password or a *cookie*. *Checks* are applications around the served one: of the login, and of
the Host header. The *server* runs an application on a listener, and gives each *connection* limits.

`cdcmeta.couch_http` adds CouchDB's errors, paths and CORS.
"""

from snapkv.web.access import ELSEWHERE, USER, WRONG, ErrorAnswer, HostCheck, LoginCheck
from snapkv.web.connection import Limits
from snapkv.web.listener import HOST, Listener, check_exposure
from snapkv.web.login import Cookies, Login, removed
from snapkv.web.server import Server

__all__ = [
    "ELSEWHERE",
    "HOST",
    "USER",
    "WRONG",
    "Cookies",
    "ErrorAnswer",
    "HostCheck",
    "Limits",
    "Listener",
    "Login",
    "LoginCheck",
    "Server",
    "check_exposure",
    "removed",
]
