"""The work of a difference is bounded, whatever the values are."""

import json
import random
from collections.abc import Callable
from functools import cache

import pytest

from snapkv.rendering import ValueDifference, alignment, compare, decode, shortened
from snapkv.rendering.alignment import STEPS_MAX, EditBudget, edits
from tests.rendering.shown import text_of

pytestmark = pytest.mark.slow

MIB = 1 << 20
LINES = MIB // 2
NUMBERS = [str(n) for n in range(LINES // 4)]


def shuffled(seed: int) -> list[str]:
    return random.Random(seed).choices(["a", "b", "c"], k=LINES)


HOSTILE: dict[str, Callable[[], tuple[list[str], list[str]]]] = {
    "equal lines": lambda: (["x"] * LINES, ["x"] * (LINES - 7) + ["y"] * 3),
    "alternating": lambda: (["a", "b"] * (LINES // 2), ["b", "a"] * (LINES // 2)),
    "three letters": lambda: (shuffled(1), shuffled(2)),
    "reversed": lambda: (NUMBERS, NUMBERS[::-1]),
    "nothing in common": lambda: (NUMBERS, ["y"] * (LINES // 4)),
    "every tenth": lambda: (
        NUMBERS,
        [str(n) if n % 10 else "x" for n in range(LINES // 4)],
    ),
}


@pytest.mark.long_after(3)
@pytest.mark.parametrize("name", HOSTILE)
def test_an_alignment_takes_a_bounded_number_of_steps(name: str) -> None:
    before, after = HOSTILE[name]()
    budget = EditBudget()
    found = edits(before, after, budget)
    assert budget.left > -max(len(before), len(after))
    again, at = [], 0
    for edit in found:
        again += before[at : edit.before_from] + after[edit.after_from : edit.after_to]
        at = edit.before_to
    assert again + before[at:] == after


def test_one_budget_is_for_all_texts_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[EditBudget] = []

    class Counted(EditBudget):
        def __init__(self) -> None:
            super().__init__()
            taken.append(self)

    for module in ("value_difference", "tree_changes"):
        monkeypatch.setattr(f"snapkv.rendering.{module}.EditBudget", Counted)
    monkeypatch.setattr(alignment, "EditBudget", Counted)
    sides = [
        {str(n): "\n".join(random.Random(n + seed).choices("abc", k=400)) for n in range(600)}
        for seed in (0, 10_000)
    ]
    text_of(compare(*(decode(json.dumps(side).encode()) for side in sides)))
    assert len(taken) <= 2
    assert all(-STEPS_MAX < each.left < STEPS_MAX + 1 for each in taken)
    assert any(each.left < 0 for each in taken)


@cache
def three_letters() -> ValueDifference:
    before, after = ("\n".join(side).encode() for side in HOSTILE["three letters"]())
    return compare(decode(before), decode(after))


@pytest.mark.xdist_group("mebibyte")
@pytest.mark.parametrize("view", ["auto", "unified", "full", "side-by-side", "words"])
def test_views_of_a_mebibyte_are_bounded(view: str) -> None:
    shown = text_of(three_letters(), view, lines_max=100)
    assert len(shown) == 101
    assert shown[-1].startswith("... ")


def test_a_mebibyte_of_bytes_is_bounded() -> None:
    before, after = b"\0" * MIB, b"\0\1" * (MIB // 2)
    found = compare(decode(before), decode(after))
    assert str(found.stat) == "+1,048,575 -1,048,575 bytes"
    assert len(text_of(found, lines_max=100)) == 101


def test_a_list_of_many_items_is_bounded() -> None:
    before, after = (json.dumps(pair * 50_000).encode() for pair in ([1, 2], [2, 1]))
    assert text_of(compare(decode(before), decode(after))) == ["- [0]: 1", "+ [99999]: 1"]


def test_shortened_values_of_a_mebibyte() -> None:
    before = b"x" * MIB
    first, second = shortened(before, before[:-1] + b"y")
    assert first.endswith('xx"')
    assert second.endswith('xy"')
