"""Views of a store or a space whose values a codec encodes and decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Generic

from snapkv.codecs import Codec
from snapkv.committer import pairs
from snapkv.model import Commit, Entry, Guard, K, Scalar, Updated, V
from snapkv.reading.typed import TypedReads
from snapkv.reading.view import View
from snapkv.store.core import Core
from snapkv.store.updating import TRIES, Trying, Update, check_function


class TypedView(TypedReads[K, V]):
    """The keys of a store or a space, with values that a codec encodes and decodes.

    It has the names that read and write values; everything else is a matter of the store. Several
    views may share a store: each commit is one of the store's, with its log, guards and times.
    Values are compared by their bytes, so a value may be changed in place.

    Writes raise `InvalidValueError` for a value that the codec does not encode, before anything is
    written; None is not a value, because it means that a key is absent. Reads raise `DecodeError`.
    Safe for threads if the codec is.

    >>> import snapkv
    >>> from snapkv import codecs
    >>> with snapkv.open("memory:") as store:
    ...     plans = store.with_codec(codecs.json)
    ...     commit = plans.commit(puts={"a": {"seats": 1}}, note="new")
    ...     done = plans.update("a", lambda plan: {**(plan or {}), "seats": 2})
    ...     plans.load("a"), plans.load("a", commit.ts), store.load("a")
    ({'seats': 2}, {'seats': 1}, b'{"seats":2}')
    """

    def __init__(
        self, core: Core, raw: View[K], codec: Codec[V], commit: Callable[..., Commit]
    ) -> None:
        super().__init__(raw, codec)  # type: ignore[arg-type]  # mypy tries str and bytes
        self._core, self._commit = core, commit

    def save(
        self,
        key: K,
        value: V,
        *,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> int:
        """Save one key; return the commit's timestamp. One round trip. Raises as `commit`."""
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

    def commit(
        self,
        *,
        puts: Mapping[K, V] = {},
        deletes: Iterable[K] = (),
        delete_prefixes: Iterable[K] = (),
        guards: Iterable[Guard] = (),
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations; as `SnapshotKV.commit` with keywords, and raises `InvalidValueError`.

        For a function of the stamp, or a commit over several spaces, encode the values with
        `codec`, and call `commit` of the store.
        """
        encode = self._decoding.encode
        return self._commit(
            puts={key: encode(key, value) for key, value in pairs(puts)},
            deletes=deletes,
            delete_prefixes=delete_prefixes,
            guards=guards,
            note=note,
            writer=writer,
            meta=meta,
            timeout=timeout,
        )

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

        As `SnapshotKV.update`. `fn` may change the value in place and return it. A value that is
        encoded as the one before commits nothing, also if the stored bytes were not canonical.
        """
        check_function(fn)
        trying = Trying(
            guards=guards, tries=tries, timeout=timeout, note=note, writer=writer, meta=meta
        )
        step: _Step[K, V] = _Step(self, key, fn)
        done = Update(self._core, self._raw, self._commit, key, step, trying).run()
        return Updated(step.value, done.commit, done.tries)


class _Step(Generic[K, V]):
    """A function of values as one of entries; keeps the last value that it returned."""

    def __init__(self, view: TypedView[K, V], key: K, fn: Callable[[V | None], V | None]) -> None:
        self._decoding = view._decoding
        self._key: K = key
        self._fn = fn
        self.value: V | None = None

    def __call__(self, entry: Entry | None) -> bytes | None:
        key, decoding = self._key, self._decoding
        before = None if entry is None else decoding.decode(key, entry.value, entry.revision)
        self.value = self._fn(before)
        if self.value is None:
            return None
        data = decoding.encode(key, self.value)
        if entry is None or data == entry.value:
            return data
        # `before` may have been changed in place
        again = decoding.decode(key, entry.value, entry.revision)
        return entry.value if data == decoding.encode(key, again) else data
