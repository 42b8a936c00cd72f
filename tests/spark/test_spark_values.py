"""Values decoded into columns: what fits, what does not, and what is said then."""

import base64
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import msgpack
import pytest
from direct import columns, read, refused
from frames import load
from pyspark.errors import PythonException
from pyspark.sql import types as T

# Values are decoded in the same way wherever they come from.
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["lmdb"], indirect=True)]

TEXT, BINARY, LONG, DOUBLE = T.StringType(), T.BinaryType(), T.LongType(), T.DoubleType()
MONEY, TIME, LOCAL = T.DecimalType(22, 2), T.TimestampType(), T.TimestampNTZType()
INNER = T.StructType([T.StructField("n", T.IntegerType()), T.StructField("t", T.ArrayType(TEXT))])
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
INDIA = timezone(timedelta(hours=5, minutes=30))

FITS = {
    # type of the column: (value in JSON, or in msgpack) -> cell
    T.BooleanType(): [(True, True), (False, False), (None, None)],
    T.ByteType(): [(127, 127), (-128, -128)],
    T.ShortType(): [(32_767, 32_767), (-32_768, -32_768)],
    T.IntegerType(): [(2**31 - 1, 2**31 - 1), (-(2**31), -(2**31))],
    LONG: [(2**63 - 1, 2**63 - 1), (-(2**63), -(2**63)), (0, 0)],
    T.FloatType(): [(0.5, 0.5), (7, 7.0)],
    DOUBLE: [(0.1, 0.1), (-7, -7.0), (1e300, 1e300)],
    MONEY: [(5, Decimal(5)), (0.25, Decimal("0.25"))],
    TEXT: [
        ("ü", "ü"),
        ("", ""),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        ([1, {"ü": None}], '[1,{"ü":null}]'),
    ],
    T.DateType(): [("2026-11-20", date(2026, 11, 20))],
    TIME: [
        ("2026-11-20T12:00:00Z", NOON),
        ("2026-11-20 17:30:00.000001+05:30", NOON + timedelta(microseconds=1)),
        (NOON.timestamp(), NOON),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1.5, datetime(1969, 12, 31, 23, 59, 58, 500_000, UTC)),
    ],
    LOCAL: [("2026-11-20T12:00:00", NOON.replace(tzinfo=None))],
    INNER: [
        ({"n": 1, "t": ["a", None]}, {"n": 1, "t": ["a", None]}),
        ({"more": 1}, {"n": None, "t": None}),
        ({}, {"n": None, "t": None}),
    ],
    T.ArrayType(INNER): [([], []), ([None, {"n": 2}], [None, {"n": 2, "t": None}])],
    T.MapType(TEXT, T.ArrayType(LONG)): [({"a": [1], "b": None}, [("a", [1]), ("b", None)])],
}
BASE64 = base64.b64encode(b"\0\xff").decode()
ONLY_JSON = [(BINARY, BASE64, b"\0\xff"), (BINARY, "", b"")]
ONLY_MSGPACK = [
    (BINARY, b"\0\xff", b"\0\xff"),
    (TEXT, "ü".encode(), "ü"),
    (TEXT, [b"\xff"], '["/w=="]'),
    (TEXT, NOON, NOON.isoformat()),
    (TEXT, [NOON], json.dumps([NOON.isoformat()])),
    (TIME, NOON, NOON),
    (T.MapType(LONG, TEXT), {1: "a"}, [(1, "a")]),
    (T.MapType(TEXT, LONG), {1: 1, b"b": 2}, [("1", 1), ("b", 2)]),
]
FITS_NOT = [
    (T.BooleanType(), 1),
    (T.BooleanType(), "true"),
    (T.ByteType(), 128),
    (T.ShortType(), -32_769),
    (T.IntegerType(), 2**31),
    (LONG, 2**63),
    (LONG, 7.0),
    (LONG, True),
    (LONG, "7"),
    (LONG, [7]),
    (DOUBLE, "0.5"),
    (DOUBLE, False),
    (DOUBLE, 10**400),
    (T.FloatType(), 1e39),
    (T.FloatType(), 10**39),
    (MONEY, 0.125),
    (MONEY, "12.50"),
    (MONEY, 10**20),
    (MONEY, [1]),
    (MONEY, True),
    (BINARY, "no base64!"),
    (BINARY, "ü"),
    (BINARY, 7),
    (T.DateType(), "20.11.2026"),
    (T.DateType(), "2026-02-30"),
    (T.DateType(), 7),
    (T.DateType(), "x" * 100_000),
    (TIME, "2026-11-20T12:00:00"),
    (TIME, "yesterday"),
    (TIME, 1e18),
    (TIME, 10**400),
    (TIME, "0001-01-01T00:00:00+14:00"),
    (TIME, True),
    (LOCAL, "2026-11-20T12:00:00Z"),
    (LOCAL, 0),
    (INNER, [1]),
    (INNER, {"n": "one"}),
    (T.ArrayType(LONG), {"a": 1}),
    (T.ArrayType(LONG), [1, "2"]),
    (T.ArrayType(LONG, containsNull=False), [1, None]),
    (T.StructType([T.StructField("n", LONG, nullable=False)]), {}),
    (T.MapType(TEXT, LONG), [1]),
    (T.MapType(TEXT, LONG), {"a": "1"}),
    (T.MapType(TEXT, LONG, valueContainsNull=False), {"a": None}),
    (T.MapType(LONG, LONG), {"1": 1}),
]
ONLY_MSGPACK_NOT = [
    (BINARY, BASE64),
    (BINARY, ""),
    (TEXT, b"\xff"),
    (T.MapType(TEXT, LONG), {1: 1, "1": 2}),
    (T.MapType(TEXT, LONG), {None: 1}),
    (T.MapType(TEXT, LONG), {b"\xff": 1}),
    (LOCAL, NOON),
    (T.DateType(), NOON),
    (LONG, msgpack.ExtType(5, b"x")),
]


def packed(format_: str, value) -> bytes:
    if format_ == "json":
        return json.dumps(value).encode()
    return msgpack.packb(value, datetime=True)


@pytest.fixture(params=["json", "msgpack"])
def format_(request):
    return request.param


def cases_that_fit(format_: str) -> list[tuple]:
    both = [(kind, *case) for kind, cases in FITS.items() for case in cases]
    return both + (ONLY_MSGPACK if format_ == "msgpack" else ONLY_JSON)


def fits_msgpack(value) -> bool:
    """It has no larger numbers."""
    return not isinstance(value, int) or value < 2**64


def cases_that_fit_not(format_: str) -> list[tuple]:
    if format_ == "json":
        return FITS_NOT
    return [case for case in FITS_NOT if fits_msgpack(case[1])] + ONLY_MSGPACK_NOT


# --- what fits ---


def test_every_type_as_a_field_and_as_a_whole(store, place, format_):
    for kind, value, cell in cases_that_fit(format_):
        store.commit(puts={"k": packed(format_, {"x": value}), "whole": packed(format_, value)})
        options = {"valueFormat": format_, "keyPrefix": "k"}
        found = read(place.url, [("key", TEXT), ("x", kind)], **options)
        assert found == [("k", cell)], (kind, value)
        whole = read(place.url, [("value", kind)], **options | {"keyPrefix": "whole"})
        as_it_is = packed(format_, value) if kind == BINARY else cell
        assert whole == [(as_it_is,)], (kind, value)


def test_through_spark(spark, store, place):
    value = {"n": 1, "price": 12.5, "at": "2026-11-20T12:00:00Z", "tags": ["a"], "in": {"x": 1}}
    store.commit(puts={"a": json.dumps(value).encode(), "b": b"{}", "c": b'{"more": 1}'})
    schema = (
        "key STRING, n INT, price DECIMAL(10,2), at TIMESTAMP, tags ARRAY<STRING>, "
        "in STRUCT<x: BIGINT NOT NULL>, mod_version BIGINT NOT NULL, value BINARY"
    )
    first, *others = load(spark, place.url, schema, valueFormat="json").collect()
    assert first.key == "a"
    assert (first.n, first.price, first.tags) == (1, Decimal("12.50"), ["a"])
    assert first["in"].x == 1
    assert first.value == json.dumps(value).encode()
    assert first.at.isoformat(sep=" ") == "2026-11-20 12:00:00"
    for other in others:
        assert (other.n, other.price, other.at, other.tags, other["in"]) == (None,) * 5
        assert other.mod_version == first.mod_version
    store.save("d", b'{"n": "one"}')
    with pytest.raises(PythonException) as caught:
        load(spark, place.url, schema, valueFormat="json").collect()
    assert "[SNAPKV_VALUE_MALFORMED] the value of key 'd' does not fit n INT" in str(caught.value)
    tolerant = load(spark, place.url, schema, valueFormat="json", mode="PERMISSIVE")
    assert [row.n for row in tolerant.collect()] == [1, None, None, None]


def test_numbers_keep_their_digits(store, place):
    store.save("k", b'{"x": 12345678901234567890.12, "y": 1e2, "z": 1E-2, "big": 9007199254740993}')
    fields = [(name, MONEY) for name in "xyz"]
    found = read(place.url, [*fields, ("big", LONG)], valueFormat="json")
    assert found == [
        (Decimal("12345678901234567890.12"), Decimal(100), Decimal("0.01"), 9007199254740993)
    ]


def test_numbers_as_text_are_as_they_were_written(store, place):
    store.save(
        "k", b'{"x": 1.10, "y": [2.50, {"a": 1E2, "b": "1.10"}, -0], "z": 0.12345678901234567890}'
    )
    found = read(place.url, [(name, TEXT) for name in "xyz"], valueFormat="json")
    assert found == [("1.10", '[2.50,{"a":1E2,"b":"1.10"},-0]', "0.12345678901234567890")]
    store.save("k", b'{"x": -0}')
    kinds = (TEXT, LONG, DOUBLE, MONEY)
    found = [read(place.url, [("x", kind)], valueFormat="json")[0][0] for kind in kinds]
    assert found == ["-0", 0, 0.0, Decimal(0)]


def test_an_integer_of_very_many_digits(store, place):
    """More of them than Python converts: whoever does not ask for it is not concerned."""
    long = "-" + "9" * 5_000
    store.save("k", f'{{"x": {long}, "in": [{long}], "n": 1}}'.encode())
    found = read(place.url, [("n", LONG), ("x", TEXT), ("in", TEXT)], valueFormat="json")
    assert found == [(1, long, f"[{long}]")]
    for kind in (LONG, DOUBLE, T.FloatType(), MONEY, TIME, T.BooleanType(), T.DateType()):
        schema = [("n", LONG), ("x", kind)]
        message = refused("VALUE_MALFORMED", place.url, schema, valueFormat="json")
        assert "does not fit x " in message
        assert "set_int_max_str_digits" not in message
        assert len(message) < 500
        assert read(place.url, schema, valueFormat="json", mode="PERMISSIVE") == [(1, None)]


def test_a_number_does_not_become_infinite(store, place):
    store.save("k", b'{"x": 1e999}')
    for kind in (DOUBLE, T.FloatType()):
        assert "too large" in refused(
            "VALUE_MALFORMED", place.url, [("x", kind)], valueFormat="json"
        )
    store.save("k", b'{"x": Infinity}')
    assert read(place.url, [("x", T.FloatType())], valueFormat="json") == [(float("inf"),)]


def test_what_json_leaves_open(store, place):
    store.commit(
        puts={
            "bom": b'\xef\xbb\xbf{"x": 1}',
            "spaces": b' \n{ "x" : 1 }\t',
            "twice": b'{"x": 5, "x": 1}',
            "nested": b'{"x": 1, "y": ' + b"[" * 200 + b"]" * 200 + b"}",
        }
    )
    assert read(place.url, [("x", LONG)], valueFormat="json") == [(1,)] * 4
    store.commit(puts={"nan": b'{"x": NaN}', "inf": b'{"x": -Infinity}'})
    rows = read(place.url, [("key", TEXT), ("x", DOUBLE)], valueFormat="json", endKey="o")
    assert [(key, str(x)) for key, x in rows] == [
        ("bom", "1.0"), ("inf", "-inf"), ("nan", "nan"), ("nested", "1.0"),
    ]  # fmt: skip


# --- what does not ---


@pytest.mark.long_after(1)
def test_what_does_not_fit(store, place, format_):
    for kind, value in cases_that_fit_not(format_):
        store.commit(puts={"k": packed(format_, {"x": value}), "whole": packed(format_, value)})
        for name, key in (("x", "k"), ("value", "whole"))[: 1 if kind == BINARY else 2]:
            schema = [("key", TEXT), (name, kind)]
            options = {"valueFormat": format_, "keyPrefix": key}
            message = refused("VALUE_MALFORMED", place.url, schema, **options)
            assert f"the value of key '{key}' does not fit {name} " in message, (kind, value)
            assert "mode=PERMISSIVE" in message
            assert len(message) < 500
            assert read(place.url, schema, **options, mode="PERMISSIVE") == [(key, None)]


def test_one_bad_cell_leaves_the_others(store, place):
    """Whether it is found one by one, or by Arrow for a whole column."""
    values = [
        {"n": 1, "d": 1.5, "s": "a"},
        {"n": 2**40, "d": 1.5, "s": "\ud800"},
        {"n": "x", "d": 0.125, "s": "b"},
        {"n": 4, "d": 10**30, "s": {"\udfff": 1}},
        ["no object"],
    ]
    store.commit(puts={f"{n}": json.dumps(value).encode() for n, value in enumerate(values)})
    schema = [("n", T.IntegerType()), ("d", MONEY), ("s", TEXT)]
    found = read(place.url, schema, valueFormat="json", mode="permissive")
    assert found == [
        (1, Decimal("1.5"), "a"),
        (None, Decimal("1.5"), None),
        (None, None, "b"),
        (4, None, None),
        (None, None, None),
    ]
    message = refused("VALUE_MALFORMED", place.url, [("s", TEXT)], valueFormat="json", endKey="4")
    assert "key '1' does not fit s" in message


BROKEN = {
    "json": [
        b"",
        b"{",
        b'{"x": 1} 2',
        b'{"x": \xff}',
        b'{"x": "\xed\xa0\x80"}',
        "\ufeff".encode("utf-16") + '{"x": 1}'.encode("utf-16-le"),
        b'{"x": 01}',
        b"[" * 100_000,
        b"nothing",
    ],
    "msgpack": [
        b"",
        b"\x81",
        b"\x81\xa1x\x01\x01",
        b"\xc1",
        b"\xa1\xff",
        b"\x91" * 100_000,
        b"\x81\x80\x01",  # a map for a key
        b"\x81\xa1x\xc7\x0c\xff\x00\x00\x00\x00\x7f" + b"\xff" * 7,  # a time of no calendar
        b"\xdd\xff\xff\xff\xff",  # 4 G of nothing
    ],
}


def test_values_that_are_no_such_thing_at_all(store, place, format_):
    for value in BROKEN[format_]:
        store.commit(puts={"a": packed(format_, {"x": 1}), "k": value})
        options = {"schema": [("x", LONG)], "valueFormat": format_}
        message = refused("VALUE_MALFORMED", place.url, **options)
        assert f"the value of key 'k' is not {format_}: " in message, value
        assert len(message) < 500
        assert read(place.url, **options, mode="PERMISSIVE") == [(1,), (None,)]


def test_text(store, place):
    store.commit(puts={"a": "ü\0".encode(), "b": b""})
    assert read(place.url, valueFormat="utf8", columns="key,value") == [("a", "ü\0"), ("b", "")]
    assert read(place.url, [("value", TEXT)], valueFormat="UTF8") == [("ü\0",), ("",)]
    store.commit(puts={"c": b"\xff"}, deletes=["b"])
    assert "'c'" in refused("VALUE_MALFORMED", place.url, valueFormat="utf8")
    kept = columns(place.url, "value", valueFormat="utf8", mode="PERMISSIVE")
    assert kept == [("ü\0",), (None,)]
    assert columns(place.url, "key", valueFormat="utf8") == [("a",), ("c",)], "values are not read"
    refused("INVALID_SCHEMA", place.url, [("value", BINARY)], valueFormat="utf8")


# --- schemas ---


def test_changes_and_histories_are_decoded_too(store, place):
    store.save("a", b'{"x": 1}')
    store.save("a", b'{"x": 2}')
    store.remove("a")
    feed = {"readChangeFeed": True, "startingVersion": 1, "valueFormat": "json"}
    schema = [("_change_type", TEXT), ("x", LONG)]
    insert, update = ("insert", 1), ("update_postimage", 2)
    assert read(place.url, schema, **feed) == [insert, update, ("delete", None)]
    assert read(place.url, schema, **feed, preimages=True) == [
        insert, ("update_preimage", 1), update, ("delete", 2),
    ]  # fmt: skip
    history = read(
        place.url, [("x", LONG), ("_version_to", LONG)], view="history", valueFormat="json"
    )
    assert [x for x, _ in history] == [1, 2]


def test_not_null_is_believed_and_checked(store, place):
    store.commit(puts={"a": b'{"x": 1}', "b": b'{"x": 2}'})
    never = [("key", TEXT, False), ("x", LONG, False), ("mod_version", LONG, False)]
    options = {"valueFormat": "json"}
    assert [row[:2] for row in read(place.url, never, **options)] == [("a", 1), ("b", 2)]
    for value, mode in ((b"{}", "FAILFAST"), (b'{"x": null}', "FAILFAST"), (b"{", "PERMISSIVE")):
        store.save("b", value)
        message = refused("INVALID_SCHEMA", place.url, never, **options, mode=mode)
        assert "x is NOT NULL" in message
    removed = {"readChangeFeed": True, "startingVersion": 1}
    store.remove("b")
    for schema in ([("value", BINARY, False)], [("key", TEXT), ("value", BINARY, False)]):
        assert "value is NOT NULL" in refused("INVALID_SCHEMA", place.url, schema, **removed)


TWICE = T.StructType([T.StructField("n", LONG), T.StructField("n", LONG)])
BY_SPARK = {"VARIANT": T.VariantType()}
if hasattr(T, "GeometryType"):
    BY_SPARK |= {"GEOMETRY(4326)": T.GeometryType(4326), "GEOGRAPHY(4326)": T.GeographyType(4326)}


@pytest.mark.parametrize("name", BY_SPARK)
def test_types_whose_bytes_only_spark_makes(store, place, name):
    """Arrow has them as a STRUCT, which values must not be taken for."""
    store.save("a", b'{"x": {"value": "AAAA", "metadata": "AAAA", "srid": 1, "wkb": "AAAA"}}')
    kind = BY_SPARK[name]
    nested = [T.StructType([T.StructField("in", kind)]), T.ArrayType(kind), T.MapType(TEXT, kind)]
    for each in (kind, *nested):
        message = refused("INVALID_SCHEMA", place.url, [("x", each)], valueFormat="json")
        assert f"not decoded into {name}" in message


def test_schemas_that_cannot_be_filled(store, place):
    store.save("a", b"{}")
    wrong = [
        ([("key", BINARY)], {}),
        ([("key", LONG)], {"valueFormat": "json"}),
        ([("key", TEXT)], {"keyFormat": "binary"}),
        ([("value", TEXT)], {}),
        ([("mod_version", T.IntegerType())], {"valueFormat": "json"}),
        ([("x", LONG)], {}),
        ([("x", LONG)], {"valueFormat": "utf8"}),
        ([("x", LONG)], {"view": "commits"}),
        ([("version", LONG), ("mod_version", LONG)], {"view": "commits"}),
        ([("x", T.NullType())], {"valueFormat": "json"}),
        ([("x", T.DayTimeIntervalType())], {"valueFormat": "json"}),
        ([("x", T.YearMonthIntervalType())], {"valueFormat": "json"}),
        ([("x", T.ArrayType(T.CalendarIntervalType()))], {"valueFormat": "msgpack"}),
        ([("x", LONG), ("x", LONG)], {"valueFormat": "json"}),
        ([("key", TEXT), ("key", TEXT)], {}),
        ([("key", TEXT), ("KEY", TEXT)], {"valueFormat": "json"}),
        ([("x", T.ArrayType(TWICE))], {"valueFormat": "json"}),
        ([("key", TEXT)], {"columns": "value"}),
    ]
    for schema, options in wrong:
        refused("INVALID_SCHEMA", place.url, schema, **options)
    message = refused("INVALID_SCHEMA", place.url, [("key", LONG)])
    assert "this view has no column key BIGINT; its columns are: key STRING, value BIN" in message
    store.remove("a")
    refused("INVALID_SCHEMA", place.url, [("x", T.NullType())], valueFormat="json")
    for format_ in ("json", "msgpack"):
        message = refused("MISSING_OPTION", place.url, valueFormat=format_)
        assert ".schema(" in message
        assert columns(place.url, "key", valueFormat=format_) == []
    refused("INVALID_OPTION", place.url, valueFormat="yaml")
    refused("INVALID_OPTION", place.url, view="commits", valueFormat="json")
