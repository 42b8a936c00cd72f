"""The writes that a store and its spaces share, each one commit; spaces; the room of a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Generic

from snapkv.codecs import Codec, T
from snapkv.committer import listed, pairs
from snapkv.committer.group import MEMBERS_MAX, STAMP_BYTES_MAX
from snapkv.committer.operations import guards_max, nested_max
from snapkv.engine.contract import Delete, Put, Txn
from snapkv.engine.request_checks import OP_OVERHEAD_BYTES, blamed, op_bytes
from snapkv.errors import CommitTooLargeError, InvalidOptionError, InvalidTypeError
from snapkv.layout import Keyspace, prefix_end, space_name, stored_space_name
from snapkv.model import Build, Commit, Guard, K, Ops, Scalar, SpaceOps, Stamp, Updated, V
from snapkv.reading.decoding import Decoding
from snapkv.reading.view import View
from snapkv.store.store_writer import StoreWriter
from snapkv.store.updating import TRIES, KeyUpdate
from snapkv.times import When

# --- additions: keys and values that depend on the timestamp of their commit ---

Addition = Callable[[int], tuple[str, V]]
"""Takes the timestamp of its commit; returns a key and a value."""


def building(
    ops: Ops, additions: tuple[Addition[V], ...], encoded: Callable[[object], list[Any]]
) -> Build | Ops:
    """Return operations; with additions, a function of the stamp that calls and encodes them."""
    if not additions:
        return ops

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


class KeyspaceWrites(View[K, V]):
    """The keys of a store or of a space, to read and to write.

    Each write takes `note`, `writer` and `meta`, which `SnapshotKV.commit` explains. With a codec
    it raises `InvalidValueError` for a value that the codec does not encode, before anything is
    written; None is not a value, because it means that a key is absent. Safe for threads if the
    codec is.
    """

    _core: StoreWriter
    _raw: Any = None
    _space_name: str | None = None
    commit: Callable[..., Commit]

    @property
    def codec(self) -> Codec[V] | None:
        """The codec; None if values are bytes."""
        return None if self._decoding is None else self._decoding.codec

    def _with_codec(self, codec: Codec[Any]) -> Any:
        self._core.check_open()
        raw = self._raw or self
        view = copy(raw)
        view._raw, view._decoding = raw, Decoding(codec)
        return view

    def _encoded(self, puts: object) -> list[tuple[K, bytes]]:
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
        data: Any = value if self._decoding is None else self._decoding.encode(key, value)
        puts: Any = {key: data} if type(key) is str else ((key, data),)  # of any key
        if self._space_name is None:
            ops = Ops(puts, note=note, writer=writer, meta=meta)
        else:
            spaces = {self._space_name: SpaceOps(puts)}
            ops = Ops(spaces=spaces, note=note, writer=writer, meta=meta)
        return self._core.commit(ops, None).ts

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
        `commit_timeout`). `guards` are further ones, such as the guard of a leader: if one of these
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
        said = {"note": note, "writer": writer, "meta": meta}
        trying = guards, tries, timeout, said
        return KeyUpdate(self._core, self._raw or self, self._decoding, key, fn, *trying).run()


# --- a space: a part of a store with keys of its own, as bytes, for a layer above ---


class Space(KeyspaceWrites[bytes, V]):
    """A byte-keyed space of a store, for layers above it; the same reads as the store."""

    def __init__(self, core: StoreWriter, name: str) -> None:
        super().__init__(core, core.layout.space(name))
        self.name = self._space_name = name

    def with_codec(self, codec: Codec[T]) -> Space[T]:
        """Return the space with values that a codec encodes; as `SnapshotKV.with_codec`."""
        space: Space[T] = self._with_codec(codec)
        return space

    @property
    def raw(self) -> Space:
        """The space with its bytes."""
        return self._raw or self  # type: ignore[return-value]  # of bytes

    def commit(
        self,
        build: Callable[[Stamp], SpaceOps] | None = None,
        *,
        puts: Mapping[bytes, V] = {},
        deletes: Iterable[bytes] = (),
        delete_prefixes: Iterable[bytes] = (),
        guards: Iterable[Guard] = (),
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
        timeout: float | None = None,
    ) -> Commit:
        """Commit operations on this space; `SnapshotKV.commit` can span several.

        Takes its keywords, or a function that returns `SpaceOps` for the stamp; either with a
        note, a writer and a meta. Raises as `SnapshotKV.commit`.
        """
        if build is not None and not callable(build):
            raise InvalidTypeError(
                f"commit takes a function, not {type(build).__name__}; values: commit(puts=...)"
            )
        if build is not None and (puts or deletes or delete_prefixes or guards):
            raise InvalidOptionError("give a function or keywords, not both")
        name, ops = self.name, SpaceOps()
        if build is None:
            ops = SpaceOps(
                dict(self._encoded(puts)),
                listed(deletes, "deletes"),
                listed(delete_prefixes, "delete_prefixes"),
                listed(guards, "guards"),
            )

        def whole(stamp: Stamp) -> Ops:
            spaces = {name: build(stamp) if build else ops}
            return Ops(spaces=spaces, note=note, writer=writer, meta=meta)

        return self._core.commit(whole, timeout)


def names(core: StoreWriter, prefix: str, when: When | None) -> Iterator[str]:
    """Yield the names of the spaces that hold keys at a moment, see `SnapshotKV.spaces`."""
    spaces = core.layout.spaces
    low = spaces + stored_space_name(prefix)
    end = prefix_end(low)
    source = core.source(when, None, False)
    while found := source.ranges([(low, end)], 1)[0]:
        relative = found[0].key.removeprefix(spaces)
        yield space_name(relative)
        low = prefix_end(spaces + relative.partition(b"/")[0] + b"/")


# --- the room of one commit: how writes are divided into commits that fit ---

GUARDS_BYTES = 512
"""The most bytes that the guards of a commit take of its request."""
SHOWN_CHARS = 80


class CommitRoom(Generic[K]):
    """The room of a commit to one key space, without `other_bytes` for the rest of its request."""

    def __init__(self, core: StoreWriter, space: Keyspace, other_bytes: int = GUARDS_BYTES) -> None:
        self._engine, self._space = core.engine, space
        limits = self._engine.limits
        self.bytes_max = limits.request_bytes - STAMP_BYTES_MAX - other_bytes
        budget = guards_max(limits, MEMBERS_MAX)
        self.ops_max = None if budget is None else nested_max(budget)

    def parts(
        self, writes: Iterable[tuple[K, bytes | None]]
    ) -> Iterator[tuple[list[tuple[K, bytes | None]], int]]:
        """Yield writes (None: a removal) in parts that each fit into a commit, with their bytes.

        Raises `CommitTooLargeError` and `InvalidKeyError` for one that never fits.
        """
        part: list[tuple[K, bytes | None]] = []
        size = 0
        for write in writes:
            more = self.size(write)
            if part and (size + more > self.bytes_max or len(part) == self.ops_max):
                yield part, size
                part, size = [], 0
            part.append(write)
            size += more
        if part:
            yield part, size

    def size(self, write: tuple[K, bytes | None]) -> int:
        """Return the most bytes that a write takes of a request; raises when it is too large."""
        key, value = write
        stored = self._space.encode(key)
        if value is None:
            return op_bytes(Delete(stored)) + OP_OVERHEAD_BYTES
        put = Put(stored, value)
        self._engine.check_limits(Txn(success=(put,)))
        size = op_bytes(put) + OP_OVERHEAD_BYTES
        if size > self.bytes_max:
            what = blamed("the commit", Txn(success=(put,)), self._space.prefix)
            raise CommitTooLargeError(what, size, self.bytes_max)
        return size
