"""Values that an API server encrypted, and what can be seen of them without the key.

Such a value begins with the provider and the name of the key: `k8s:enc:aescbc:v1:key1:`. An API
server writes an object again if it changed, or if another key than the first one encrypted it.
With the first key it writes no object that is equal, so two different values of one key are a
change. After another key, nothing but the size is left to compare.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from snapkv.base.text import counted, escaped
from snapkv.rendering.value_tree import NotThisKindError

PREFIX = b"k8s:enc:"
_START = re.compile(rb"k8s:enc:([a-z0-9]+):(v[0-9]+):([^:\n]+):")
_ADDED = {"aescbc": (16 + 1, 16 + 16), "aesgcm": (12 + 16,) * 2, "secretbox": (24 + 16,) * 2}
"""The least and the most bytes that a provider adds to an object: a nonce, and padding or a code of
authentication."""


class Encrypted(NamedTuple):
    """What an encrypted value shows: its provider and key, and how large the object may be."""

    provider: str
    key: str
    sizes: range
    """The sizes in bytes that the object may have."""

    @property
    def by(self) -> str:
        """The provider and the key, for people."""
        return f"by {self.provider} with {self.key}"


def encrypted(value: bytes) -> Encrypted:
    """Return what an encrypted value shows; raise `NotThisKindError` for another value.

    >>> encrypted(b"k8s:enc:secretbox:v1:key2:" + bytes(140))
    Encrypted(provider='secretbox', key='key2', sizes=range(100, 101))
    """
    if (start := _START.match(value)) is None:
        raise NotThisKindError("does not begin with k8s:enc:PROVIDER:VERSION:KEY:")
    provider, version, key = (part.decode(errors="replace") for part in start.groups())
    size = len(value) - start.end()
    least, most = _ADDED.get(provider, (0, size))
    name = f"kms {version}" if provider == "kms" else provider
    return Encrypted(name, escaped(key), range(size - most, size - least + 1))


def text_of(value: bytes) -> str:
    """Return what is shown of an encrypted value.

    >>> text_of(b"k8s:enc:aescbc:v1:key1:" + bytes(304))
    'encrypted by aescbc with key1, 327 bytes'
    """
    return f"encrypted {encrypted(value).by}, {counted(len(value), 'byte')}"


def change_text(before: bytes, after: bytes) -> str:
    """Return what a change says of which one side or both are encrypted.

    >>> old, new = (b"k8s:enc:aescbc:v1:%s:" % key + bytes(304) for key in (b"key1", b"key2"))
    >>> change_text(old, new)
    'encrypted anew by aescbc with key2: whether the object changed cannot be seen, 327 bytes'
    >>> change_text(old, old + bytes(16))
    'changed, encrypted by aescbc with key1, 327 -> 343 bytes'
    """
    old, new = _seen(before), _seen(after)
    sizes = counted(len(after), "byte")
    if len(before) != len(after):
        sizes = f"{len(before):,} -> {sizes}"
    if old is not None and new is not None and old[:2] == new[:2] and "kms" not in new.provider:
        return f"changed, encrypted {new.by}, {sizes}"
    if new is None:
        how = f"in plain text now, was encrypted {old.by}" if old else "in plain text"
    else:
        how = (
            f"encrypted {'anew ' if old else ''}{new.by}{'' if old else ' now, was in plain text'}"
        )
    left, right = (
        side.sizes if side else range(len(value), len(value) + 1)
        for side, value in ((old, before), (new, after))
    )
    is_same_size = max(left.start, right.start) < min(left.stop, right.stop)
    if is_same_size:
        return f"{how}: whether the object changed cannot be seen, {sizes}"
    return f"changed, {how}, {sizes}"


def _seen(value: bytes) -> Encrypted | None:
    try:
        return encrypted(value)
    except NotThisKindError:
        return None
