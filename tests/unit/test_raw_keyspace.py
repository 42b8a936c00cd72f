"""Keys as they stand in the engine, below an observed prefix."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from snapkv.engine.contract import in_range
from snapkv.errors import InvalidKeyError, InvalidTypeError
from snapkv.layout import RawKeyspace, Selection, selection_of

TEXT, BYTES = RawKeyspace(b"/r/", text=True), RawKeyspace(b"/r/", text=False)


@given(st.binary())
def test_any_bytes_can_be_shown_and_asked_for(tail):
    stored = b"/r/" + tail
    assert TEXT.encode(TEXT.decode(stored)) == stored
    assert BYTES.encode(BYTES.decode(stored)) == stored == BYTES.decode(stored)


def test_text_is_the_utf_8_of_a_key():
    assert TEXT.decode("/r/é".encode()) == "/r/é"
    assert TEXT.decode(b"/r/\xff\xc3") == "/r/\udcff\udcc3"


@pytest.mark.parametrize("key", ["", "/r", "r/", "/s/a", "/R/a"])
def test_keys_outside_are_refused(key):
    for keys, given_key in ((TEXT, key), (BYTES, key.encode())):
        with pytest.raises(InvalidKeyError) as caught:
            keys.encode(given_key)
        assert caught.value.key == given_key
        with pytest.raises(InvalidKeyError):
            keys.range_of(given_key)


def test_what_stands_for_no_bytes_is_refused():
    with pytest.raises(InvalidKeyError, match="cannot be encoded as bytes"):
        TEXT.encode("/r/\ud800")


@pytest.mark.parametrize("wrong", [None, 5, ["/r/a"], bytearray(b"/r/a")])
def test_other_types_are_refused(wrong):
    for keys in (TEXT, BYTES):
        for use in (keys.encode, keys.range_of):
            with pytest.raises(InvalidTypeError):
                use(wrong)
    with pytest.raises(InvalidTypeError, match="key must be a str, not bytes"):
        TEXT.encode(b"/r/a")
    with pytest.raises(InvalidTypeError, match="prefix must be bytes, not str"):
        BYTES.range_of("/r/a")


def test_ranges_are_exact_to_the_byte():
    assert TEXT.range_of("/r/a") == (b"/r/a", b"/r/b")
    assert TEXT.range_of("/r/") == BYTES.range_of(BYTES.default_prefix) == (b"/r/", b"/r0")
    assert BYTES.range_of(b"/r/\xff") == (b"/r/\xff", b"/r0")


def test_the_empty_prefix_is_everything():
    for keys, empty in ((RawKeyspace(b"", text=True), ""), (RawKeyspace(b"", text=False), b"")):
        assert keys.default_prefix == empty
        assert keys.range_of(empty) == (b"\0", b"\0"), "from the smallest key there is, to the end"
        with pytest.raises(InvalidKeyError):
            keys.encode(empty)


def test_spaces_of_the_same_bytes_are_not_the_same_keys():
    assert RawKeyspace(b"/r/", text=True) == TEXT != BYTES
    assert RawKeyspace(b"/s/", text=True) != TEXT


# --- several prefixes and exceptions ---

PIECES = st.lists(st.sampled_from([b"", b"a", b"a/", b"ab", b"b", b"\x00", b"\xff"]), max_size=3)
SHORT = PIECES.map(b"".join)


@given(
    st.lists(SHORT, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 3), SHORT)), SHORT
)
def test_ranges_have_exactly_the_selected_keys(prefixes, below, key):
    exclude = [prefixes[at % len(prefixes)] + tail for at, tail in below]
    assume(not any(prefix.startswith(each) for each in exclude for prefix in prefixes))
    selection, text = selection_of(prefixes, exclude, "prefix")
    assert not text
    selected = key.startswith(tuple(prefixes)) and not key.startswith(tuple(exclude))
    assert selection.has(key) == selected
    ranges = selection.ranges()
    assert ranges == sorted(ranges)
    if key:
        assert sum(in_range(key, *each) for each in ranges) == selected
    assert key.startswith(selection.hull) or not selected
    if selected:
        assert all(selection.has_some(key[:length]) for length in range(len(key) + 1))


def test_prefixes_within_others_say_nothing_more():
    selection, text = selection_of(["/b/", "/a/", "/a/x", "/a/"], ["/a/y", "/a/yz"], "prefix")
    assert (selection, text) == (Selection((b"/a/", b"/b/"), (b"/a/y",)), True)
    assert not selection.is_one
    assert selection_of({"/a/", "/a/x"}, (), "prefix")[0].is_one
