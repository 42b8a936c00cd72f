"""Blocks of marks against a list of all commits: what they answer is right, whatever they hold."""

import random
from array import array
from bisect import bisect_right

import pytest

from snapkv.layout import Mark
from snapkv.timeline import blocks
from snapkv.timeline.blocks import Blocks


def history(count, seed=0):
    """Return the timestamps and revisions of commits, with uneven gaps."""
    rng = random.Random(seed)
    timestamps, revisions, timestamp, revision = [], [], 10, 2
    for _ in range(count):
        timestamps.append(timestamp)
        revisions.append(revision)
        timestamp += rng.choice((1, 2, 50, 1 << 40))
        revision += rng.choice((1, 3, 40))
    return timestamps, revisions


@pytest.mark.parametrize("seed", range(20))
def test_random_runs(seed):
    """Runs of commits, in any order, make the times inside of them known, and no others."""
    rng = random.Random(seed)
    timestamps, revisions = history(60, seed)
    found, held = Blocks(), set()
    for _ in range(30):
        low = rng.randrange(60)
        high = min(60, low + rng.randrange(1, 12))
        found.add(low + 1, timestamps[low:high], revisions[low:high])
        found.check()
        held.update(range(low, high))
        known = {at for at in held if at + 1 in held}
        for timestamp in timestamps:
            for wanted in (timestamp, timestamp + 1):
                inside = bisect_right(timestamps, wanted) - 1
                assert found.revision_at(wanted) == (revisions[inside] if inside in known else 0)
                mark = Mark(timestamps[inside], revisions[inside], inside + 1)
                assert found.find(wanted) == (mark if inside in known else None)
        assert found.revision_at(timestamps[0] - 1) == 0
        assert found.find(timestamps[0] - 1) is None
        assert found.revision_at(timestamps[-1]) == 0, "what follows the newest is not known"


def test_they_are_bounded(monkeypatch):
    monkeypatch.setattr(blocks, "MARKS_MAX", 20)
    timestamps, revisions = history(100)
    found = Blocks()
    for low in range(0, 96, 4):
        found.add(low + 1, timestamps[low : low + 5], revisions[low : low + 5])
        assert len(found) <= 20
        assert found.revision_at(timestamps[low + 1]) == revisions[low + 1]
    found.clear()
    assert (len(found), found.revision_at(timestamps[50])) == (0, 0)


class Interrupted(int):
    """A wanted timestamp; while it is searched, something else happens at one of its compares."""

    def __new__(cls, timestamp, compares, action):
        self = super().__new__(cls, timestamp)
        self.left, self.action = compares, action
        return self

    def __lt__(self, other):
        self.left -= 1
        if self.left == 0:
            self.action()
        return int(self) < other


@pytest.mark.parametrize("meddle", ["below", "above", "over", "between", "clear"])
def test_a_search_without_the_lock_is_right_or_gives_up(meddle):
    timestamps, revisions = history(200)
    changes = 0
    for wanted in (55, 70, 100, 144):
        for compares in range(1, 9):
            found = Blocks()
            if meddle == "between":
                found.add(11, timestamps[10:20], revisions[10:20])
                found.add(181, timestamps[180:190], revisions[180:190])
            found.add(51, timestamps[50:150], revisions[50:150])

            def change(found=found):
                nonlocal changes
                changes += 1
                if meddle == "clear":
                    found.clear()
                    return
                places = {"below": (0, 40), "above": (160, 200), "over": (40, 160)}
                low, high = places.get(meddle, (30, 40))
                found.add(low + 1, timestamps[low:high], revisions[low:high])

            answer = found.revision_at(Interrupted(timestamps[wanted], compares, change))
            assert answer in (0, revisions[wanted])
            found.check()
    assert changes > 8, "hardly anything happened during the searches"


@pytest.mark.parametrize("place", [1, 2])
def test_what_was_cut_short_before_the_change_leaves_all_as_it_was(monkeypatch, place):
    timestamps, revisions = history(100)
    found, made = Blocks(), []
    found.add(1, timestamps[:20], revisions[:20])

    def interrupted(kind, values):
        made.append(kind)
        if len(made) == place:
            raise KeyboardInterrupt
        return array(kind, values)

    with monkeypatch.context() as patch:
        patch.setattr(blocks, "array", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.add(31, timestamps[30:50], revisions[30:50])
    found.add(61, timestamps[60:80], revisions[60:80])
    found.check()
    for at, timestamp in enumerate(timestamps):
        known = at < 19 or 60 <= at < 79
        assert found.revision_at(timestamp) == (revisions[at] if known else 0)
        assert found.find(timestamp) == (Mark(timestamp, revisions[at], at + 1) if known else None)


class Cut(list):
    """A list of runs; changing it is interrupted."""

    def __setitem__(self, at, values):
        raise KeyboardInterrupt


@pytest.mark.parametrize("field", ["_starts", "_runs"])
def test_a_change_that_was_cut_short_is_never_wrong_and_then_forgotten(field):
    timestamps, revisions = history(100)
    found = Blocks()
    found.add(1, timestamps[:20], revisions[:20])
    found.add(61, timestamps[60:80], revisions[60:80])
    setattr(found, field, Cut(getattr(found, field)))
    with pytest.raises(KeyboardInterrupt):
        found.add(31, timestamps[30:50], revisions[30:50])
    for at, timestamp in enumerate(timestamps):
        assert found.revision_at(timestamp) in (0, revisions[at])
        assert found.find(timestamp) in (None, Mark(timestamp, revisions[at], at + 1))
    found.add(81, timestamps[80:90], revisions[80:90])
    found.check()
    for at, timestamp in enumerate(timestamps):
        assert found.revision_at(timestamp) == (revisions[at] if 80 <= at < 89 else 0)


def test_long_runs_are_cut_and_stay_known():
    timestamps, revisions = history(5_000)
    found = Blocks()
    order = list(range(0, 5_000, 100))
    random.Random(1).shuffle(order)
    for low in order:
        found.add(low + 1, timestamps[low : low + 100], revisions[low : low + 100])
        found.check()
    for at in range(0, 4_999, 7):
        assert found.revision_at(timestamps[at]) == revisions[at]
        assert found.find(timestamps[at]) == Mark(timestamps[at], revisions[at], at + 1)
    assert found.find(timestamps[-1]) is None
