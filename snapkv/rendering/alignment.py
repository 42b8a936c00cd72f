"""Alignment of two sequences: the items that correspond, and the pieces that differ.

Common items at both ends are set aside. Items that occur once on both sides are anchors, as in
patience diff; between two anchors the shortest edit is searched (Myers, "An O(ND) difference
algorithm and its variations", 1986). A count of steps bounds the search: what is left when it is
used up is one replaced piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from snapkv.base.text import common_head, common_tail

STEPS_MAX = 1_000_000
"""The most steps that an alignment takes: a second or so."""
EDITS_MAX = 1_000
"""The most items between two anchors that may differ; with more, the piece is replaced."""


Pair = tuple[int, int]
"""The indexes of two items that correspond."""


class ChangedRange(NamedTuple):
    """A piece that differs: items `before_from:before_to` became items `after_from:after_to`."""

    before_from: int
    before_to: int
    after_from: int
    after_to: int


class EditBudget:
    """The steps that are left for all alignments of one comparison."""

    __slots__ = ("left",)

    def __init__(self, left: int = STEPS_MAX) -> None:
        self.left = left


def edits(
    before: Sequence[Hashable], after: Sequence[Hashable], budget: EditBudget | None = None
) -> list[ChangedRange]:
    """Return the pieces in which two sequences differ, in order, none next to another.

    Cost: n log n for items that are mostly distinct, and at most `budget` beside it (`STEPS_MAX`).

    >>> edits("abcd", "xabd")
    [ChangedRange(before_from=0, before_to=0, after_from=0, after_to=1), \
ChangedRange(before_from=2, before_to=3, after_from=3, after_to=3)]
    """
    return list(
        _gaps(_Aligner(before, after, budget or EditBudget()).pairs(), len(before), len(after))
    )


def _gaps(pairs: list[tuple[int, int]], before_end: int, after_end: int) -> Iterator[ChangedRange]:
    i = j = 0
    for left, right in (*pairs, (before_end, after_end)):
        if left > i or right > j:
            yield ChangedRange(i, left, j, right)
        i, j = left + 1, right + 1


class _Aligner:
    def __init__(
        self, before: Sequence[Hashable], after: Sequence[Hashable], budget: EditBudget
    ) -> None:
        numbers: dict[Hashable, int] = {}
        self._a = [numbers.setdefault(item, len(numbers)) for item in before]
        self._b = [numbers.setdefault(item, len(numbers)) for item in after]
        self._budget = budget

    def pairs(self) -> list[tuple[int, int]]:
        """Return the corresponding indexes, rising on both sides."""
        return list(self._range(0, len(self._a), 0, len(self._b), self._anchored))

    def _range(
        self, i: int, a_end: int, j: int, b_end: int, inner: Callable[..., Iterable[Pair]]
    ) -> Iterator[Pair]:
        """Yield the common items at both ends, and between them what `inner` finds."""
        a, b = self._a, self._b
        while i < a_end and j < b_end and a[i] == b[j]:
            yield i, j
            i, j = i + 1, j + 1
        tail = 0
        while i < a_end - tail and j < b_end - tail and a[a_end - 1 - tail] == b[b_end - 1 - tail]:
            tail += 1
        a_end, b_end = a_end - tail, b_end - tail
        if i < a_end and j < b_end:
            yield from inner(i, a_end, j, b_end)
        yield from ((a_end + n, b_end + n) for n in range(tail))

    def _anchored(self, i: int, a_end: int, j: int, b_end: int) -> Iterator[Pair]:
        """Yield the longest rising run of items that occur once on both sides, and between them."""
        at_a, at_b = _once(self._a, i, a_end), _once(self._b, j, b_end)
        shared = [(index, at_b[item]) for item, index in at_a.items() if item in at_b]
        for n in longest_rising([right for _, right in shared]):
            left, right = shared[n]
            yield from self._range(i, left, j, right, self._searched)
            yield left, right
            i, j = left + 1, right + 1
        yield from self._range(i, a_end, j, b_end, self._searched)

    def _searched(self, i: int, a_end: int, j: int, b_end: int) -> list[Pair]:
        """Return the pairs of the shortest edit, none if it exceeds the budget."""
        a, b = self._a, self._b
        common = set(a[i:a_end]) & set(b[j:b_end])
        left = [n for n in range(i, a_end) if a[n] in common]
        right = [n for n in range(j, b_end) if b[n] in common]
        found = shortest_edit([a[n] for n in left], [b[n] for n in right], self._budget)
        return [(left[x], right[y]) for x, y in found]


def shortest_edit(a: list[int], b: list[int], budget: EditBudget) -> list[Pair]:
    """Return the pairs that Myers' algorithm keeps.

    It finds none if the edit has more than `EDITS_MAX` items or exceeds the budget.
    """
    size = min(len(a) + len(b), EDITS_MAX)
    reached = [0] * (2 * size + 3)  # the farthest x on each diagonal, from -size - 1
    trace: list[list[int]] = []
    for d in range(size + 1):
        trace.append(reached[size - d : size + d + 3])
        budget.left -= 2 * d + 2
        for k in range(-d, d + 1, 2):
            at = size + 1 + k
            down = k == -d or (k != d and reached[at - 1] < reached[at + 1])
            x = reached[at + 1] if down else reached[at - 1] + 1
            start = x
            while x < len(a) and 0 <= x - k < len(b) and a[x] == b[x - k]:
                x += 1
            budget.left -= x - start
            reached[at] = x
            if x >= len(a) and x - k >= len(b):
                return _walked_back(trace, len(a), len(b))
            if budget.left < 0:
                return []
    return []


def _walked_back(trace: list[list[int]], x: int, y: int) -> list[Pair]:
    pairs: list[Pair] = []
    for d in range(len(trace) - 1, -1, -1):
        reached, k = trace[d], x - y  # `reached` begins with diagonal -d - 1
        at = d + 1 + k
        down = k == -d or (k != d and reached[at - 1] < reached[at + 1])
        before_x = reached[at + 1] if down else reached[at - 1] + 1
        while (x > before_x and d) or (x > 0 and y > 0 and not d):
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if d:
            x, y = (x, y - 1) if down else (x - 1, y)
    return pairs[::-1]


def _once(items: list[int], start: int, end: int) -> dict[int, int]:
    found: dict[int, int] = {}
    twice: set[int] = set()
    for index in range(start, end):
        item = items[index]
        if item in found:
            twice.add(item)
        found[item] = index
    return {item: index for item, index in found.items() if item not in twice}


def longest_rising(numbers: Sequence[int]) -> list[int]:
    """Return the indexes of a longest rising run of distinct numbers.

    >>> longest_rising([3, 1, 2, 5, 4])
    [1, 2, 4]
    """
    smallest: list[int] = []  # the last number of a run, for each length
    last: list[int] = []
    previous: list[int] = []
    for index, number in enumerate(numbers):
        length = bisect_left(smallest, number)
        previous.append(last[length - 1] if length else -1)
        smallest[length : length + 1] = [number]
        last[length : length + 1] = [index]
    run: list[int] = []
    index = last[-1] if last else -1
    while index >= 0:
        run.append(index)
        index = previous[index]
    return run[::-1]


# --- lines and bytes that differ ---


S = TypeVar("S", tuple[str, ...], bytes)

BYTE_EDITS_MAX = 10_000
"""The most pieces of bytes that are kept apart; the last one has the rest."""
_JOINED_BYTES = 4
"""The most equal bytes between two changed ones that are one edit."""


class Piece(NamedTuple, Generic[S]):
    """What replaces what: `before` at `before_at` became `after` at `after_at`.

    Of texts, lines with their line ends; of bytes, bytes. Places count from 0.
    """

    before_at: int
    before: S
    after_at: int
    after: S


LineEdits = tuple[Piece[tuple[str, ...]], ...]


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text with their ends; only a newline ends a line.

    >>> lines_of("a\r\nb"), lines_of("")
    (['a\r\n', 'b'], [])
    """
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + ([last] if last else [])


def line_pair(before: str, after: str) -> tuple[list[str], list[str]]:
    r"""Return the lines of two texts; if both lack the newline at the end, both get one.

    So a line that is added after the last one is the only line that differs.

    >>> line_pair("a", "a\nb"), line_pair("a", "a\n")
    ((['a\n'], ['a\n', 'b\n']), (['a'], ['a\n']))
    """
    if before and after and before[-1] != "\n" != after[-1]:
        before, after = f"{before}\n", f"{after}\n"
    return lines_of(before), lines_of(after)


def line_edits(
    before: Sequence[str], after: Sequence[str], budget: EditBudget | None = None
) -> LineEdits:
    """Return the pieces of lines that differ. Cost: see `snapkv.rendering.alignment`."""
    return tuple(
        Piece(i, tuple(before[i:i_end]), j, tuple(after[j:j_end]))
        for i, i_end, j, j_end in edits(before, after, budget)
    )


def byte_edits(before: bytes, after: bytes) -> tuple[Piece[bytes], ...]:
    """Return the bytes that differ: of values of one length at each place, else in one piece."""
    if before == after:
        return ()
    head = common_head(before, after)
    tail = common_tail(before, after, head)
    if len(before) != len(after):
        old, new = before[head : len(before) - tail], after[head : len(after) - tail]
        return (Piece(head, old, head, new),)
    spans: list[list[int]] = []
    for at in range(head, len(before) - tail):
        if before[at] == after[at]:
            continue
        if spans and (at - spans[-1][1] <= _JOINED_BYTES or len(spans) == BYTE_EDITS_MAX):
            spans[-1][1] = at + 1
        else:
            spans.append([at, at + 1])
    return tuple(Piece(a, before[a:b], a, after[a:b]) for a, b in spans)
