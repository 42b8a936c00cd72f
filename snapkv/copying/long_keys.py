r"""The place of recorded keys that are longer than a target takes: two spaces of the record.

`long-keys` has the values, and `long-key-names` the full names, both under a short key: the first
128 bytes of the name, `~`, and the SHA-256 of the stored name in hexadecimal. The stored name of a
store's or a prefix's key is `data/` and the key, that of a key in a space `space/<name>/` and the
key. Two names have the same short key only if their SHA-256 is the same.

    data//registry/configmaps/nnn...    /registry/configmaps/nn...n~5ae1...   of each space
"""

from __future__ import annotations

import hashlib
from typing import Any

from snapkv.engine.contract import Engine, Put, Txn
from snapkv.errors import CommitTooLargeError, InvalidKeyError
from snapkv.layout import Layout
from snapkv.reading.view import KeyspaceReads
from snapkv.store.store import SnapshotKV

LONG_KEYS, LONG_KEY_NAMES = "long-keys", "long-key-names"
BEGINNING_BYTES = 128
"""The most bytes of a name that its short key begins with."""


def short_key(stored_name: bytes) -> bytes:
    """Return the short key of a stored name.

    >>> short_key(b"data/" + b"n" * 500)[:14], len(short_key(b"data/" + b"n" * 500))
    (b'nnnnnnnnnnnnnn', 193)
    """
    key = stored_name.removeprefix(b"data/")
    digest = hashlib.sha256(stored_name).hexdigest()
    return key[:BEGINNING_BYTES] + b"~" + digest.encode()


def is_long(engine: Engine, key: bytes) -> bool:
    """Return whether a stored key is longer than an engine takes."""
    if 2 * len(key) > engine.limits.key_bytes:  # lmdb counts zero bytes twice
        try:
            engine.check_limits(Txn(success=(Put(key, b""),)))
        except (InvalidKeyError, CommitTooLargeError):
            return True
    return False


def with_long_keys(kv: KeyspaceReads[str], key: str) -> tuple[Any, str | bytes]:
    """Return the view that has a key, and the key there: `long-keys` if a record ever had it there.

    Copies of such a record have it there, too, even if their engine takes longer keys. One more
    read for a key of more than 128 bytes.
    """
    stored = kv.keyspace.encode(key)
    if isinstance(kv, SnapshotKV) and len(stored) > BEGINNING_BYTES:
        short = short_key(b"data/" + stored.removeprefix(kv.keyspace.prefix))
        if next(iter(kv.space(LONG_KEY_NAMES).history(short)), None) is not None:
            return kv.space(LONG_KEYS), short
    return kv, key


class LongKeys:
    """The long keys of one record."""

    def __init__(self, layout: Layout) -> None:
        self._values, self._names = (layout.space(s) for s in (LONG_KEYS, LONG_KEY_NAMES))
        self.prefixes = self._values.prefix, self._names.prefix

    def rows(self, stored_name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
        """Return what is stored for a long key: two keys with their values."""
        short = short_key(stored_name)
        return [(self._values.encode(short), value), (self._names.encode(short), stored_name)]
