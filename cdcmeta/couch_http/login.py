"""The login: one user, and the cookies that stand for it.

A cookie is signed, valid for a time, and checked without storing anything. Its key is made from the
password and the store's id. So servers of one store take each other's cookies, a restart keeps them
valid, and another password makes them invalid. The key is expensive to make, so that a cookie is of
little use to someone who guesses passwords.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from email.utils import formatdate

from cdcmeta.errors import InvalidArgumentError
from snapkv.clock import Clock, SystemClock

COOKIE = "AuthSession"
VALID_S = 600
"""How long a cookie is valid; it is renewed while it is used."""
_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class Login:
    """The one user that a server admits. Raises `InvalidArgumentError` for half a login."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        both = (self.user, self.password)
        if not all(isinstance(text, str) and text for text in both) or ":" in self.user:
            raise InvalidArgumentError(
                "a login is a user without a colon and a password; neither is empty"
            )
        try:
            "".join(both).encode()
        except UnicodeEncodeError:
            raise InvalidArgumentError("the user or the password is not valid UTF-8") from None

    def admits(self, header: str) -> bool:
        """Return whether a header `Authorization` is theirs; how long it takes tells nothing."""
        scheme, _, credentials = header.partition(" ")
        try:
            given = b64decode(credentials.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        ours = f"{self.user}:{self.password}".encode()
        return scheme.lower() == "basic" and hmac.compare_digest(given, ours)

    def is_theirs(self, user: str, password: str) -> bool:
        """Return whether a name and a password are theirs; how long it takes tells nothing."""
        given = f"{user}:{password}".encode(errors="surrogatepass")
        ours = f"{self.user}:{self.password}".encode()
        return ":" not in user and hmac.compare_digest(given, ours)


class Cookies:
    """Makes and checks the cookies of a login."""

    def __init__(self, login: Login, salt: str, clock: Clock | None = None) -> None:
        self._user = login.user.encode()
        self._key = hashlib.scrypt(
            login.password.encode(), salt=f"{COOKIE} {salt}".encode(), n=2**14, r=8, p=1
        )
        self._clock = clock or SystemClock()

    def made(self) -> str:
        """Return the header Set-Cookie with a new cookie."""
        until = self._now_s() + VALID_S
        value = urlsafe_b64encode(self._signed(until)).decode().rstrip("=")
        return _header(value, VALID_S, until)

    def left_s(self, value: str) -> int:
        """Return how long the value of a cookie is valid; 0 if it is not.

        How long the check takes says nothing about the right cookie.
        """
        try:
            raw = urlsafe_b64decode(value + "=" * (-len(value) % 4))
            until = int(raw[: -_MAC_BYTES - 1], 16)
        except (ValueError, binascii.Error):
            return 0
        if not hmac.compare_digest(raw, self._signed(until)):
            return 0
        return max(0, min(VALID_S, until - self._now_s()))

    def _signed(self, until: int) -> bytes:
        mac = hmac.digest(self._key, b"%x:%b" % (until, self._user), hashlib.sha256)
        return b"%x:%b" % (until, mac)

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1_000


def removed() -> str:
    """Return the header Set-Cookie that makes a client forget its cookie."""
    return _header("", 0, 0)


def _header(value: str, seconds: int, until: int) -> str:
    """Return a cookie that scripts cannot read, and that pages of other sites do not send.

    Its end is there twice, because nano reads only the older attribute.
    """
    end = f"Expires={formatdate(until, usegmt=True)}; Max-Age={seconds}"
    return f"{COOKIE}={value}; Version=1; {end}; Path=/; HttpOnly; SameSite=Strict"
