"""Codecs: equal values have equal bytes, what cannot be kept is rejected."""

import math
from datetime import UTC, datetime
from enum import Enum

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv import codecs
from snapkv.errors import InvalidTypeError

NAMES = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | NAMES
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def values(leaves):
    return st.recursive(
        leaves, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=12
    )


def turned(value):
    """Return an equal value whose objects list their names the other way round."""
    if isinstance(value, dict):
        return {name: turned(value[name]) for name in reversed(value)}
    return [turned(each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
@given(values(LEAVES | FLOATS))
def test_json_keeps_values_and_equal_ones_have_equal_bytes(value):
    data = codecs.json.encode(value)
    assert codecs.json.decode(data) == value
    assert codecs.json.encode(turned(value)) == data
    assert codecs.json.encode(codecs.json.decode(data)) == data


@pytest.mark.slow
@given(values(LEAVES | FLOATS | st.binary()))
def test_msgpack_keeps_values_and_equal_ones_have_equal_bytes(value):
    data = codecs.msgpack.encode(value)
    assert codecs.msgpack.decode(data) == value
    assert codecs.msgpack.encode(turned(value)) == data


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": [True, None, 1.5, "é"]}, b'{"a":[true,null,1.5,"\xc3\xa9"],"b":1}'),
        ({"Z": 1, "a": 2, "é": 3, "\U0001f600": 4, "\uffff": 5}, None),
        ((1, 2), b"[1,2]"),
        ({}, b"{}"),
    ],
)
def test_vectors_of_json(value, data):
    found = codecs.json.encode(value)
    if data is None:  # by code point, not by UTF-16
        data = '{"Z":1,"a":2,"é":3,"\uffff":5,"\U0001f600":4}'.encode()
    assert found == data


def circle():
    found = []
    found.append(found)
    return found


def deep():
    found = []
    for _ in range(100_000):
        found = [found]
    return found


class Colour(Enum):
    RED = 1


REJECTED = {
    "nan": math.nan,
    "infinity": [math.inf],
    "a name that is a number": {1: "a"},
    "a name that is None": {"a": [{None: 1}]},
    "names of two kinds": {"a": 1, 1: 2},
    "bytes": b"a",
    "a set": {1},
    "an enum": Colour.RED,
    "a surrogate": "\ud800",
    "a circle": circle(),
    "too deep": deep(),
    "a datetime": datetime(2026, 1, 1, tzinfo=UTC),
}
KEPT_BY_MSGPACK = {"nan", "infinity", "bytes", "a datetime"}


@pytest.mark.parametrize("name", REJECTED)
def test_what_json_lacks_is_rejected(name):
    with pytest.raises((TypeError, ValueError, RecursionError)):
        codecs.json.encode(REJECTED[name])


@pytest.mark.parametrize("name", sorted(set(REJECTED) - KEPT_BY_MSGPACK))
def test_what_msgpack_lacks_is_rejected(name):
    with pytest.raises((TypeError, ValueError, RecursionError)):
        codecs.msgpack.encode(REJECTED[name])


def test_msgpack_keeps_times_and_bytes():
    value = {"at": datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC), "raw": b"\0", "name": "n"}
    assert codecs.msgpack.decode(codecs.msgpack.encode(value)) == value
    with pytest.raises((TypeError, ValueError)):
        codecs.msgpack.encode(datetime(2026, 1, 1))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"\xef\xbb\xbf1", b"1 2"]
)
def test_what_is_not_json_is_rejected(data):
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
        codecs.json.decode(data)


@pytest.mark.parametrize("data", [b"", b"\x81", b"\x01\x02", b"\xc1", b"\x81\x01\x02"])
def test_what_is_not_msgpack_is_rejected(data):
    with pytest.raises(ValueError):  # noqa: PT011
        codecs.msgpack.decode(data)


class Plan(pydantic.BaseModel):
    name: str
    seats: int = 1
    tags: dict[str, float] = {}
    at: datetime | None = None


class Aliased(pydantic.BaseModel):
    name: str = pydantic.Field(alias="n")


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_by_alias=False, validate_by_name=True)
    name: str = pydantic.Field(alias="n")


def test_models_of_pydantic():
    codec = codecs.pydantic_model(Plan)
    plan = Plan(name="é", tags={"b": 1, "a": 2}, at=datetime(2026, 1, 1, tzinfo=UTC))
    data = codec.encode(plan)
    assert data.decode() == (
        '{"at":"2026-01-01T00:00:00Z","name":"é","seats":1,"tags":{"a":2.0,"b":1.0}}'
    )
    assert codec.decode(data) == plan
    assert codec.decode(b'{"name": "older"}') == Plan(name="older")
    assert codec.name == "pydantic_model(Plan)"
    for bad in (b"{}", b'{"name": 5}', b"", b"\xff"):
        with pytest.raises(ValueError):  # noqa: PT011
            codec.decode(bad)
    for bad in ({"name": "a"}, Aliased(n="a"), Plan):
        with pytest.raises(TypeError, match="not a Plan"):
            codec.encode(bad)
    with pytest.raises(ValueError, match="JSON"):
        codec.encode(Plan(name="a", tags={"a": math.nan}))


@pytest.mark.parametrize(("model", "data"), [(Aliased, b'{"n":"a"}'), (ByName, b'{"name":"a"}')])
def test_aliases_are_written_as_they_are_read(model, data):
    codec = codecs.pydantic_model(model)
    value = model.model_validate({"n": "a"} if model is Aliased else {"name": "a"})
    assert codec.encode(value) == data
    assert codec.decode(data) == value


@pytest.mark.parametrize("model", [5, dict, Plan(name="a"), None, "Plan"])
def test_what_is_not_a_model_is_rejected(model):
    with pytest.raises(InvalidTypeError, match="a class of pydantic 2"):
        codecs.pydantic_model(model)
