"""Stores of different names in one engine do not see each other."""

import itertools

import pytest
from cases import cases

import snapkv
from snapkv.errors import InvalidKeyError, InvalidOptionError, InvalidTypeError, StoreNotFoundError

from .engines import assert_sound

NAMES = ("default", "a", "a/b", "/a", "ab", "\u00e9", "a b", "x" * 128)


def test_each_has_its_own_keys_times_and_spaces(place, clock):
    stores = {name: place.open(name=name, clock=clock) for name in NAMES}
    for name, store in stores.items():
        store.save("k", name.encode())
        store.save(name, b"1")
        store.space(name).commit(puts={name.encode(): b"1"})
    for name, store in stores.items():
        assert dict(store.at().items()) == {"k": name.encode(), name: b"1"}
        assert dict(store.space(name).at().items()) == {name.encode(): b"1"}
        assert len(list(store.commits())) == 3
        assert [v.value for v in store.history("k")] == [name.encode()]
        assert len(list(store.watch(since=0, timeout=0))) == 2
        assert store.info()["commits"] == 3
    for a, b in itertools.permutations(stores.values(), 2):
        a.multi_save_and_remove_with_prefix({}, [""])
        a.space(a.info()["name"]).commit(delete_prefixes=[b""])
        assert len(a.at()) == 0
        if list(stores.values()).index(a) == 0:
            assert dict(b.at().items())
    for store in stores.values():
        assert_sound(store)


def test_removing_everything_of_one_leaves_the_others(place, clock):
    a, inner = place.open(name="a", clock=clock), place.open(name="a/b", clock=clock)
    inner.save("k", b"1")
    a.multi_save_and_remove_with_prefix({}, ["", "b", "/b"])
    assert dict(inner.at().items()) == {"k": b"1"}


def test_each_has_its_own_ids(place):
    ids = {place.open(name=name).info()["store_id"] for name in NAMES}
    assert len(ids) == len(NAMES)


def test_two_openings_of_one_name_are_one_store(place, clock):
    a, b = place.open(name="a", clock=clock), place.open(name="a", clock=clock)
    stamps = [a.save("k", b"1"), b.save("k", b"2"), a.save("k", b"3")]
    assert stamps == sorted(set(stamps))
    assert a.load("k", stamps[1]) == b.load("k", stamps[1]) == b"2"
    assert list(a.commits()) == list(b.commits())


def test_create_false_wants_it_to_be_there(place):
    engine = place.engine()
    before = place.revision()
    with pytest.raises(StoreNotFoundError):
        place.open(create=False)
    assert place.revision() == before
    place.open()
    place.open(create=False)
    with pytest.raises(FileNotFoundError):
        place.open(name="other", create=False)
    assert engine.check() == []


@cases(
    ("name", "error"),
    [
        ("", InvalidOptionError),
        ("a//b", InvalidOptionError),
        ("a/", InvalidOptionError),
        ("data", InvalidOptionError),
        ("a/sys/b", InvalidOptionError),
        ("live", InvalidOptionError),
        ("x" * 129, InvalidOptionError),
        ("\ud800", InvalidKeyError),
        (5, InvalidTypeError),
        (None, InvalidTypeError),
        (b"a", InvalidTypeError),
    ],
)
def test_names_that_are_none(place, name, error):
    before = place.revision()
    with pytest.raises(error):
        place.open(name=name)
    assert place.revision() == before


def test_the_spaces_of_a_store_at_a_moment(store, place):
    assert list(store.spaces()) == []
    names = ["a", "a/b", "a%2Fb", "ab", "%", "/", "data", "\u00e9", "jobs/\0<b>"]
    for name in names:
        store.space(name).commit(puts={b"k%d" % n: b"" for n in range(3)})
    store.save("a/c", b"")
    place.open(name="other").space("a/d").commit(puts={b"k": b""})
    before = store.resolved()
    store.space("a").commit(delete_prefixes=[b""])
    store.space("a/e").commit(puts={b"k": b""}, deletes=[b"l"])
    assert sorted(store.spaces()) == sorted({*names, "a/e"} - {"a"})
    assert sorted(store.spaces(when=before)) == sorted(names)
    assert list(store.spaces("a/")) == ["a/b", "a/e"]
    assert list(store.spaces("a", before)) == ["a%2Fb", "a/b", "a", "ab"]
    assert list(store.spaces("jobs/")) == ["jobs/\0<b>"]
    assert list(store.spaces("b")) == list(store.spaces(when=0)) == []
    with pytest.raises(InvalidTypeError):
        list(store.spaces(b"a"))
    with pytest.raises(InvalidKeyError):
        list(store.spaces("\udcff"))


def test_without_a_url_the_environment_names_the_store(tmp_path, monkeypatch):
    monkeypatch.setenv("SNAPKV_STORE", f"lmdb:{tmp_path}/meta")
    with snapkv.open(name="a") as store:
        store.save("k", b"1")
    with snapkv.open(f"lmdb:{tmp_path}/meta", name="a", create=False) as store:
        assert store.load("k") == b"1"
    for value in ("", None):
        monkeypatch.delenv("SNAPKV_STORE")
        if value is not None:
            monkeypatch.setenv("SNAPKV_STORE", value)
        with pytest.raises(InvalidOptionError, match=r"SNAPKV_STORE.*lmdb:\./meta"):
            snapkv.open()
