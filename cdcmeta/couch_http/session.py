"""`_session`: logging in and out with a cookie."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from starlette.responses import Response

from cdcmeta.couch_http.bodies import checked_object, decoded
from cdcmeta.couch_http.errors import HTTPError, bad_request
from cdcmeta.couch_http.request import Call
from cdcmeta.couch_http.service import COOKIE
from cdcmeta.couch_http.streaming import answer
from snapkv.web import WRONG, removed

BODY_BYTES_MAX = 16 << 10
ADMIN = "_admin"


async def get(call: Call) -> Response:
    """Answer `GET /_session`: the user, and how the request proved the login."""
    user, how = call.user
    context = {"name": user, "roles": [ADMIN] if user or call.service.login is None else []}
    info: dict[str, Any] = {"authentication_handlers": ["cookie", "default"]}
    if how is not None:
        info["authenticated"] = "cookie" if how == "cookie" else "default"
    return answer({"ok": True, "userCtx": context, "info": info})


async def post(call: Call) -> Response:
    """Answer `POST /_session`: return a cookie for a name and a password (a form or JSON)."""
    name, password = await _credentials(call)
    login, cookies = call.service.login, call.service.cookies
    if login is None or cookies is None or not login.matches(name, password):
        raise HTTPError(401, "unauthorized", WRONG)
    facts = {"ok": True, "name": login.user, "roles": [ADMIN]}
    return answer(facts, headers={"Set-Cookie": cookies.made()})


async def delete(call: Call) -> Response:
    """Answer `DELETE /_session`: remove the client's cookie."""
    return answer({"ok": True}, headers={"Set-Cookie": removed(COOKIE)})


async def _credentials(call: Call) -> tuple[str, str]:
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    raw = await call.body(BODY_BYTES_MAX)
    if kind == "application/json":
        fields = checked_object(decoded(raw))
    else:
        try:
            fields = {name: values[-1] for name, values in parse_qs(raw.decode()).items()}
        except ValueError:
            raise bad_request("the form is not valid UTF-8") from None
    found = fields.get("name", fields.get("username")), fields.get("password")
    if not all(isinstance(each, str) for each in found):
        raise bad_request("a login has a name and a password")
    return str(found[0]), str(found[1])
