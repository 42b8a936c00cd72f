"""Timeouts of reads: what they may be, what they cost, and what embedded engines wait for."""

import sys
import threading
from contextlib import nullcontext

import pytest
from store.engines import ENGINES, Place

import snapkv
import snapkv.reading.deadline
from snapkv import ReadTimeoutError
from snapkv.base.waiting import monotonic
from snapkv.errors import InvalidOptionError, InvalidTypeError
from snapkv.timeline import continuity

WAIT_S = 20


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (-1, InvalidOptionError),
        (float("nan"), InvalidOptionError),
        ("1", InvalidTypeError),
        (True, InvalidTypeError),
    ],
)
def test_what_is_no_timeout(store, place, timeout, error):
    ts = store.save("a", b"1")
    for read in (
        lambda: store.load("a", timeout=timeout),
        lambda: store.entries_of(["a"], timeout=timeout),
        lambda: store.at(ts, timeout=timeout),
        lambda: list(store.diff(ts, timeout=timeout)),
        lambda: store.at().count(timeout=timeout),
        lambda: store.restore(ts, timeout=timeout),
        lambda: snapkv.open(place.url, read_timeout=timeout),
        lambda: snapkv.observe(place.url, prefix="", read_timeout=timeout),
    ):
        with pytest.raises(error):
            read()


def test_in_time_a_read_answers_as_ever(store):
    ts = store.commit(puts={"a": b"1", "b": b"2"}).ts
    for timeout in (None, 30, 30.0, float("inf")):
        assert store.load("a", timeout=timeout) == b"1"
        assert store.entry("a", ts, timeout=timeout).value == b"1"
        assert store.load_with_prefix("", timeout=timeout) == (["a", "b"], [b"1", b"2"])
        snap = store.at(ts, timeout=timeout)
        assert (list(snap.items()), "a" in snap, len(snap)) == ([("a", b"1"), ("b", b"2")], True, 2)
        assert [v.value for v in store.history("a", timeout=timeout)] == [b"1"]
        assert [d.key for d in store.diff(0, timeout=timeout)] == ["a", "b"]


def test_an_iterator_that_is_left_ends_what_it_waits_with(store):
    for n in range(3):
        store.save("a", b"%d" % n)
    versions = store.history("a", timeout=30)
    assert next(versions).value == b"0"
    versions.close()
    assert next(versions, None) is None


def test_without_a_timeout_one_key_is_read_without_a_call_for_it(store, monkeypatch):
    monkeypatch.setattr(continuity, "GAP_S", WAIT_S)  # no answer counts as slow
    store.save("a", b"1")
    store.load("a")  # on etcd, from now on the server is known to be the same
    called = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename == snapkv.reading.deadline.__file__:
            called.append(frame.f_code.co_name)

    snap = store.at()
    sys.setprofile(profile)
    try:
        assert store.load("a") == b"1"
        assert snap["a"] == b"1"
        assert "a" in snap
        assert "b" not in snap
    finally:
        sys.setprofile(None)
    assert called == []


@pytest.fixture
def alone(tmp_path):
    """A store on lmdb, whose environment another thread has to itself."""
    with Place(ENGINES["lmdb"], tmp_path) as place:
        store = place.open()
        store.commit(puts={f"k{n}": b"1" for n in range(10)})
        held, over = threading.Event(), threading.Event()

        def hold():
            with store._core.engine._env.access.exclusive():
                held.set()
                over.wait(WAIT_S)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(WAIT_S)
        yield store
        over.set()
        holder.join(WAIT_S)
        assert store.load("k1", timeout=WAIT_S) == b"1"


def test_a_read_that_waits_for_another_thread(alone):
    for read in (
        lambda: alone.load("k1", timeout=0.2),
        lambda: list(alone.diff(0, timeout=0.2)),
        lambda: alone.info(timeout=0.2),
        lambda: alone.restore("rev:2", timeout=0.2),
    ):
        began = monotonic()
        with pytest.raises(ReadTimeoutError) as caught:
            read()
        assert 0.15 < monotonic() - began < WAIT_S, "without a timeout it waits for 30 s"
        assert isinstance(caught.value, TimeoutError)


def test_a_long_scan_ends_in_time(tmp_path):
    """It waits for nothing, and is long all the same."""
    with Place(ENGINES["lmdb"], tmp_path) as place:
        store = place.open()
        store.commit(puts={f"k{n:05}": b"x" for n in range(20_000)})
        with pytest.raises(ReadTimeoutError):
            list(store.at().items(timeout=0.0))


def test_a_longer_timeout_goes_before_the_one_of_opening(store, place, monkeypatch):
    ts = store.save("a", b"1")
    bounds = []
    monkeypatch.setattr(
        snapkv.reading.deadline,
        "no_later_than",
        lambda deadline: nullcontext(bounds.append(deadline)),
    )
    with place.open(read_timeout=5) as hasty:
        bounds.clear()
        began = monotonic()
        assert hasty.load_with_prefix("", ts, timeout=50_000) == (["a"], [b"1"])
        assert [each.key for each in hasty.diff(0, ts, timeout=50_000)] == ["a"]
        assert min(bounds) > began + 40_000


def test_a_bound_of_very_long_is_none(store, place):
    store.save("a", b"1")
    assert store.load("a", timeout=10**400) == b"1"
    assert store.load("a", timeout=float("inf")) == b"1"
    with place.open(read_timeout=10**400) as patient:
        assert patient.load_with_prefix("") == (["a"], [b"1"])
