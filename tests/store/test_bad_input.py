"""Whatever cannot be used gets an error of its own, before anything is written."""

import contextlib
import copy
import io
import os
import pickle
import re
from datetime import datetime

import pytest

import snapkv
from snapkv import Absent, AtRevision, ClockSkewError, HeadAt, Ops, SnapKVError, SpaceOps
from snapkv.errors import (
    CommitTooLargeError,
    FutureRevisionError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    KeyNotFoundError,
    StoreClosedError,
)

NAIVE = datetime(2024, 1, 31, 14, 5)
FAR = 1 << 40

CALLS = {
    # keys
    "save empty key": (lambda s: s.save("", b""), InvalidKeyError),
    "save bytes key": (lambda s: s.save(b"k", b""), InvalidTypeError),
    "save None key": (lambda s: s.save(None, b""), InvalidTypeError),
    "save int key": (lambda s: s.save(5, b""), InvalidTypeError),
    "save lone surrogate": (lambda s: s.save("a\ud800", b""), InvalidKeyError),
    "save endless key": (
        lambda s: s.save("k" * (1 << 20), b""),
        (CommitTooLargeError, InvalidKeyError),
    ),
    "remove empty key": (lambda s: s.remove(""), InvalidKeyError),
    "remove bytes key": (lambda s: s.remove(b"k"), InvalidTypeError),
    "load empty key": (lambda s: s.load(""), InvalidKeyError),
    "load bytes key": (lambda s: s.load(b"k"), InvalidTypeError),
    "load lone surrogate": (lambda s: s.load("\udc80"), InvalidKeyError),
    "load what is not there": (lambda s: s.load("none"), KeyNotFoundError),
    "prefix of bytes": (lambda s: s.load_with_prefix(b"k"), InvalidTypeError),
    "prefix of None": (lambda s: s.load_with_prefix(None), (InvalidTypeError, type(None))),
    "history of nothing": (lambda s: list(s.history("")), InvalidKeyError),
    "history of bytes": (lambda s: list(s.history(b"k")), InvalidTypeError),
    "entry of nothing": (lambda s: s.at().entry(""), InvalidKeyError),
    # values
    "save text": (lambda s: s.save("k", "text"), InvalidTypeError),
    "save None": (lambda s: s.save("k", None), InvalidTypeError),
    "save bytearray": (lambda s: s.save("k", bytearray(b"v")), InvalidTypeError),
    "save memoryview": (lambda s: s.save("k", memoryview(b"v")), InvalidTypeError),
    "one bad value of many": (lambda s: s.multi_save({"a": b"1", "b": 2}), InvalidTypeError),
    "one bad key of many": (lambda s: s.multi_save({"a": b"1", "": b"2"}), InvalidKeyError),
    # collections
    "puts None": (lambda s: s.commit(puts=None), InvalidTypeError),
    "puts int": (lambda s: s.commit(puts=5), InvalidTypeError),
    "puts text": (lambda s: s.commit(puts="ab"), InvalidTypeError),
    "puts set": (lambda s: s.commit(puts={"key"}), InvalidTypeError),
    "puts triples": (lambda s: s.commit(puts=[("a", b"1", 2)]), InvalidTypeError),
    "puts key twice": (lambda s: s.commit(puts=[("a", b"1"), ("a", b"1")]), InvalidKeyError),
    "deletes text": (lambda s: s.commit(deletes="abc"), InvalidTypeError),
    "deletes None": (lambda s: s.commit(deletes=None), InvalidTypeError),
    "deletes int": (lambda s: s.commit(deletes=5), InvalidTypeError),
    "deletes nothing": (lambda s: s.commit(deletes=[""]), InvalidKeyError),
    "prefixes text": (lambda s: s.commit(delete_prefixes="a/"), InvalidTypeError),
    "prefixes of None": (lambda s: s.commit(delete_prefixes=[None]), InvalidTypeError),
    "prefixes of bytes": (lambda s: s.commit(delete_prefixes=[b"a"]), InvalidTypeError),
    "prefixes None": (lambda s: s.commit(delete_prefixes=None), InvalidTypeError),
    "removals text": (
        lambda s: s.multi_save_and_remove_with_prefix({}, "a/"),
        InvalidTypeError,
    ),
    "guards text": (lambda s: s.commit(guards="k"), InvalidTypeError),
    "guards of text": (lambda s: s.commit(guards=["k"]), InvalidTypeError),
    "guard itself": (lambda s: s.commit(guards=Absent("k")), InvalidTypeError),
    "guard of nothing": (lambda s: s.commit(guards=[Absent("")]), InvalidKeyError),
    "guard of bytes": (lambda s: s.commit(guards=[Absent(b"k")]), InvalidTypeError),
    "guard at 0": (lambda s: s.commit(guards=[AtRevision("k", 0)]), InvalidOptionError),
    "guard at True": (lambda s: s.commit(guards=[AtRevision("k", True)]), InvalidTypeError),
    "guard at text": (lambda s: s.commit(guards=[HeadAt("5")]), InvalidTypeError),
    "additions int": (lambda s: s.commit(additions=5), InvalidTypeError),
    "additions of int": (lambda s: s.commit(additions=[5]), InvalidTypeError),
    "additions None": (lambda s: s.multi_save({}, None), InvalidTypeError),
    "note bytes": (lambda s: s.commit(note=b"why"), InvalidTypeError),
    "note int": (lambda s: s.commit(note=5), InvalidTypeError),
    "note lone surrogate": (lambda s: s.commit(note="\ud800"), InvalidKeyError),
    "note too long": (lambda s: s.commit(note="x" * 4_097), CommitTooLargeError),
    "writer bytes": (lambda s: s.save("k", b"", writer=b"ann"), InvalidTypeError),
    "writer lone surrogate": (lambda s: s.remove("k", writer="\ud800"), InvalidKeyError),
    "writer too long": (lambda s: s.commit(writer="x" * 257), InvalidOptionError),
    "meta text": (lambda s: s.commit(meta="request=5"), InvalidTypeError),
    "meta pairs": (lambda s: s.save("k", b"", meta=[("a", 1)]), InvalidTypeError),
    "meta of int": (lambda s: s.commit(meta={5: "a"}), InvalidTypeError),
    "meta of nothing": (lambda s: s.commit(meta={"": 5}), InvalidKeyError),
    "meta lone surrogate": (lambda s: s.commit(meta={"\ud800": 5}), InvalidKeyError),
    "meta of a lone surrogate": (lambda s: s.commit(meta={"a": "\ud800"}), InvalidKeyError),
    "meta of bytes": (lambda s: s.commit(meta={"a": b"1"}), InvalidTypeError),
    "meta of a list": (lambda s: s.multi_save({"k": b""}, meta={"a": []}), InvalidTypeError),
    "meta of a meta": (lambda s: s.commit(meta={"a": {"b": 1}}), InvalidTypeError),
    "meta of a date": (lambda s: s.commit(meta={"a": NAIVE}), InvalidTypeError),
    "meta of nan": (lambda s: s.commit(meta={"a": float("nan")}), InvalidOptionError),
    "meta of infinity": (lambda s: s.commit(meta={"a": -float("inf")}), InvalidOptionError),
    "meta of 65 bits": (lambda s: s.commit(meta={"a": 1 << 64}), InvalidOptionError),
    "meta of -65 bits": (lambda s: s.commit(meta={"a": -(1 << 63) - 1}), InvalidOptionError),
    "meta endless digits": (lambda s: s.commit(meta={"a": 10**5_000}), InvalidOptionError),
    "meta too long": (lambda s: s.commit(meta={"a": "x" * 4_096}), CommitTooLargeError),
    "meta too many": (
        lambda s: s.commit(meta={str(n): n for n in range(65)}),
        CommitTooLargeError,
    ),
    "meta of Ops": (lambda s: s.commit(lambda _: Ops({"k": b""}, meta=[1])), InvalidTypeError),
    "writer of Ops": (lambda s: s.commit(lambda _: Ops({"k": b""}, writer=5)), InvalidTypeError),
    "meta of a restore": (
        lambda s: s.restore(0, before_first=True, meta={"a": []}),
        InvalidTypeError,
    ),
    "timeout 0": (lambda s: s.commit(timeout=0), InvalidOptionError),
    "timeout below 0": (lambda s: s.commit(timeout=-1), InvalidOptionError),
    "timeout above the longest": (lambda s: s.commit(timeout=61), InvalidOptionError),
    "timeout nan": (lambda s: s.commit(timeout=float("nan")), InvalidOptionError),
    "timeout text": (lambda s: s.commit(timeout="5"), InvalidTypeError),
    "timeout True": (lambda s: s.commit(timeout=True), InvalidTypeError),
    "build is no function": (lambda s: s.commit({"a": b"1"}), InvalidTypeError),
    "build returns None": (lambda s: s.commit(lambda stamp: None), InvalidTypeError),
    "build and puts": (
        lambda s: s.commit(lambda stamp: Ops(), puts={"a": b""}),
        InvalidOptionError,
    ),
    # spaces
    "space without a name": (lambda s: s.space(""), InvalidKeyError),
    "space int": (lambda s: s.space(5), InvalidTypeError),
    "space bytes": (lambda s: s.space(b"s"), InvalidTypeError),
    "space surrogate": (lambda s: s.space("\ud800"), InvalidKeyError),
    "space text key": (lambda s: s.space("s").commit(puts={"k": b""}), InvalidTypeError),
    "space empty key": (lambda s: s.space("s").commit(puts={b"": b""}), InvalidKeyError),
    "space load text": (lambda s: s.space("s").load("k"), InvalidTypeError),
    "space deletes bytes": (lambda s: s.space("s").commit(deletes=b"abc"), InvalidTypeError),
    "space deletes int": (lambda s: s.space("s").commit(deletes=5), InvalidTypeError),
    "space guards None": (lambda s: s.space("s").commit(guards=None), InvalidTypeError),
    "space build no function": (lambda s: s.space("s").commit({b"k": b""}), InvalidTypeError),
    "space build returns Ops": (lambda s: s.space("s").commit(lambda _: Ops()), InvalidTypeError),
    "spaces of no SpaceOps": (
        lambda s: s.commit(lambda _: Ops(spaces={"s": {b"k": b"v"}})),
        InvalidTypeError,
    ),
    "spaces None": (lambda s: s.commit(lambda _: Ops(spaces=None)), InvalidTypeError),
    "space of a bad name": (
        lambda s: s.commit(lambda _: Ops(spaces={"": SpaceOps()})),
        InvalidKeyError,
    ),
    # times
    "naive datetime": (lambda s: s.at(NAIVE), InvalidTimeError),
    "naive text": (lambda s: s.load("k", "2024-01-31T14:05:00"), InvalidTimeError),
    "eight digits": (lambda s: s.at("20240131"), InvalidTimeError),
    "no time": (lambda s: s.load_with_prefix("", "yesterday"), InvalidTimeError),
    "before 1970": (lambda s: s.at("1969-12-31T23:59:59Z"), InvalidTimeError),
    "too far back": (lambda s: s.at("-99999d"), InvalidTimeError),
    "below 0": (lambda s: s.at(-1), InvalidTimeError),
    "65 bits": (lambda s: s.load("k", 1 << 64), InvalidTimeError),
    "endless digits": (lambda s: s.at("9" * 5_000), InvalidTimeError),
    "time True": (lambda s: s.at(True), InvalidTypeError),
    "time float": (lambda s: s.at(1.5), InvalidTypeError),
    "time bytes": (lambda s: s.diff(b"1", None), InvalidTypeError),
    "restore to None": (lambda s: s.restore(None), InvalidTypeError),
    "restore to no time": (lambda s: s.restore("soon"), InvalidTimeError),
    "restore a bytes prefix": (lambda s: s.restore(0, b"a"), InvalidTypeError),
    "compact None": (lambda s: s.compact(None), InvalidTypeError),
    "final too far ahead": (lambda s: s.at("+10s", final=True), ClockSkewError),
    "resolve too far ahead": (lambda s: s.resolve((1 << 63), b"n"), ClockSkewError),
    "resolve no nonce": (lambda s: s.resolve(5, "n"), InvalidTypeError),
    "resolve an empty nonce": (lambda s: s.resolve(5, b""), (InvalidTypeError, InvalidOptionError)),
    "resolve no time": (lambda s: s.resolve("5", b"n"), InvalidTypeError),
    "resolve guards text": (lambda s: s.resolve(5, b"n" * 16, guards="k"), InvalidTypeError),
    # revisions
    "revision 0": (lambda s: s.at(revision=0), InvalidTimeError),
    "revision -1": (lambda s: s.at(revision=-1), InvalidTimeError),
    "revision True": (lambda s: s.at(revision=True), InvalidTypeError),
    "revision 1.5": (lambda s: s.at(revision=1.5), InvalidTypeError),
    "revision to come": (lambda s: s.at(revision=FAR), FutureRevisionError),
    "revision and time": (lambda s: s.at(5, revision=5), InvalidOptionError),
    # the log and watches
    "limit below 0": (lambda s: s.commits(limit=-1), InvalidOptionError),
    "limit True": (lambda s: s.commits(limit=True), InvalidTypeError),
    "limit text": (lambda s: s.commits(limit="5"), InvalidTypeError),
    "commits since naive": (lambda s: s.commits(NAIVE), InvalidTimeError),
    "watch bytes": (lambda s: s.watch(b"k"), InvalidTypeError),
    "watch since naive": (lambda s: s.watch(since=NAIVE), InvalidTimeError),
    "watch timeout text": (lambda s: next(s.watch(timeout="1")), InvalidTypeError),
    "diff with nothing of ours": (lambda s: list(s.at().diff({})), InvalidTypeError),
    "diff a bytes prefix": (lambda s: list(s.diff(0, None, b"k")), InvalidTypeError),
    # files
    "load_dump of nothing": (lambda s: s.load_dump(io.BytesIO(b"")), SnapKVError),
}


@pytest.fixture
def given(store):
    store.multi_save({"k": b"v", "a/1": b"1"})
    store.space("s").commit(puts={b"k": b"v"})
    return store


def test_bad_calls_change_nothing(given, place, subtests: pytest.Subtests):
    commits = list(given.commits())
    for call, (action, error) in CALLS.items():
        with subtests.test(call=call):
            before = place.revision(), dict(given.at().items())
            if call == "prefix of None":  # None is no prefix, or the whole: no accident either way
                with contextlib.suppress(InvalidTypeError):
                    assert given.load_with_prefix(None) == given.load_with_prefix("")
            else:
                with pytest.raises(error) as caught:
                    action(given)
                assert isinstance(caught.value, SnapKVError)
            assert (place.revision(), dict(given.at().items())) == before
            commits.append(given.commit(puts={"k": b"works still"}))
    assert list(given.commits()) == commits


OPENINGS = {
    "no scheme": (("store",), {}, InvalidOptionError),
    "empty": (("",), {}, InvalidOptionError),
    "unknown scheme": (("redis:x",), {}, InvalidOptionError),
    "upper case": (("MEMORY:",), {}, InvalidOptionError),
    "lmdb without a path": (("lmdb:",), {}, InvalidOptionError),
    "bytes": ((b"memory:",), {}, InvalidTypeError),
    "None": ((None,), {}, InvalidOptionError),
    "unknown option": (("memory:",), {"colour": 5}, InvalidTypeError),
    "another engine's option": (("memory:",), {"durability": "sync"}, InvalidTypeError),
    "ring of none": (("memory:",), {"ring_slots": 0}, InvalidOptionError),
    "ring too large": (("memory:",), {"ring_slots": 1 << 30}, InvalidOptionError),
    "ring of text": (("memory:",), {"ring_slots": "7"}, InvalidTypeError),
    "ring True": (("memory:",), {"ring_slots": True}, InvalidTypeError),
    "retain no duration": (("memory:",), {"retain": "long"}, InvalidTimeError),
    "retain below 0": (("memory:",), {"retain": -1}, InvalidTimeError),
    "retain list": (("memory:",), {"retain": []}, InvalidTypeError),
    "retain for ever": (("memory:",), {"retain": float("inf")}, InvalidTimeError),
    "writer int": (("memory:",), {"writer": 5}, InvalidTypeError),
    "writer too long": (("memory:",), {"writer": "x" * 257}, InvalidOptionError),
    "timeout 0": (("memory:",), {"commit_timeout": 0}, InvalidOptionError),
    "timeout too long": (("memory:",), {"commit_timeout": 61}, InvalidOptionError),
    "timeout text": (("memory:",), {"commit_timeout": "5"}, InvalidTypeError),
    "skew below 0": (("memory:",), {"max_clock_skew": -1}, InvalidTimeError),
    "skew nan": (("memory:",), {"max_clock_skew": float("nan")}, InvalidTimeError),
    "clock that is none": (("memory:",), {"clock": 5}, InvalidTypeError),
    "durability unknown": (("lmdb:{}",), {"durability": "some"}, InvalidOptionError),
    "map too small": (("lmdb:{}",), {"map_bytes": 1}, InvalidOptionError),
    "map of text": (("lmdb:{}",), {"map_bytes": "big"}, InvalidTypeError),
    "request of none": (("lmdb:{}",), {"request_bytes_max": -1}, InvalidOptionError),
}


@pytest.mark.parametrize("opening", OPENINGS)
def test_bad_openings(opening, tmp_path):
    (url,), options, error = OPENINGS[opening]
    if isinstance(url, str):
        url = url.format(tmp_path / "new")
    with pytest.raises(error) as caught:
        snapkv.open(url, **options).close()
    assert isinstance(caught.value, SnapKVError)
    assert list(tmp_path.iterdir()) == [], "nothing was made"


ADVICE = {
    "lmdb://m4": ["lmdb:m4 ", "lmdb:/m4 "],
    "lmdb:///m4/x": ["lmdb:/m4/x "],
    "lmdb:~/m5": ["lmdb:{home}/m5,", "lmdb:./~/m5 "],
    "lmdb:~root/m5": ["lmdb:{root}/m5,", "lmdb:./~root/m5 "],
    "lmdb:~nobody here/m5": ["write lmdb:./~nobody here/m5 "],
    "lmdb:~": ["lmdb:{home},"],
    "lmdb:///": ["lmdb:./meta"],
    "./meta": ["lmdb:./meta;"],
    "../a:b": ["lmdb:../a:b;"],
    "/srv/meta": ["lmdb:/srv/meta;"],
    "meta": ["lmdb:meta;"],
    "~/meta": ["lmdb:{home}/meta;"],
    "~nobody here/meta": ["lmdb:./~nobody here/meta;"],
}


@pytest.mark.parametrize("url", ADVICE)
def test_urls_that_are_almost_right_are_told_the_right_one(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    homes = {"home": tmp_path / "home", "root": os.path.expanduser("~root")}
    with pytest.raises(InvalidOptionError) as caught:
        snapkv.open(url)
    assert all(advice.format(**homes) in str(caught.value) for advice in ADVICE[url]), caught.value
    assert list(tmp_path.iterdir()) == [], "nothing was made"


@pytest.mark.parametrize("path", ["~/meta", "~", "~nobody here/meta"])
def test_a_url_that_is_advised_opens(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for url in (path, f"lmdb:{path}"):
        with pytest.raises(InvalidOptionError) as caught:
            snapkv.open(url)
        advised = re.search(r"write (lmdb:.+?)([,;]| for a)", str(caught.value))[1]
        snapkv.open(advised).close()


@pytest.mark.parametrize("url", ["", "redis:x", "host:2379", "user@host", "x?password=y"])
def test_other_urls_are_offered_no_directory(url):
    with pytest.raises(InvalidOptionError) as caught:
        snapkv.open(url)
    assert "for a directory" not in str(caught.value)


def test_an_unknown_option_is_told_the_known_ones(place):
    with pytest.raises(InvalidTypeError) as caught:
        place.open(colour="red")
    assert caught.value.option == "colour"
    known = caught.value.known
    assert {"name", "ring_slots", "clock", "retain", "writer", "create", "archive"} <= set(known)
    assert set(place.kind.options) <= set(known)
    assert all(option in str(caught.value) for option in known)
    assert isinstance(caught.value, TypeError)


CLOSED = {
    "load": lambda s: s.load("k"),
    "load at": lambda s: s.load("k", 5),
    "load_with_prefix": lambda s: s.load_with_prefix(""),
    "save": lambda s: s.save("k", b""),
    "multi_save": lambda s: s.multi_save({}),
    "remove": lambda s: s.remove("k"),
    "commit": lambda s: s.commit(),
    "commit a function": lambda s: s.commit(lambda stamp: Ops()),
    "at": lambda s: s.at(),
    "at a time": lambda s: s.at(5),
    "at a revision": lambda s: s.at(revision=2),
    "history": lambda s: list(s.history("k")),
    "commits": lambda s: list(s.commits()),
    "diff": lambda s: list(s.diff(0)),
    "watch": lambda s: s.watch(),
    "restore": lambda s: s.restore(0),
    "tick": lambda s: s.tick(),
    "resolved": lambda s: s.resolved(),
    "resolve": lambda s: s.resolve(5, b"n"),
    "compact": lambda s: s.compact(0),
    "space": lambda s: s.space("s"),
    "dump": lambda s: s.dump(io.BytesIO()),
    "load_dump": lambda s: s.load_dump(io.BytesIO(b"x")),
    "info": lambda s: s.info(),
    "check": lambda s: s.check(),
}


def test_a_closed_store(place, subtests: pytest.Subtests):
    store = place.open()
    store.save("k", b"1")
    before = place.revision()
    store.close()
    store.close()
    for call, action in CLOSED.items():
        error = (StoreClosedError, SnapKVError) if call == "load_dump" else StoreClosedError
        with subtests.test(call=call), pytest.raises(error):
            action(store)
    assert place.revision() == before


def test_what_was_got_from_a_store_that_is_closed_now(place):
    store = place.open()
    store.save("k", b"1")
    space = store.space("s")
    store.close()
    with pytest.raises(StoreClosedError):
        space.load(b"k")
    with pytest.raises(StoreClosedError):
        space.commit(puts={b"k": b"1"})
    assert "SnapshotKV" in repr(store)


def test_the_context_manager_closes(place):
    with place.open() as store:
        store.save("k", b"1")
    with pytest.raises(StoreClosedError):
        store.load("k")
    assert place.open().load("k") == b"1", "a store can be opened again"


def test_a_store_far_ahead_of_the_clock_warns(place, clock):
    place.open(clock=clock).save("k", b"1")
    clock.advance(-5_000)
    place.open(clock=clock)
    clock.advance(-1)
    with pytest.warns(snapkv.ClockWarning, match="5001 ms ahead"):
        late = place.open(clock=clock)
    assert late.save("k", b"2") > late.resolved() - 1


def test_a_snapshot_says_what_to_pickle_instead(store: snapkv.SnapshotKV) -> None:
    store.save("a", b"1")
    snapshot = store.at()
    with pytest.raises(TypeError, match="pickle its timestamp"):
        pickle.dumps(snapshot)
    assert copy.copy(snapshot) is copy.deepcopy(snapshot) is snapshot


def test_a_mapping_handed_to_commit_is_told_of_puts(store: snapkv.SnapshotKV) -> None:
    with pytest.raises(TypeError, match=r"commit takes a function, not dict; values: commit\(puts"):
        store.commit({"a": b"1"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"values: commit\(puts=\.\.\.\)"):
        store.space("s").commit({b"a": b"1"})  # type: ignore[arg-type]


def test_only_a_key_that_is_saved_twice_is_an_error(store):
    """Removals come before saves, so that which of them wins is never in doubt."""
    store.commit(puts={"a": b"0", "b": b"0", "c": b"0"})
    store.commit(puts={"a": b"1"}, deletes=["b", "b", "a"], delete_prefixes=["a", "c", "c", "b"])
    assert dict(store.at().items()) == {"a": b"1"}
    with pytest.raises(InvalidKeyError, match="saved twice in one commit") as caught:
        store.commit(puts=[("a", b"2"), ("a", b"2")])
    assert caught.value.key == "a"
    assert "saved twice in one commit" in InvalidKeyError.__doc__
    assert dict(store.at().items()) == {"a": b"1"}
