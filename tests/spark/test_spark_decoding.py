"""Decoding of any value into any type: a value or an error with a code, and nothing else."""

import json
from datetime import UTC

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.spark.errors import SourceError
from snapkv.spark.value_formats import ValueDecoder

pytestmark = pytest.mark.slow

ARROW = [pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(5, 2)]
ARROW += [pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")]
TYPES = st.recursive(
    st.sampled_from(ARROW),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(st.sampled_from(ARROW), inner).map(lambda two: pa.map_(*two)),
        st.dictionaries(st.sampled_from("ab"), inner).map(lambda them: pa.struct([*them.items()])),
        inner.map(lambda kind: pa.list_(pa.field("item", kind, nullable=False))),
    ),
    max_leaves=4,
)
SCALARS = st.one_of(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    st.sampled_from(["\ud800", "AAAA", "1E+999", "2026-01-01", "9999-12-31T23:59:59-14:00", 1e18]),
    st.datetimes().map(str) | st.decimals(allow_nan=False).map(str),
)
OF_JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab\ud800"), inner)
)
OF_MSGPACK = st.recursive(
    SCALARS | st.binary(max_size=5) | st.datetimes(timezones=st.just(UTC)),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["a", b"a", 1, None]), inner),
)
RAW = st.one_of(
    OF_JSON.map(lambda value: ("json", json.dumps({"a": value}).encode())),
    OF_MSGPACK.map(lambda value: ("msgpack", packed_at_all({"a": value}))),
    st.sampled_from(["-0", "9" * 5_000]).map(lambda text: ("json", f'{{"a":{text}}}'.encode())),
    st.tuples(st.sampled_from(["json", "msgpack"]), st.binary(max_size=9)),
)


def packed_at_all(value) -> bytes:
    try:
        return msgpack.packb(value, datetime=True, unicode_errors="surrogatepass")
    except OverflowError:
        return b""


@given(kind=TYPES, raw=RAW, name=st.sampled_from(["a", "value"]))
def test_any_value_in_any_type(kind, raw, name):
    """It fits, or it is said to be malformed: nothing else is raised, and all is what it claims."""
    format_, value = raw
    field = pa.field(name, kind)
    found = {"key": pa.array(["k", "gone"]), "value": pa.array([value, None], pa.binary())}
    column = ValueDecoder([field], format_, permissive=True).columns(found)[name]
    assert (column.type, len(column), column[1].as_py()) == (kind, 2, None)
    column.validate(full=True)
    message, strict = "", column
    try:
        strict = ValueDecoder([field], format_, permissive=False).columns(found)[name]
    except SourceError as e:
        message = str(e)
    assert str(strict) == str(column)
    assert message == "" or message.startswith("[SNAPKV_VALUE_MALFORMED] the value of key 'k' ")
    assert len(message) < 700
