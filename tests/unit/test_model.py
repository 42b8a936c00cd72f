"""The values of the API: frozen, comparable, picklable, with plain defaults."""

import copy
import dataclasses
import json
import pickle

import pytest

import snapkv
from snapkv.model import Meta

META = Meta({"ticket": 4, "request": "r-17"})
COMMIT = snapkv.Commit(5, 0, 3, "ann", "why", meta=META)

VALUES = [
    snapkv.Stamp(5, 0),
    COMMIT,
    snapkv.Entry(b"v", 3, 2, 1),
    snapkv.Version(5, 3, None, "ann", None, META),
    snapkv.Difference("k", None, b"v"),
    snapkv.Change("k", None, COMMIT),
    snapkv.Changes(COMMIT, (snapkv.Change("k", b"v", COMMIT),)),
    snapkv.AtRevision("k", 3),
    snapkv.Absent(b"k"),
    snapkv.HeadAt(3),
    snapkv.SpaceOps(puts={b"k": b"v"}),
    snapkv.Ops(puts={"k": b"v"}, note="why"),
    snapkv.Compaction(3, 5),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_values_are_frozen_and_pickle(value):
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    name = value._fields[0] if hasattr(value, "_fields") else dataclasses.fields(value)[0].name
    with pytest.raises(AttributeError):
        setattr(value, name, None)


def test_guards_can_be_told_apart_and_say_what_they_guard():
    guards = {snapkv.AtRevision("k", 3), snapkv.AtRevision("k", 4), snapkv.Absent("k")}
    assert len(guards | {snapkv.Absent("k")}) == 3
    assert str(snapkv.AtRevision("k", 3)) == "'k' at revision 3"
    assert str(snapkv.Absent("k")) == "'k' absent"
    assert str(snapkv.HeadAt(3)) == "head at revision 3"


def test_changes_iterate_over_their_changes():
    made = snapkv.Change("a", b"1", COMMIT), snapkv.Change("b", None, COMMIT)
    changes = snapkv.Changes(COMMIT, made)
    assert [(c.key, c.value) for c in changes] == [("a", b"1"), ("b", None)]


def test_defaults_do_nothing():
    ops = snapkv.Ops()
    assert (dict(ops.puts), list(ops.deletes), ops.note, dict(ops.spaces)) == ({}, [], None, {})
    assert ops.puts is not snapkv.Ops().puts


def test_a_meta_is_a_read_only_mapping_sorted_by_name():
    assert (list(META.items()), len(META), "ticket" in META) == (
        [("request", "r-17"), ("ticket", 4)],
        2,
        True,
    )
    assert META == {"ticket": 4, "request": "r-17"} == META
    assert Meta({"request": "r-17", "ticket": 4}) == META
    assert Meta({"request": "r-17"}) != META
    with pytest.raises(TypeError):
        META["ticket"] = 5
    with pytest.raises(KeyError):
        META["other"]


def test_a_meta_does_not_change_with_what_it_was_made_of():
    facts = {"a": 1}
    meta = Meta(facts)
    facts["b"] = 2
    assert meta == {"a": 1}


def test_a_meta_can_be_hashed_copied_and_pickled():
    for again in (pickle.loads(pickle.dumps(META)), copy.deepcopy(META), Meta(META)):
        assert again == META
        assert len({again, META}) == 1
    assert len({COMMIT, dataclasses.replace(COMMIT, meta=None), COMMIT}) == 2


def test_a_meta_as_json():
    meta = Meta({"b": None, "a": '\u00e9 "x"\n', "c": True, "d": 1.5, "e": 1 << 63})
    assert json.loads(meta.to_json()) == meta
    assert meta.to_json().startswith('{"a": "\u00e9')
    assert "\n" not in meta.to_json()


def test_the_type_of_values_is_bytes_unless_it_is_named():
    """At run time, too, and as a base class: before Python 3.13 no type variable has a default."""
    for cls in (snapkv.Change, snapkv.Changes, snapkv.Difference, snapkv.Watch):
        assert cls[str] == cls[str, bytes] != cls[str, int]
        assert list[cls[bytes]]() == []

    class Own(snapkv.Change[str]):
        pass

    assert Own("k", b"1", COMMIT).value == b"1"
    assert not hasattr(snapkv.Change("k", b"1", COMMIT), "__dict__")
    found = snapkv.Entry({"a": 1}, 3, 2, 1)
    assert pickle.loads(pickle.dumps(found)) == found == ({"a": 1}, 3, 2, 1)
