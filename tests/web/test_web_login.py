"""A login and its cookies, without a server."""

import base64

import pytest

from snapkv.clock import ManualClock
from snapkv.errors import InvalidOptionError
from snapkv.web import Cookies, Login, removed
from snapkv.web.login import COOKIE, VALID_S

from .conftest import LOGIN

NOW_MS = 1_700_000_000_000


def value_of(header: str) -> str:
    return header.partition("=")[2].partition(";")[0]


def basic(credentials: str) -> str:
    return "Basic " + base64.b64encode(credentials.encode()).decode()


@pytest.mark.parametrize(
    "login", [("ann", ""), ("", "x"), ("a:b", "x"), ("ann", None), (None, "x"), ("\udcff", "x")]
)
def test_half_a_login_is_an_error(login):
    with pytest.raises(InvalidOptionError):
        Login(*login)


def test_a_password_is_not_shown():
    assert "word" not in repr(LOGIN)


@pytest.mark.parametrize(
    ("header", "admitted"),
    [
        (basic("ann:pass:word ä"), True),
        (basic("ann:pass:word ä").replace("Basic", "bAsIc"), True),
        (basic("ann:pass:word"), False),
        (basic("bob:pass:word ä"), False),
        (basic("ann:pass:word ä").replace("Basic", "Bearer"), False),
        (basic("ann:pass:word ä") + "!", False),
        ("Basic", False),
        ("", False),
    ],
)
def test_a_header_of_basic_authentication(header, admitted):
    assert LOGIN.admits(header) is admitted


def test_a_colon_does_not_move_between_name_and_password():
    assert LOGIN.matches("ann", "pass:word ä")
    assert not LOGIN.matches("ann:pass", "word ä")


def test_a_cookie_expires():
    clock = ManualClock(NOW_MS)
    cookies = Cookies(LOGIN, "a store", clock)
    value = value_of(cookies.made())
    assert cookies.left_s(value) == VALID_S
    clock.advance(VALID_S * 1_000 - 1)
    assert cookies.left_s(value) == 1
    clock.advance(1)
    assert cookies.left_s(value) == 0


def test_a_cookie_may_be_valid_for_longer():
    clock = ManualClock(NOW_MS)
    cookies = Cookies(LOGIN, "a store", clock, valid_s=7_200)
    header = cookies.made()
    assert "Max-Age=7200;" in header
    clock.advance(7_199_000)
    assert cookies.left_s(value_of(header)) == 1
    # a server with a shorter time does not trust it for longer than its own cookies
    clock.set(NOW_MS)
    assert Cookies(LOGIN, "a store", clock).left_s(value_of(header)) == VALID_S


def test_a_cookie_of_another_login_store_or_name_is_not_valid():
    clock = ManualClock(NOW_MS)
    value = value_of(Cookies(LOGIN, "a store", clock).made())
    for other in (
        Cookies(Login("ann", "x"), "a store", clock),
        Cookies(Login("bob", LOGIN.password), "a store", clock),
        Cookies(LOGIN, "another store", clock),
        Cookies(LOGIN, "a store", clock, name="other"),
    ):
        assert other.left_s(value) == 0
    assert Cookies(LOGIN, "a store", clock).left_s(value) == VALID_S


def test_scripts_and_pages_of_other_sites_do_not_get_the_cookie():
    for header in (Cookies(LOGIN, "a store", ManualClock(NOW_MS)).made(), removed()):
        assert header.startswith(f"{COOKIE}=")
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(header.split("; "))
    assert "Max-Age=0;" in removed()
