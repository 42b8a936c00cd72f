"""A codec as reads and writes use it: errors that name the key, the revision and the codec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

from snapkv.base.arguments import wrong_type
from snapkv.codecs import Codec
from snapkv.engine.contract import KeyValue
from snapkv.errors import DecodeError, InvalidTypeError, InvalidValueError, SnapKVError
from snapkv.model import Change, Changes, Entry, K, V, Version


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
        self.name = str(getattr(codec, "name", type(codec).__name__))

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
            raise wrong_type(f"what encode of the codec {self.name} returns", "bytes", data)
        return data

    def decode(self, key: K, data: bytes, revision: int | Callable[[K], int]) -> V:
        """Return the value of some bytes that were read at a key.

        `revision` is the one that wrote them, or finds that of the key; it is called for an error
        only. Raises `DecodeError`.
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

    def of(self, key: K, kv: KeyValue) -> V:
        """Return the value of a version of a key."""
        return self.decode(key, kv.value, kv.mod_revision)

    def maybe(self, key: K, data: bytes | None, revision: int | Callable[[K], int]) -> V | None:
        """Return the value of some bytes, None for None."""
        return None if data is None else self.decode(key, data, revision)

    def changes(self, found: Changes[K]) -> Changes[K, V]:
        """Return changes with decoded values."""
        return Changes(
            found.commit,
            tuple(
                Change(c.key, self.maybe(c.key, c.value, c.commit.revision), c.commit)
                for c in found.changes
            ),
        )

    def versions(self, key: K, found: Iterator[Version]) -> Iterator[Version[V]]:
        """Yield versions of a key with decoded values."""
        for each in found:
            value = self.maybe(key, each.value, each.revision)
            yield Version(each.ts, each.revision, value, each.writer, each.note, each.meta)

    def _invalid(self, key: str | bytes, why: str) -> InvalidValueError:
        return InvalidValueError(
            f"the codec {self.name} cannot encode the value of {key!r}: {why}",
            key=key,
            codec=self.name,
        )

    def _undecodable(
        self, key: K, data: bytes, revision: int | Callable[[K], int], why: str
    ) -> DecodeError:
        found = revision(key) if callable(revision) else revision
        return DecodeError(key, found, self.name, f"{why}; the value begins with {data[:40]!r}")


def entry_of(key: K, kv: KeyValue, decoding: Decoding[V] | None) -> Entry[V]:
    """Return the entry of a version of a key, of its bytes or of what a codec decodes."""
    value: Any = kv.value if decoding is None else decoding.of(key, kv)
    return Entry(value, kv.mod_revision, kv.create_revision, kv.version)
