"""The state of one member as the source of a snapshot, whose errors name the member."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from snapkv.engine.contract import SCAN, KeyValue, Page, PageForm
from snapkv.errors import CompactedError
from snapkv.fleet.member import naming
from snapkv.reading.sources import Source
from snapkv.timeline.moment import Moment

Found = TypeVar("Found")


class Turning(Protocol):
    """A member in a moment, which turns to its archive: see `Pin`."""

    @property
    def moment(self) -> Moment | None:
        """Where its keys are read now."""
        ...

    def read(self, read: Callable[[Moment], Found]) -> Found:
        """Return what a function reads of the moment."""
        ...

    def turn_to_archive(self, failed: Moment, why: CompactedError) -> None:
        """Read from the archive from now on."""
        ...


# For example, a listing of three pages from an engine, which another process compacts meanwhile:
#
#     the engine has    a page is read    from
#     the moment        a to f            the engine
#     compacted it      g to m            the engine: CompactedError; then the archive, after f
#                       n to z            the archive, as all later reads of this moment
class MemberSource:
    """A `Source` that reads a member: its engine, or, if that has compacted it, its archive."""

    def __init__(self, member: str, pin: Turning, moment: Moment) -> None:
        self._member, self._pin = member, pin
        self.timestamp, self.revision, self.final = moment.timestamp, moment.revision, moment.final

    def get(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Return the versions of stored keys, None where a key is absent."""
        return self._read(lambda source: source.get(keys))

    def ranges(
        self, wanted: Sequence[tuple[bytes, bytes]], limit: int = 0
    ) -> list[Sequence[KeyValue]]:
        """Return the contents of some short ranges, `limit` keys of each (0: all)."""
        return self._read(lambda source: source.ranges(wanted, limit))

    def count(self, start: bytes, end: bytes) -> int:
        """Return the number of keys in a range."""
        return self._read(lambda source: source.count(start, end))

    def changed(self, other: Source, start: bytes, end: bytes) -> list[bytes] | None:
        """Return sorted stored keys that hold all differences; None if scanning is cheaper."""
        inside = other._pin.moment if isinstance(other, MemberSource) else other
        assert inside is not None, "a source is made of what is seen"
        return self._read(lambda source: source.changed(inside, start, end))

    def pages(
        self, form: PageForm[Page], start: bytes, end: bytes, *, keys_only: bool = False
    ) -> Iterator[Page]:
        """Yield the range [start, end) in pages, ascending."""

        def pages(source: Source, start: bytes) -> Iterator[Page]:
            return source.pages(form, start, end, keys_only=keys_only)

        return self._pages(start, pages, form.last_key)

    def first(
        self, start: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the first `limit` keys of the range [start, end) in pages, and read no more."""
        left = limit

        def pages(source: Source, start: bytes) -> Iterator[list[KeyValue]]:
            nonlocal left
            for page in source.first(start, end, left, keys_only=keys_only):
                left -= len(page)
                yield page

        return self._pages(start, pages, SCAN.last_key)

    def _read(self, read: Callable[[Source], Found]) -> Found:
        with naming(self._member):
            return self._pin.read(read)

    def _pages(
        self,
        key: bytes,
        read: Callable[[Source, bytes], Iterator[Page]],
        last_of: Callable[[Page], bytes],
    ) -> Iterator[Page]:
        """Yield pages of the engine, and of the archive from where compaction ended these."""
        pin = self._pin
        with naming(self._member):
            while True:
                moment = pin.moment
                assert moment is not None, "a source is made of what is seen"
                try:
                    for page in read(moment, key):
                        yield page
                        key = last_of(page) + b"\0"
                    return
                except CompactedError as e:
                    pin.turn_to_archive(moment, e)
