"""Keys that others wrote become a store's: one moment of them, all or nothing, or in told steps."""

import random

import pytest
from cases import cases
from store.engines import ENGINES, Place, assert_sound, write_raw

from snapkv import codecs
from snapkv.copying.import_prefix import ImportResult, import_prefix
from snapkv.engine.contract import Delete, Put
from snapkv.errors import (
    CommitTooLargeError,
    ConflictError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    KeyNotFoundError,
    NoSpaceError,
    StoreNotEmptyError,
    StoreNotFoundError,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def store(place, clock):
    store = place.open(clock=clock, writer="ann@test", max_clock_skew=3_600)
    yield store
    assert_sound(store)


def fill(engine, **values: bytes) -> int:
    """Write below r/ as another program does; return the revision."""
    return write_raw(engine, *(Put(b"r/" + k.encode(), v) for k, v in values.items()))


def imported(store, place, prefix: str, **options) -> ImportResult:
    """Import from the very place that the store is in."""
    return import_prefix(store, place.url, prefix, source_options=place.kind.options, **options)


def held(store) -> dict:
    return dict(store.at().items())


def test_the_newest_state_becomes_one_commit(store, place, engine) -> None:
    fill(engine, a=b"old", gone=b"x", b="grün".encode())
    write_raw(engine, Put(b"r/a", b"\xff\0"), Delete(b"r/gone"), Put(b"rr", b"beside"))
    revision = place.revision()
    before = store.resolved()
    done = imported(store, place, "r/")
    assert done == ImportResult(2, 1, revision, 2, 0, 0, done.newest)
    assert held(store) == {"r/a": b"\xff\0", "r/b": "grün".encode()}
    (commit,) = store.commits(before)
    assert commit == done.newest
    assert commit.note == f"import 'r/' from {place.url}"
    assert dict(store.at(before).items()) == {}


def test_an_import_into_a_store_with_a_codec_is_of_bytes(store, place, engine) -> None:
    fill(engine, a=b"{", b=b"1")
    store.save("r/a", b"{")
    assert imported(store.with_codec(codecs.json), place, "r/").saved == 1
    assert held(store) == {"r/a": b"{", "r/b": b"1"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "r/a"),
        ({"strip": True}, "a"),
        ({"under": "k8s/"}, "k8s/r/a"),
        ({"strip": True, "under": "k8s/"}, "k8s/a"),
    ],
)
def test_names(store, place, engine, options: dict, name: str) -> None:
    fill(engine, a=b"1")
    imported(store, place, "r/", note="moved", **options)
    assert held(store) == {name: b"1"}
    assert store.at().timestamp == store.resolved()
    assert [v.note for v in store.history(name)] == ["moved"]


def test_a_second_import_writes_only_what_differs(store, place, engine) -> None:
    fill(engine, a=b"1", b=b"2")
    imported(store, place, "r/")
    again = imported(store, place, "r/")
    assert (again.keys, again.commits, again.saved, again.newest) == (2, 0, 0, None)
    write_raw(engine, Put(b"r/b", b"3"), Put(b"r/c", b"4"), Delete(b"r/a"))
    head = store.resolved()
    with pytest.raises(StoreNotEmptyError, match="'r/a'"):
        imported(store, place, "r/")
    assert store.resolved() == head
    done = imported(store, place, "r/", replace=True)
    assert (done.keys, done.saved, done.removed, done.commits) == (2, 2, 1, 1)
    assert [(d.key, d.after) for d in store.diff(head)] == [
        ("r/a", None),
        ("r/b", b"3"),
        ("r/c", b"4"),
    ]


def test_only_names_below_the_target_are_replaced(store, place, engine) -> None:
    store.multi_save({"r/old": b"1", "q": b"2", "under/r/old": b"3", "under/s": b"4"})
    fill(engine, a=b"1")
    imported(store, place, "r/", under="under/", replace=True)
    assert set(held(store)) == {"r/old", "q", "under/r/a", "under/s"}
    imported(store, place, "r/", strip=True, replace=True)
    assert held(store) == {"a": b"1"}


@pytest.mark.parametrize("bad", [b"r/\xff", b"r/a\xc3", b"r/"])
def test_a_name_that_cannot_be_is_told_before_anything_is_written(
    store, place, engine, bad: bytes
) -> None:
    fill(engine, a=b"1", z=b"2")
    write_raw(engine, Put(bad, b"x"))
    head = store.resolved()
    with pytest.raises(InvalidKeyError) as told:
        imported(store, place, "r/", strip=True, batches=True)
    assert repr(bad) in str(told.value)
    assert told.value.key == bad
    assert store.resolved() == head


def test_what_no_store_can_take_is_told_by_its_name(store, place, engine) -> None:
    most = store.info()["key_bytes_max"]
    fill(engine, a=b"1")
    write_raw(engine, Put(b"r/" + b"k" * (most - 10), b"x"))
    head = store.resolved()
    with pytest.raises((InvalidKeyError, CommitTooLargeError), match="kkkk"):
        imported(store, place, "r/", under="u" * 20, batches=True)
    assert store.resolved() == head


def test_stores_of_ours_are_no_foreign_keys(store, place, engine, clock) -> None:
    other = place.open(name="r/plans", clock=clock, max_clock_skew=3_600)
    other.save("mine", b"1")
    other.space("s").commit(puts={b"\xff": b"no text"})
    write_raw(engine, Put(b"r/a", b"1"), Put(b"r/plans2", b"2"), Put(b"r/x/sys/format", b"3"))
    done = imported(store, place, "r/")
    assert set(held(store)) == {"r/a", "r/plans2", "r/x/sys/format"}
    assert (done.keys, done.left_out) == (3, 4)
    for inside in ("r/plans/", "r/plans/data/", "r/plans/data/mine", "r/plans/sys/"):
        with pytest.raises(InvalidKeyError, match="'r/plans'"):
            imported(store, place, inside)
    with pytest.raises(KeyNotFoundError):  # all that begins so is a store
        imported(store, place, "defaul", replace=True)


def test_everything_of_an_engine(store, place, engine) -> None:
    store.save("own", b"1")
    write_raw(engine, Put(b"\x00", b"low"), Put(b"a", b"1"))
    done = imported(store, place, "", under="all/")
    assert held(store) == {"own": b"1", "all/\x00": b"low", "all/a": b"1"}
    assert done.left_out == 3


def test_nothing_there_replaces_nothing(store, place) -> None:
    store.save("r/a", b"1")
    with pytest.raises(KeyNotFoundError, match="'r/'"):
        imported(store, place, "r/", replace=True)
    assert held(store) == {"r/a": b"1"}


def test_a_dry_run_counts(store, place, engine) -> None:
    fill(engine, a=b"1", b=b"2")
    store.multi_save({"r/a": b"1", "r/c": b"3"})
    head = store.resolved()
    done = imported(store, place, "r/", replace=True, dry_run=True)
    assert (done.keys, done.saved, done.removed, done.commits) == (2, 1, 1, 1)
    assert done.newest is None
    with pytest.raises(StoreNotEmptyError):
        imported(store, place, "r/", dry_run=True)
    assert store.resolved() == head


@cases(
    ("arguments", "error"),
    [
        ({"prefix": b"r/"}, InvalidTypeError),
        ({"prefix": "\ud800"}, InvalidKeyError),
        ({"under": b"u/"}, InvalidTypeError),
        ({"under": "\ud800"}, InvalidKeyError),
        ({"note": b"why"}, InvalidTypeError),
        ({"note": "x" * 4_090}, InvalidOptionError),
        ({"source_url": "nowhere:"}, InvalidOptionError),
        ({"source_url": None}, InvalidTypeError),
        ({"source_options": {"colour": "red"}}, InvalidTypeError),
    ],
)
def test_bad_input(store, place, engine, arguments: dict, error: type[Exception]) -> None:
    fill(engine, a=b"1")
    options = {"source_options": place.kind.options}
    with pytest.raises(error):
        import_prefix(store, **({"source_url": place.url, "prefix": "r/", **options} | arguments))
    assert held(store) == {}


def test_a_source_that_is_not_there(store, tmp_path) -> None:
    with pytest.raises(StoreNotFoundError):
        import_prefix(store, f"lmdb:{tmp_path / 'missing'}", "r/")
    assert not (tmp_path / "missing").exists()


# --- several commits ---


@pytest.fixture
def narrow(tmp_path, clock):
    """An etcd whose commits are small, with 300 foreign keys, some of them large."""
    rng = random.Random(7)
    with Place(ENGINES["etcd"], tmp_path) as place:
        engine = place.engine()
        values = {f"r/{n:03}": rng.randbytes(rng.choice([0, 10, 2_000])) for n in range(300)}
        for key, value in values.items():
            write_raw(engine, Put(key.encode(), value))
        store = place.open(
            clock=clock, max_request_bytes=40_000, max_txn_ops=64, max_clock_skew=3_600
        )
        yield store, place, values
        assert_sound(store)


def test_what_does_not_fit_is_not_split_unasked(narrow) -> None:
    store, place, _ = narrow
    for dry_run in (True, False):
        with pytest.raises(CommitTooLargeError, match="the import in bytes"):
            imported(store, place, "r/", dry_run=dry_run)
    assert held(store) == {}


def test_batches_are_told_and_counted(narrow) -> None:
    store, place, values = narrow
    told: list[tuple[int, int]] = []
    before = store.resolved()
    planned = imported(store, place, "r/", batches=True, dry_run=True)
    done = imported(
        store, place, "r/", batches=True, note="why", progress=lambda *at: told.append(at)
    )
    assert held(store) == values
    assert done.commits == planned.commits > 3
    assert told == [(n, done.commits) for n in range(done.commits + 1)]
    commits = list(store.commits(before))
    assert [c.note for c in commits] == [
        f"import {n} of {done.commits}: why" for n in range(1, done.commits + 1)
    ]
    assert commits[-1] == done.newest


def test_many_small_keys_are_bounded_by_operations(tmp_path, clock) -> None:
    with Place(ENGINES["etcd"], tmp_path) as place:
        engine = place.engine()
        for start in range(0, 400, 100):
            write_raw(engine, *(Put(b"r/%d" % n, b"") for n in range(start, start + 100)))
        store = place.open(clock=clock, max_txn_ops=48, max_clock_skew=3_600)
        with pytest.raises(CommitTooLargeError, match="the import in keys is 400"):
            imported(store, place, "r/")
        done = imported(store, place, "r/", batches=True)
        assert (done.saved, done.commits, len(store.at())) == (400, 4, 400)


def test_an_interrupted_import_goes_on(narrow) -> None:
    store, place, values = narrow

    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imported(store, place, "r/", batches=True, progress=interrupt)
    assert 0 < len(held(store)) < len(values)
    done = imported(store, place, "r/", batches=True)
    assert held(store) == values
    assert done.saved < len(values) == done.keys


def test_what_others_do_meanwhile(narrow, clock) -> None:
    """Ticks, commits elsewhere and later foreign writes do not matter; one in the way does."""
    store, place, values = narrow
    other, engine = place.open(clock=clock, max_clock_skew=3_600), place.engine()

    def disturb(done: int, total: int) -> None:
        other.tick()
        other.save("elsewhere", b"%d" % done)
        write_raw(engine, Put(b"r/000", b"later"), Put(b"r/new", b"later"))

    imported(store, place, "r/", batches=True, progress=disturb)
    assert held(store) == values | {"elsewhere": held(store)["elsewhere"]}

    def intrude(done: int, total: int) -> None:
        if done == 2:
            other.save("r2/intruder", b"1")

    with pytest.raises(ConflictError):
        imported(store, place, "r/", strip=True, under="r2/", batches=True, progress=intrude)
    assert held(store)["r2/intruder"] == b"1"
    assert 1 < sum(key.startswith("r2/") for key in held(store)) < len(values)


def test_a_failing_commit_is_the_callers(store, place, engine, monkeypatch) -> None:
    fill(engine, a=b"1")

    def commit(*_: object, **__: object) -> None:
        raise NoSpaceError("full")

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "commit", commit)
        with pytest.raises(NoSpaceError):
            imported(store, place, "r/")
    imported(store, place, "r/")
    assert held(store) == {"r/a": b"1"}
