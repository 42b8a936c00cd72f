"""Logging in and out with a cookie, pages of other origins, and clients that send nothing."""

import socket
import time
from email.utils import parsedate_to_datetime

import httpx
import pytest

from cdcmeta.couch_http import Limits, Login
from cdcmeta.couch_http.auth import checked_origins
from cdcmeta.couch_http.service import COOKIE
from cdcmeta.errors import InvalidArgumentError
from snapkv.clock import ManualClock
from snapkv.web import Cookies
from snapkv.web.login import VALID_S

from .served import WAIT_S, error_of
from .test_couch_feeds import until

pytestmark = pytest.mark.slow

LOGIN = Login("ann", "pass:word ä")
FORM = {"name": "ann", "password": "pass:word ä"}
APP = "https://app.example"


@pytest.fixture
def db(own):
    return own(login=LOGIN).database()


@pytest.fixture
def http(db):
    return db.served.http


def test_a_login_by_cookie(db, http):
    told = http.get("/_session").json()
    assert told["userCtx"] == {"name": None, "roles": []}
    assert error_of(db.get())[0] == 401
    answer = http.post("/_session", data=FORM)
    assert answer.json() == {"ok": True, "name": "ann", "roles": ["_admin"]}
    version, expires, *others = answer.headers["set-cookie"].split("; ")[1:]
    assert version == "Version=1"
    left_s = parsedate_to_datetime(expires.removeprefix("Expires=")).timestamp() - time.time()
    assert VALID_S - WAIT_S < left_s <= VALID_S
    assert others == [f"Max-Age={VALID_S}", "Path=/", "HttpOnly", "SameSite=Strict"]
    told = http.get("/_session").json()
    assert told["userCtx"] == {"name": "ann", "roles": ["_admin"]}
    assert told["info"] == {
        "authentication_handlers": ["cookie", "default"],
        "authenticated": "cookie",
    }
    assert db("PUT", "d", json={}).status_code == 201
    assert http.delete("/_session").json() == {"ok": True}
    assert error_of(db.get("d")) == (401, "unauthorized", "Authentication required.")


def test_a_login_as_json(http):
    assert http.post("/_session", json=FORM).status_code == 200
    assert http.get("/_all_dbs").status_code == 200


def test_basic_authentication_has_a_session_too(http):
    told = http.get("/_session", auth=("ann", "pass:word ä")).json()
    assert (told["userCtx"]["name"], told["info"]["authenticated"]) == ("ann", "default")
    told = http.get("/_session", auth=("ann", "x")).json()
    assert told["userCtx"]["name"] is None


@pytest.mark.parametrize(
    "form",
    [
        {"name": "ann", "password": "x"},
        {"name": "bob", "password": "pass:word ä"},
        {"name": "ann:pass", "password": "word ä"},
        {"name": "", "password": "x"},
    ],
)
def test_a_wrong_password(http, form):
    for answer in (http.post("/_session", json=form), http.post("/_session", json=form)):
        assert error_of(answer) == (401, "unauthorized", "Name or password is incorrect.")
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("body", [b"", b"name=ann", b"name=\xff&password=x", b"x" * 20_000])
def test_a_login_that_cannot_be_understood(http, body):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert http.post("/_session", content=body, headers=headers).status_code in (400, 401, 413)
    for value in ([], {"name": 1, "password": "x"}, {"name": "ann"}):
        assert http.post("/_session", json=value).status_code == 400


def test_without_a_login_everyone_is_admin(own):
    http = own().http
    assert http.get("/_session").json()["userCtx"] == {"name": None, "roles": ["_admin"]}
    assert http.post("/_session", data=FORM).status_code == 401


# --- cookies ---


def value_of(header: str) -> str:
    return header.partition("=")[2].partition(";")[0]


def test_a_cookie_is_valid_for_a_time():
    clock = ManualClock(1_700_000_000_000)
    cookies = Cookies(LOGIN, "store", clock)
    value = value_of(cookies.made())
    assert cookies.left_s(value) == VALID_S
    assert Cookies(LOGIN, "store", clock).left_s(value) == VALID_S  # another server of the store
    for other in (Login("ann", "x"), Login("bob", LOGIN.password)):
        assert Cookies(other, "store", clock).left_s(value) == 0
    assert Cookies(LOGIN, "another store", clock).left_s(value) == 0
    clock.advance(VALID_S * 1_000 - 1)
    assert cookies.left_s(value) == 1
    clock.advance(1)
    assert cookies.left_s(value) == 0


def test_a_cookie_that_was_changed():
    cookies = Cookies(LOGIN, "store", ManualClock(1_700_000_000_000))
    value = value_of(cookies.made())
    for at in range(len(value)):
        for character in "Ax_":
            changed = value[:at] + character + value[at + 1 :]
            if changed != value and at < len(value) - 1:  # of the last some bits do not count
                assert cookies.left_s(changed) == 0
    for changed in ("", "a", "ä", value[:-4], value * 2, "=" * 50, "9" * 5_000, f"{value}\0"):
        assert cookies.left_s(changed) == 0


def test_a_cookie_is_renewed_while_it_is_used(db, http):
    clock = db.served.server._service.cookies._clock = ManualClock(1_700_000_000_000)
    http.post("/_session", data=FORM)
    assert "set-cookie" not in db.get().headers
    for _ in range(5):
        clock.advance(VALID_S * 900)
        assert COOKIE in db.get().headers["set-cookie"]
    clock.advance(VALID_S * 1_000)
    assert db.get().status_code == 401


def test_a_page_of_another_origin_does_not_use_the_cookie(own):
    """A page at another port of this host has the cookie added by the browser."""
    db = own(login=LOGIN, cors_origins=(APP,)).database()
    http, port = db.served.http, db.served.server.port
    http.post("/_session", data=FORM)
    here = f"http://127.0.0.1:{port}"
    for origin, status in (
        (here, 201),
        (APP, 201),
        ("http://127.0.0.1:1", 403),
        ("http://evil.example", 403),
        ("null", 403),
    ):
        answer = db("PUT", f"d{status}{hash(origin)}", json={}, headers={"Origin": origin})
        assert answer.status_code == status, origin
        assert db.get(headers={"Origin": origin}).status_code == 200
    http.cookies.clear()  # a password that the page knows is another thing
    headers = {"Origin": "http://evil.example"}
    assert db("PUT", "e", json={}, headers=headers, auth=("ann", LOGIN.password)).status_code == 201


# --- other origins ---


def test_other_origins_are_not_let_in_unless_asked_for(own):
    db = own().database()
    answer = db.get(headers={"Origin": APP})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = {"Origin": APP, "Access-Control-Request-Method": "PUT"}
    assert db("OPTIONS", "d", headers=asked).status_code == 405


def test_an_origin_that_is_let_in(own):
    db = own(login=LOGIN, cors_origins=(APP, "http://localhost:8080")).database()
    asked = {
        "Origin": APP,
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "content-type, if-match, authorization",
    }
    answer = db("OPTIONS", "d", headers=asked)  # before any login
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert "PUT" in answer.headers["access-control-allow-methods"]
    for answer in (
        db.get(headers={"Origin": APP}),
        db("PUT", "d", json={}, headers={"Origin": APP}),
    ):
        assert answer.status_code == 401  # which the page may read
        assert answer.headers["access-control-allow-origin"] == APP
        assert "Origin" in answer.headers["vary"]
    other = asked | {"Origin": "https://evil.example"}
    answer = db("OPTIONS", "d", headers=other)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "headers", [{"Origin": APP}, {"Sec-Fetch-Mode": "cors"}, {"Sec-Fetch-Mode": "same-origin"}]
)
def test_a_script_is_not_challenged(db, headers):
    """A browser would open its dialog for a password, and the script would wait."""
    answer = db.get(headers=headers)
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers
    assert "www-authenticate" in db.get(headers={"Sec-Fetch-Mode": "navigate"}).headers


def test_every_origin_without_logins(own):
    db = own(cors_origins=("*",)).database()
    answer = db.get(headers={"Origin": APP, "Cookie": "a=b"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origins",
    [
        ["app.example"],
        ["https://app.example/"],
        ["https://App.example"],
        ["null"],
        [""],
        ["*", APP],
        ["https://*.example"],
        ["ftp://a"],
    ],
)
def test_what_is_no_origin(origins):
    with pytest.raises(InvalidArgumentError, match="origin"):
        checked_origins(origins)


# --- clients that send nothing, or very slowly ---


def closed_within(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        while client.recv(4_096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def test_a_client_that_sends_nothing(own):
    """So those who come and say nothing do not lock the others out."""
    served = own(limits=Limits(head_s=0.5, connections=6))
    served.http.close()
    address = ("127.0.0.1", served.server.port)
    silent = [socket.create_connection(address, WAIT_S) for _ in range(10)]
    try:
        assert all(closed_within(client, WAIT_S) for client in silent)
        assert httpx.get(f"{served.server.url}_up", timeout=WAIT_S).status_code == 200
    finally:
        for client in silent:
            client.close()


def is_closed_to(client: socket.socket) -> bool:
    time.sleep(0.05)
    try:
        client.sendall(b"X")
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("first", [b"", b"GET /_up HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_head_that_comes_byte_by_byte(own, first):
    """Also that of a second request; each byte is in time, all of them are not."""
    served = own(limits=Limits(head_s=0.5))
    with socket.create_connection(("127.0.0.1", served.server.port), WAIT_S) as client:
        if first:
            client.sendall(first)
            assert client.recv(4_096).startswith(b"HTTP/1.1 200 ")
        until(lambda: is_closed_to(client), "it stays open")


def test_a_request_may_take_longer_than_its_head(own):
    db = own(limits=Limits(head_s=0.3)).database()
    assert db.changes(feed="longpoll", timeout=1_000)["results"] == []
    with db.feed(feed="continuous", heartbeat=100, timeout=60_000) as feed:
        for _ in range(8):
            assert feed.line() == ""
        db.lib.put({"_id": "a"})
        assert feed.row()["id"] == "a"
    time.sleep(0.5)
    assert db.get().status_code == 200  # on a connection that was quiet between two requests
