"""When may "nobody can tell" be said? Only when two histories with opposite outcomes look alike.

Every small history is built for real: what A knew when it sent, what others committed around A's
timestamp, whether and when A's request landed, and how much was compacted. A *view* is all that is
left to look at; if all histories with one view agree, the settling must say so.
"""

import itertools
import os
from collections import defaultdict

import pytest
from protocol_remote import TS_KEY, Network

from snapkv.committer import SentRequest
from snapkv.committer.request import Verdict
from snapkv.engine.contract import Range
from snapkv.layout import StampRecord
from snapkv.times import pack

OURS_MS = 10
OTHERS = pytest.mark.parametrize("others_max", [2, pytest.param(3, marks=pytest.mark.long)])


def stamp(ms: int, who: str) -> StampRecord:
    return StampRecord(pack(ms), os.urandom(16), who)


class Case:
    """A store with `known` commits, then others' commits at `times`, ours after the first `at`."""

    def __init__(self, known: int, times: tuple[int, ...], at: int | None, kept: int) -> None:
        self.network = network = Network()
        store = network.open("A", 0)
        self.created = store._core.committer.created
        self.before = store._core.timeline.tracker.newest
        for ms in range(1, known):
            self._put(stamp(ms, "B"))
        self.known = known
        self.ours = self._sent(stamp(OURS_MS, "A"), known)
        for i, ms in enumerate(times):
            if i == at:
                self._put(self.ours.stamp)
            self._put(stamp(ms, "B"))
        if at == len(times):
            self._put(self.ours.stamp)
        self.landed = at is not None
        if kept:
            network.base.compact(network.journal.stamps[-kept].revision)

    def _sent(self, record: StampRecord, known: int = 0) -> SentRequest:
        return SentRequest(record, self.created, self.before, known_ordinal=known)

    def _put(self, record: StampRecord) -> None:
        answer = self.network.apply(self._sent(record).commit_txn(TS_KEY, ()))
        assert answer.succeeded

    def view(self) -> tuple[object, ...]:
        """What is left to look at: the stamps since the compaction point, with their ordinals."""
        network, left = self.network, {}
        for at in network.journal.revisions:
            if at >= network.base.compacted_revision():
                kv = network.base.read([Range(TS_KEY, revision=at)]).results[0].kvs[0]
                left[kv.version] = self._read(kv.value)
        return self.known, tuple(sorted(left.items()))

    def _read(self, value: bytes) -> tuple[int, bool]:
        record = StampRecord.decode(value)
        return record.timestamp, self.ours.is_mine(record)

    def settle(self, ring_slots: int, known: int) -> Verdict:
        """Settle it as a process that has just opened the store."""
        store = self.network.open("C", 0, ring_slots=ring_slots)
        self.ours.known_ordinal = known
        return store._core.committer._recovery.recover(self.ours, 1e12)[0]


def cases(others_max: int) -> list[tuple[int, tuple[int, ...], int | None, int]]:
    found = []
    for known, count in itertools.product((1, 2), range(others_max + 1)):
        for times in itertools.combinations((3, 4, 5, 6, 20, 21, 22), count):
            ours = sum(ms < OURS_MS for ms in times)  # its guard lets it land only in order
            for at in (None, ours):
                for kept in range(known + count + (at is not None) + 1):
                    found.append((known, times, at, kept))
    return found


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("time", "network")]


@pytest.mark.long_after(1)
@OTHERS
def test_undecidable_is_said_only_of_views_that_do_not_tell(others_max: int) -> None:
    outcomes: dict[tuple[object, ...], set[bool]] = defaultdict(set)
    for case in cases(others_max + 1):  # one more: without ours another one is in its place
        built = Case(*case)
        outcomes[built.view()].add(built.landed)
    undecidable, everything = 0, cases(others_max)
    for case in everything:
        for ring_slots in (1, 1_024):
            built = Case(*case)
            possible, verdict = outcomes[built.view()], built.settle(ring_slots, built.known)
            if len(possible) == 2:
                assert verdict is Verdict.UNDECIDABLE, case
                undecidable += 1
            else:
                truth = Verdict.LANDED if built.landed else Verdict.DEAD
                assert verdict is truth, (case, verdict)
    assert 0 < undecidable < len(everything) / 2


@OTHERS
def test_without_the_ordinal_it_is_never_wrong(others_max: int) -> None:
    for case in cases(others_max):
        built = Case(*case)
        verdict = built.settle(1, 0)
        wrong = Verdict.DEAD if built.landed else Verdict.LANDED
        assert verdict is not wrong, case
