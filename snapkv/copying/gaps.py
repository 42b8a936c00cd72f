"""Gaps: what was compacted before it could be recorded, and the comparison that closes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from snapkv.engine.contract import Event, KeyValue
from snapkv.layout import StampRecord, stamp_of
from snapkv.times import format_time

Pages = Iterable[Sequence[KeyValue]]


def lost_marks(last: KeyValue, mark: KeyValue) -> list[KeyValue]:
    """Return marks in place of those between two, which are lost.

    As many commits as their ordinals say had revisions and timestamps between the two. So there is
    a place for each.

    >>> def mark(timestamp, revision, ordinal):
    ...     value = StampRecord(timestamp).encode()
    ...     return KeyValue(b"sys/ts", value, 2, revision, ordinal)
    >>> [m.mod_revision for m in lost_marks(mark(100, 7, 5), mark(900, 40, 8))]
    [8, 9]
    """
    count, after = mark.version - last.version - 1, stamp_of(last.value)
    note = gap_note(last, mark)
    return [
        last._replace(
            value=StampRecord(after + n, note=note if n == 1 else "lost").encode(),
            mod_revision=last.mod_revision + n,
            version=last.version + n,
        )
        for n in range(1, count + 1)
    ]


def gap_note(last: KeyValue, mark: KeyValue) -> str:
    """Return the note of a gap for the commit log."""
    after, before = (format_time(stamp_of(kv.value)) for kv in (last, mark))
    return (
        f"gap: revisions {last.mod_revision + 1} to {mark.mod_revision - 1} were compacted before "
        f"they were recorded; their changes fell between {after} and {before}"
    )


def part_note(number: int, count: int, stamp: StampRecord) -> str:
    """Return the note of a part of a commit that the target does not take at once."""
    revision = 0 if stamp.source is None else stamp.source[0]
    return (
        f"part {number} of {count}: revision {revision} is larger than a commit may be here; "
        f"it is whole at {format_time(stamp.timestamp)}"
    )


def differences(before: Pages, after: Pages, mark: KeyValue) -> Iterator[Event]:
    """Yield the changes that make one state of the other, both sorted by key.

    Keys are the same if their revisions are, or their values where revisions are not comparable
    (0). A removal gets the revision of the mark: when it happened is lost.
    """
    old, new = (_rows(pages) for pages in (before, after))
    a, b = next(old, None), next(new, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a.key < b.key):
            assert a is not None
            yield Event(KeyValue(a.key, b"", 0, mark.mod_revision, 0), True)
            a = next(old, None)
        elif a is None or b.key < a.key:
            yield Event(b, False)
            b = next(new, None)
        else:
            revised = a.mod_revision != b.mod_revision if a.mod_revision else a.value != b.value
            if revised:
                yield Event(b, False)
            a, b = next(old, None), next(new, None)


def _rows(pages: Pages) -> Iterator[KeyValue]:
    for page in pages:
        yield from page
