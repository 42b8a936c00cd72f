"""Diff: the same answer from a replay of few commits and from a scan of both moments."""

import random

import pytest
from store.plain import Plain

from snapkv import Difference
from snapkv.errors import InvalidTypeError
from snapkv.timeline import moment


def expected(before, after, prefix=""):
    return [
        Difference(key, before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if key.startswith(prefix) and before.get(key) != after.get(key)
    ]


@pytest.fixture(params=["replayed", "scanned"])
def way(request, monkeypatch):
    if request.param == "scanned":
        monkeypatch.setattr(moment, "DIFF_REPLAY_COMMITS_MAX", -1)
    return request.param


def test_every_kind_of_difference(store, way):
    a = store.multi_save({"same": b"1", "changed": b"1", "removed": b"1", "p/gone": b"1"})
    store.multi_save_and_remove_with_prefix(
        {"changed": b"2", "new": b"2", "same": b"other"}, ["removed", "p/"]
    )
    b = store.multi_save({"same": b"1", "empty": b""})
    there = [
        Difference("changed", b"1", b"2"),
        Difference("empty", None, b""),
        Difference("new", None, b"2"),
        Difference("p/gone", b"1", None),
        Difference("removed", b"1", None),
    ]
    back = [Difference(d.key, d.after, d.before) for d in there]
    assert list(store.diff(a, b)) == there
    assert list(store.diff(b, a)) == back
    assert list(store.diff(a)) == there
    assert list(store.diff(a, None, "p/")) == [Difference("p/gone", b"1", None)]
    assert list(store.diff(a, b, "zz")) == []
    assert list(store.diff(a, a)) == list(store.diff(b)) == []
    assert list(store.diff(0, a)) == expected({}, dict(store.at(a).items()))
    assert list(store.at(a).diff(store.at(b), "new")) == [Difference("new", None, b"2")]


def test_removed_and_recreated_is_no_difference_unless_the_value_is(store, way):
    a = store.multi_save({"x": b"1", "y": b"1"})
    store.remove("x")
    gone = store.remove("y")
    b = store.multi_save({"x": b"1", "y": b"2"})
    assert list(store.diff(a, b)) == [Difference("y", b"1", b"2")]
    assert list(store.diff(a, gone)) == [Difference("x", b"1", None), Difference("y", b"1", None)]
    assert list(store.diff(gone, b)) == [Difference("x", None, b"1"), Difference("y", None, b"2")]


def test_what_came_and_went_in_between_is_no_difference(store, way):
    a = store.save("x", b"1")
    store.save("fleeting", b"1")
    b = store.remove("fleeting")
    assert list(store.diff(a, b)) == []


def test_any_two_moments_of_a_random_history(store, way):
    rng, plain = random.Random(5), Plain()
    for _ in range(60):
        keys = [f"{rng.choice('ab')}/{rng.randrange(4)}" for _ in range(3)]
        puts = {key: b"%d" % rng.randrange(3) for key in keys[:2]}
        prefixes = rng.choice([(), ("a/",), ("a/1",), ("",)])
        changes = plain.effect(puts, keys[2:], prefixes)
        commit = store.commit(puts=puts, deletes=keys[2:], delete_prefixes=prefixes)
        plain.add(commit.ts, commit.revision, changes)
    stamps = [0, *(row.ts for row in plain.rows)]
    for _ in range(150):
        a, b = rng.choice(stamps), rng.choice(stamps)
        prefix = rng.choice(["", "a", "a/", "b/1"])
        assert list(store.diff(a, b, prefix)) == expected(plain.state(a), plain.state(b), prefix)


def test_a_history_longer_than_a_replay(store):
    a = store.save("k", b"0")
    for n in range(moment.DIFF_REPLAY_COMMITS_MAX + 5):
        b = store.save(f"k{n % 7}", b"%d" % n)
    assert list(store.diff(a, b)) == expected(dict(store.at(a).items()), dict(store.at(b).items()))


def test_other_writers_of_the_engine_do_not_show(store, place, way):
    a = store.save("k", b"1")
    place.open(name="other").multi_save({"k": b"2", "x": b"1"})
    b = store.save("k", b"2")
    place.open(name="other").save("k", b"3")
    assert list(store.diff(a, b)) == list(store.diff(a)) == [Difference("k", b"1", b"2")]


def test_snapshots_of_different_keys_cannot_be_compared(store, place):
    space = store.space("s").at()
    other = place.open(name="other").at()
    for wrong in (space, other, None, {}, 5):
        with pytest.raises(InvalidTypeError):
            list(store.at().diff(wrong))


def test_snapshots_of_two_openings_of_one_store(store, place, clock):
    a = store.save("k", b"1")
    b = store.multi_save_and_remove_with_prefix({"x": b"1"}, ["k"])
    again = place.open(clock=clock)
    assert list(store.at(a).diff(again.at(b))) == [
        Difference("k", b"1", None),
        Difference("x", None, b"1"),
    ]
