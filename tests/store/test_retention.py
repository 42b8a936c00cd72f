"""`retain=` drops what is older than it says, in time, and nothing else, after any commits."""

import random

import pytest

from snapkv import CompactedError, pack

from .engines import assert_sound

KEYS = ("a", "a/1", "b", "c")
RETAIN_MS = 3_600_000
STEPS = 60


class Walk:
    """Random commits, and the state after each as a dict."""

    def __init__(self, store, clock, seed):
        print(f"seed {seed}")
        self._store, self._clock, self._rng = store, clock, random.Random(seed)
        self._now, self.states = {}, []

    def step(self):
        rng = self._rng
        self._clock.advance(rng.choice([0, 1, 40_000, 400_000, 1_500_000]))
        puts = {key: rng.randbytes(3) for key in rng.sample(KEYS, rng.randrange(3))}
        deletes = [key for key in rng.sample(KEYS, rng.randrange(3)) if key not in puts]
        ts = self._store.commit(puts=puts, deletes=deletes).ts
        self._now = {k: v for k, v in self._now.items() if k not in deletes} | puts
        self.states.append((ts, dict(self._now)))


@pytest.mark.long_on("etcd")
@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_retain_drops_what_is_older_and_nothing_else(place, clock, seed):
    store = place.open(clock=clock, retain="1h")
    layer = store.space("layer")
    layer.commit(puts={b"k": b"of a space"})
    walk = Walk(store, clock, seed)
    for _ in range(STEPS if place.url.startswith(("memory", "lmdb")) else STEPS // 3):
        walk.step()
        horizon = pack(clock.now_ms() - RETAIN_MS)
        kept = [(ts, state) for ts, state in walk.states if ts >= horizon]
        older = [each for each in walk.states if each[0] <= horizon][-1:]
        for ts, state in walk._rng.sample(kept, min(3, len(kept))):
            assert dict(store.at(ts).items()) == state
        for _, state in older:  # it is in force at the horizon
            assert dict(store.at(horizon).items()) == state
        assert layer.load(b"k") == b"of a space"
    clock.advance(2 * RETAIN_MS)
    for _ in range(4):  # each commit frees a bounded piece
        store.tick()
        clock.advance(RETAIN_MS // 10 + 1)
    for ts, _ in walk.states[:-1]:
        with pytest.raises(CompactedError):
            store.load("a", ts)
    assert dict(store.at().items()) == walk.states[-1][1]
    assert layer.load(b"k") == b"of a space"
    assert store.info()["retain_error"] is None
    assert_sound(store)
