"""The differences of two moments of a fleet; members that came or went are not differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapkv.fleet.archive_batches import Pair, merged
from snapkv.fleet.member import steps_named
from snapkv.fleet.pin import LATE, Pin, Seen
from snapkv.layout import encode_text

if TYPE_CHECKING:
    from snapkv.archive.small_archives import ArchiveRows


@dataclass(frozen=True, slots=True)
class FleetDifference:
    """A key of a member that differs between two moments; None means absent.

    `key` is `(member, key)`.
    """

    key: tuple[str, str]
    before: bytes | None
    after: bytes | None


class FleetDiff:
    """An iterable of `FleetDifference`, in the order of members, then of keys.

    Only members that are seen at both moments are compared: `compared` names them. `joined` has the
    members that are absent at the first moment, `left` the members that are absent at the second;
    `unknown` has members of which one of the moments shows nothing, with the reason. No key of
    these three is returned: a member that was away has removed nothing. `late` has the compared
    members that are not final at one of the moments: more of them may differ later.
    """

    def __init__(
        self,
        since: int,
        until: int,
        before: Mapping[str, Pin],
        after: Mapping[str, Pin],
        prefix: str | None,
    ) -> None:
        self.since, self.until = since, until
        self._before, self._after, self._prefix = before, after, prefix
        self.joined: list[str] = []
        self.left: list[str] = []
        self.unknown: dict[str, str] = {}
        self.compared: list[str] = []
        self.late: dict[str, Seen] = {}
        for name in sorted({*before, *after}):
            self._sort(name)

    def _sort(self, name: str) -> None:
        a, b = self._before.get(name), self._after.get(name)
        if a is None or b is None:
            self.unknown[name] = "it is in one of the two moments only"
            return
        if (why := _unseen(a) or _unseen(b)) is not None:
            self.unknown[name] = why
        elif a.state == "absent" and b.state != "absent":
            self.joined.append(name)
        elif b.state == "absent" and a.state != "absent":
            self.left.append(name)
        elif a.state != "absent":
            self.compared.append(name)
            for pin in (a, b):
                if pin.state in LATE:
                    self.late[name] = pin.seen

    def __iter__(self) -> Iterator[FleetDifference]:
        pairs = [(self._before[name], self._after[name]) for name in self.compared]
        prefix = encode_text("" if self._prefix is None else self._prefix, "prefix")
        pairs = [pair for pair in pairs if pair[1].connection.member.may_have(self._prefix)]
        for some, found in merged(pairs, lambda some, read: list(_differences(some, read, prefix))):
            if found is not None:
                yield from found
                continue
            for a, b in some:
                yield from self._compare_snapshots(b.connection.name, a, b)

    def _compare_snapshots(self, name: str, a: Pin, b: Pin) -> Iterator[FleetDifference]:
        """Yield the differences of a member by its snapshots; errors name it."""
        before, after = a.snapshot(), b.snapshot()
        if before is None or after is None:  # an archive that had no commit then
            return
        steps = before.diff(after, b.connection.member.longer(self._prefix))
        for found in steps_named(name, steps):
            yield FleetDifference((name, found.key), found.before, found.after)

    def __repr__(self) -> str:
        return (
            f"<FleetDiff of {len(self.compared)} members, joined={self.joined} left={self.left} "
            f"unknown={sorted(self.unknown)}>"
        )


def _differences(
    pairs: Sequence[Pair], archives: Sequence[ArchiveRows], prefix: bytes
) -> Iterator[FleetDifference]:
    """Yield the differences of archives that were read as wholes."""
    from snapkv.archive.small_archives import differences  # it needs pyarrow

    names = [b.connection.name for _, b in pairs]
    backwards = [a.timestamp > b.timestamp for a, b in pairs]
    columns = differences(archives, prefix).to_pydict().values()
    for at, key, old, new in zip(*columns, strict=True):
        before, after = (new, old) if backwards[at] else (old, new)
        yield FleetDifference((names[at], key.decode()), before, after)


def _unseen(pin: Pin) -> str | None:
    """Return why nothing of a member is seen, None if something is, or if it is absent."""
    if pin.small_archive is not None or pin.state == "absent" or pin.moment is not None:
        return None
    return pin.seen.error or pin.state
