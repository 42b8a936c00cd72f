"""Updates: nothing is lost between writers, every wait has a bound, conflicts name their facts."""

import subprocess
import sys
import threading

import pytest
from cases import cases

from snapkv import Absent, AtRevision, CommitUnknownError, ConflictError
from snapkv.engine.contract import OutcomeUnknown
from snapkv.errors import (
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    StoreClosedError,
)
from snapkv.store import updating
from snapkv.store.store_writer import KeyLocks

from .wrapping import Wrapped, wrap_engines

WAIT_S = 20


def counted(value: bytes | None) -> bytes:
    return b"%d" % (int(value or 0) + 1)


def test_it_creates_changes_and_removes(store):
    first = store.update("k", counted, note="one", writer="bob", meta={"request": "r-1"})
    assert (first.value, first.tries, store.load("k")) == (b"1", 1, b"1")
    second = store.update("k", counted)
    assert (second.value, second.commit.revision) == (b"2", store.entry("k").revision)
    gone = store.update("k", lambda _: None)
    assert (gone.value, "k" in store.at()) == (None, False)
    assert [version.value for version in store.history("k")] == [b"1", b"2", None]
    version = next(store.history("k"))
    assert (version.note, version.writer, dict(version.meta)) == ("one", "bob", {"request": "r-1"})


def test_a_space_has_it_too(store):
    space = store.space("s")
    assert space.update(b"\xff", counted).value == b"1"
    assert space.update(b"\xff", counted, note="two").commit.note == "two"
    assert (space.load(b"\xff"), list(store.at().keys())) == (b"2", [])


def test_the_same_value_commits_nothing(store):
    store.save("k", b"1")
    before = store.resolved()
    for key, value in (("k", b"1"), ("absent", None)):
        done = store.update(key, lambda found: found)
        assert (done.value, done.commit, done.tries) == (value, None, 1)
    assert store.resolved() == before


def test_another_writer_comes_first(store, place):
    """The function sees what the other one wrote, once a try; the guard is the key's own."""
    other, seen = place.open(), []

    def change(value):
        seen.append(value)
        if len(seen) <= 3:
            other.save("k", b"other %d" % len(seen))
        return b"mine"

    done = store.update("k", change)
    assert seen == [None, b"other 1", b"other 2", b"other 3"]
    assert (done.tries, store.load("k")) == (4, b"mine")


def test_a_key_that_comes_and_goes(store, place):
    other = place.open()
    acts = [lambda: other.save("k", b"1"), lambda: other.remove("k")]

    def change(value):
        if acts:
            acts.pop(0)()
        return (value or b"") + b"!"

    assert store.update("k", change).tries == 3
    assert store.load("k") == b"!"


def test_the_last_conflict_has_its_facts(store, monkeypatch):
    monkeypatch.setattr(updating, "WAIT_S_MAX", updating.WAIT_S_MIN)
    calls = []

    def beaten(value):
        calls.append(value)
        store.save("k", b"%d" % len(calls))
        return b"mine"

    with pytest.raises(ConflictError, match=r"'k'.* each of 3 tries .*larger tries=") as caught:
        store.update("k", beaten, tries=3)
    assert calls == [None, b"1", b"2"]
    ((guard, found),) = caught.value.failed
    assert isinstance(guard, AtRevision)
    assert (found, caught.value.tries) == (store.entry("k").revision, 3)
    assert store.load("k") == b"3"
    with pytest.raises(ConflictError, match="each of 1 tries") as caught:
        store.update("k", beaten, tries=1)
    assert caught.value.tries == 1


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_the_time_is_a_bound_too(store, monkeypatch):
    monkeypatch.setattr(updating, "WAIT_S_MIN", 0.2)
    monkeypatch.setattr(updating, "WAIT_S_MAX", 0.4)
    monkeypatch.setattr(updating._random, "uniform", lambda _, longest: longest)
    calls = []

    def beaten(value):
        calls.append(value)
        store.save("k", b"%d" % len(calls))
        return b"mine"

    with pytest.raises(ConflictError, match=r"at most 64 and 0\.5 s") as caught:
        store.update("k", beaten, timeout=0.5)
    assert caught.value.tries == len(calls) <= 2, "the second wait would be too long"
    with pytest.raises(TimeoutError):
        store.update("late", counted, timeout=1e-9)
    assert "late" not in store.at()


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_a_guard_of_the_caller_is_not_tried_again(store):
    calls = []
    guard = Absent("lock")
    assert store.update("k", counted, guards=[guard]).value == b"1"
    store.save("lock", b"")
    with pytest.raises(ConflictError) as caught:
        store.update("k", lambda value: calls.append(value) or b"2", guards=[guard])
    assert (len(calls), caught.value.failed[0][0]) == (1, guard)
    assert store.load("k") == b"1"


class Losing(Wrapped):
    """Loses every transaction on its way, and every fence, once `lose` is set."""

    lose = False

    def transact(self, prepare, peek, *, timeout):
        if not self.lose:
            return self.inner.transact(prepare, peek, timeout=timeout)

        def prepare_and_lose(peeked):
            prepare(peeked)
            raise OutcomeUnknown("the connection was lost", retry=True)

        return self.inner.transact(prepare_and_lose, peek, timeout=timeout)


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_an_unknown_outcome_is_not_tried_again(place, monkeypatch):
    engines = wrap_engines(monkeypatch, Losing)
    store, calls = place.open(), []
    engines[0].lose = True
    with pytest.raises(CommitUnknownError) as caught:
        store.update("k", lambda value: calls.append(value) or b"1", timeout=0.3)
    assert len(calls) == 1
    engines[0].lose = False
    assert store.resolve(caught.value.timestamp, caught.value.nonce) is None
    assert store.get("k") is None


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_what_the_function_raises_passes_through(store):
    with pytest.raises(ZeroDivisionError):
        store.update("k", lambda _: b"%d" % (1 // 0))
    assert store.get("k") is None


@pytest.mark.parametrize("place", ["memory"], indirect=True)
@cases(
    ("error", "options"),
    [
        (InvalidTypeError, {"fn": b"1"}),
        (InvalidTypeError, {"fn": lambda _: "text"}),
        (InvalidTypeError, {"fn": lambda _: 1}),
        (InvalidTypeError, {"key": 5}),
        (InvalidKeyError, {"key": ""}),
        (InvalidTypeError, {"tries": "3"}),
        (InvalidOptionError, {"tries": 0}),
        (InvalidOptionError, {"timeout": -1}),
        (InvalidTypeError, {"timeout": "1s"}),
        (InvalidTypeError, {"guards": "ab"}),
        (InvalidTypeError, {"guards": [5]}),
        (InvalidTypeError, {"note": 5}),
        (InvalidTypeError, {"meta": "a"}),
    ],
)
def test_bad_arguments(store, error, options):
    given = {"key": "k", "fn": counted} | options
    with pytest.raises(error):
        store.update(given.pop("key"), given.pop("fn"), **given)
    assert list(store.at().keys()) == []


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_of_a_closed_store(store):
    store.close()
    with pytest.raises(StoreClosedError):
        store.update("k", counted)


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_eight_threads_lose_nothing(store):
    each, failed = 25, []

    def work():
        try:
            for _ in range(each):
                store.update("n", counted, timeout=WAIT_S)
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * WAIT_S)
    assert failed == []
    assert store.load("n") == b"%d" % (8 * each)
    assert [version.value for version in store.history("n")] == [
        b"%d" % n for n in range(1, 8 * each + 1)
    ]


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_an_update_inside_of_an_update_does_not_wait_for_ever(store, monkeypatch):
    """The outer one has the turn at the key after its lost try, the inner one waits for it."""
    monkeypatch.setattr(updating, "KEY_LOCK_S", 0.05)
    calls = []

    def inner(value):
        calls.append(("inner", value))
        if len(calls) < 4:
            store.save("k", b"saved %d" % len(calls))
        return b"inner"

    def outer(value):
        calls.append(("outer", value))
        if len(calls) == 1:
            store.save("k", b"first")
        elif len(calls) == 2:
            store.update("k", inner)
        return b"outer"

    assert store.update("k", outer).tries == 3
    assert calls == [
        ("outer", None),
        ("outer", b"first"),
        ("inner", b"first"),
        ("inner", b"saved 3"),
        ("outer", b"inner"),
    ]
    assert len(store._core.key_locks) == 0


def test_locks_of_keys():
    locks, order, begun = KeyLocks(), [], threading.Event()

    def wait():
        begun.set()
        with locks.held(b"k", WAIT_S):
            order.append("second")

    thread = threading.Thread(target=wait)
    with locks.held(b"k", 0), locks.held(b"other", 0):
        thread.start()
        assert begun.wait(WAIT_S)
        with locks.held(b"k", 0.01):  # goes without
            assert len(locks) == 2
        order.append("first")
    thread.join(WAIT_S)
    assert (order, len(locks)) == (["first", "second"], 0)


PROGRAM = """
import sys, snapkv
with snapkv.open(sys.argv[1], durability="none") as store:
    print("open", flush=True)
    sys.stdin.readline()
    for _ in range(100):
        store.update("n", lambda value: b"%d" % (int(value or 0) + 1), timeout=30)
"""


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_two_processes_lose_nothing(store, place):
    command = [sys.executable, "-c", PROGRAM, place.url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        for process in running:
            assert process.stdout.readline() == "open\n"
        for process in running:  # both at once
            process.stdin.write("go\n")
            process.stdin.close()
        assert [process.wait(4 * WAIT_S) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
            process.stdout.close()
    assert store.load("n") == b"200"
