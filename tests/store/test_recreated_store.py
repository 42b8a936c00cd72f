"""A store that was removed and made anew under the same name: the old one is another store."""

import random

import pytest

from snapkv import KeyNotFoundError
from snapkv.engine.contract import Delete

from .engines import assert_sound, write_raw


@pytest.mark.parametrize("slots", [1, 7, 1_024])
@pytest.mark.parametrize("again", [1, 30, 61])
def test_nothing_of_the_old_one_is_seen(place, clock, slots, again):
    old = place.open(clock=clock)
    for n in range(60):
        old.save("b" if n == 59 else "a", b"old%d" % n)
        clock.advance(1_000)
    old.close()
    write_raw(place.engine(), Delete(b"default/", b"default0"))
    store = place.open(clock=clock, ring_slots=slots)
    stamps = []
    for n in range(again):
        stamps.append(store.save("a", b"new%d" % n))
        clock.advance(1_000)
    assert list(store.history("b")) == []
    assert [v.value for v in store.history("a")] == [b"new%d" % n for n in range(again)]
    asked = list(enumerate(stamps))
    random.Random(1).shuffle(asked)
    for n, ts in asked:
        assert store.load("a", ts) == b"new%d" % n
        assert dict(store.at(ts - 1).items()) == ({"a": b"new%d" % (n - 1)} if n else {})
        with pytest.raises(KeyNotFoundError):
            store.load("b", ts)
    assert [c.ts for c in store.commits()] == stamps
    assert_sound(store)
