"""Selectors: what CouchDB's operators hold for, and what is none."""

import pytest

from cdcmeta.changes.selector import CONDITIONS_MAX, DEPTH_MAX, Selector
from cdcmeta.errors import InvalidArgumentError

DOC = {
    "kind": "table",
    "n": 3,
    "none": None,
    "yes": True,
    "tags": ["a", "b"],
    "empty": [],
    "deep": {"x": {"y": 1}, "a.b": 2},
    "columns": [{"name": "id", "n": 1}, {"name": "at", "n": 2}],
}


@pytest.mark.parametrize(
    "selector",
    [
        {},
        {"kind": "table"},
        {"n": 3},
        {"n": 3.0},
        {"none": None},
        {"tags": ["a", "b"]},
        {"deep.x.y": 1},
        {"deep": {"x": {"y": 1}}},
        {"deep.a\\.b": 2},
        {"n": {"$gt": 2, "$lt": 4}},
        {"n": {"$gte": 3, "$lte": 3}},
        {"n": {"$ne": 4}},
        {"kind": {"$gt": 5}},
        {"n": {"$gt": None}},
        {"tags": {"$gt": "zzz"}},
        {"n": {"$in": [1, 3]}},
        {"tags": {"$in": ["b", "x"]}},
        {"n": {"$nin": [1, 2]}},
        {"missing": {"$exists": False}},
        {"none": {"$exists": True}},
        {"n": {"$type": "number"}},
        {"yes": {"$type": "boolean"}},
        {"none": {"$type": "null"}},
        {"deep": {"$type": "object"}},
        {"tags": {"$size": 2}},
        {"empty": {"$size": 0}},
        {"n": {"$mod": [2, 1]}},
        {"kind": {"$regex": "^ta"}},
        {"kind": {"$beginsWith": "tab"}},
        {"tags": {"$all": ["b", "a"]}},
        {"columns": {"$elemMatch": {"name": "at", "n": {"$gt": 1}}}},
        {"columns": {"$allMatch": {"n": {"$gt": 0}}}},
        {"deep": {"$keyMapMatch": {"$eq": "x"}}},
        {"$and": [{"n": 3}, {"kind": "table"}]},
        {"$or": [{"n": 4}, {"kind": "table"}]},
        {"$nor": [{"n": 4}, {"kind": "view"}]},
        {"$not": {"n": 4}},
        {"n": {"$not": {"$gt": 3}}},
        {"n": {"$or": [{"$lt": 0}, {"$gt": 2}]}},
        {"$and": []},
    ],
)
def test_holds(selector):
    assert Selector(selector)(DOC)


@pytest.mark.parametrize(
    "selector",
    [
        {"kind": "view"},
        {"n": "3"},
        {"yes": 1},
        {"n": {"$eq": True}},
        {"missing": None},
        {"missing": {"$ne": 1}},
        {"missing": {"$lt": 1}},
        {"missing": {"$nin": [1]}},
        {"kind": {"$lt": 5}},
        {"deep.x.z": 1},
        {"deep.x": {"y": 2}},
        {"tags": ["b", "a"]},
        {"tags": {"$all": ["a", "c"]}},
        {"tags": {"$all": []}},
        {"empty": {"$allMatch": {"n": 1}}},
        {"n": {"$size": 1}},
        {"kind": {"$mod": [2, 1]}},
        {"n": {"$regex": "3"}},
        {"columns": {"$elemMatch": {"name": "id", "n": 2}}},
        {"$or": []},
        {"$nor": [{"n": 3}]},
        {"n": 3, "kind": "view"},
    ],
)
def test_does_not_hold(selector):
    assert not Selector(selector)(DOC)


def nested(depth):
    selector = {"n": 1}
    for _ in range(depth):
        selector = {"$not": selector}
    return selector


@pytest.mark.parametrize(
    "selector",
    [
        [],
        "text",
        None,
        {"$foo": 1},
        {"n": {"$foo": 1}},
        {"n": {"$in": 1}},
        {"n": {"$nin": "x"}},
        {"n": {"$exists": 1}},
        {"n": {"$type": "int"}},
        {"n": {"$type": ["number"]}},
        {"n": {"$size": -1}},
        {"n": {"$size": True}},
        {"n": {"$mod": [0, 1]}},
        {"n": {"$mod": 2}},
        {"n": {"$regex": "("}},
        {"n": {"$regex": 1}},
        {"n": {"$beginsWith": 1}},
        {"n": {"$all": 1}},
        {"$and": {"n": 1}},
        {"$or": 1},
        {"n": object()},
        nested(DEPTH_MAX + 1),
    ],
)
def test_is_none(selector):
    with pytest.raises(InvalidArgumentError):
        Selector(selector)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(
    "selector",
    [
        lambda n: {"$or": [{}] * (n - 1)},
        lambda n: {"n": {"$in": [3] * (n - 2)}},
        lambda n: {"n": {"$nin": [4] * (n - 2)}},
        lambda n: {"tags": {"$all": ["a"] * (n - 2)}},
        lambda n: {"$nor": [{f"no{each}": 1 for each in range(n - 2)}]},
        lambda n: {"$and": [{"n": 3}, {"$or": [{"kind": "table"}, *[{}] * (n - 7)]}]},
    ],
)
def test_it_has_so_many_conditions_at_most(selector, more):
    if more:
        with pytest.raises(InvalidArgumentError, match="more than 10000 conditions"):
            Selector(selector(CONDITIONS_MAX + 1))
    else:
        assert Selector(selector(CONDITIONS_MAX))(DOC)


@pytest.mark.parametrize("operator", ["$in", "$all", "$size", "$or"])
def test_an_argument_that_is_too_deep_or_too_long_to_be_told(operator):
    deep = {}
    for _ in range(5_000):
        deep = {"a": deep}
    for argument in (deep, "x" * 100_000):
        with pytest.raises(InvalidArgumentError) as error:
            Selector({"a": {operator: argument}})
        assert len(str(error.value)) < 200
