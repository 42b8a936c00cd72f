"""The example of the document that this idea comes from.

metaSnapShot enables to query historical meta based on timestamp. The following shows a
series of operations on the timeline:

| Timestamp | Operation |
|-----------|-----------|
| 100       | Set A=1   |
| 200       | Set B=2   |
| 300       | Set C=3   |
| 400       | Set A=10  |
| 500       | Delete B  |
| 600       | Delete C  |

Now assuming the wall clock is 700, so B should have been deleted from the system. But I want
to know the value of B at 450. How to do it?
"""

import pytest
from cases import cases

from snapkv import KeyNotFoundError, ManualClock, pack


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def meta(store, clock):
    clock.set(100)
    assert store.save("A", b"1") == pack(100)
    clock.set(200)
    assert store.save("B", b"2") == pack(200)
    clock.set(300)
    assert store.save("C", b"3") == pack(300)
    clock.set(400)
    assert store.save("A", b"10") == pack(400)
    clock.set(500)
    assert store.remove("B") == pack(500)
    clock.set(600)
    assert store.remove("C") == pack(600)
    clock.set(700)
    return store


def test_b_was_deleted_from_the_system(meta):
    with pytest.raises(KeyNotFoundError):
        meta.load("B")


def test_what_was_the_value_of_b_at_450(meta):
    assert meta.load("B", pack(450)) == b"2"


@cases(
    ("moment", "everything"),
    [
        (50, {}),
        (100, {"A": b"1"}),
        (150, {"A": b"1"}),
        (200, {"A": b"1", "B": b"2"}),
        (250, {"A": b"1", "B": b"2"}),
        (300, {"A": b"1", "B": b"2", "C": b"3"}),
        (399, {"A": b"1", "B": b"2", "C": b"3"}),
        (400, {"A": b"10", "B": b"2", "C": b"3"}),
        (450, {"A": b"10", "B": b"2", "C": b"3"}),
        (500, {"A": b"10", "C": b"3"}),
        (550, {"A": b"10", "C": b"3"}),
        (600, {"A": b"10"}),
        (700, {"A": b"10"}),
    ],
)
def test_everything_at_a_moment(meta, moment, everything):
    assert dict(meta.at(pack(moment)).items()) == everything
    keys, values = meta.load_with_prefix("", pack(moment))
    assert keys == sorted(everything)
    assert values == [everything[key] for key in keys]
    for key in "ABC":
        if key in everything:
            assert meta.load(key, pack(moment)) == everything[key]
        else:
            with pytest.raises(KeyNotFoundError):
                meta.load(key, pack(moment))


def test_an_addition_gets_the_timestamp_of_its_commit(meta):
    ts = meta.multi_save(
        {"collection/1": b"orders"}, additions=[lambda ts: ("created/1", str(ts).encode())]
    )
    assert ts == pack(700)
    assert meta.load("created/1") == str(ts).encode()
    assert meta.load("created/1", ts) == str(ts).encode()


def test_the_example_survives_a_small_ring_and_a_reopening(meta, place, clock):
    for slots in (1, 2, 3, 1_024):
        again = place.open(clock=clock, ring_slots=slots)
        assert again.load("B", pack(450)) == b"2"
        assert again.load("A", pack(399)) == b"1"
