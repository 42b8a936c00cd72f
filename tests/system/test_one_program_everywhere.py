"""One random program, on every engine and with rings of every size: equal histories."""

from __future__ import annotations

import shutil
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.engines import ENGINES, START_MS, Place, assert_sound

from snapkv import Absent, CompactedError, ConflictError, KeyNotFoundError, ManualClock

from .effort import EFFORT, SERVER_EFFORT

pytestmark = pytest.mark.long

RINGS = (1, 2, 7, 1_024)

KEYS = st.sampled_from(["a", "a/1", "ab", "b"])
STEPS = st.one_of(
    st.tuples(st.just("save"), KEYS, st.binary(max_size=2)),
    st.tuples(st.just("save"), KEYS, st.binary(max_size=2)),
    st.tuples(st.just("remove"), KEYS, st.none()),
    st.tuples(st.just("sweep"), st.sampled_from(["", "a", "a/"]), KEYS),
    st.tuples(st.just("take"), KEYS, st.none()),
    st.tuples(st.just("clock"), st.sampled_from([1, 1_000, 100_000, -5_000]), st.none()),
    st.tuples(st.just("tick"), st.none(), st.none()),
    st.tuples(st.just("foreign"), KEYS, st.none()),
    st.tuples(st.just("compact"), st.integers(0, 10), st.none()),
    st.tuples(st.just("restore"), st.integers(0, 10), st.none()),
    st.tuples(st.just("load"), st.integers(0, 40), KEYS),
    st.tuples(st.just("reopen"), st.none(), st.none()),
    st.tuples(st.just("burst"), st.integers(1, 12), KEYS),
)


class Run:
    """The program on one engine with one ring; `told` is everything that it was told."""

    def __init__(self, place, ring):
        self.place, self.ring, self.told = place, ring, []
        self.clock = ManualClock(START_MS)
        self.store = self.opened()
        self.other = place.open(name="other", clock=self.clock)
        self.stamps = [0]

    def opened(self):
        return self.place.open(
            clock=self.clock, ring_slots=self.ring, writer="w", max_clock_skew=3_600
        )

    def step(self, what, a, b):
        try:
            answer = getattr(self, what)(a, b)
        except (KeyNotFoundError, ConflictError) as e:
            answer = type(e).__name__, str(e)
        except CompactedError as e:
            answer = "CompactedError", e.requested, e.earliest, e.unit
        self.told.append((what, answer))

    def save(self, key, value):
        self.stamps.append(self.store.save(key, value))
        return self.stamps[-1]

    def burst(self, count, key):
        return [self.save(key, b"%d" % n) for n in range(count)]

    def remove(self, key, _):
        return self.store.remove(key)

    def sweep(self, prefix, key):
        return self.store.multi_save_and_remove_with_prefix({key: b"swept"}, [prefix])

    def take(self, key, _):
        return self.store.commit(puts={key: b"taken"}, guards=[Absent(key)])

    def tick(self, *_):
        return self.store.tick()

    def foreign(self, key, _):
        return self.other.save(key, b"foreign")

    def load(self, back, key):
        return self.store.load(key, self.stamps[-min(back + 1, len(self.stamps))])

    def compact(self, back, _):
        # all stores keep the newest hours for their large skew: so go there first
        self.clock.advance(7_300_000)
        return self.store.compact(self.stamps[-min(back + 1, len(self.stamps))])

    def restore(self, back, _):
        when = self.stamps[-min(back + 1, len(self.stamps))]
        return self.store.restore(when, before_first=True)

    def reopen(self, *_):
        self.store.close()
        self.store = self.opened()

    def clock_moves(self, ms):
        self.clock.advance(ms)

    def everything(self):
        """What can be known of the store in the end."""
        store, found = self.store, list(self.told)
        for ts in self.stamps:
            for when in (ts - 1, ts, ts + 1) if ts else (0,):
                try:
                    snap = store.at(when)
                    found.append((when, snap.revision, snap.final, dict(snap.items())))
                except CompactedError as e:
                    found.append((when, e.earliest))
        found.append(list(store.commits()))
        found.append(list(store.commits(newest_first=True)))
        found += [list(store.history(key)) for key in ("a", "a/1", "ab", "b")]
        found.append(store.check().keys)
        return found


@EFFORT
@given(st.lists(STEPS, max_size=25))
def test_equal_histories_on_embedded_engines_with_every_ring(program):
    kinds = {name: kind for name, kind in ENGINES.items() if kind.url}
    assert_equal_histories(program, kinds, RINGS)


@SERVER_EFFORT
@given(st.lists(STEPS, max_size=25), st.sampled_from(RINGS))
def test_equal_histories_on_every_engine(program, ring):
    assert_equal_histories(program, ENGINES, [ring])


def assert_equal_histories(program, kinds, rings):
    folder = tempfile.mkdtemp(prefix="snapkv-everywhere-")
    try:
        outcomes = {}
        for engine, kind in kinds.items():
            for ring in rings:
                with Place(kind, folder) as place:
                    run = Run(place, ring)
                    for what, a, b in program:
                        if what == "clock":
                            run.clock_moves(a)
                        else:
                            run.step(what, a, b)
                    outcomes[engine, ring] = run.everything()
                    assert_sound(run.store)
        first = next(iter(outcomes.values()))
        for where, outcome in outcomes.items():
            assert outcome == first, where
    finally:
        shutil.rmtree(folder)
