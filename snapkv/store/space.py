"""A space: a part of a store with keys of its own, as bytes, for a layer above."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from snapkv.codecs import Codec, T
from snapkv.committer import listed
from snapkv.errors import InvalidOptionError, InvalidTypeError
from snapkv.layout import prefix_end, space_name, stored_space_name
from snapkv.model import Commit, Guard, Ops, Scalar, SpaceOps, Stamp, V
from snapkv.store.core import Core
from snapkv.store.writes import Writes
from snapkv.times import When


class Space(Writes[bytes, V]):
    """A byte-keyed space of a store, for layers above it; the same reads as the store."""

    def __init__(self, core: Core, name: str) -> None:
        super().__init__(core, core.layout.space(name))
        self.name = name

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
