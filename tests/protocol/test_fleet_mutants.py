"""Mutants of the library that the exploration has to catch, each in as small a world as can be."""

import sys
from pathlib import Path

import pytest
from fleet_mutants import Edit
from fleet_orders import Order
from fleet_plans import restored, restored_while_watched, seen, watched
from fleet_runs import explored, play

from snapkv.committer.request import SentRequest
from snapkv.fleet.fleet import Fleet
from snapkv.fleet.fleet_watch import FleetWatch, MemberFollower
from snapkv.fleet.member_link import MemberLink
from snapkv.fleet.open_member import OpenMember
from snapkv.timeline.continuity import Continuity, ContinuousWatcher
from snapkv.timeline.tracker import Tracker

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
FLEET = sys.modules[Fleet.__module__]

ONE_EACH = Order((1_002,), (1_002,))
PLANS = {
    "seen": seen(Order((1_002, 1_003), (1_002,)), delayed=1),
    "watched": watched(ONE_EACH, leaves=1),
    "joining": watched(Order((1_002,), (1_003,)), created_late=("b",), joined={"b": 1_003}),
    "restored": restored(1_004, looks=1),
    "held": restored(1_004, holds=True),
    "asked": restored_while_watched(1_004, asks=True),
    "left": restored_while_watched(since=None, leaves=1),
    "ahead": restored_while_watched(
        before={"a": 1_004, "b": 1_002}, times=(999,), since=None, leaves=1
    ),
    "looked at": restored_while_watched(1_004, looks=1, times=(1_003,)),
}

NO_GUARD = Edit(
    SentRequest, "_guard", 'Compare(ts_key, Target.VALUE, "<", be64(self.stamp.timestamp)),'
)
BY_A_CLOCK = Edit(OpenMember, "_pinned", "state if moment.final", "state if timestamp <= 1_003")
NEWEST_BY_A_CLOCK = Edit(OpenMember, "_newest", "return newest", "return max(newest, 1_003)")
NEWEST = Edit(OpenMember, "_pinned", "policy.at(timestamp)\n    mark", "policy.now()\n    mark")
NO_EPOCHS = (
    Edit(OpenMember, "_pinned", "moment.epoch != self._epoch", "False"),
    Edit(OpenMember, "moment", "moment.epoch != self._epoch", "False"),
    Edit(OpenMember, "quick", " or tracker.continuity.epoch != self._epoch"),
    Edit(
        MemberLink,
        "check_history",
        "reads.reader.timeline.tracker.continuity.epoch != self._epoch",
        "False",
    ),
)
NO_WITNESS = Edit(
    Continuity, "_read_with_witness", "elif kv is None or mark_of(kv) != seen[0]:", "elif False:"
)
MAX = Edit(FleetWatch, "_take", "frontier = min(", "frontier = max(")
HALF = Edit(
    FleetWatch,
    "_take",
    "for each in taking if (changes",
    "for each in [min(taking, key=lambda each: each.first)] if (changes",
)
FURTHEST = Edit(
    FleetWatch,
    "token",
    "Cut(self.timestamp",
    "Cut(max(each.progress for each in self._followers)",
)
FEED_UNVERIFIED = Edit(
    Tracker,
    "_drain_feed",
    "marks = list(self._feed.drain())",
    "marks = []\n        for mark in self._feed.drain():\n            self._add_fed(mark)",
)
FEED_BY_EPOCH = Edit(Tracker, "_verify_feed", "if self._feed.last is None:", "if True:")
FEED_BEHIND = Edit(
    Tracker, "_drain_feed", "if is_checked and is_in_question(marks, self.newest):", "if False:"
)
NOT_SEEN = Edit(OpenMember, "saw", "reads = self.reads()", "return")
NOT_CHECKED = Edit(
    OpenMember,
    "check",
    "self.ask(self._check_same)",
    "self.ask(lambda reads: reads.reader.timeline.tracker.continuity.assure())",
)
NO_WITNESS_OF_A_WATCH = Edit(
    MemberFollower,
    "__init__",
    "connection.newest if place is None else place.witness",
    "None if place is None else place.witness",
)
NOT_FINAL_BY = Edit(MemberFollower, "_final_by", "return next(above, self._witness)", "return None")
NO_DOUBT = Edit(Tracker, "see_followed", "self.continuity.doubt()", "pass")
UNCHECKED_SEEN = Edit(OpenMember, "saw", "self.check_history(reads)")

MUTANTS: dict[str, tuple[str, list[Edit]]] = {
    "no guard": ("seen", [NO_GUARD]),
    "finality from a clock": ("seen", [BY_A_CLOCK]),
    "the newest final moment from a clock": ("seen", [NEWEST_BY_A_CLOCK]),
    "at() that reads newest": ("seen", [NEWEST]),
    "an unnoticed restore": ("restored", [*NO_EPOCHS]),
    "no witness of a restore": ("held", [NO_WITNESS]),
    "a token that is not checked": (
        "held",
        [Edit(FLEET, "check_same", "if not is_same:", "if False:")],
    ),
    "a frontier that is the max": ("watched", [MAX]),
    "half of an equal T": ("watched", [HALF]),
    "a resume that drops equal timestamps": ("watched", [FURTHEST]),
    "a watch that begins one later": (
        "watched",
        [
            Edit(
                MemberFollower,
                "_open_watch",
                "(self._prefix, self.progress)",
                "(self._prefix, self.progress + 1)",
            )
        ],
    ),
    "a member that joins and is not waited for": (
        "joining",
        [Edit(MemberFollower, "__init__", "max(after, connection.member.joined - 1)", "after")],
    ),
    "a place that is not verified": (
        "left",
        [Edit(MemberFollower, "_open_watch", "if place is not None:", "if False:")],
    ),
    "a stream that is not verified": (
        "asked",
        [Edit(ContinuousWatcher, "_check", "self._verify()", "pass")],
    ),
    "a feed whose marks are taken as they come": ("restored", [FEED_UNVERIFIED, FEED_BY_EPOCH]),
    "a feed that is verified by the epoch alone": ("restored", [FEED_BY_EPOCH]),
    "a feed whose marks may be behind": ("restored", [FEED_BEHIND]),
    "moments that do not know of watches": ("asked", [NOT_SEEN, NOT_CHECKED]),
    "a watch of which nothing is seen": ("asked", [NOT_SEEN]),
    "a watch without a witness": ("left", [NO_WITNESS_OF_A_WATCH]),
    "a time that nothing made final": ("ahead", [NOT_FINAL_BY]),
}
SLOW: dict[str, tuple[str, list[Edit]]] = {
    "no doubt of what a watch brings": ("looked at", [NO_DOUBT]),
    "a watch that brings any history": ("looked at", [UNCHECKED_SEEN]),
    "a quiet watch that does not look": ("looked at", [NOT_CHECKED]),
}


@pytest.mark.parametrize(
    "name", [*MUTANTS, *(pytest.param(name, marks=pytest.mark.soak) for name in SLOW)]
)
def test_mutants_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, edits = (MUTANTS | SLOW)[name]
    for edit in edits:
        edit.apply(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        explored(PLANS[plan])
    error = caught.value
    note = error.__notes__[-1]
    first, *schedule = note.split("\n  ")
    print(f"{error}\n{note}")
    assert HERE in Path(caught.traceback[-1].path).parents, "it is not a claim that failed"
    assert first.startswith("script ")
    with pytest.raises(AssertionError) as again:
        play(PLANS[plan], *schedule)
    assert str(again.value) == str(error)
