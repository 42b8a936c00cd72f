"""Anchors: what was found once bounds what is searched later."""

import random

import pytest

from snapkv.layout import Mark
from snapkv.timeline import lookup as anchors_module
from snapkv.timeline.lookup import Anchors

from .test_ring import marks


def around(flat, field, wanted):
    below = [m for m in flat if m[field] <= wanted]
    above = [m for m in flat if m[field] > wanted]
    return (below[-1] if below else None), (above[0] if above else None)


@pytest.mark.parametrize("count", [0, 1, 2, 40])
@pytest.mark.parametrize("field", [0, 1, 2])
def test_nearest_marks_by_any_field(count, field):
    flat = random.Random(count).sample(marks(3 * count or 1), count)
    anchors = Anchors()
    for mark in flat:
        anchors.add(mark)
        anchors.add(mark)
    flat.sort()
    assert len(anchors) == count
    for mark in marks(3 * count or 1):
        for wanted in (mark[field] - 1, mark[field], mark[field] + 1):
            assert anchors.around(field, wanted) == around(flat, field, wanted)
    anchors.check()


def test_thins_out_instead_of_growing(monkeypatch):
    monkeypatch.setattr(anchors_module, "ANCHORS_MAX", 100)
    run, anchors = marks(1_000), Anchors()
    for mark in run:
        anchors.add(mark)
        assert len(anchors) <= 100
    kept = [m for m in run if anchors.around(2, m.ordinal)[0] == m]
    assert len(kept) == len(anchors) >= 40
    anchors.check()


def test_clear_forgets():
    anchors = Anchors()
    anchors.add(Mark(5, 5, 5))
    anchors.clear()
    assert len(anchors) == 0
    assert anchors.around(0, 5) == (None, None)
    anchors.check()


def test_check_finds_marks_out_of_order():
    anchors = Anchors()
    anchors.add(Mark(5, 9, 2))
    anchors.add(Mark(6, 8, 3))
    with pytest.raises(AssertionError):
        anchors.check()
