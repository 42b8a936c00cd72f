"""A codec as views use it: errors that name the key, the revision and the codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from snapkv.base.arguments import wrong_type
from snapkv.codecs import Codec
from snapkv.errors import DecodeError, InvalidTypeError, InvalidValueError, SnapKVError
from snapkv.model import V


class Decoding(Generic[V]):
    """Encodes and decodes the values of keys.

    Raises `InvalidTypeError` if the codec is not one.
    """

    def __init__(self, codec: Codec[V]) -> None:
        for method in ("encode", "decode"):
            if isinstance(codec, type) or not callable(getattr(codec, method, None)):
                raise InvalidTypeError(
                    f"a codec has the methods encode and decode; {codec!r:.80} has no {method}"
                )
        self.codec = codec
        self._name = str(getattr(codec, "name", type(codec).__name__))

    def encode(self, key: str | bytes, value: V) -> bytes:
        """Return the bytes of a value; raises `InvalidValueError`."""
        if value is None:
            raise self._invalid(key, "None means that the key is absent: remove the key instead")
        try:
            data = self.codec.encode(value)
        except SnapKVError:
            raise
        except Exception as e:
            raise self._invalid(key, f"{type(e).__name__}: {e}") from e
        if not isinstance(data, bytes):
            raise wrong_type(f"what encode of the codec {self._name} returns", "bytes", data)
        return data

    def decode(self, key: str | bytes, data: bytes, revision: int | Callable[[], int]) -> V:
        """Return the value of some bytes that were read at a key.

        `revision` is the one that wrote them, or finds it; it is called for an error only. Raises
        `DecodeError`.
        """
        try:
            value = self.codec.decode(data)
        except SnapKVError:
            raise
        except Exception as e:
            raise self._undecodable(key, data, revision, f"{type(e).__name__}: {e}") from e
        if value is None:
            raise self._undecodable(key, data, revision, "it is None, which means an absent key")
        return value

    def maybe(
        self, key: str | bytes, data: bytes | None, revision: int | Callable[[], int]
    ) -> V | None:
        """Return the value of some bytes, None for None."""
        return None if data is None else self.decode(key, data, revision)

    def _invalid(self, key: str | bytes, why: str) -> InvalidValueError:
        return InvalidValueError(
            f"the codec {self._name} cannot encode the value of {key!r}: {why}",
            key=key,
            codec=self._name,
        )

    def _undecodable(
        self, key: str | bytes, data: bytes, revision: int | Callable[[], int], why: str
    ) -> DecodeError:
        found = revision() if callable(revision) else revision
        return DecodeError(key, found, self._name, f"{why}; the value begins with {data[:40]!r}")
