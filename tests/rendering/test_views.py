"""Views of a difference: hunks, columns, words, bounds."""

import json

import pytest

from snapkv.base.text import width_of
from snapkv.errors import InvalidOptionError
from snapkv.rendering import Part, decode, plain
from snapkv.rendering.text_lines import COUNTED_MAX, LINE_CHARS_MAX
from snapkv.rendering.value_difference import PATH_CHARS_MAX, VALUE_CHARS_MAX
from tests.rendering.shown import difference, text_of

POEM = "".join(f"line {n}\n" for n in range(1, 31))
CHANGED = POEM.replace("line 4\n", "").replace("line 20\n", "line twenty\nand more\n")


def test_hunks_are_those_of_diff_u() -> None:
    shown = text_of(difference(POEM.encode(), CHANGED.encode()), "unified", context=2)
    assert shown == [
        "@@ -2,5 +2,4 @@",
        "  line 2",
        "  line 3",
        "- line 4",
        "  line 5",
        "  line 6",
        "@@ -18,5 +17,6 @@",
        "  line 18",
        "  line 19",
        "- line 20",
        "+ line twenty",
        "+ and more",
        "  line 21",
        "  line 22",
    ]


def test_hunks_whose_context_meets_are_one() -> None:
    near = POEM.replace("line 4\n", "four\n").replace("line 9\n", "nine\n")
    found = difference(POEM.encode(), near.encode())
    titles = [line for line in text_of(found, context=1) if line.startswith("@@")]
    assert titles == ["@@ -3,3 +3,3 @@", "@@ -8,3 +8,3 @@"]
    titles = [line for line in text_of(found, context=2) if line.startswith("@@")]
    assert titles == ["@@ -2,10 +2,10 @@"]


def test_full_shows_all_lines_without_titles() -> None:
    shown = text_of(difference(POEM.encode(), CHANGED.encode()), "full")
    assert len(shown) == 32
    assert shown[:4] == ["  line 1", "  line 2", "  line 3", "- line 4"]


def test_side_by_side_keeps_its_columns() -> None:
    before = "same\nold 日本語日本語日本語\ngone\n"
    after = "same\nnew 日本語日本語日本語\n"
    found = difference(before.encode(), after.encode())
    shown = text_of(found, "side-by-side", width=33)
    assert shown == [
        "@@ -1,3 +1,2 @@",
        "same              same",
        "old 日本語日本  ~ new 日本語日本",
        "語日本語        ~ 語日本語",
        "gone            - ",
    ]
    assert {width_of(line.partition(" ~ ")[0]) for line in shown[2:4]} == {15}


def test_side_by_side_marks_the_words() -> None:
    (_, line) = difference(b"image: nginx:1.25", b"image: nginx:1.26").lines(
        "side-by-side", width=60
    )
    assert Part("25", "word-removed") in line
    assert Part("26", "word-added") in line
    assert Part("image: nginx:1.", "removed") in line


def test_words_are_marked_inside_the_line() -> None:
    before = "the quick fox\njumps\nover\n"
    after = "the slow fox\njumps high\nover\n"
    found = difference(before.encode(), after.encode())
    assert text_of(found, "words", context=1) == [
        "@@ -1,3 +1,3 @@",
        "~ the [-quick-]{+slow+} fox",
        "~ jumps{+ high+}",
        "  over",
    ]


def test_words_of_lines_that_join_show_the_end_of_the_line() -> None:
    found = difference(b"a\nb\nc\n", b"a b\nc\n")
    assert text_of(found, "words", context=0) == ["@@ -1,2 +1 @@", "~ a[-\\n-]{+ +}b"]


def test_bytes_of_other_lengths_are_one_piece() -> None:
    found = difference(b"\xff" * 4 + b"abc" + b"\xfe", b"\xff" * 4 + b"xy" + b"\xfe")
    assert text_of(found)[0] == "@@ byte 4: 3 bytes -> 2 bytes @@"


def test_lines_left_out_are_counted() -> None:
    found = difference(b"", b"x\n" * 50)
    shown = text_of(found, lines_max=10)
    assert (len(shown), shown[-1]) == (11, "... 41 more lines")
    many = difference(b"", b"x\n" * (COUNTED_MAX + 50))
    assert text_of(many, lines_max=10)[-1] == f"... at least {COUNTED_MAX:,} more lines"


def test_a_long_line_shows_where_it_differs() -> None:
    before, after = b"x" * 50_000 + b"old" + b"y" * 50_000, b"x" * 50_000 + b"new" + b"y" * 50_000
    for view in ("unified", "full", "side-by-side", "words"):
        shown = text_of(difference(before, after), view, width=3 * LINE_CHARS_MAX)
        assert any("xxold" in line for line in shown)
        assert any("xxnew" in line for line in shown)
        assert max(map(len, shown)) < 3 * LINE_CHARS_MAX


def test_long_values_and_paths_of_trees_are_shortened() -> None:
    key, text = "k" * 5_000, "x" * 5_000
    before, after = ({key: [text + end, {"a": text}]} for end in ("old", "new"))
    after[key][1] = {"a": text, "b": text}
    shown = text_of(difference(json.dumps(before).encode(), json.dumps(after).encode()))
    assert len(shown) == 2
    assert max(map(len, shown)) < PATH_CHARS_MAX + 2 * VALUE_CHARS_MAX + 40
    assert 'old" -> ' in shown[0]
    assert 'new"' in shown[0]


def test_one_line_is_brief() -> None:
    found = difference(b'{"a": 1, "b": "x\\ny", "c": 0}', b'{"a": 2, "b": "x\\nz", "c": 0}')
    assert plain(found.brief()) == "~ a: 1 -> 2 (and 1 more)"
    found = difference(b'{"b": "x\\ny"}', b'{"b": "x\\nz"}')
    assert plain(found.brief()) == '~ b: "x\\ny" -> "x\\nz"'
    assert plain(difference(b"v1", b"v2").brief()) == '"v1" -> "v2"'
    assert plain(difference(None, b"v2").brief()) == '"v2"'
    assert plain(difference(b'{"a":1}', b'{"a": 1}').brief()) == "same data, other formatting"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "html"}, "view 'html' is unknown; use one of auto, paths"),
        ({"width": 5}, "width must be an integer of at least 20"),
        ({"context": -1}, "context must be"),
        ({"lines_max": 0}, "lines_max must be"),
    ],
)
def test_options_out_of_range_are_errors(options: dict, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        difference(b"a", b"b").lines(**options)


def test_what_attacks_a_terminal_is_visible() -> None:
    value = "a\u202eb\u200bc\x1b]0;t\x07\u2066\ufeff\u3164\u034f\ufe0f\x85\u2028é日\n"
    (line,) = decode(value.encode(), "text").lines()
    assert plain(line) == (
        "a\\u202eb\\u200bc\\u001b]0;t\\u0007\\u2066\\ufeff\\u3164\\u034f\\ufe0f\\u0085\\u2028é日"
    )
