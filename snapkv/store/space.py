"""A space: a part of a store with keys of its own, as bytes, for a layer above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from snapkv.codecs import Codec
from snapkv.committer import listed, pairs
from snapkv.errors import InvalidOptionError, InvalidTypeError
from snapkv.layout import prefix_end, space_name, stored_space_name
from snapkv.model import Commit, Guard, Ops, Scalar, SpaceOps, Stamp, Updated, V
from snapkv.reading.view import View
from snapkv.store.core import Core
from snapkv.store.typed import TypedView
from snapkv.store.updating import TRIES, Trying, Update, of_value
from snapkv.times import When


class Space(View[bytes]):
    """A byte-keyed space of a store, for layers above it; the same reads as the store."""

    _core: Core

    def __init__(self, core: Core, name: str) -> None:
        super().__init__(core, core.layout.space(name))
        self.name = name

    def with_codec(self, codec: Codec[V]) -> TypedView[bytes, V]:
        """Return a view of the space whose values a codec encodes; as `SnapshotKV.with_codec`."""
        return TypedView(self._core, self, codec, self.commit)

    def commit(
        self,
        build: Callable[[Stamp], SpaceOps] | None = None,
        *,
        puts: Mapping[bytes, bytes] = {},
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
                dict(pairs(puts)),
                listed(deletes, "deletes"),
                listed(delete_prefixes, "delete_prefixes"),
                listed(guards, "guards"),
            )

        def whole(stamp: Stamp) -> Ops:
            spaces = {name: build(stamp) if build else ops}
            return Ops(spaces=spaces, note=note, writer=writer, meta=meta)

        return self._core.commit(whole, timeout)

    def update(
        self,
        key: bytes,
        fn: Callable[[bytes | None], bytes | None],
        *,
        guards: Iterable[Guard] = (),
        tries: int = TRIES,
        timeout: float | None = None,
        note: str | None = None,
        writer: str | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> Updated[bytes]:
        """Change one key of the space; as `SnapshotKV.update`."""
        trying = Trying(
            guards=guards, tries=tries, timeout=timeout, note=note, writer=writer, meta=meta
        )
        change = of_value(fn)
        return Update(self._core, self, self.commit, key, change, trying).run()


def names(core: Core, prefix: str, when: When | None) -> Iterator[str]:
    """Yield the names of the spaces that hold keys at a moment, see `SnapshotKV.spaces`."""
    spaces = core.layout.spaces
    low = spaces + stored_space_name(prefix)
    end = prefix_end(low)
    source = core.source(when, None, False)
    while found := source.ranges([(low, end)], 1)[0]:
        relative = found[0].key.removeprefix(spaces)
        yield space_name(relative)
        low = prefix_end(spaces + relative.partition(b"/")[0] + b"/")
