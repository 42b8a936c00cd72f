"""Keys and values of every kind arrive as they are."""

import json

import pytest

from cdcmeta.errors import SinkError
from cdcmeta.scheduler.executors.couch_sink import id_of, key_of, members_of

from .mirror import T1, commit, commit_of

KEYS = [
    *("", "_", "_x", "_design/x", "_design/x/y", "_local/x", "__", "~", "~x", "~_x", "~~"),
    *("/", "a/b", "a//b", "/a", "a/", ".", "..", "a b", "a+b", "a%2Fb", "%", "?", "#", "a&b=c"),
    *("ä", "日本", "\U0001f600", "e\u0301", "\u00e9", "\u2028", '"', "\\", "\t", "\x7f", "a:b"),
]
TEXTS = [
    *(b"", b" ", b"text", b"1", b"1.0", b"true", b"null", b'"text"', b"{", b"[1,", b"{} x"),
    *("ä 日本 \U0001f600 \u2028".encode(), b"\x00\x01", b"\\u0000", b"line\nline\r\n\t"),
    *(b'{"a": NaN}', b"[Infinity]", b"[1e999]", b'{"a": 1, "a": 2}', b'["\\ud800"]'),
    *(b"[" * 91 + b"]" * 91, b"[" * 5_000 + b"]" * 5_000, b"[%s]" % (b"1" * 5_000)),
]
JSON = [
    *(b"{}", b"[]", b'{"a": 1}', b" [1, 2.5, true, null] ", b'{"a": {"b": [{"c": "d"}]}}'),
    *(b'{"_id": "mine", "_rev": 1, "_deleted": true}', b'["\\ud83d\\ude00"]', b"[1e2, -0]"),
    *(b"[12345678901234567890123]", b"[" * 90 + b"]" * 90, '{"ä": "ö"}'.encode(), b'{"": 1}'),
]
BYTES = [b"\xff", b"\x80abc", b"{\xff}", bytes(range(256))]


@pytest.fixture
def writer(mirror):
    writer = mirror.writer(T1, table="all keys")
    writer.begin(1)
    return writer


def test_keys_of_every_kind(mirror, writer):
    writer.write([commit_of(5, dict.fromkeys(KEYS, b"1"))], 5)
    assert mirror.content() == dict.fromkeys(KEYS, b"1")
    writer.write([commit_of(6, {key: None if key < "a" else b"2" for key in KEYS})], 6)
    assert mirror.content() == {key: b"2" for key in KEYS if key >= "a"}
    writer.write([commit_of(7, dict.fromkeys(KEYS, b"3"))], 7)
    assert mirror.content() == dict.fromkeys(KEYS, b"3")


def test_ids_are_valid_distinct_and_reversible():
    ids = [id_of(key) for key in KEYS]
    assert [key_of(id) for id in ids] == KEYS
    assert len(set(ids)) == len(KEYS)
    assert all(id and not id.startswith("_") for id in ids)


@pytest.mark.parametrize("value", TEXTS, ids=lambda value: repr(value[:12]))
def test_what_is_not_a_json_object_or_array_is_a_text(value):
    assert members_of(value) == {"value": value.decode()}


@pytest.mark.parametrize("value", JSON, ids=lambda value: repr(value[:12]))
def test_a_json_object_or_array_is_one(value):
    assert members_of(value) == {"value": json.loads(value)}


def test_values_of_every_kind(mirror, writer):
    values = {f"k{n:03}": value for n, value in enumerate([*TEXTS, *JSON, *BYTES])}
    writer.write([commit_of(5, values)], 5)
    docs = mirror.docs()
    assert docs.keys() == values.keys()
    for key, value in values.items():
        found = {name: docs[key][name] for name in ("value", "value_base64") if name in docs[key]}
        assert found == members_of(value), key
    content = mirror.content()
    assert all(content[key] == value for key, value in values.items() if value in TEXTS + BYTES)


@pytest.mark.parametrize("byte", [b"x", b"\xff", b"\x00"])
def test_a_value_of_a_megabyte(mirror, writer, byte):
    value = byte * 1_000_000
    writer.write([commit(5, a=b"1"), commit(6, a=value, b=b"1")], 6)
    assert mirror.content() == {"t/a": value, "t/b": b"1"}
    writer.write([commit(7, a=None)], 7)
    assert mirror.content() == {"t/b": b"1"}


@pytest.mark.slow
def test_large_values_are_sent_in_several_requests(mirror, between):
    writer = mirror.writer(T1, port=between.port)
    writer.begin(1)
    values = {f"k{n}": b"%d" % n * 1_000_000 for n in range(9)}
    writer.write([commit(5, **values)], 5)
    assert sum("_bulk_docs" in line for line in between.requests) == 3
    assert mirror.content() == {f"t/{key}": value for key, value in values.items()}


def test_a_key_that_the_server_rejects_is_named(mirror, writer):
    key = "long" * 100
    with pytest.raises(SinkError, match=r"rejects the document 'longlong.*change the key"):
        writer.write([commit_of(5, {key: b"1"})], 5)
    assert mirror.record()[0] == 1
