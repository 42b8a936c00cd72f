"""Searching keys and values at a moment, as far as a bounded page goes."""

from __future__ import annotations

from dataclasses import dataclass

from snapkv.base.waiting import check_in_time
from snapkv.engine.contract import PAIRS
from snapkv.errors import InvalidOptionError
from snapkv.times import When
from snapkv.ui.source import Budget, Source

HITS_MAX = 100
AROUND_BYTES = 60
TEXT_BYTES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Hit:
    """A key that contains the text, or whose value does: `around` is a part of that."""

    key: str
    in_key: bool
    size: int
    before: bytes = b""
    match: bytes = b""
    behind: bytes = b""

    @property
    def in_value(self) -> bool:
        """Whether the value contains it."""
        return bool(self.match)


@dataclass(frozen=True, slots=True)
class Hits:
    """The first hits in key order; `after` is the key behind which to go on, None at the end."""

    hits: list[Hit]
    looked_at: int
    after: str | None


def search(
    source: Source,
    when: When | None,
    text: str,
    *,
    prefix: str = "",
    where: str = "both",
    after: str | None = None,
    limit: int = HITS_MAX,
    budget: Budget,
) -> Hits:
    """Return the keys at a moment that contain a text, or whose values do; ASCII case is ignored.

    `where` is `keys`, `values` or `both`. One pass over the state, as long as there is time.
    """
    if where not in ("keys", "values", "both"):
        raise InvalidOptionError(f"where={where[:40]!r}: give keys, values or both")
    needle = text.encode(errors="surrogateescape").lower()
    if not needle or len(needle) > TEXT_BYTES_MAX:
        raise InvalidOptionError(f"search for 1 to {TEXT_BYTES_MAX:,} bytes, not {len(needle):,}")
    moment = source.reader.source(when, None, False)
    low, end = source.span(prefix)
    if after is not None:
        low = max(low, source.encode(after) + b"\0")
    base, hits, looked_at = len(source.base) if not source.observed else 0, list[Hit](), 0
    for page in moment.pages(PAIRS, low, end, keys_only=where == "keys"):
        check_in_time()
        values = page.values or [b""] * len(page.keys)
        for stored, value in zip(page.keys, values, strict=True):
            looked_at += 1
            in_key = where != "values" and needle in stored[base:].lower()
            at = value.lower().find(needle) if where != "keys" else -1
            if at >= 0 and source.hides(source.decode(stored)):
                at = -1
            if in_key or at >= 0:
                hits.append(_hit(source.decode(stored), value, in_key, at, len(needle)))
                if len(hits) == limit:
                    return Hits(hits, looked_at, hits[-1].key)
        if budget.over:
            return Hits(hits, looked_at, source.decode(page.keys[-1]))
    return Hits(hits, looked_at, None)


def _hit(key: str, value: bytes, in_key: bool, at: int, length: int) -> Hit:
    if at < 0:
        return Hit(key, in_key, len(value))
    end, low = at + length, max(0, at - AROUND_BYTES)
    return Hit(key, in_key, len(value), value[low:at], value[at:end], value[end:][:AROUND_BYTES])
