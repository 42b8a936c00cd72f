"""Quotes, escapes, widths and previews of one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.base.text import split_at_width, width_of
from snapkv.rendering import escaped, key_text, preview, quoted, shortened

POD = b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0"},"image":"nginx:1.25","n":1}'


def test_previews_show_the_place_where_values_differ() -> None:
    before, after = shortened(POD, POD.replace(b"1.25", b"1.26"), 30)
    assert before == """...'"image":"nginx:1.25","n":1}'"""
    assert after == """...'"image":"nginx:1.26","n":1}'"""


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (b"v1", b"v2", ('"v1"', '"v2"')),
        (b"", b"a", ('""', '"a"')),
        (b"a" * 100, b"a" * 101, ('..."aaaaaaaaa"', '..."aaaaaaaaaa"')),
        (b"\xff\x01", b"\xff\x02", ("0xff01", "0xff02")),
        (b"v1", b"\xff", ('"v1"', "0xff")),
        (b"a\xff", b"ab", ("0x61ff", "0x6162")),
        (b"k8s\0" + b"a" * 50 + b"\x01", b"k8s\0" + b"a" * 50 + b"\x02", ("...0x6161616101",) * 1),
    ],
)
def test_previews_of_pairs(before: bytes, after: bytes, shown: tuple[str, ...]) -> None:
    assert shortened(before, after, 10)[: len(shown)] == shown


def test_the_size_of_a_long_value_is_said() -> None:
    assert preview(b"a" * 100, 5) == '"aaaaa"... (100 bytes)'


@given(st.text())
def test_quoted_text_can_be_read_back(text: str) -> None:
    shown = quoted(text)
    assert json.loads(shown) == text
    assert shown.isprintable()


@given(st.text(), st.text())
def test_two_keys_never_look_the_same(first: str, second: str) -> None:
    assert (key_text(first) == key_text(second)) == (first == second)


@given(st.text(), st.integers(1, 20))
def test_a_text_is_cut_to_its_width(text: str, width: int) -> None:
    shown = escaped(text)
    head, tail = split_at_width(shown, width)
    assert head + tail == shown
    assert width_of(head) <= width
    assert not tail or width_of(head) >= width - 1


@pytest.mark.parametrize("char", ["\u202e", "\u2066", "\u200b", "\u00ad", "\ufeff", "\x00", "\x85"])
def test_what_cannot_be_seen_is_escaped(char: str) -> None:
    assert escaped(f"a{char}b") == f"a\\u{ord(char):04x}b"
    assert key_text(f"a{char}") == f'"a\\u{ord(char):04x}"'
