"""Restore: one commit that makes the present equal a past moment, whoever else is writing."""

import threading

import pytest

from snapkv import CompactedError, format_time, pack
from snapkv.base.waiting import monotonic, pause
from snapkv.errors import (
    CommitTimeoutError,
    InvalidTimeError,
    InvalidTypeError,
    KeyNotFoundError,
    ReadTimeoutError,
)

from .engines import assert_sound
from .wrapping import Intruding, wrap_engines


@pytest.fixture
def past(store, clock):
    """A moment worth going back to, and what came after it."""
    ts = store.multi_save({"a": b"1", "p/1": b"1", "p/2": b"1", "pq": b"1"})
    clock.advance(1_000)
    store.multi_save_and_remove_with_prefix({"a": b"2", "new": b"2", "p/3": b"2"}, ["p/1"])
    store.space("s").commit(puts={b"k": b"after"})
    clock.advance(1_000)
    return ts


def test_everything(store, past, place):
    before = place.revision()
    commit = store.restore(past)
    assert commit.revision == place.revision() == before + 1
    assert store.at() == dict(store.at(past).items())
    assert store.at(commit.ts - 1)["new"] == b"2", "the mistake stays on record"
    assert commit.note == f"restore '' to {format_time(past)}"
    assert store.space("s").load(b"k") == b"after", "spaces are layers' own"


def test_a_prefix_only(store, past):
    store.restore(past, "p/", note="undo")
    assert dict(store.at().items()) == {
        "a": b"2",
        "new": b"2",
        "p/1": b"1",
        "p/2": b"1",
        "pq": b"1",
    }
    assert list(store.commits())[-1].note == "undo"


def test_only_what_differs_is_written(store, past):
    untouched = store.at().entry("p/2")
    commit = store.restore(past)
    assert store.at().entry("p/2") == untouched
    with store.watch(since=commit.ts - 1, timeout=0) as watch:
        (changes,) = watch
    assert [c.key for c in changes] == ["a", "new", "p/1", "p/3"]


def test_to_the_present_and_to_before_everything(store, past, clock):
    state = dict(store.at().items())
    store.restore("-0s")
    assert store.at() == state
    store.restore(pack(clock.now_ms() + 60_000))
    assert store.at() == state
    store.restore(0, before_first=True)
    assert store.at() == {}
    store.restore("-1s")
    assert store.at() == state


def test_undoing_a_restore(store, past):
    state = dict(store.at().items())
    commit = store.restore(past)
    store.restore(commit.ts - 1)
    assert store.at() == state


def test_a_moment_that_is_gone(store, past, clock, place):
    clock.advance(200_000)
    store.compact("-0s")
    before = place.revision()
    with pytest.raises(CompactedError):
        store.restore(past)
    assert place.revision() == before


@pytest.mark.parametrize("intrusions", [1, 7, 8, 100])
def test_somebody_is_always_faster(monkeypatch, place, clock, intrusions):
    engines = wrap_engines(monkeypatch, Intruding)
    store, other = place.open(clock=clock), place.open(clock=clock)
    past = store.multi_save({"p/1": b"1", "p/2": b"1", "a": b"1"})
    store.multi_save_and_remove_with_prefix({"p/3": b"2"}, ["p/1"])
    left = [intrusions]

    def intrude():
        if left[0]:
            left[0] -= 1
            other.multi_save({"p/2": b"%d" % left[0], f"p/x{left[0]}": b"", "a": b"other"})

    engines[0].intrude = intrude
    commit = store.restore(past, "p/")
    most = 9 if place.kind.url else 20  # a server's timestamp may be taken by an intruder, too
    assert max(0, intrusions - most) <= left[0] <= max(0, intrusions - 9), (
        "it tries some times, then writes everything"
    )
    assert dict(store.at(commit.ts).items()) == {"a": b"other", "p/1": b"1", "p/2": b"1"}
    assert_sound(store)


def test_among_writers(store, place, clock):
    past = store.multi_save({f"p/{n}": b"0" for n in range(20)})
    wanted = dict(store.at(past).items("p/"))
    stop, failed = threading.Event(), []

    def write(name):
        try:
            mine = place.open(clock=clock)
            n = 0
            while not stop.is_set():
                n += 1
                mine.multi_save_and_remove_with_prefix({f"p/{name}{n % 9}": b"x"}, [f"p/{n % 20}"])
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    try:
        commits = [store.restore(past, "p/") for _ in range(5)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failed == []
    for commit in commits:
        assert dict(store.at(commit.ts).items("p/")) == wanted


# --- in time ---


class Timed(Intruding):
    """Notes until when each transaction may take, in monotonic seconds."""

    def __init__(self, inner):
        super().__init__(inner)
        self.ends = []

    def transact(self, prepare, peek, *, timeout):
        self.ends.append(monotonic() + timeout)
        return super().transact(prepare, peek, timeout=timeout)


@pytest.fixture
def contended(monkeypatch, place, clock):
    """A store whose engine is `Timed`, a moment worth going back to, and somebody faster."""
    engines = wrap_engines(monkeypatch, Timed)
    store, other = place.open(clock=clock), place.open(clock=clock)
    past = store.save("a", b"1")
    store.save("a", b"2")
    engines[0].ends.clear()
    return store, past, engines[0], lambda: other.save("a", b"other")


def test_a_timeout_is_one_for_all_attempts(contended):
    store, past, engine, intrude = contended
    engine.intrude = intrude
    began = monotonic()
    store.restore(past, timeout=50)
    assert len(engine.ends) > 1, "it took several attempts"
    assert max(engine.ends) <= began + 51
    engine.intrude = lambda: None
    engine.ends.clear()
    store.restore(past, timeout=10**400)
    assert len(engine.ends) == 1
    assert engine.ends[0] <= monotonic() + 60, "the most that a commit is given"


def test_no_attempt_is_made_when_the_time_is_over(contended):
    store, past, engine, intrude = contended
    seconds = 0.5
    end = monotonic() + seconds

    def intrude_slowly():
        intrude()
        while monotonic() <= end + 0.1:
            pause(0.01)

    engine.intrude = intrude_slowly
    with pytest.raises((CommitTimeoutError, ReadTimeoutError)):
        store.restore(past, timeout=seconds)
    assert len(engine.ends) == 1
    assert store.load("a") == b"other"


def test_what_is_no_time_for_a_commit(store, past, place):
    before = place.revision()
    with pytest.raises((CommitTimeoutError, ReadTimeoutError)):
        store.restore(past, timeout=0)
    assert place.revision() == before


# --- with care ---


def test_before_the_first_commit_takes_a_word_of_its_own(store, past, place):
    state, before = dict(store.at().items()), place.revision()
    for when in (0, past - 1, "1970-01-01T00:00:00Z", "-1d", "rev:1"):
        for prefix in ("", "p/"):
            with pytest.raises(InvalidTimeError, match="is before the first commit") as caught:
                store.restore(when, prefix)
        assert "before_first=True" in str(caught.value)
    assert place.revision() == before, "nothing was written"
    store.restore(past - 1, "p/", before_first=True)
    assert dict(store.at().items()) == {k: v for k, v in state.items() if not k.startswith("p/")}
    store.restore("-1d", before_first=True)
    assert store.at() == {}


def test_a_moment_at_which_only_ticks_were_there_takes_it_too(store, clock):
    moments = [store.tick().ts]
    clock.advance(10)
    store.space("s").commit(puts={b"k": b"1"})
    moments.append(store.resolved())
    clock.advance(10)
    store.save("k", b"1")
    store.remove("k")
    emptied = store.resolved()
    store.save("k", b"2")
    for moment in moments:
        with pytest.raises(InvalidTimeError, match="no key had ever been saved"):
            store.restore(moment)
    assert dict(store.at().items()) == {"k": b"2"}
    store.restore(emptied)
    assert store.at() == {}
    store.save("k", b"3")
    store.restore(moments[0], before_first=True)
    assert store.at() == {}


def test_an_empty_store_has_no_first_commit(store):
    store.restore("-1h")
    assert store.at() == {}


def test_a_prefix_that_no_key_has_is_told(store, past, place):
    before = place.revision()
    with pytest.raises(KeyNotFoundError) as caught:
        store.restore(past, "q/")
    assert isinstance(caught.value, KeyError)
    assert str(caught.value) == (
        f"no key begins with 'q/', neither now nor at {format_time(past)} ({past})"
    )
    assert place.revision() == before
    store.restore(past, "pq")  # equal then and now: there is such a key
    store.restore(past, "p/3")  # only now
    assert store.at().count("p/3") == 0


def test_a_prefix_that_is_no_text(store, past, place):
    before = place.revision()
    for wrong in (5, None, b"p/", ["p/"]):
        with pytest.raises(InvalidTypeError, match="prefix must be a str"):
            store.restore(past, wrong)
    assert place.revision() == before


def test_the_plan_is_a_difference(store, past):
    plan = {d.key: d.after for d in store.diff(None, past, "p/")}
    commit = store.restore(past, "p/")
    (changes,) = store.watch(since=commit.ts - 1, timeout=0)
    assert {change.key: change.value for change in changes} == plan
