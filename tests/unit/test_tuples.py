"""FoundationDB's tuple encoding: its own vectors, what it refuses, and the order of bytes."""

import json
import math
import struct
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from snapkv.errors import InvalidTupleError, InvalidTypeError
from snapkv.tuples import NESTED_MAX, Single, Versionstamp, pack, range_of, unpack

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "tuple.json").read_text(encoding="utf-8")
)["vectors"]


class Names:
    """What the vectors call `fdb.tuple`."""

    class tuple:
        @staticmethod
        def Versionstamp(transaction: bytes, user: int) -> Versionstamp:
            return Versionstamp.from_bytes(transaction + user.to_bytes(2, "big"))


SCOPE = {"fdb": Names, "UUID": UUID, "SingleFloat": Single, "inf": math.inf}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors_of_foundationdb(vector: dict[str, str]) -> None:
    elements = eval(vector["repr"], SCOPE)
    assert pack(elements).hex() == vector["hex"]
    found = unpack(bytes.fromhex(vector["hex"]))
    assert found == elements
    assert [type(each) for each in found] == [type(each) for each in elements]


def test_two_integers_that_its_python_binding_writes_longer() -> None:
    for number, spec, longer in (
        (2**64 - 1, "1c" + "ff" * 8, "1d08" + "ff" * 8),
        (1 - 2**64, "0c" + "00" * 8, "0bf7" + "00" * 8),
    ):
        assert pack((number,)).hex() == spec
        assert unpack(bytes.fromhex(spec)) == unpack(bytes.fromhex(longer)) == (number,)
        assert [type(each) for each in unpack(bytes.fromhex(longer))] == [int]


MALFORMED = {
    "bytes without an end": "01deadc0de",
    "bytes without an end, with a zero": "01dead00ffc0de",
    "text without an end": "0268656c6c6f",
    "text without an end, with a zero": "0268656c00ff6c6f",
    "a byte that begins no character": "02757466088000",
    "a byte that continues none": "0275746608c00100",
    "half a surrogate pair, high": "0275746610eda0bd00",
    "half a surrogate pair, low": "0275746610edb4a500",
    "a surrogate pair": "0275746610eda0bdedb4a500",
    "a nested tuple without an end": "050268656c6c6f00",
    "a nested tuple without an end, with a null": "050268656c6c6f0000ff02746865726500",
    "two bytes of int, one there": "1601",
    "two bytes of negative int, one there": "1201",
    "nine bytes of int, eight there": "1d090102030405060708",
    "nine bytes of negative int, eight there": "0bf60102030405060708",
    "three bytes of a float": "20010203",
    "seven bytes of a double": "2101020304050607",
    "fifteen bytes of a UUID": "300102030405060708090a0b0c0d0e",
    "eleven bytes of a versionstamp": "330102030405060708090a0b",
    "an unknown code": "ff",
    # and beyond what FoundationDB's bindings test:
    "an int with a leading zero": "160001",
    "a negative int with a leading zero": "12ffff",
    "a small int in the long form": "1d0101",
    "no length of a long int": "1d",
    "2^64 - 1 with a leading zero": "1d0900ffffffffffffffff",
    "zero bytes of long int": "1d00",
    "a deprecated code": "25",
    "a reserved code": "31" + "00" * 8,
    "nested deeper than allowed": "05" * (NESTED_MAX + 1) + "00" * (NESTED_MAX + 1),
    "very deep, and without an end": "05" * 100_000,
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_are_refused(raw: str) -> None:
    with pytest.raises(InvalidTupleError):
        unpack(bytes.fromhex(raw))


def test_the_error_says_where() -> None:
    with pytest.raises(InvalidTupleError, match="ff at byte 4"):
        unpack(bytes.fromhex("02610014ff"))


def nested(depth: int) -> tuple:
    found: tuple = ()
    for _ in range(depth):
        found = (found,)
    return found


def test_as_deep_as_allowed() -> None:
    assert unpack(pack(nested(NESTED_MAX))) == nested(NESTED_MAX)


@pytest.mark.parametrize(
    ("elements", "error"),
    [
        (nested(NESTED_MAX + 1), InvalidTupleError),
        (("\ud800",), InvalidTupleError),
        ((2 ** (8 * 255),), InvalidTupleError),
        ((Single(1e300),), InvalidTupleError),
        ((Versionstamp(2**64),), InvalidTupleError),
        ((Versionstamp(1, 1 << 16),), InvalidTupleError),
        ((Versionstamp(1, 0, -1),), InvalidTupleError),
        (({},), InvalidTypeError),
        (([1],), InvalidTypeError),
        ([1], InvalidTypeError),
        ("text", InvalidTypeError),
        (Versionstamp(1), InvalidTypeError),
    ],
)
def test_what_has_no_encoding_is_refused(elements: tuple, error: type[Exception]) -> None:
    with pytest.raises(error):
        pack(elements)
    with pytest.raises(InvalidTypeError):
        unpack("text")  # type: ignore[arg-type]


def test_subclasses_are_what_they_derive_from() -> None:
    class Name(str):
        pass

    class Point(tuple):
        __slots__ = ()

    assert pack((Name("a"), Point((1, True)))) == pack(("a", (1, True)))


scalars = (
    st.none()
    | st.binary(max_size=6)
    | st.text(max_size=4)
    | st.integers(-(2**70), 2**70)
    | st.integers(-300, 300)
    | st.floats()
    | st.floats(width=32).map(Single)
    | st.booleans()
    | st.uuids()
    | st.builds(Versionstamp, st.integers(0, 2**64 - 1), *[st.integers(0, 2**16 - 1)] * 2)
)
elements = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)
tuples = st.lists(elements, max_size=5).map(tuple)
KINDS = (type(None), bytes, str, tuple, int, Single, float, bool, UUID, Versionstamp)


def order(element: object) -> tuple:
    """What FoundationDB's specification says of the order: by kind, then by value."""
    kind = KINDS.index(type(element))
    match element:
        case None:
            return (kind,)
        case str():
            return (kind, element.encode())
        case Versionstamp():
            return (kind, *element)
        case tuple():
            return (kind, *map(order, element))
        case float():
            form = (">f", ">i") if isinstance(element, Single) else (">d", ">q")
            (bits,) = struct.unpack(form[1], struct.pack(form[0], element))
            mask = (1 << (8 * struct.calcsize(form[0]) - 1)) - 1
            return (kind, bits if bits >= 0 else ~(bits & mask))
        case UUID():
            return (kind, element.bytes)
    return (kind, element)


def same(a: object, b: object) -> bool:
    return order(a) == order(b)


@pytest.mark.slow
@given(tuples)
def test_what_is_packed_is_unpacked(elements: tuple) -> None:
    assert same(unpack(pack(elements)), elements)


@pytest.mark.slow
@given(tuples, tuples)
def test_bytes_sort_as_tuples_do(a: tuple, b: tuple) -> None:
    assert (pack(a) < pack(b)) == (order(a) < order(b))
    assert (pack(a) == pack(b)) == same(a, b)


@pytest.mark.slow
@given(tuples, tuples)
def test_a_range_holds_what_begins_with_its_prefix(prefix: tuple, rest: tuple) -> None:
    start, end = range_of(prefix)
    assert (start <= pack(prefix + rest) < end) == bool(rest)
    assert pack(prefix) + pack(rest) == pack(prefix + rest)


@given(st.binary(max_size=24))
@example(bytes.fromhex("20ff800020"))  # a NaN of 32 bits that a float of 64 does not keep
def test_bytes_are_refused_or_packed_back(raw: bytes) -> None:
    """Strict: nothing is accepted that would be written in another way, but two integers."""
    try:
        found = unpack(raw)
    except InvalidTupleError:
        return
    longer = any(isinstance(each, int) and abs(each) == 2**64 - 1 for each in found)
    assert pack(found) == raw or longer
