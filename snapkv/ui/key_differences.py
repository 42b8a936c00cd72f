"""The keys that differ between two moments, as far as a bounded page goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime

from snapkv.base.waiting import check_in_time
from snapkv.engine.contract import PAIRS
from snapkv.reading.snapshot import Both, both_read, both_scanned
from snapkv.reading.snapshot import StateReads as Moment
from snapkv.rendering.audit_log import AuditEvent, Who
from snapkv.times import When
from snapkv.ui.page_source import Budget, Source

ROWS_MAX = 200
VALUES_BYTES_MAX = 8 << 20
"""The most bytes of values in a page; each row still has the sizes of the values that are left
out."""
LOOKED_MIN = 1_000
"""The fewest keys that are compared, however slow that is."""
CHILDREN_MAX = 5_000
ADDED, CHANGED, REMOVED = "+", "~", "-"


class Attributed:
    """What was written: by its writer, or as managers of Kubernetes and its audit log say."""

    __slots__ = ()
    writer: str | None
    managers: tuple[str, ...]
    audit: AuditEvent | None

    @property
    def who(self) -> str | None:
        """The origin on one line, None if it is unknown."""
        return Who(self.writer, self.managers, self.audit).text


@dataclass(frozen=True, slots=True)
class Row:
    """A key that differs: `+ ~ -`, and its two values, or their sizes if the values are left out.

    The values of a `hidden` one are redacted. `last` is the newest commit that wrote or removed it.
    """

    key: str
    kind: str
    before: bytes | None
    after: bytes | None
    before_size: int | None
    after_size: int | None
    hidden: bool = False
    last: Attributed | None = None

    @property
    def has_values(self) -> bool:
        """Whether the values are in the row."""
        return (self.before_size is None or self.before is not None) and (
            self.after_size is None or self.after is not None
        )


class Rows(list[Row]):
    """The rows of a page; beyond `VALUES_BYTES_MAX` bytes of values, they have only the sizes."""

    def __init__(self, source: Source) -> None:
        self._source, self._room = source, VALUES_BYTES_MAX

    def add(self, key: str, before: bytes | None, after: bytes | None) -> None:
        """Add the row of a key."""
        self._room -= len(before or b"") + len(after or b"")
        self.append(row(self._source, key, before, after, self._room >= 0))


class Counted:
    """What has counts of keys that differ, by kind."""

    __slots__ = ()
    counts: Counter[str]

    @property
    def total(self) -> int:
        """The number of keys that differ, as far as they were counted."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Differences(Counted):
    """The first differences in key order, and how many of each kind there are.

    `children` counts them for each part of the keys up to the next `/`. If `complete` is False, the
    counts are of the keys up to `looked_to`; `after` is the key from which the rows continue.
    """

    rows: list[Row] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    children: dict[str, Counter[str]] = field(default_factory=dict)
    complete: bool = True
    after: str | None = None
    looked_to: str | None = None

    @property
    def elsewhere(self) -> int:
        """The number of them that are below no child that is shown."""
        return self.total - sum(sum(each.values()) for each in self.children.values())


def differences(
    source: Source,
    before: When | Moment | None,
    after: When | Moment | None,
    prefix: str = "",
    *,
    start: str | None = None,
    until: bytes | None = None,
    name: str = "",
    limit: int = ROWS_MAX,
    children_max: int = CHILDREN_MAX,
    budget: Budget,
) -> Differences:
    """Return what differs between two moments or states; `start` continues after a key.

    With a `name`, only of keys that contain it.

    If few commits lie between them, their changes are replayed and everything is counted. Otherwise
    both states are compared in key order until the page is full and the time is used up.
    """
    a, b = (
        source.reader.source(each, None, False)
        if isinstance(each, int | str | datetime | None)
        else each
        for each in (before, after)
    )
    prefix = prefix or source.root
    low, high = source.span(prefix)
    low = low if start is None else max(low, source.encode(start) + b"\0")
    high = high if until is None else min(high, until)
    changed = a.changed(b, low, high)
    if changed is not None:
        pairs = both_read(a, b, changed)
    elif not source.observed and a.revision <= source.reader.timeline.tracker.creation.revision:
        pairs = _all_new(b, low, high)  # a scan of the empty state would pass over every key
    else:
        pairs = both_scanned(a, b, low, high)
    if name:
        pairs = (each for each in pairs if name.lower() in source.decode(each[0]).lower())
    most = limit, children_max
    return _gathered(source, pairs, prefix, most, budget, scans=changed is None)


def _all_new(state: Moment, low: bytes, high: bytes) -> Both:
    for page in state.pages(PAIRS, low, high):
        for stored, value in zip(page.keys, page.values, strict=True):
            yield stored, None, value


def _gathered(
    source: Source, pairs: Both, prefix: str, most: tuple[int, int], budget: Budget, *, scans: bool
) -> Differences:
    """Return a page of differences; `scans`: keys without a difference are passed over, too."""
    (limit, children_max), rows = most, Rows(source)
    found, looked, last, more = Differences(rows), 0, None, None
    for stored, before, after in pairs:
        check_in_time()
        if looked >= LOOKED_MIN and budget.over and (scans or len(rows) >= limit):
            break
        last, looked = stored, looked + 1
        if before == after:
            continue
        key, kind = source.decode(stored), kind_of(before, after)
        found.counts[kind] += 1
        if (child := child_of(key, prefix)) in found.children or len(found.children) < children_max:
            found.children.setdefault(child, Counter())[kind] += 1
        if len(rows) < limit:
            rows.add(key, before, after)
            more = key
    else:
        return replace(found, after=more if found.total > len(found.rows) else None)
    looked_to = None if last is None else source.decode(last)
    if found.total <= len(found.rows):  # the time was over while looking for the next one
        more = looked_to
    return replace(found, complete=False, after=more, looked_to=looked_to)


def row(
    source: Source, key: str, before: bytes | None, after: bytes | None, whole: bool = True
) -> Row:
    """Return a row; without `whole`, and of a redacted key, it has only the sizes of the values."""
    kind, hidden = kind_of(before, after), source.hides(key)
    sizes = None if before is None else len(before), None if after is None else len(after)
    if not whole or hidden:
        before = after = None
    return Row(key, kind, before, after, *sizes, hidden)


def kind_of(before: bytes | None, after: bytes | None) -> str:
    """Return + for a key that is new, - for one that is gone, ~ for another value."""
    return ADDED if before is None else REMOVED if after is None else CHANGED


def child_of(key: str, prefix: str) -> str:
    """Return the part of a key up to the first `/` after a prefix, with that.

    >>> child_of("a/b/c", "a/"), child_of("a/b", "a/")
    ('a/b/', 'a/b')
    """
    cut = key.find("/", len(prefix))
    return key if cut < 0 else key[: cut + 1]
