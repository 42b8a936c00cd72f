"""An import into a store that others write to: it comes between them, or says why it cannot."""

import copy
import pickle
import threading
from contextlib import contextmanager

import pytest

import snapkv
from snapkv.engine.contract import Put
from snapkv.errors import (
    ConflictError,
    CrowdedError,
    KeyNotFoundError,
    OnlyStoresError,
    StoreNotEmptyError,
)
from snapkv.importing.import_prefix import import_prefix
from snapkv.importing.writer import GUARD_TRIES_MAX, SPLIT_TRIES_MAX

from .engines import ENGINES, Place, assert_sound, write_raw

FITS = 3
"""How many writes of a commit are quick enough, where a test says which are."""


@pytest.fixture
def engine(place):
    return place.engine()


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


def test_pieces_become_small_enough(store, other, place, engine, monkeypatch) -> None:
    values = fill(engine, 20)
    told: list[tuple[int, int]] = []

    def act(writes: int) -> None:
        if writes > FITS:
            other.save("elsewhere", b"x")

    before = store.resolved()
    with monkeypatch.context() as patch:
        tried = interfere(store, patch, act)
        done = imported(
            store, place, batches=True, note="why", progress=lambda *at: told.append(at)
        )
    assert below_r(store) == values
    assert tried[: 3 * SPLIT_TRIES_MAX] == [n for n in (20, 10, 5) for _ in range(SPLIT_TRIES_MAX)]
    assert max(tried[3 * SPLIT_TRIES_MAX :]) <= FITS
    commits = [c for c in store.commits(before) if (c.note or "").startswith("import")]
    assert done.commits == len(commits) == 10
    assert commits[-1] == done.newest
    assert [c.note for c in commits] == [f"import {n} of 10: why" for n in range(1, 11)]
    assert told == [(0, 1), *((n, 10) for n in range(1, 11))]


def test_one_write_at_a_time_is_tried_for_long(store, other, place, engine, monkeypatch) -> None:
    values = fill(engine, 3)
    pending = [SPLIT_TRIES_MAX + 20]

    def act(writes: int) -> None:
        if pending[0]:
            pending[0] -= 1
            other.save("elsewhere", b"x")

    with monkeypatch.context() as patch:
        tried = interfere(store, patch, act)
        done = imported(store, place, batches=True)
    assert tried == [3] * SPLIT_TRIES_MAX + [1] * (20 + 3)
    assert (done.commits, below_r(store)) == (3, values)


def test_later_pieces_are_larger_again(tmp_path, clock, monkeypatch) -> None:
    with Place(ENGINES["etcd"], tmp_path) as place:
        values = fill(place.engine(), 400)
        store = place.open(clock=clock, max_txn_ops=48, max_clock_skew=3_600)
        other = place.open(clock=clock, max_clock_skew=3_600)
        told: list[tuple[int, int]] = []
        crowded = [6 * SPLIT_TRIES_MAX]

        def act(writes: int) -> None:
            if crowded[0]:
                crowded[0] -= 1
                other.save("elsewhere", b"x")

        with monkeypatch.context() as patch:
            tried = interfere(store, patch, act)
            done = imported(store, place, batches=True, progress=lambda *at: told.append(at))
        assert below_r(store) == values
        assert max(tried[6 * SPLIT_TRIES_MAX :]) > 50
        assert [at for at, _ in told] == list(range(done.commits + 1))
        totals = [total for _, total in told]
        assert totals == sorted(totals)
        assert all(at <= total for at, total in told)
        assert told[0] == (0, 4)
        assert told[-1] == (done.commits, done.commits)


def test_without_batches_it_says_what_helps(store, other, place, engine, monkeypatch) -> None:
    fill(engine, 2)
    with monkeypatch.context() as patch:
        tried = interfere(store, patch, lambda _: other.save("elsewhere", b"x"))
        with pytest.raises(CrowdedError, match=r"too often.* 2 keys .*batches=True") as told:
            imported(store, place)
        assert tried == [2] * GUARD_TRIES_MAX
        with pytest.raises(ConflictError, match=r"too often.* 1 key came") as alone:
            imported(store, place, batches=True)
    assert "batches" not in str(alone.value)
    assert below_r(store) == {}
    for again in (copy.copy(told.value), pickle.loads(pickle.dumps(told.value))):
        assert (str(again), again.failed) == (str(told.value), told.value.failed)


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
    """Its commits come more often than a commit of all keys takes, and than a look at them."""
    with Place(ENGINES["etcd"], tmp_path) as place:
        values = fill(place.engine(), 4_000)
        store = place.open(clock=clock, max_clock_skew=3_600)
        other = place.open(clock=clock, max_clock_skew=3_600)
        before = store.resolved()
        with writing(other, 0.01):
            with pytest.raises(CrowdedError):
                imported(store, place)
            assert below_r(store) == {}
            done = imported(store, place, batches=True)
        assert below_r(store) == values
        notes = [c.note for c in store.commits(before) if (c.note or "").startswith("import")]
        assert done.commits == len(notes) > 1
        assert [note.split(" of ")[0] for note in notes] == [
            f"import {n}" for n in range(1, done.commits + 1)
        ]
        assert_sound(store)


def test_a_watch_that_lost_its_server_is_not_relied_on(
    store, other, place, engine, monkeypatch
) -> None:
    values = fill(engine, 20)
    monkeypatch.setattr("snapkv.importing.writer.Meanwhile.reopened", 1)
    monkeypatch.setattr("snapkv.importing.writer.Meanwhile.heard", None)  # not asked

    def act(writes: int) -> None:
        if writes > FITS:
            other.save("elsewhere", b"x")

    with monkeypatch.context() as patch:
        interfere(store, patch, act)
        imported(store, place, batches=True)
    assert below_r(store) == values


# --- others write what is imported ---


@pytest.mark.parametrize("looks", [1, 3], ids=["by difference", "by watch"])
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


def test_a_conflict_between_pieces_names_the_key(store, other, place, engine, monkeypatch) -> None:
    values = fill(engine, 20)

    def act(writes: int) -> None:
        if writes > FITS:
            other.save("elsewhere", b"x")
        elif len(below_r(store)) > 10:
            other.save("r/intruder", b"x")

    with monkeypatch.context() as patch:
        interfere(store, patch, act)
        with pytest.raises(ConflictError, match="'r/intruder' absent"):
            imported(store, place, batches=True)
    assert 10 < len(below_r(store)) - 1 < len(values)


# --- what is in the way ---


def test_what_would_be_removed_is_told_so(store, place, engine) -> None:
    fill(engine, 1)
    store.save("r/other", b"mine")
    with pytest.raises(StoreNotEmptyError, match=r"'r/other' is in the way.*would remove it"):
        imported(store, place)
    store.commit(puts={"r/00000": b"mine"}, deletes=["r/other"])
    with pytest.raises(StoreNotEmptyError, match=r"'r/00000' that differs.*replaces it"):
        imported(store, place)
    assert below_r(store) == {"r/00000": b"mine"}


def test_a_prefix_of_stores_alone_says_so(store, place, engine) -> None:
    with pytest.raises(OnlyStoresError, match="2 of snapkv stores") as told:
        imported(store, place, "default")
    assert isinstance(told.value, KeyNotFoundError)
    assert (told.value.key, told.value.left_out) == ("default", 2)
    again = pickle.loads(pickle.dumps(told.value))
    assert (str(again), again.left_out) == (str(told.value), 2)
    with pytest.raises(snapkv.KeyNotFoundError) as nothing:
        imported(store, place, "nothing/")
    assert type(nothing.value) is KeyNotFoundError
