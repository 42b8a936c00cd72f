"""Values as they are recorded: of redacted keys a digest in the value's place."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Sequence
from hashlib import sha256

from snapkv.errors import InvalidOptionError

KEY_BYTES_MIN = 32
PLAIN_SECRET = b"k8s\0\n\x0c\n\x02v1\x12\x06Secret"
"""How a Secret of Kubernetes begins that the API server does not encrypt."""


class RecordedValues:
    """What a record keeps of values: a digest of the ones whose keys begin with a prefix.

    The digest is an HMAC with SHA-256. Its key is in a file, without which a short secret cannot be
    guessed from its digest. Two values have one digest exactly if they are equal, so that changes
    show. `has_secrets` says whether a Secret of Kubernetes was kept in plain text.

    >>> values = RecordedValues([b"secrets/"], b"k" * 32)
    >>> values.of(b"secrets/db", b"hunter2")[:48], values.of(b"secrets/db", b"hunter2")[-13:]
    (b'{"redacted": "hmac-sha256:5e318f8c:f6c2ff60161a7', b', "bytes": 7}')
    >>> values.of(b"app", b"1")
    b'1'
    """

    def __init__(self, redacted: Sequence[bytes] = (), key: bytes = b"") -> None:
        self._redacted, self._key = tuple(redacted), key
        self._start = f'{{"redacted": "hmac-sha256:{sha256(key).hexdigest()[:8]}:'.encode()
        self.has_secrets = False

    def of(self, key: bytes, value: bytes) -> bytes:
        """Return what is recorded of a value; an empty one, which a removal has, as it is."""
        if value and key.startswith(self._redacted):
            digest = hmac.new(self._key, value, sha256).hexdigest()
            return self._start + f'{digest}", "bytes": {len(value)}}}'.encode()
        self.has_secrets = self.has_secrets or value.startswith(PLAIN_SECRET)
        return value

    def are_comparable(self, found: bytes, known: bytes) -> bool:
        """Return whether a value as it is recorded now shows if an earlier record has another one.

        A digest and a value do not, nor do digests of two keys.
        """
        digests = [each.startswith(b'{"redacted": "hmac-sha256:') for each in (found, known)]
        return digests[0] == digests[1] and (not digests[0] or known.startswith(self._start))


def digest_key(path: str) -> bytes:
    """Return the key in a file; make the file if it does not exist.

    Raises `InvalidOptionError` if it cannot be read, or is too short to be a key.
    """
    try:
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(KEY_BYTES_MIN) + "\n")
    except FileExistsError:
        pass
    except OSError as e:
        raise InvalidOptionError(f"redact_key={path!r} cannot be made: {e.strerror}") from e
    try:
        with open(path, "rb") as file:
            key = file.read().strip()
    except OSError as e:
        raise InvalidOptionError(f"redact_key={path!r} cannot be read: {e.strerror}") from e
    if len(key) < KEY_BYTES_MIN:
        raise InvalidOptionError(
            f"redact_key={path!r} has {len(key)} bytes, and a key has {KEY_BYTES_MIN} or more: "
            "name a file that does not exist, and it is made"
        )
    return key
