"""Ranges of keys against the plain sets of keys that they stand for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.committer.operations import covers, merge, overlap, point, without_keys

ALPHABET = (b"\0", b"a", b"b", b"\xff")
KEYS = sorted(b"".join(word) for n in (1, 2, 3) for word in itertools.product(ALPHABET, repeat=n))


def keys_in(intervals):
    return {key for key in KEYS if any(start <= key < end for start, end in intervals)}


BOUND = st.sampled_from(KEYS)
INTERVALS = st.lists(
    st.tuples(BOUND, BOUND).filter(lambda pair: pair[0] != pair[1]).map(lambda p: tuple(sorted(p))),
    max_size=6,
)


def assert_merged(intervals):
    assert all(start < end for start, end in intervals)
    for (_, end), (start, _) in itertools.pairwise(intervals):
        assert end <= start


@given(INTERVALS)
def test_merge_keeps_the_same_keys_in_separate_ranges(intervals):
    merged = merge(intervals)
    assert_merged(merged)
    for (_, end), (start, _) in itertools.pairwise(merged):
        assert end < start, "touching ranges are one"
    assert keys_in(merged) == keys_in(intervals)


@given(INTERVALS, st.sets(BOUND, max_size=6))
def test_cut_takes_out_exactly_the_keys(intervals, keys):
    left = without_keys(merge(intervals), sorted(keys))
    assert_merged(left)
    assert keys_in(left) == keys_in(intervals) - keys


@given(INTERVALS, BOUND)
def test_covers(intervals, key):
    assert covers(merge(intervals), key) == (key in keys_in(intervals))


@given(INTERVALS, INTERVALS)
def test_overlap(a, b):
    merged = merge(a), merge(b)
    # keys are dense: ranges that share a byte string share one, though maybe not a short one
    shared = any(max(s, t) < min(e, f) for s, e in a for t, f in b)
    assert overlap(*merged) == overlap(*reversed(merged)) == shared
    if keys_in(a) & keys_in(b):
        assert shared


@pytest.mark.parametrize("key", [b"a", b"\xff", b"a\0"])
def test_point_holds_one_key_only(key):
    assert covers([point(key)], key)
    assert not covers([point(key)], key + b"\0")
    assert without_keys([point(key)], [key]) == []


def test_remove_a_prefix_around_a_saved_key():
    assert without_keys([(b"a/", b"a0")], [b"a/new"]) == [(b"a/", b"a/new"), (b"a/new\0", b"a0")]
    assert without_keys([(b"a/", b"a0")], [b"a/", b"a0"]) == [(b"a/\0", b"a0")]
    assert without_keys([(b"a/", b"a0")], []) == [(b"a/", b"a0")]
