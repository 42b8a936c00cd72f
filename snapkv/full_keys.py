"""Keys as they stand in the engine, whoever wrote them, below a prefix that is observed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from snapkv.errors import InvalidKeyError, InvalidTypeError
from snapkv.layout import Keyspace, prefix_end

FIRST_KEY = b"\0"
"""The smallest key there can be: an engine takes no empty one, nor a range from it."""


@dataclass(frozen=True, slots=True)
class FullKeys(Keyspace):
    r"""All keys with a prefix, unshortened; as text, bytes that are no UTF-8 are escaped.

    >>> keys = FullKeys(b"/registry/", text=True)
    >>> keys.decode(b"/registry/\xff"), keys.encode("/registry/\udcff")
    ('/registry/\udcff', b'/registry/\xff')
    """

    def encode(self, key: str | bytes) -> bytes:
        """Return the stored form of a key; raises `InvalidKeyError` or `InvalidTypeError`."""
        if not key and isinstance(key, str | bytes):
            raise InvalidKeyError("a key is not empty", key)
        return self._inside(key, "key")

    def decode(self, stored: bytes) -> Any:
        """Return the key as its user wrote it (str or bytes)."""
        return stored.decode(errors="surrogateescape") if self.text else stored

    def decode_all(self, stored: Iterable[bytes]) -> list[Any]:
        """Return keys as their user wrote them."""
        return list(map(self.decode, stored))

    def range_of(self, prefix: str | bytes) -> tuple[bytes, bytes]:
        """Return [start, end) of all keys with a prefix, which lies below the observed one."""
        start = self._inside(prefix, "prefix")
        return start or FIRST_KEY, prefix_end(start)

    @property
    def whole(self) -> Any:
        """The prefix that is observed."""
        return self.decode(self.prefix)

    def _inside(self, key: str | bytes, what: str) -> bytes:
        stored = stored_form(key, what, text=self.text)
        if not stored.startswith(self.prefix):
            raise InvalidKeyError(
                f"{what} {key!r} is outside of what is observed, {self.whole!r}", key
            )
        return stored


def stored_form(key: object, what: str, *, text: bool) -> bytes:
    """Return the bytes of a key or prefix given as text or as bytes, whichever it has to be."""
    if not isinstance(key, str if text else bytes):
        wanted = "a str" if text else "bytes"
        raise InvalidTypeError(f"a {what} is {wanted} here, not {type(key).__name__}")
    if isinstance(key, bytes):
        return key
    assert isinstance(key, str)
    try:
        return key.encode(errors="surrogateescape")
    except UnicodeEncodeError as e:
        raise InvalidKeyError(f"{what} {key!r} stands for no bytes", key) from e
