"""The checks of logins, of host names, and of the origins of pages that change something."""

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from snapkv.clock import ManualClock
from snapkv.web import ELSEWHERE, USER, Cookies, HostCheck, LoginCheck

from .conftest import LOGIN

pytestmark = pytest.mark.slow

AUTH = (LOGIN.user, LOGIN.password)
NAVIGATION = {"Sec-Fetch-Mode": "navigate"}


def own_answer(status, reason, headers):
    return JSONResponse({"own": reason}, status, headers)


async def who(scope, receive, send):
    """Answer with how the request proves the login."""
    request = Request(scope, receive)
    await JSONResponse(request.scope.get(USER))(scope, receive, send)


@pytest.fixture
def clock():
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def behind_login(serve, clock):
    """Serve `who` behind a login: `behind_login(cookie_for_basic=..., ...)`; returns its client."""

    def start(**options):
        cookies = Cookies(LOGIN, "a store", clock)
        served = serve(lambda _: LoginCheck(who, cookies, own_answer, **options), LOGIN)
        served.http.headers["Cookie"] = ""
        served.cookie = cookies.made().partition(";")[0]
        return served

    return start


def test_a_request_without_the_login_gets_the_servers_own_error(behind_login):
    http = behind_login(realm="a realm").http
    answer = http.get("/", headers=NAVIGATION)
    assert (answer.status_code, answer.json()) == (401, {"own": "Authentication required."})
    assert answer.headers["www-authenticate"] == 'Basic realm="a realm"'
    answer = http.get("/", auth=("ann", "x"))
    assert (answer.status_code, answer.json()) == (401, {"own": "Name or password is incorrect."})
    for path in ("/%", "//", "/../x", "/\u00e4"):
        assert http.get(path).status_code == 401


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Mode": "no-cors"}, {"Origin": "http://a.example"}])
def test_a_script_gets_no_challenge(behind_login, headers):
    answer = behind_login().http.get("/", headers=headers)
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers


def test_both_proofs_of_the_login(behind_login):
    served = behind_login()
    assert served.http.get("/", auth=AUTH).json() == ["ann", "basic"]
    assert served.http.get("/", headers={"Cookie": served.cookie}).json() == ["ann", "cookie"]
    wrong = served.http.get("/", auth=("ann", "x"), headers={"Cookie": served.cookie})
    assert wrong.status_code == 401  # the password that was sent counts


def test_an_open_path_needs_no_login(behind_login):
    http = behind_login(open_paths={"/open"}).http
    assert http.get("/open").json() == [None, None]
    for path in ("/", "/open/", "/open/x"):
        assert http.get(path).status_code == 401


def test_a_cookie_is_renewed_by_use_and_expires_without(behind_login, clock):
    served = behind_login()
    old = {"Cookie": served.cookie}
    assert "set-cookie" not in served.http.get("/", headers=old).headers
    clock.advance(500_000)
    new = served.http.get("/", headers=old).headers["set-cookie"].partition(";")[0]
    clock.advance(100_000)
    assert served.http.get("/", headers=old).status_code == 401
    assert served.http.get("/", headers={"Cookie": new}).json() == ["ann", "cookie"]
    clock.advance(500_000)
    assert served.http.get("/", headers={"Cookie": new}).status_code == 401


def test_a_password_gives_a_cookie_if_wanted(behind_login):
    assert "set-cookie" not in behind_login().http.get("/", auth=AUTH).headers
    served = behind_login(cookie_for_basic=True)
    assert "set-cookie" not in served.http.get("/", auth=("ann", "x")).headers
    cookie = served.http.get("/", auth=AUTH).headers["set-cookie"].partition(";")[0]
    answer = served.http.get("/", headers={"Cookie": cookie})  # such as a style sheet
    assert answer.json() == ["ann", "cookie"]
    again = served.http.get("/", auth=AUTH, headers={"Cookie": cookie})
    assert "set-cookie" not in again.headers  # it has one


def test_a_page_of_another_origin_changes_nothing_with_the_cookie(behind_login):
    served = behind_login(origins={"https://app.example"})
    here = served.server.url.rstrip("/")
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for origin, status in (
            (here, 200),
            ("https://app.example", 200),
            (f"http://127.0.0.1:{served.server.port + 1}", 403),
            ("http://evil.example", 403),
            ("null", 403),
        ):
            headers = {"Cookie": served.cookie, "Origin": origin}
            answer = served.http.request(method, "/", headers=headers)
            assert answer.status_code == status, (method, origin)
            assert status == 200 or answer.json() == {"own": ELSEWHERE}
    read = served.http.get("/", headers={"Cookie": served.cookie, "Origin": "http://evil.example"})
    assert read.status_code == 200  # the page cannot see it


# --- host names ---


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("NAME.example", 200),
        ("rebound.example", 403),
        ("name.example.rebound.example", 403),
        ("127.0.0.1.rebound.example", 403),
        ("localhost@rebound.example", 403),
        ("192.168.0.1", 403),
        ("", 403),
    ],
)
def test_the_name_of_another_site_that_resolves_to_this_machine(serve, host, status):
    served = serve(lambda _: HostCheck(who, {"name.example"}, own_answer))
    answer = served.http.get("/", headers={"Host": host})
    assert answer.status_code == status
    assert status == 200 or "own" in answer.json()


def test_a_request_without_a_host_header(serve):
    served = serve(lambda _: HostCheck(who, (), own_answer))
    assert served.sent(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403 ")
