"""The values of the API: frozen, comparable, picklable, with plain defaults."""

import dataclasses
import pickle

import pytest

import snapkv

COMMIT = snapkv.Commit(5, 0, 3, "ann", "why")

VALUES = [
    snapkv.Stamp(5, 0),
    COMMIT,
    snapkv.Entry(b"v", 3, 2, 1),
    snapkv.Version(5, 3, None, "ann", None),
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
