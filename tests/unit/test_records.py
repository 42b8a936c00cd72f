"""The bytes on record: every key and value layout against a vector written out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.errors import (
    CorruptStoreError,
    FormatError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
)
from snapkv.layout import (
    FORMAT,
    FormatRecord,
    Layout,
    StampRecord,
    be64,
    pack_meta,
    prefix_end,
    space_name,
    stamp_of,
    unpack_meta,
)
from snapkv.model import Meta

NONCE = bytes.fromhex("000102030405060708090a0b0c0d0e0f")
NONCE_HEX = "c410 000102030405060708090a0b0c0d0e0f"

EACH = {"a": None, "b": True, "c": 0.5, "d": -1, "e": "\u00e9"}

STAMPS = {
    "commit": (
        StampRecord(0x0102030405060708, NONCE, "ann"),
        f"0102030405060708 82 a16e {NONCE_HEX} a177 a3616e6e",
    ),
    "commit with a note": (
        StampRecord(1, NONCE, "ann", "why"),
        f"0000000000000001 83 a16e {NONCE_HEX} a177 a3616e6e a16d a3776879",
    ),
    "empty note": (
        StampRecord(1, NONCE, "ann", ""),
        f"0000000000000001 83 a16e {NONCE_HEX} a177 a3616e6e a16d a0",
    ),
    "creation": (
        StampRecord(0, NONCE, "\u00e9", "created"),
        f"0000000000000000 83 a16e {NONCE_HEX} a177 a2c3a9 a16d a763726561746564",
    ),
    "fence": (
        StampRecord(0xFFFFFFFFFFFFFFFF, b"", "ann", fence_of=NONCE),
        f"ffffffffffffffff 83 a16e c400 a177 a3616e6e a166 {NONCE_HEX}",
    ),
    "commit with a meta": (
        StampRecord(1, NONCE, "ann", meta=Meta({"b": 4, "a": "r"})),
        f"0000000000000001 83 a16e {NONCE_HEX} a177 a3616e6e a164 82 a161 a172 a162 04",
    ),
    "meta of all types": (
        StampRecord(1, NONCE, "ann", "", meta=Meta(EACH)),
        f"0000000000000001 84 a16e {NONCE_HEX} a177 a3616e6e a16d a0 a164 85 a161 c0 a162 c3 "
        "a163 cb3fe0000000000000 a164 ff a165 a2c3a9",
    ),
    "ahead of the clock": (
        StampRecord(1 << 40, NONCE, "ann", ahead=1 << 20),
        f"0000010000000000 83 a16e {NONCE_HEX} a177 a3616e6e a161 ce00100000",
    ),
    "recorded in parts": (
        StampRecord(1, NONCE, "", source=(57, 9), began=300),
        f"0000000000000001 84 a16e {NONCE_HEX} a177 a0 a173 92 39 09 a162 cd012c",
    ),
}


@pytest.mark.parametrize("record", STAMPS)
def test_value_of_the_timestamp_key(record):
    stamp, vector = STAMPS[record]
    assert stamp.encode() == bytes.fromhex(vector)
    assert StampRecord.decode(bytes.fromhex(vector)) == stamp
    assert stamp_of(bytes.fromhex(vector)) == stamp.timestamp


def test_be64_is_what_the_guard_compares():
    assert be64(450) == bytes.fromhex("00000000000001c2")
    assert be64(1 << 63) == bytes.fromhex("8000000000000000")
    assert be64(255) < be64(256) < be64(1 << 63) < be64((1 << 64) - 1)
    # the record sorts with its timestamp, whatever follows
    assert be64(5) < StampRecord(5, NONCE, "ann").encode() < be64(6)


def test_unknown_fields_of_a_later_writer_are_passed_over():
    value = bytes.fromhex(f"0000000000000001 83 a16e {NONCE_HEX} a177 a3616e6e a178 c3")
    assert StampRecord.decode(value) == StampRecord(1, NONCE, "ann")


@pytest.mark.parametrize(
    "vector",
    [
        "",
        "00000000000001",  # seven bytes
        "0000000000000001",  # no map
        "0000000000000001 80",  # an empty map
        "0000000000000001 81 a16e c400",  # no writer
        "0000000000000001 92 01 02",  # a list
        "0000000000000001 05",  # a number
        "0000000000000001 c1",  # never used in msgpack
        "0000000000000001 82 a16e c410 00",  # cut off
        "0000000000000001 82 a16e c400 a177 a1ff",  # no UTF-8
        "0000000000000001 82 a16e c400 a177 a161 00",  # something behind it
        "0000000000000001 83 a16e c400 a177 a161 a164 c0",  # a meta that is no map
        "0000000000000001 83 a16e c400 a177 a161 a164 91 01",  # a list
        "0000000000000001 83 a16e c400 a177 a161 a164 81 c401 61 01",  # bytes for a name
        "0000000000000001 83 a16e c400 a177 a161 a164 81 a161 c400",  # bytes for a value
        "0000000000000001 83 a16e c400 a177 a161 a164 81 a161 80",  # a map in it
    ],
)
def test_a_damaged_timestamp_value(vector):
    with pytest.raises(CorruptStoreError):
        StampRecord.decode(bytes.fromhex(vector))


def test_stamp_of_too_few_bytes():
    with pytest.raises(CorruptStoreError):
        stamp_of(b"1234567")


def test_value_of_the_format_key():
    vector = bytes.fromhex(f"82 a6666f726d6174 01 a26964 {NONCE_HEX}")
    assert FORMAT == 1
    assert FormatRecord(NONCE).encode() == vector
    assert FormatRecord.decode(vector) == FormatRecord(NONCE, 1)


@pytest.mark.parametrize(
    ("number", "found"), [("02", 2), ("00", 0), ("cd0400", 1024), ("a132", "2")]
)
def test_another_format_is_told(number, found):
    with pytest.raises(FormatError) as caught:
        FormatRecord.decode(bytes.fromhex(f"82 a6666f726d6174 {number} a26964 {NONCE_HEX}"))
    assert (caught.value.found, caught.value.supported) == (found, 1)


@pytest.mark.parametrize("vector", ["", "80", "81 a6666f726d6174 01", "c1", "82", "01", "92 01 02"])
def test_a_damaged_format_value(vector):
    with pytest.raises(CorruptStoreError):
        FormatRecord.decode(bytes.fromhex(vector))


def test_keys_of_a_store():
    layout = Layout("default")
    assert layout.root == bytes.fromhex("64656661756c742f")
    assert layout.ts == bytes.fromhex("64656661756c742f 7379732f7473")
    assert layout.format == bytes.fromhex("64656661756c742f 7379732f666f726d6174")
    assert layout.data.prefix == bytes.fromhex("64656661756c742f 646174612f")
    assert layout.spaces == bytes.fromhex("64656661756c742f 73706163652f")
    assert layout.data.encode("k/\u00e9") == bytes.fromhex("64656661756c742f 646174612f 6b2fc3a9")


SPACES = {
    "plain": ("abc", "616263"),
    "slash": ("a/b", "61 253246 62"),
    "percent": ("a%b", "61 253235 62"),
    "an escape by itself": ("%2F", "253235 3246"),
    "both": ("%/", "253235 253246"),
    "two bytes": ("\u00e9", "c3a9"),
}


@pytest.mark.parametrize("which", SPACES)
def test_keys_of_a_space(which):
    name, escaped = SPACES[which]
    space = Layout("m").space(name)
    assert space.prefix == bytes.fromhex(f"6d2f 73706163652f {escaped} 2f")
    assert space.encode(b"\xff\x00/") == space.prefix + b"\xff\x00/"
    assert space.decode(space.prefix + b"\xff\x00/") == b"\xff\x00/"
    assert space_name(bytes.fromhex(f"{escaped} 2f ff002f")) == name


@given(st.lists(st.text("ab/%2F5", min_size=1, max_size=6), min_size=2, max_size=2, unique=True))
def test_spaces_never_overlap(names):
    a, b = (Layout("m").space(name).prefix for name in names)
    assert not a.startswith(b)
    assert not b.startswith(a)
    for name in names:
        prefix = Layout("m").space(name).prefix
        assert space_name(prefix.removeprefix(Layout("m").spaces) + b"k/%2F") == name


def test_text_keys_and_byte_keys_are_told_apart():
    data, space = Layout("m").data, Layout("m").space("s")
    for wrong in (b"k", 5, None, True, ("a",)):
        with pytest.raises(InvalidTypeError):
            data.encode(wrong)
    for wrong in ("k", 5, None, bytearray(b"k"), memoryview(b"k")):
        with pytest.raises(InvalidTypeError):
            space.encode(wrong)
    for keyspace, empty in ((data, ""), (space, b"")):
        with pytest.raises(InvalidKeyError):
            keyspace.encode(empty)
    with pytest.raises(InvalidKeyError) as caught:
        data.encode("a\ud800")
    assert caught.value.key == "a\ud800"
    assert data.range_of("") == (data.prefix, prefix_end(data.prefix))
    assert space.range_of(b"") == (space.prefix, prefix_end(space.prefix))


@pytest.mark.parametrize(
    "name", ["a", "/a", "a/b/c", "\u00e9", "DATA", "data2", "x" * 128, "a b", "."]
)
def test_names_of_stores(name):
    assert Layout(name).root == name.encode() + b"/"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", InvalidOptionError),
        ("/", InvalidOptionError),
        ("a/", InvalidOptionError),
        ("//a", InvalidOptionError),
        ("a//b", InvalidOptionError),
        ("data", InvalidOptionError),
        ("a/space", InvalidOptionError),
        ("live/a", InvalidOptionError),
        ("/sys", InvalidOptionError),
        ("a\0b", InvalidOptionError),
        ("x" * 129, InvalidOptionError),
        ("\u00e9" * 65, InvalidOptionError),
        ("\ud800", InvalidKeyError),
        (b"a", InvalidTypeError),
        (None, InvalidTypeError),
        (5, InvalidTypeError),
    ],
)
def test_what_is_no_name_of_a_store(name, error):
    with pytest.raises(error):
        Layout(name)


def test_prefix_end_by_hand():
    assert prefix_end(b"a/") == b"a0"
    assert prefix_end(b"a\xff\xff") == b"b"
    assert prefix_end(b"\xff\xff") == b"\0"
    assert prefix_end(b"") == b"\0"
    assert prefix_end(b"\xfe\xff") == b"\xff"


@given(st.binary(max_size=4), st.binary(max_size=6))
def test_prefix_end_bounds_exactly_what_starts_with_it(prefix, key):
    end = prefix_end(prefix)
    inside = key >= prefix and (end == b"\0" or key < end)
    assert inside == key.startswith(prefix)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


@given(st.dictionaries(st.text(min_size=1), SCALARS))
def test_a_meta_and_back(facts):
    meta = unpack_meta(pack_meta(facts))
    assert [(k, type(v), repr(v)) for k, v in meta.items()] == [
        (k, type(v), repr(v)) for k, v in sorted(facts.items())
    ]
    assert pack_meta(dict(reversed(facts.items()))) == pack_meta(facts) == pack_meta(meta)
    stamp = StampRecord(5, NONCE, "ann", meta=meta)
    assert StampRecord.decode(stamp.encode()) == stamp
