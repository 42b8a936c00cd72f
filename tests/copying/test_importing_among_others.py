"""An import into a store that others write to: it comes between them, or says why it cannot."""

import copy
import pickle
import threading
from contextlib import contextmanager

import pytest
from store.engines import ENGINES, Place, assert_sound, write_raw

import snapkv
from snapkv.copying.import_prefix import TRIES, import_prefix
from snapkv.engine.contract import Put
from snapkv.errors import (
    ConflictError,
    KeyNotFoundError,
    StoreNotEmptyError,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def store(place, clock):
    store = place.open(clock=clock, max_clock_skew=3_600)
    yield store
    assert_sound(store)


@pytest.fixture
def other(place, clock):
    return place.open(clock=clock, max_clock_skew=3_600)


def fill(engine, count: int) -> dict:
    """Write below r/ as another program does; return it."""
    values = {f"r/{n:05}": b"%d" % n for n in range(count)}
    keys = sorted(values)
    for at in range(0, count, 100):
        write_raw(engine, *(Put(key.encode(), values[key]) for key in keys[at : at + 100]))
    return values


def imported(store, place, prefix: str = "r/", **options):
    return import_prefix(store, place.url, prefix, source_options=place.kind.options, **options)


def below_r(store) -> dict:
    return dict(store.at().items("r/"))


def interfere(store, monkeypatch, act) -> list[int]:
    """Let `act(writes)` happen just before each commit of the import; return their sizes."""
    real, tried = type(store).commit, []

    def commit(self, **operations):
        if self is store:
            writes = len(operations["puts"]) + len(operations["deletes"])
            tried.append(writes)
            act(writes)
        return real(self, **operations)

    monkeypatch.setattr(type(store), "commit", commit)
    return tried


# --- others commit often ---


@pytest.mark.parametrize("batches", [False, True])
def test_a_commit_is_tried_again_after_those_of_others(
    store, other, place, engine, monkeypatch, batches: bool
) -> None:
    values = fill(engine, 20)
    turns = iter(range(100))

    def act(writes: int) -> None:
        if next(turns) < TRIES - 1:
            other.save("elsewhere", b"x")

    before = store.resolved()
    with monkeypatch.context() as patch:
        tried = interfere(store, patch, act)
        done = imported(store, place, batches=batches, note="why")
    assert tried == [20] * TRIES
    assert (done.commits, below_r(store)) == (1, values)
    commits = [c for c in store.commits(before) if c.note == "why"]
    assert commits == [done.newest]


def test_each_batch_has_its_own_tries(tmp_path, clock, monkeypatch) -> None:
    with Place(ENGINES["etcd"], tmp_path) as place:
        values = fill(place.engine(), 400)
        store = place.open(clock=clock, max_txn_ops=48, max_clock_skew=3_600)
        other = place.open(clock=clock, max_clock_skew=3_600)
        reported: list[tuple[int, int]] = []
        turns = iter(range(1_000))

        def act(writes: int) -> None:
            if next(turns) % TRIES < TRIES - 1:
                other.save("elsewhere", b"x")

        before = store.resolved()
        with monkeypatch.context() as patch:
            tried = interfere(store, patch, act)
            done = imported(
                store, place, batches=True, note="why", progress=lambda *at: reported.append(at)
            )
        assert below_r(store) == values
        assert (done.commits, len(tried)) == (4, 4 * TRIES)
        assert reported == [(n, 4) for n in range(5)]
        notes = [c.note for c in store.commits(before) if (c.note or "").startswith("import")]
        assert notes == [f"import {n} of 4: why" for n in range(1, 5)]


def test_it_gives_up_when_others_always_come_first(
    store, other, place, engine, monkeypatch
) -> None:
    fill(engine, 2)
    message = f"could not commit 2 keys: other writers committed first in all {TRIES} attempts"
    with monkeypatch.context() as patch:
        tried = interfere(store, patch, lambda _: other.save("elsewhere", b"x"))
        with pytest.raises(ConflictError, match=message) as caught:
            imported(store, place)
        assert tried == [2] * TRIES
    assert below_r(store) == {}
    for again in (copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert (str(again), again.failed) == (str(caught.value), caught.value.failed)


@contextmanager
def writing(store, pace_s: float):
    """Let a thread commit elsewhere in the store, as often as that."""
    stopped, begun, errors = threading.Event(), threading.Event(), []

    def run() -> None:
        try:
            while not stopped.wait(pace_s):
                store.save("elsewhere", b"x")
                begun.set()
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert begun.wait(30)
        yield
    finally:
        stopped.set()
        thread.join(30)
    assert not thread.is_alive()
    assert errors == []


def test_a_real_writer_on_etcd(tmp_path, clock) -> None:
    """It commits often, but an attempt takes less time than its pause."""
    with Place(ENGINES["etcd"], tmp_path) as place:
        values = fill(place.engine(), 400)
        store = place.open(clock=clock, max_clock_skew=3_600)
        other = place.open(clock=clock, max_clock_skew=3_600)
        with writing(other, 1.0):
            imported(store, place, batches=True)
        assert below_r(store) == values
        assert_sound(store)


# --- others write what is imported ---


@pytest.mark.parametrize("looks", [1, 3], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("act", "key", "found"),
    [
        (lambda other: other.save("r/new", b"theirs"), "'r/new' absent", True),
        (lambda other: other.save("r/held", b"theirs"), "'r/held' at revision", True),
        (lambda other: other.remove("r/held"), "'r/held' at revision", False),
    ],
    ids=["saved", "changed", "removed"],
)
def test_who_writes_below_the_target_is_told_by_a_key(
    store, other, place, engine, monkeypatch, looks: int, act, key: str, found: bool
) -> None:
    values = fill(engine, 3)
    write_raw(engine, Put(b"r/held", b"same"))
    store.save("r/held", b"same")
    turns = iter(range(100))

    def interferes(writes: int) -> None:
        if next(turns) + 1 < looks:
            other.save("elsewhere", b"x")
        else:
            act(other)

    with monkeypatch.context() as patch:
        interfere(store, patch, interferes)
        with pytest.raises(ConflictError, match=key) as told:
            imported(store, place)
    assert type(told.value) is ConflictError
    ((guard, revision),) = told.value.failed
    assert guard.key == key.split("'")[1]
    assert (revision == store.at().revision) if found else (revision == 0)
    assert not set(values) & set(below_r(store))


def test_a_conflict_between_batches_names_the_key(tmp_path, clock, monkeypatch) -> None:
    with Place(ENGINES["etcd"], tmp_path) as place:
        values = fill(place.engine(), 400)
        store = place.open(clock=clock, max_txn_ops=48, max_clock_skew=3_600)
        other = place.open(clock=clock, max_clock_skew=3_600)

        def act(writes: int) -> None:
            other.save("r/intruder" if below_r(store) else "elsewhere", b"x")

        turns = iter(range(100))
        with monkeypatch.context() as patch:
            interfere(store, patch, lambda writes: act(writes) if next(turns) % 2 == 0 else None)
            with pytest.raises(ConflictError, match="'r/intruder' absent"):
                imported(store, place, batches=True)
        assert 10 < len(below_r(store)) - 1 < len(values)


# --- what is in the way ---


def test_what_would_be_removed_is_told_so(store, place, engine) -> None:
    fill(engine, 1)
    store.save("r/other", b"mine")
    with pytest.raises(StoreNotEmptyError, match=r"'r/other', which the source.*to remove it"):
        imported(store, place)
    store.commit(puts={"r/00000": b"mine"}, deletes=["r/other"])
    with pytest.raises(StoreNotEmptyError, match=r"'r/00000' with another value.*to overwrite it"):
        imported(store, place)
    assert below_r(store) == {"r/00000": b"mine"}


def test_a_prefix_of_stores_alone_says_so(store, place, engine) -> None:
    with pytest.raises(KeyNotFoundError, match="only 2 keys of snapkv stores") as caught:
        imported(store, place, "default")
    assert caught.value.key == "default"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.key) == (str(caught.value), "default")
    with pytest.raises(snapkv.KeyNotFoundError) as nothing:
        imported(store, place, "nothing/")
    assert type(nothing.value) is KeyNotFoundError
