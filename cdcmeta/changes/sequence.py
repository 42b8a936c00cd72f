"""Sequences: places in the feed, which sort by time and never decrease."""

from __future__ import annotations

from typing import NamedTuple

from cdcmeta.errors import InvalidSequenceError
from snapkv.clock import Clock, SystemClock
from snapkv.errors import InvalidTupleError
from snapkv.times import When, is_likely, is_number, pack, physical_ms, resolve, unlikely
from snapkv.tuples import Versionstamp, unpack
from snapkv.tuples import pack as pack_tuple

STAMP_BYTES = 12
INCARNATION_MAX = 2**32 - 1
BATCH_MAX = USER_MAX = 0xFFFF
_FIRST = pack_tuple((0,))


class Sequence(NamedTuple):
    """A place in the feed of a database: its incarnation, and a commit's versionstamp.

    The incarnation grows by one each time the database is relocated, so sequences remain in order
    over all its stores. The text is hexadecimal and sorts as sequences do: the incarnation
    as a packed tuple (1 to 5 bytes), then the 12 bytes of the versionstamp.

    >>> str(Sequence(0, Versionstamp(445644800032243719, 0, 7)))
    '14062f3f95a1ec000700000007'
    """

    incarnation: int
    stamp: Versionstamp

    def __str__(self) -> str:
        return bytes(self).hex()

    def __bytes__(self) -> bytes:
        incarnation, stamp = self
        return (pack_tuple((incarnation,)) if incarnation else _FIRST) + bytes(stamp)

    @property
    def timestamp(self) -> int:
        """The timestamp of the commit."""
        return self.stamp.version

    @classmethod
    def parse(cls, text: str) -> Sequence:
        """Return the sequence of a text; `"0"` is the one before all commits.

        >>> Sequence.parse("14062f3f95a1ec000700000007").stamp.user
        7

        Raises `InvalidSequenceError`.
        """
        if not isinstance(text, str):
            raise InvalidSequenceError(f"a sequence must be text, not {type(text).__name__}")
        if text == "0":
            return START
        digits = 2 * STAMP_BYTES
        if len(text) < digits + 2:
            raise InvalidSequenceError(
                f"sequence {text!r} has {len(text)} digits, but needs at least {digits + 2}"
            )
        if text.lower() != text or not set(text) <= set("0123456789abcdef") or len(text) % 2:
            raise InvalidSequenceError(
                f"sequence {text[:80]!r} is not an even number of lower-case hexadecimal digits"
            )
        return cls._of(text, bytes.fromhex(text[:-digits]), bytes.fromhex(text[-digits:]))

    @classmethod
    def _of(cls, text: str, packed: bytes, stamp: bytes) -> Sequence:
        try:
            (incarnation,) = unpack(packed)
        except (InvalidTupleError, ValueError) as e:
            raise InvalidSequenceError(
                f"sequence {text[:80]!r} does not begin with an incarnation"
            ) from e
        if type(incarnation) is not int or not 0 <= incarnation <= INCARNATION_MAX:
            raise InvalidSequenceError(
                f"sequence {text[:80]!r} has an invalid incarnation: {incarnation!r}"
            )
        return cls(incarnation, Versionstamp.from_bytes(stamp))

    @classmethod
    def at(cls, time: When, incarnation: int = 0, *, clock: Clock | None = None) -> Sequence:
        """Return the place of a time: after all commits up to it, and before all later ones.

        `time` is a timestamp of snapkv, an aware datetime or text. Relative texts count from
        `clock`, by default this machine's. No round trip; `ChangesDB.place` finds the database's
        incarnation of that time.

        >>> str(Sequence.at("2026-11-20T14:05:00Z"))
        '140687e5196b83ffffffffffff'

        As in `snapkv`, a number must be a plausible timestamp by that clock. Raises
        `snapkv.errors.InvalidTimeError`, `snapkv.errors.InvalidTypeError`.
        """
        now = pack((clock or SystemClock()).now_ms())
        timestamp = resolve(time, physical_ms(now))
        if is_number(time) and not is_likely(timestamp, now, now):
            raise unlikely(timestamp)
        return cls.behind(timestamp, incarnation)

    @classmethod
    def behind(cls, timestamp: int, incarnation: int) -> Sequence:
        """Return the place after all commits up to a timestamp."""
        return cls(incarnation, Versionstamp(timestamp, BATCH_MAX, USER_MAX))


START = Sequence(0, Versionstamp(0, 0, 0))
"""The place before all commits: no commit has the timestamp 0."""
