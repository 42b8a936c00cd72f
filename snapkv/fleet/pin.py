"""One member in a moment of a fleet: what is seen of it, and where its keys are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from snapkv.engine.contract import SCAN, KeyValue, Page, PageForm
from snapkv.errors import CompactedError, SnapKVError
from snapkv.fleet.member import named, naming
from snapkv.fleet.member_link import MemberLink
from snapkv.layout import Mark
from snapkv.reading.deadline import within
from snapkv.reading.snapshot import Snapshot, StateReads
from snapkv.store.open import Keys
from snapkv.timeline.moment import Moment
from snapkv.times import dated

if TYPE_CHECKING:
    from snapkv.archive.small_archives import SmallArchive


Found = TypeVar("Found")


# For example, a listing of three pages from an engine, which another process compacts meanwhile:
#
#     the engine has    a page is read    from
#     the moment        a to f            the engine
#     compacted it      g to m            the engine: CompactedError; then the archive, after f
#                       n to z            the archive, as all later reads of this moment
class MemberSource:
    """A `StateReads` that reads a member: its engine, or, if that has compacted it, its archive."""

    def __init__(self, member: str, pin: Pin, moment: Moment) -> None:
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

    def changed(self, other: StateReads, start: bytes, end: bytes) -> list[bytes] | None:
        """Return sorted stored keys that hold all differences; None if scanning is cheaper."""
        inside = other._pin.moment if isinstance(other, MemberSource) else other
        assert inside is not None, "a source is made of what is seen"
        return self._read(lambda source: source.changed(inside, start, end))

    def pages(
        self, form: PageForm[Page], start: bytes, end: bytes, *, keys_only: bool = False
    ) -> Iterator[Page]:
        """Yield the range [start, end) in pages, ascending."""

        def pages(source: StateReads, start: bytes) -> Iterator[Page]:
            return source.pages(form, start, end, keys_only=keys_only)

        return self._pages(start, pages, form.last_key)

    def first(
        self, start: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the first `limit` keys of the range [start, end) in pages, and read no more."""
        left = limit

        def pages(source: StateReads, start: bytes) -> Iterator[list[KeyValue]]:
            nonlocal left
            for page in source.first(start, end, left, keys_only=keys_only):
                left -= len(page)
                yield page

        return self._pages(start, pages, SCAN.last_key)

    def _read(self, read: Callable[[StateReads], Found]) -> Found:
        with naming(self._member):
            return self._pin.read(read)

    def _pages(
        self,
        key: bytes,
        read: Callable[[StateReads, bytes], Iterator[Page]],
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


State = Literal["live", "archive", "behind", "missing", "absent"]
LATE = "behind", "missing"
"""The states of a member that make a moment not final."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a moment of the fleet shows of one member.

    `state`: "live" (its engine answered) or "archive" (its archive did), both final; "behind" (it
    has no final state at that time yet), "missing" (nothing of it is known at that time: `error`
    says why), "absent" (it did not belong to the fleet, or had no commit yet). `timestamp` and
    `revision` belong to the newest commit in the moment, and `newest` is the timestamp up to
    which the member is final, as far as it is known; 0 where there is none.
    """

    state: State
    timestamp: int = 0
    revision: int = 0
    newest: int = 0
    final: bool = False
    error: str | None = None


ABSENT = Seen("absent", final=True)


class Pin:
    """One member in a moment: what is seen of it, and where its keys are read, None for nowhere.

    A hot path: for a time whose `revision` is known, the `Moment` is made when it is needed. An
    archive that may be read as a whole (`small_archive`) is opened when one of its keys is needed,
    and then may turn out to be absent: see `settled`.
    """

    __slots__ = (
        "_moment",
        "_seen",
        "connection",
        "open_pin",
        "reads",
        "revision",
        "small_archive",
        "state",
        "timestamp",
    )

    def __init__(
        self,
        connection: MemberLink,
        state: State,
        reads: Keys | None = None,
        moment: Moment | None = None,
        seen: Seen | None = None,
        timestamp: int = 0,
        revision: int = 0,
        small_archive: SmallArchive | None = None,
        open_pin: Callable[[], Pin] | None = None,
    ) -> None:
        self.connection, self.state, self.reads = connection, state, reads
        self._moment, self._seen = moment, seen
        self.timestamp, self.revision = timestamp, revision
        self.small_archive, self.open_pin = small_archive, open_pin

    def settled(self) -> Pin:
        """Return the same after finding out where its keys are read: of an archive, it opens it."""
        if (open_pin := self.open_pin) is not None:  # another thread may do the same
            found = open_pin()
            self.state, self.reads = found.state, found.reads
            self._moment, self._seen = found._moment, found._seen
            self.small_archive = self.open_pin = None
        return self

    @property
    def moment(self) -> Moment | None:
        """The member's own moment, None if nothing of it is seen."""
        self.settled()
        if self._moment is None and (revision := self.revision):
            try:
                self._moment = self.connection.moment(self.timestamp)
            except CompactedError as e:  # since the revision was known
                self._read_in_archive(self.timestamp, revision, None, e)
        return self._moment

    def get(self, key: str) -> KeyValue | None:
        """Return the version of a key, if it has `reads`, in the time of a call; errors name it."""
        assert self.reads is not None
        connection = self.connection
        try:  # not `naming`: a hot path
            stored = self.reads.keyspace.encode(key)
        except SnapKVError as e:
            named(e, connection.name)
            raise
        if not connection.waits:
            return self._get(stored)
        with naming(connection.name), within(connection.timeout):
            return self._get(stored)

    def _get(self, stored: bytes) -> KeyValue | None:
        if self.revision:
            found = self.connection.point(stored, self.revision)
            if found is not None:
                return found.kv
        with naming(self.connection.name):
            (kv,) = self.read(lambda moment: moment.get((stored,)))
        return kv

    def read(self, read: Callable[[Moment], Found]) -> Found:
        """Return what a function reads of the moment: see `turn_to_archive`."""
        while True:
            moment = self.moment
            assert moment is not None
            try:
                return read(moment)
            except CompactedError as e:
                self.turn_to_archive(moment, e)

    def turn_to_archive(self, failed: Moment, why: CompactedError) -> None:
        """Read the member's keys from its archive from now on: the engine has compacted `failed`.

        What the moment shows of the member stays: its engine answered. Another thread may have
        done the same already. Raises `why` if the archive does not have it, and what opening the
        archive raises.
        """
        if self._moment is failed:
            self._seen = self.seen
            self._read_in_archive(failed.timestamp, failed.revision, failed.mark, why)

    def _read_in_archive(
        self, timestamp: int, revision: int, mark: Mark | None, why: CompactedError
    ) -> None:
        found = self.connection.in_archive(self.reads, timestamp, revision, mark, why)
        self.reads, self._moment = found
        self.revision = 0

    def snapshot(self) -> Snapshot[str] | None:
        """Return the member as a snapshot, None if nothing of it is seen."""
        moment = self.moment
        if moment is None or self.reads is None:
            return None
        source = MemberSource(self.connection.name, self, moment)
        return Snapshot(source, self.reads.keyspace, read_timeout=self.connection.timeout)

    @property
    def why(self) -> str:
        """Why the member has no final state at the moment."""
        seen = self.seen
        if seen.error is not None:
            return seen.error
        return "nothing of it is known" if not seen.newest else f"final up to {dated(seen.newest)}"

    def left_out(self) -> Pin:
        """Return the same without a place to read from."""
        return Pin(self.connection, self.state, seen=replace(self.seen, timestamp=0, revision=0))

    def stale(self) -> Pin:
        """Return the same as a state that is not final; if nothing is seen, that stays so."""
        if self.moment is None:
            return self
        return Pin(self.connection, "behind", self.reads, self.moment)

    @property
    def seen(self) -> Seen:
        """What the moment shows of the member."""
        self.settled()
        if self._seen is None:
            moment = self.moment
            assert moment is not None
            mark, final = moment.mark, self.state != "behind"
            newest = max(self.connection.known, mark.timestamp)
            self._seen = Seen(self.state, mark.timestamp, mark.revision, newest, final)
        return self._seen
