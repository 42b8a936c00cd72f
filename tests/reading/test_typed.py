"""Views with codecs: the reads and writes of a store, with values instead of bytes."""

import copy
import pickle
import threading

import pydantic
import pytest
from cases import cases

import snapkv
from snapkv import Absent, AtRevision, Change, ConflictError, Difference, codecs
from snapkv.errors import (
    DecodeError,
    InvalidKeyError,
    InvalidTypeError,
    InvalidValueError,
    KeyNotFoundError,
    SnapKVError,
    StoreClosedError,
)

WAIT_S = 20
ON_MEMORY = pytest.mark.parametrize("place", ["memory"], indirect=True)


class Plan(pydantic.BaseModel):
    name: str
    seats: int = 1


@pytest.fixture
def view(store):
    return store.with_codec(codecs.json)


def test_every_read_decodes(view, store):
    assert view.raw is store
    assert view.codec is codecs.json
    first = view.save("k/a", {"n": 1}, note="one", writer="bob", meta={"request": 1})
    commit = view.commit(puts={"k/a": {"n": 2}, "k/b": [1]}, guards=[Absent("k/b")], note="two")
    last = view.remove("k/b", note="three")

    assert (view.load("k/a"), view.load("k/a", first)) == ({"n": 2}, {"n": 1})
    assert store.load("k/a") == b'{"n":2}'
    assert (view.get("k/a"), view.get("x"), view.get("x", 7)) == ({"n": 2}, None, 7)
    assert view.get("k/b", 7, commit.ts) == [1]
    raw = store.entry("k/a")
    assert view.entry("k/a") == ({"n": 2}, raw.revision, raw.created, raw.version)
    assert [each and each.value for each in view.entries_of(iter(["k/a", "x"]))] == [{"n": 2}, None]
    assert view.load_with_prefix("k/", commit.ts) == (["k/a", "k/b"], [{"n": 2}, [1]])
    assert list(view.diff(first, commit.ts)) == [
        Difference("k/a", {"n": 1}, {"n": 2}),
        Difference("k/b", None, [1]),
    ]
    assert [(v.value, v.note, v.ts) for v in view.history("k/b")] == [
        ([1], "two", commit.ts),
        (None, "three", last),
    ]
    assert [v.value for v in view.history("k/a", newest_first=True, limit=1)] == [{"n": 2}]
    version = next(view.history("k/a"))
    assert (version.writer, version.meta, version.revision) == ("bob", {"request": 1}, raw.created)
    with pytest.raises(KeyNotFoundError):
        view.load("x")


def test_a_snapshot_decodes(view, store):
    ts = view.commit(puts={"a": 1, "b": [2], "c": {"n": 3}}).ts
    view.save("b", 4)
    snapshot = view.at(ts)
    assert (snapshot.timestamp, snapshot.final) == (ts, True)
    assert snapshot.revision == store.at(ts).revision
    assert dict(snapshot) == {"a": 1, "b": [2], "c": {"n": 3}}
    assert (snapshot["b"], snapshot.get("x"), "a" in snapshot, 5 in snapshot) == (
        [2],
        None,
        True,
        False,
    )
    assert (len(snapshot), snapshot.count("b"), list(snapshot)) == (3, 1, ["a", "b", "c"])
    assert list(snapshot.items(after="a", limit=1)) == [("b", [2])]
    assert list(snapshot.keys(start="b")) == ["b", "c"]
    assert list(snapshot.values()) == [1, [2], {"n": 3}]
    assert [(key, entry.value) for key, entry in snapshot.entries("c")] == [("c", {"n": 3})]
    assert [each and each.value for each in snapshot.entries_of(["x", "a"])] == [None, 1]
    assert snapshot.entry("a").version == 1
    assert list(snapshot.diff(view.at())) == [Difference("b", [2], 4)]
    assert snapshot == view.at(ts)
    assert copy.deepcopy(snapshot) is copy.copy(snapshot) is snapshot
    assert f"({ts})" in repr(snapshot)
    assert repr(snapshot).endswith(" codec=json>")
    assert snapshot.raw["b"] == b"[2]"
    assert list(snapshot.items_of([("a", "b"), ("b", "d")], limit=1)) == [[("a", 1)], [("b", [2])]]
    with pytest.raises(TypeError, match="pickle its timestamp"):
        pickle.dumps(snapshot)
    for one, other in ((snapshot, store.at()), (store.at(), snapshot)):
        with pytest.raises(InvalidTypeError, match="of the same view"):
            list(one.diff(other))


def test_a_watch_decodes(view, store):
    first = view.save("a", [1])
    with view.watch(since=0, timeout=0) as watch:
        (changes,) = list(watch)
        assert changes.changes == (Change("a", [1], changes.commit),)
        assert (changes.commit.ts, watch.timestamp) == (first, first)
        ts = view.remove("a", note="gone")
        found = watch.next(WAIT_S)
        assert ([each.value for each in found], found.commit.note) == ([None], "gone")
        assert watch.timestamp == ts
        assert watch.next(0) is None
    assert list(watch) == []


@ON_MEMORY
def test_closing_a_watch_from_another_thread_ends_it(view):
    watch, begun, seen = view.watch(), threading.Event(), []

    def follow():
        begun.set()
        seen.extend(watch)
        seen.append("the end")

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(WAIT_S)
    watch.close()
    thread.join(WAIT_S)
    assert seen == ["the end"]
    with pytest.raises(StoreClosedError):
        watch.next(0)


def test_updates_of_values(view, store):
    def more(found):
        found = found or {"n": 0}
        found["n"] += 1  # in place
        return found

    assert view.update("k", more, note="one").value == {"n": 1}
    done = view.update("k", more)
    assert (done.value, done.tries, done.commit.ts) == ({"n": 2}, 1, store.resolved())
    assert view.update("k", lambda found: dict(found)).commit is None
    store.save("k", b'{ "n": 2 }')
    assert view.update("k", lambda found: found).commit is None
    assert store.load("k") == b'{ "n": 2 }'
    assert view.update("k", more).value == {"n": 3}
    assert view.update("k", lambda _: None).value is None
    assert "k" not in store.at()
    assert [v.value and v.value["n"] for v in view.history("k")] == [1, 2, 2, 3, None]


def test_models(store):
    plans = store.with_codec(codecs.pydantic_model(Plan))
    plans.save("a", Plan(name="small"))
    store.save("b", b'{"name":"older"}')
    assert plans.at()["b"].seats == 1
    assert plans.update("b", lambda plan: plan).commit is None  # the default is not written back
    done = plans.update("a", lambda plan: plan.model_copy(update={"seats": plan.seats + 1}))
    assert done.value == plans.load("a") == Plan(name="small", seats=2)
    with pytest.raises(InvalidValueError, match=r"pydantic_model\(Plan\).*'a'.*not a Plan"):
        plans.save("a", {"name": "b"})


def test_spaces(store):
    view = store.space("s").with_codec(codecs.msgpack)
    view.commit(puts={b"\xff": {"raw": b"\0"}})
    assert view.load(b"\xff") == {"raw": b"\0"}
    assert view.update(b"\xff", lambda found: {**found, "n": 1}).value == {"raw": b"\0", "n": 1}
    assert list(view.at().keys()) == [b"\xff"]
    assert list(store.at().keys()) == []


def test_open_with_a_codec(place, clock):
    store = place.open(codec=codecs.json, clock=clock)
    assert isinstance(store, snapkv.SnapshotKV)
    with store as entered:
        assert entered is store
        ts = store.save("k", [1])
        assert store.raw.load("k", ts) == b"[1]"
        assert repr(store).startswith(f"<SnapshotKV {place.url}")
        assert repr(store).endswith(" codec=json>")
    with pytest.raises(StoreClosedError):
        store.load("k")
    with pytest.raises(StoreClosedError), store:
        pass


def test_all_writes_of_values_encode(view, store):
    first = view.multi_save({"a/1": 1, "b": 2}, [lambda ts: ("a/2", {"ts": ts})])
    assert view.load_with_prefix("") == (["a/1", "a/2", "b"], [1, {"ts": first}, 2])
    saves = view.multi_save_and_remove_with_prefix({"a/3": [3]}, ["a/"])
    assert dict(view.at(saves).items("a/")) == {"a/3": [3]}
    assert store.load("a/3") == b"[3]"
    view.restore(first, "a/")
    assert dict(view.at()) == dict(view.at(first))
    commit = view.commit(lambda stamp: snapkv.Ops(puts={"c": b"%d" % stamp.batch}))
    assert view.load("c") == commit.batch
    with pytest.raises(InvalidTypeError, match="bytes"):
        view.commit(lambda _: snapkv.Ops(puts={"c": 5}))
    with pytest.raises(InvalidValueError, match="'bad'"):
        view.multi_save({}, [lambda _: ("bad", {1})])


def test_each_codec_is_one_of_the_same_bytes(view, store):
    view.save("k", [1])
    other = view.with_codec(Reversing())
    assert (other.raw, other.load("k"), store.codec) == (store, b"]1[", None)
    assert view.space("s").codec is None
    space = view.space("s").with_codec(codecs.json)
    space.save(b"k", 1)
    assert (space.raw.codec, store.space("s").load(b"k")) == (None, b"1")
    space.remove(b"k")
    assert space.get(b"k", 5) == 5


@ON_MEMORY
def test_what_is_closed_with_a_codec_is_the_store(place):
    closed = []

    class Closes(snapkv.Hooks):
        def on_close(self, event):
            closed.append(event.handle)

    store = place.open(hooks=Closes())
    store.with_codec(codecs.json).close()
    assert closed == [store]
    with pytest.raises(StoreClosedError):
        store.load("k")


def test_a_broken_store_can_be_restored_and_tables_have_bytes(view, store):
    pytest.importorskip("pyarrow")
    good = view.save("k", 1)
    store.save("k", b"{")
    assert view.at().to_arrow()["value"].to_pylist() == [b"{"]
    view.restore(good)
    assert view.load("k") == 1


# --- what does not fit ---


@ON_MEMORY
def test_a_value_that_cannot_be_decoded_is_named(view, store):
    view.save("good", 1)
    revision = store.commit(puts={"bad": b"{no json"}).revision
    reads = {
        "load": lambda: view.load("bad"),
        "get": lambda: view.get("bad"),
        "entry": lambda: view.entry("bad"),
        "entries_of": lambda: view.entries_of(["good", "bad"]),
        "load_with_prefix": lambda: view.load_with_prefix(""),
        "history": lambda: list(view.history("bad")),
        "diff": lambda: list(view.diff(0)),
        "snapshot": lambda: view.at()["bad"],
        "items": lambda: list(view.at().items()),
        "values": lambda: list(view.at().values()),
        "entries": lambda: list(view.at().entries()),
        "snapshot diff": lambda: list(view.at().diff(view.at(0))),
        "watch": lambda: list(view.watch(since=0, timeout=0)),
        "update": lambda: view.update("bad", lambda _: 1),
    }
    for name, read in reads.items():
        with pytest.raises(
            DecodeError, match=r"codec json cannot decode.*'bad'.*no json"
        ) as caught:
            read()
        found = caught.value
        assert (found.key, found.revision, found.codec) == ("bad", revision, "json"), name
        assert isinstance(found.__cause__, ValueError)
    assert list(view.at().keys()) == ["bad", "good"], "keys alone are not decoded"
    assert store.load("bad") == b"{no json"


@ON_MEMORY
def test_a_watch_goes_on_behind_what_it_cannot_decode(view, store):
    with view.watch(since=0, timeout=0) as watch:
        bad = store.save("k", b"{")
        view.save("k", 1)
        with pytest.raises(DecodeError):
            next(watch)
        assert watch.timestamp == bad
        assert [change.value for change in next(watch)] == [1]
        store.save("k", b"{")
        with pytest.raises(DecodeError):
            watch.next(WAIT_S)
        assert watch.timestamp == store.resolved()


@ON_MEMORY
def test_none_is_not_a_value(view, store):
    with pytest.raises(InvalidValueError, match="None means that the key is absent"):
        view.save("k", None)
    store.save("k", b"null")
    with pytest.raises(DecodeError, match="it is None"):
        view.load("k")


@ON_MEMORY
def test_a_value_that_cannot_be_encoded_writes_nothing(view, store):
    before = store.resolved()
    for write in (
        lambda: view.save("bad", {1}),
        lambda: view.commit(puts={"good": 1, "bad": float("nan")}),
        lambda: view.update("bad", lambda _: object()),
    ):
        with pytest.raises(InvalidValueError, match=r"codec json cannot encode.*'bad'") as caught:
            write()
        assert (caught.value.key, caught.value.codec) == ("bad", "json")
    assert store.resolved() == before


class Reversing:
    """A codec of a caller's own, without a name."""

    def encode(self, value, /):
        return value[::-1]

    def decode(self, data, /):
        if data == b"boom":
            raise ArithmeticError("boom")
        return data[::-1]


@ON_MEMORY
def test_a_codec_of_the_callers_own(store):
    view = store.with_codec(Reversing())
    view.save("k", b"abc")
    assert (view.load("k"), store.load("k")) == (b"abc", b"cba")
    store.save("k", b"boom")
    with pytest.raises(DecodeError, match=r"codec Reversing .* ArithmeticError: boom"):
        view.load("k")
    with pytest.raises(InvalidValueError, match="Reversing"):
        view.save("k", 5)
    with pytest.raises(InvalidTypeError, match="encode of the codec Reversing"):
        view.save("k", "text")


@ON_MEMORY
@cases("codec", ["json", 5, Reversing, object(), codecs])
def test_what_is_not_a_codec(place, store, codec):
    with pytest.raises(InvalidTypeError, match="encode and decode"):
        store.with_codec(codec)
    with pytest.raises(InvalidTypeError, match="encode and decode"):
        place.open(codec=codec)


@ON_MEMORY
def test_arguments_are_checked_as_those_of_bytes(view):
    for call, error in (
        (lambda: view.load(""), InvalidKeyError),
        (lambda: view.load(b"k"), InvalidTypeError),
        (lambda: view.entries_of("ab"), InvalidTypeError),
        (lambda: view.at().entries_of(5), InvalidTypeError),
        (lambda: view.commit(puts=5), InvalidTypeError),
        (lambda: view.update("k", 5), InvalidTypeError),
        (lambda: view.update("k", lambda _: 1, tries=0), SnapKVError),
        (lambda: list(view.at().items(limit="1")), InvalidTypeError),
        (lambda: view.history("k", limit=-1), SnapKVError),
        (lambda: view.save(5, 1), InvalidTypeError),
    ):
        with pytest.raises(error):
            list(call())
    view.save("k", 1)
    with pytest.raises(ConflictError):
        view.commit(puts={"k": 2}, guards=[AtRevision("k", 1)])
