"""The writes that a store and its spaces share: each is one commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from snapkv.codecs import Codec
from snapkv.committer import pairs
from snapkv.errors import InvalidTypeError
from snapkv.model import Build, Commit, Guard, K, Ops, Scalar, Stamp, Updated, V
from snapkv.reading.decoding import Decoding
from snapkv.reading.view import View
from snapkv.store.core import Core
from snapkv.store.updating import TRIES, Trying, Update

# --- additions: keys and values that depend on the timestamp of their commit ---

Addition = Callable[[int], tuple[str, V]]
"""Takes the timestamp of its commit; returns a key and a value."""


def building(
    ops: Ops, additions: tuple[Addition[V], ...], encoded: Callable[[object], list[Any]]
) -> Build:
    """Return operations as a function of the stamp that calls the additions, and encodes them."""
    if not additions:
        return lambda _: ops

    def build(stamp: Stamp) -> Ops:
        added = encoded([_added(addition, stamp.ts) for addition in additions])
        puts = [*pairs(ops.puts), *added]
        return replace(ops, puts=puts)  # type: ignore[arg-type]

    return build


def _added(addition: Addition[V], ts: int) -> tuple[str, V]:
    if not callable(addition):
        raise InvalidTypeError(f"an addition is a function, not {type(addition).__name__}")
    pair = addition(ts)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise InvalidTypeError(f"an addition returns (key, value), not {pair!r}")
    return pair


# --- writes ---


class Writes(View[K, V]):
    """The keys of a store or of a space, to read and to write.

    Each write takes `note`, `writer` and `meta`, which `SnapshotKV.commit` explains. With a codec
    it raises `InvalidValueError` for a value that the codec does not encode, before anything is
    written; None is not a value, because it means that a key is absent. Safe for threads if the
    codec is.
    """

    _core: Core
    _raw: Any = None
    commit: Callable[..., Commit]

    @property
    def codec(self) -> Codec[V] | None:
        """The codec; None if values are bytes."""
        return None if self._decoding is None else self._decoding.codec

    def _with_codec(self, codec: Codec[Any]) -> Any:
        """Return the same keys with values of a codec."""
        self._core.check_open()
        raw = self._raw or self
        view = copy(raw)
        view._raw, view._decoding = raw, Decoding(codec)
        return view

    def _encoded(self, puts: object) -> list[tuple[K, bytes]]:
        """Return what is saved as keys and bytes."""
        found, decoding = pairs(puts), self._decoding
        if decoding is None:
            return list(found)
        return [(key, decoding.encode(key, value)) for key, value in found]

    def save(
        self,
        key: K,
        value: V,
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Save one key; return the commit's timestamp. One round trip."""
        return self.commit(puts={key: value}, note=note, writer=writer, meta=meta).ts

    def remove(
        self,
        key: K,
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Remove one key, which may be absent; return the commit's timestamp. One round trip."""
        return self.commit(deletes=[key], note=note, writer=writer, meta=meta).ts

    def update(
        self,
        key: K,
        fn: Callable[[V | None], V | None],
        *,
        guards: Iterable[Guard] = (),
        tries: int = TRIES,
        timeout: float | None = None,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> Updated[V]:
        """Change one key: commit `fn(value)`, unless another writer changed the key meanwhile.

        `fn` gets the value now, None if the key is absent, and returns the new one; None removes
        the key, the same value commits nothing. If another writer came first, the key is read
        again after a short wait, and `fn` is called again. `tries` bounds the calls of
        `fn`, and `timeout` the seconds of all of them together (None: the store's
        `commit_timeout`). `guards` are further ones, such as that of a leader: if one of these
        fails, the update is not tried again. `note`, `writer` and `meta` are as for `commit`.

        With a codec, `fn` may change the value in place and return it. A value that is encoded as
        the one before commits nothing, also if the stored bytes were not canonical.

        Two round trips for each try.

        >>> import snapkv
        >>> with snapkv.open("memory:") as store:
        ...     for _ in range(3):
        ...         done = store.update("visits", lambda value: b"%d" % (int(value or 0) + 1))
        ...     done.value, done.commit.ts == store.resolved(), done.tries
        (b'3', True, 1)

        Raises `ConflictError` (`tries` or the time are used up, or one of `guards` failed), what
        `fn` raises, `ReadTimeoutError` and `CommitTimeoutError` (the time ended within a try; in
        all of these cases nothing was written), `CommitUnknownError` (never tried again:
        `resolve` finds it out), and as `commit`.
        """
        trying = Trying(
            guards=guards, tries=tries, timeout=timeout, note=note, writer=writer, meta=meta
        )
        raw: Any = self._raw or self
        return Update(self._core, raw, raw.commit, self._decoding, key, fn, trying).run()
