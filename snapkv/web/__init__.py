"""Safe listening for every HTTP server of the project.

A *listener* is a bound socket; one that other machines can reach needs a *login*, whose requests
have a password or a *cookie*. *Checks* are applications around the served one: of the login, and of
the Host header. The *server* runs an application on a listener, and gives each *connection* limits.

*Pages* for browsers have more: headers that limit what a page may do, and a *token* in each form,
which shows that a page of this server sent it (`protected`). `cdcmeta.couch_http`, which has no
pages, adds CouchDB's errors, paths and CORS instead.
"""

from snapkv.web.access import ELSEWHERE, USER, WRONG, ErrorAnswer, HostCheck, LoginCheck
from snapkv.web.client_connection import ClientLimits
from snapkv.web.http_server import HOST, Listener, Server, check_exposure
from snapkv.web.login import Cookies, Login, removed
from snapkv.web.page_protection import FORM, TOKEN, TOKEN_FIELD, TOKEN_HEADER, protected

__all__ = [
    "ELSEWHERE",
    "FORM",
    "HOST",
    "TOKEN",
    "TOKEN_FIELD",
    "TOKEN_HEADER",
    "USER",
    "WRONG",
    "ClientLimits",
    "Cookies",
    "ErrorAnswer",
    "HostCheck",
    "Listener",
    "Login",
    "LoginCheck",
    "Server",
    "check_exposure",
    "protected",
    "removed",
]
