"""What protects pages: their headers, and forms that only they can send."""

import time

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

from snapkv.web import FORM, TOKEN, TOKEN_FIELD, TOKEN_HEADER, USER, page_protection, protected
from snapkv.web.page_protection import FOREIGN, FORM_BYTES_MAX, STALE

from .conftest import LOGIN

pytestmark = pytest.mark.slow

AUTH = (LOGIN.user, LOGIN.password)
ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},  # another port of this host
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
]


async def page(scope, receive, send):
    """Answer a GET with the token, a POST with what arrived."""
    request = Request(scope, receive)
    if scope["path"] == "/asset":
        headers = {"Cache-Control": "max-age=60"}
        await PlainTextResponse("an asset", headers=headers)(scope, receive, send)
    elif scope["path"] == "/broken":
        raise ValueError("broken")
    elif scope["method"] == "GET":
        await PlainTextResponse(scope[TOKEN])(scope, receive, send)
    else:
        body = (await request.body()).decode()
        found = {"fields": scope[FORM], "body": body, "user": scope.get(USER)}
        await JSONResponse(found)(scope, receive, send)


@pytest.fixture
def served(serve):
    return serve(lambda listener: protected(page, listener, salt="a store"))


@pytest.fixture
def with_login(serve):
    return serve(lambda listener: protected(page, listener, salt="a store"), LOGIN)


def token_of(http: httpx.Client) -> str:
    return http.get("/").text


# --- headers ---


def test_a_page_uses_nothing_of_other_sites(served):
    headers = served.http.get("/").headers
    policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}  # nothing inline, no other origin
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"


def test_an_answer_may_be_kept_if_it_says_so(served):
    headers = served.http.get("/asset").headers
    assert headers["cache-control"] == "max-age=60"
    assert "content-security-policy" in headers


def test_errors_have_the_headers_too(served, with_login):
    for answer, status in (
        (served.http.post("/"), 403),
        (served.http.get("/", headers={"Host": "rebound.example"}), 403),
        (with_login.http.get("/"), 401),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/plain")
        assert "content-security-policy" in answer.headers


# --- forms ---


def test_a_form_with_the_token(served):
    form = {TOKEN_FIELD: token_of(served.http), "note": "", "key": "ä=&\0\u202e"}
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": served.server.url.rstrip("/")},
    ):
        answer = served.http.post("/", data=form, headers=headers)
        assert answer.status_code == 200
        assert answer.json()["fields"] == form


def test_a_script_sends_the_token_in_a_header(served):
    headers = {TOKEN_HEADER: token_of(served.http)}
    answer = served.http.post("/", json={"a": 1}, headers=headers).json()
    assert (answer["fields"], answer["body"]) == ({}, '{"a":1}')
    assert served.http.delete("/", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "form", [{}, {TOKEN_FIELD: ""}, {TOKEN_FIELD: "x" * 43}, {TOKEN_FIELD: "ä"}, {"other": "x"}]
)
def test_a_form_without_the_token(served, form):
    answer = served.http.post("/", data=form)
    assert (answer.status_code, answer.text) == (403, f"{STALE}\n")


def test_a_token_elsewhere_than_in_a_form(served):
    token = token_of(served.http)
    for answer in (
        served.http.post(f"/?{TOKEN_FIELD}={token}"),
        served.http.post("/", json={TOKEN_FIELD: token}),
        served.http.post("/", content=f"{TOKEN_FIELD}={token}", headers={"Content-Type": "a/b"}),
        served.http.post("/", headers={TOKEN_HEADER: "ä".encode("latin-1")}),
    ):
        assert (answer.status_code, answer.text) == (403, f"{STALE}\n")


def test_the_token_of_another_process(serve, served):
    other = serve(lambda listener: protected(page, listener, salt="a store"))
    token = token_of(other.http)
    assert served.http.post("/", data={TOKEN_FIELD: token}).status_code == 403
    assert other.http.post("/", data={TOKEN_FIELD: token}).status_code == 200


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_a_page_of_another_origin_sends_nothing(served, headers):
    """Even if it has the token."""
    answer = served.http.post("/", data={TOKEN_FIELD: token_of(served.http)}, headers=headers)
    assert (answer.status_code, answer.text) == (403, f"{FOREIGN}\n")


def test_what_the_browser_says_of_the_origin_counts_behind_a_proxy(served, with_login):
    """The proxy changed the Host header, so the origin differs from it."""
    headers = {"Origin": "https://history.example", "Sec-Fetch-Site": "same-origin"}
    with_login.http.get("/", auth=AUTH)  # from now on, it has a cookie
    for http in (served.http, with_login.http):
        answer = http.post("/", data={TOKEN_FIELD: token_of(http)}, headers=headers)
        assert answer.status_code == 200


def test_a_form_that_is_too_large(served):
    form = {TOKEN_FIELD: token_of(served.http), "note": "x" * (FORM_BYTES_MAX - 100)}
    assert served.http.post("/", data=form).status_code == 200
    for size in (FORM_BYTES_MAX, 5_000_000):
        answer = served.http.post("/", data=form | {"note": "x" * size})
        assert answer.status_code == 413
    assert served.http.get("/").is_success


@pytest.mark.parametrize(
    "body", [b"a=%ff", b"a=\xff", b"&".join([b"a=1"] * 2_000), b"prefix=a/&prefix=b/"]
)
def test_a_form_that_is_not_valid(served, body):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert served.http.post("/", content=body, headers=headers).status_code == 400


def test_a_form_that_does_not_come(serve, monkeypatch):
    monkeypatch.setattr(page_protection, "FORM_S", 0.2)
    served = serve(lambda listener: protected(page, listener, salt="a store"))
    with served.connected() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na=")
        assert client.recv(4_096).startswith(b"HTTP/1.1 408 ")


# --- with a login ---


def test_a_browser_logs_in_once(with_login):
    """Its later requests of any path have the cookie, and no challenge."""
    http = with_login.http
    assert "www-authenticate" in http.get("/", headers={"Sec-Fetch-Mode": "navigate"}).headers
    token = http.get("/", auth=AUTH).text
    assert list(http.cookies) == [f"snapkv-{with_login.server.port}"]
    assert http.get("/asset", headers={"Sec-Fetch-Mode": "no-cors"}).status_code == 200
    answer = http.post("/", data={TOKEN_FIELD: token})
    assert answer.json()["user"] == ["ann", "cookie"]


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_a_browser_that_repeats_the_password_for_another_origin(with_login, headers):
    token = with_login.http.get("/", auth=AUTH).text
    with_login.http.cookies.clear()
    answer = with_login.http.post("/", auth=AUTH, data={TOKEN_FIELD: token}, headers=headers)
    assert (answer.status_code, answer.text) == (403, f"{FOREIGN}\n")


def test_a_form_is_not_read_before_the_login(with_login):
    began = time.monotonic()
    with with_login.connected() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        assert client.recv(4_096).startswith(b"HTTP/1.1 401 ")
    assert time.monotonic() - began < page_protection.FORM_S
