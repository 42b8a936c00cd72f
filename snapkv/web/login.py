"""The login of a server: one user, and the cookies that prove the login.

A cookie is signed and expires. Checking it needs no stored state: its key is derived from the
password and a salt. So servers with the same salt accept each other's cookies, a restart keeps them
valid, and a new password invalidates them. The key is expensive to derive, so a cookie is of little
use for guessing the password.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from email.utils import formatdate

from snapkv.base.clocks import Clock, SystemClock
from snapkv.errors import InvalidOptionError

COOKIE = "snapkv"
"""The name of a cookie, unless the server has another name for it."""
VALID_S = 600
"""The time for which a cookie is valid, in seconds. Use renews it."""
_MAC_BYTES = 32


@dataclass(frozen=True, slots=True)
class Login:
    """The one user of a server. Raises `InvalidOptionError` without a user or a password.

    >>> login = Login("ann", "secret")
    >>> login, login.matches("ann", "Secret")
    (Login(user='ann'), False)
    """

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        both = (self.user, self.password)
        if not all(isinstance(text, str) and text for text in both) or ":" in self.user:
            raise InvalidOptionError(
                "a login needs a user without a colon and a password; neither may be empty"
            )
        try:
            "".join(both).encode()
        except UnicodeEncodeError:
            raise InvalidOptionError("the user or the password is not valid UTF-8") from None

    def admits(self, header: str) -> bool:
        """Return whether an `Authorization` header has this login, in constant time."""
        scheme, _, credentials = header.partition(" ")
        try:
            given = b64decode(credentials.strip(), validate=True)
        except (binascii.Error, ValueError):
            return False
        ours = f"{self.user}:{self.password}".encode()
        return scheme.lower() == "basic" and hmac.compare_digest(given, ours)

    def matches(self, user: str, password: str) -> bool:
        """Return whether a name and a password are this login's, in constant time."""
        given = f"{user}:{password}".encode(errors="surrogatepass")
        ours = f"{self.user}:{self.password}".encode()
        return ":" not in user and hmac.compare_digest(given, ours)


class Cookies:
    """Makes and checks the cookies of a login.

    `salt` identifies what is served, such as the id of a store. Deriving the key takes about 50 ms.

    >>> from snapkv.clock import ManualClock
    >>> cookies = Cookies(Login("ann", "secret"), "a store", ManualClock(1_700_000_000_000))
    >>> header = cookies.made()
    >>> name, value = header.partition(";")[0].split("=")
    >>> name, cookies.left_s(value), cookies.left_s(value + "A")
    ('snapkv', 600, 0)
    """

    def __init__(
        self,
        login: Login,
        salt: str,
        clock: Clock | None = None,
        *,
        name: str = COOKIE,
        valid_s: int = VALID_S,
    ) -> None:
        self.login, self.name, self.valid_s = login, name, valid_s
        self._user = login.user.encode()
        self._key = hashlib.scrypt(
            login.password.encode(), salt=f"{name} {salt}".encode(), n=2**14, r=8, p=1
        )
        self._clock = clock or SystemClock()

    def made(self) -> str:
        """Return the header Set-Cookie with a new cookie."""
        until = self._now_s() + self.valid_s
        value = urlsafe_b64encode(self._signed(until)).decode().rstrip("=")
        return _header(self.name, value, self.valid_s, until)

    def left_s(self, value: str) -> int:
        """Return for how many seconds a cookie's value is still valid, 0 if it is not.

        Takes constant time.
        """
        try:
            raw = urlsafe_b64decode(value + "=" * (-len(value) % 4))
            until = int(raw[: -_MAC_BYTES - 1], 16)
        except (ValueError, binascii.Error):
            return 0
        if not hmac.compare_digest(raw, self._signed(until)):
            return 0
        return max(0, min(self.valid_s, until - self._now_s()))

    def _signed(self, until: int) -> bytes:
        mac = hmac.digest(self._key, b"%x:%b" % (until, self._user), hashlib.sha256)
        return b"%x:%b" % (until, mac)

    def _now_s(self) -> int:
        return self._clock.now_ms() // 1_000


def removed(name: str = COOKIE) -> str:
    """Return the header Set-Cookie that makes a client forget its cookie."""
    return _header(name, "", 0, 0)


def _header(name: str, value: str, seconds: int, until: int) -> str:
    """Return a cookie for this site only; nano reads only the older attribute of its end."""
    end = f"Expires={formatdate(until, usegmt=True)}; Max-Age={seconds}"
    return f"{name}={value}; Version=1; {end}; Path=/; HttpOnly; SameSite=Strict"
