"""Differences that people read."""

import json

import msgpack
import pytest

from snapkv.errors import InvalidOptionError
from snapkv.rendering import Decoded, compare, decode, plain
from tests.rendering.shown import difference, text_of


def pod(image: str, **metadata: object) -> bytes:
    spec = {"containers": [{"name": "web", "image": image}]}
    return json.dumps({"kind": "Pod", "metadata": metadata, "spec": spec}).encode()


def test_a_changed_image_is_one_line() -> None:
    changed = difference(pod("nginx:1.25"), pod("nginx:1.26"))
    assert text_of(changed) == ["~ spec.containers[0].image: nginx:1.25 -> nginx:1.26"]
    assert str(changed.stat) == "+0 -0 ~1 paths"


def test_a_container_that_comes_first_is_one_added_item() -> None:
    before = json.loads(pod("nginx:1.25"))
    after = json.loads(pod("nginx:1.26"))
    after["spec"]["containers"].insert(0, {"name": "sidecar", "image": "envoy"})
    changed = difference(json.dumps(before).encode(), json.dumps(after).encode())
    assert text_of(changed) == [
        '+ spec.containers[0]: {"name": "sidecar", "image": "envoy"}',
        "~ spec.containers[1].image: nginx:1.25 -> nginx:1.26",
    ]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("[1, 2, 3]", "[0, 1, 2, 3]", ["+ [0]: 0"]),
        ("[1, 2, 3]", "[1, 3]", ["- [1]: 2"]),
        ('["a", "b"]', '["a", "c"]', ["~ [1]: b -> c"]),
        (
            '[{"name": "a"}, {"name": "b", "x": 1}]',
            '[{"name": "b", "x": 2}, {"name": "a"}]',
            ["~ [0]: moved from [1]", "~ [0].x: 1 -> 2"],
        ),
        (
            '[{"x": 1, "y": 2}, {"x": 3, "y": 4}]',
            '[{"x": 3, "y": 5}]',
            ['- [0]: {"x": 1, "y": 2}', "~ [0].y: 4 -> 5"],
        ),
        ("[1]", "[1.0]", ["~ [0]: 1 -> 1.0"]),
        ("[true]", "[1]", ["~ [0]: true -> 1"]),
        ('["1"]', "[1]", ['~ [0]: "1" -> 1']),
        ('{"a": null}', "{}", ["- a: null"]),
        ('{"a": {}}', '{"a": []}', ["~ a: {} -> []"]),
    ],
)
def test_lists_and_types(before: str, after: str, lines: list[str]) -> None:
    assert text_of(difference(before.encode(), after.encode())) == lines


def test_keys_that_look_like_paths_are_quoted() -> None:
    before = {"a.b": 1, "a[0]": 1, "*": 1, "x\n\u202e": 1, 'q"': 1, "": 1}
    after = dict.fromkeys(before, 2)
    changed = difference(json.dumps(before).encode(), json.dumps(after).encode())
    assert text_of(changed) == [
        '~ ["a.b"]: 1 -> 2',
        '~ ["a[0]"]: 1 -> 2',
        '~ ["*"]: 1 -> 2',
        '~ ["x\\n\\u202e"]: 1 -> 2',
        '~ ["q\\""]: 1 -> 2',
        '~ [""]: 1 -> 2',
    ]


def test_lines_inside_a_text_of_a_tree_are_compared() -> None:
    conf = "user www;\nworkers {};\nlog on;\n"
    before, after = ({"data": {"nginx.conf": conf.format(n)}} for n in (2, 4))
    changed = difference(json.dumps(before).encode(), json.dumps(after).encode())
    assert text_of(changed, context=0) == [
        '~ data["nginx.conf"]:',
        "    @@ -2 +2 @@",
        "    - workers 2;",
        "    + workers 4;",
    ]


def test_ignored_paths_do_not_count() -> None:
    before = pod("nginx:1.25", managedFields=[1], generation=1)
    after = pod("nginx:1.26", managedFields=[2], generation=2)
    changed = difference(before, after, ignore=["kubernetes"])
    assert text_of(changed) == [
        "(2 ignored paths differ, too)",
        "~ spec.containers[0].image: nginx:1.25 -> nginx:1.26",
    ]
    assert "managedFields" not in "".join(text_of(changed, "full"))
    same_image = pod("nginx:1.25", managedFields=[2], generation=2)
    noise = difference(before, same_image, ignore=["kubernetes"])
    assert (noise.state, bool(noise)) == ("ignored", True)
    assert text_of(noise) == ["only ignored paths differ (2)"]


def test_one_line_shows_bookkeeping_last() -> None:
    before, after = (
        pod(f"nginx:1.2{n}", resourceVersion=str(n), managedFields=[{"time": n}]) for n in (5, 6)
    )
    shown = "~ spec.containers[0].image: nginx:1.25 -> nginx:1.26 (and 2 more)"
    assert plain(difference(before, after).brief()) == shown
    before, after = (pod("nginx", resourceVersion=str(n)) for n in (5, 6))
    assert plain(difference(before, after).brief()) == '~ metadata.resourceVersion: "5" -> "6"'


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a", ["~ b[0].c: 1 -> 2", '~ ["d.e"]: 1 -> 2']),
        ("b[*].c", ["~ a: 1 -> 2", '~ ["d.e"]: 1 -> 2']),
        ("*[0]", ["~ a: 1 -> 2", '~ ["d.e"]: 1 -> 2']),
        ("b", ["~ a: 1 -> 2", '~ ["d.e"]: 1 -> 2']),
        ('["d.e"]', ["~ a: 1 -> 2", "~ b[0].c: 1 -> 2"]),
        (".a", ["~ b[0].c: 1 -> 2", '~ ["d.e"]: 1 -> 2']),
    ],
)
def test_patterns_of_ignored_paths(path: str, shown: list[str]) -> None:
    text = '{"a": %d, "b": [{"c": %d}], "d.e": %d}'
    changed = difference((text % (1, 1, 1)).encode(), (text % (2, 2, 2)).encode(), ignore=[path])
    assert text_of(changed)[1:] == shown


@pytest.mark.parametrize(
    "path",
    [
        *("", "a..b", "a[", "a[x]", "a[0]b", "a*", '["a]', "a[٣]"),
        pytest.param(f"a[{'9' * 5_000}]", id="5000-digits"),
    ],
)
def test_an_ignored_path_that_cannot_be_read_is_an_error(path: str) -> None:
    with pytest.raises(InvalidOptionError, match="ignored path"):
        compare(decode(b"a"), decode(b"b"), ignore=[path])


def test_formatting_alone_is_said() -> None:
    changed = difference(b'{"a":1,"b":2}', b'{"b": 2, "a": 1}')
    assert (changed.state, bool(changed)) == ("formatting", True)
    assert text_of(changed) == [
        "same data, other formatting",
        """- '{"a":1,"b":2}'""",
        """+ '{"b": 2, "a": 1}'""",
    ]
    assert '+ {"b": 2, "a": 1}' in text_of(changed, "unified")


def test_two_formats_with_the_same_data() -> None:
    changed = difference(b'{"a": 1, "b": [2]}', b"a: 1\nb: [2]\n")
    assert text_of(changed)[0] == "same data, other formatting (json -> yaml)"
    changed = difference(b'{"a": 1, "b": [2]}', b"a: 2\nb: [2]\n")
    assert text_of(changed) == ["kind: json -> yaml", "~ a: 1 -> 2"]


def test_text_is_a_unified_difference() -> None:
    before = "".join(f"line {n}\n" for n in range(1, 10))
    after = before.replace("line 5\n", "line five\n")
    changed = difference(before.encode(), after.encode())
    assert text_of(changed, context=1) == [
        "@@ -4,3 +4,3 @@",
        "  line 4",
        "- line 5",
        "+ line five",
        "  line 6",
    ]
    assert str(changed.stat) == "+1 -1 lines"
    assert len(text_of(changed, "full")) == 10


def test_bytes_are_shown_with_their_places() -> None:
    changed = difference(b"\0" * 20 + b"\x01abc", b"\0" * 20 + b"\x02abc")
    assert text_of(changed) == [
        "@@ byte 20: 1 byte -> 1 byte @@",
        "- 00000014  01                                               |.|",
        "+ 00000014  02                                               |.|",
    ]
    assert str(changed.stat) == "+1 -1 bytes"


def test_what_comes_and_goes_is_shown_whole() -> None:
    assert text_of(difference(None, b'{"a": 1}')) == ["@@ -0,0 +1,3 @@", "+ {", '+   "a": 1', "+ }"]
    assert text_of(difference(b"v1", None)) == ["@@ -1 +0,0 @@", "- v1"]
    assert text_of(difference(None, None)) == []


def test_a_text_that_becomes_a_tree_is_compared_by_lines() -> None:
    changed = difference(b"old", b'{"a": 1}')
    assert text_of(changed)[:3] == ["kind: text -> json", "@@ -1 +1,3 @@", "- old"]


def test_a_missing_newline_is_said() -> None:
    lines = text_of(difference(b"a\nb\n", b"a\nb"), context=0)
    assert lines == ["@@ -2 +2 @@", "- b", "+ b", "\\ no newline at the end"]


def test_a_missing_newline_of_an_added_or_removed_line_is_said() -> None:
    lines = text_of(difference(b"a\n", b"a\nb"), context=0)
    assert lines == ["@@ -1,0 +2 @@", "+ b", "\\ no newline at the end"]
    lines = text_of(difference(b"a\nb", b"a\n"), context=0)
    assert lines == ["@@ -2 +1,0 @@", "- b", "\\ no newline at the end"]


def test_a_newline_that_alone_differs_is_said_in_every_view() -> None:
    added = difference(b"a\nb", b"a\nb\n")
    said = ["@@ -2 +2 @@", "~ b", "\\ the newline at the end was added"]
    assert text_of(added, "words", context=0) == said
    removed = difference(b"a\nb c\n", b"a\nb d")
    said = ["@@ -2 +2 @@", "~ b [-c-]{+d+}", "\\ the newline at the end was removed"]
    assert text_of(removed, "words", context=0) == said
    rows = text_of(removed, "side-by-side", context=0, width=60)
    gap = " " * 25
    assert rows[1:] == [f"b c{gap} ~ b d", f"{' ' * 28}   \\ no newline at the end"]
    rows = text_of(difference(b"a\nb\\n", b"a\nb\n"), "side-by-side", context=0, width=60)
    assert rows[1:] == [f"b\\n{gap} ~ b", "\\ no newline at the end" + " " * 8]


def test_a_newline_that_both_texts_lack_does_not_count() -> None:
    """Values are often stored without one: the last line did not change when one is added."""
    assert text_of(difference(b"a\nb", b"a\nb\nc")) == ["@@ -1,2 +1,3 @@", "  a", "  b", "+ c"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("12345678901234567.89", "12345678901234567.01"),
        ("0.1", "0.1000000000000000055"),
        ("1e-400", "0.0"),
        ("1e-400", "2e-400"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("1e-99999999999999999999", "0.0"),
    ],
)
def test_numbers_differ_by_all_their_digits(before: str, after: str) -> None:
    text = '{"price": %s, "b": %d}'
    changed = difference((text % (before, 1)).encode(), (text % (after, 2)).encode())
    assert text_of(changed) == [f"~ price: {before} -> {after}", "~ b: 1 -> 2"]
    assert f'-   "price": {before},' in text_of(changed, "unified")
    assert (
        f'{{"price": {after}, "b": 2}}'
        in text_of(difference(b'{"a": []}', f'{{"a": [{text % (after, 2)}]}}'.encode()))[0]
    )


def test_digits_of_yaml_and_of_its_dump_are_kept() -> None:
    before, after = (f"price: 0.10000000000000000{n}\nb: 1\n".encode() for n in (1, 2))
    shown = "~ price: 0.100000000000000001 -> 0.100000000000000002"
    assert text_of(difference(before, after)) == [shown]
    assert "+ price: 0.100000000000000002" in text_of(
        difference(before, after, ignore=["b"]), "unified"
    )
    small = Decoded("mine", decode(b'{"a": 1e-400}').data, "tree", b"")
    assert small.text == "a: 1e-400"


@pytest.mark.parametrize(
    ("before", "after"),
    [("1.0", "1.00"), ("1e2", "100.0"), ("0.1000000000000000055", "1000000000000000055e-19")],
)
def test_one_number_in_two_spellings_is_formatting(before: str, after: str) -> None:
    changed = difference(f"[{before}]".encode(), f"[{after}]".encode())
    assert changed.state == "formatting"


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({3: 1}, {"3": 1}, ['- ["int(3)"]: 1', "+ 3: 1"]),
        ({1: 1}, {True: 1}, ['- ["int(1)"]: 1', '+ ["bool(true)"]: 1']),
        ({None: 1}, {"nil()": 1}, ['- ["nil()"]: 1', '+ ["\\"nil()\\""]: 1']),
        ({b"k": 1}, {"k": 1}, ['- ["bytes(b\\"k\\")"]: 1', "+ k: 1"]),
        (
            {"t": msgpack.Timestamp(1, 2)},
            {"t": str(msgpack.Timestamp(1, 2))},
            ['~ t: Timestamp(seconds=1, nanoseconds=2) -> "Timestamp(seconds=1, nanoseconds=2)"'],
        ),
        (
            {"e": msgpack.ExtType(5, b"\xff")},
            {"e": "ext(5) 0xff"},
            ['~ e: ext(5) 0xff -> "ext(5) 0xff"'],
        ),
        (
            {msgpack.ExtType(5, b"\xff"): 1},
            {"ext(5) 0xff": 1},
            ['- ["ext(5) 0xff"]: 1', '+ ["\\"ext(5) 0xff\\""]: 1'],
        ),
    ],
)
def test_types_of_msgpack_differ(before: object, after: object, lines: list[str]) -> None:
    changed = difference(msgpack.packb(before), msgpack.packb(after))
    assert (changed.state, text_of(changed)) == ("changed", lines)


def test_two_keys_that_differ_by_type_are_both_shown() -> None:
    shown = decode(b"\x82\xa11\x01\x01\x02").data  # "1" and 1
    assert shown == {"1": 1, "int(1)": 2}


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("caf\u00e9 \u00fc", "cafe\u0301 \u00fc", ("caf\\u00e9 \u00fc", "cafe\\u0301 \u00fc")),
        ("p\u0430y", "pay", ("p\\u0430y", "pay")),
        ("\u039f", "O", ("\\u039f", "O")),
        ("caf\u00e9", "cafe", ("caf\u00e9", "cafe")),
    ],
)
def test_texts_that_look_the_same_are_told_apart(
    before: str, after: str, shown: tuple[str, str]
) -> None:
    old, new = shown
    paths = difference(*(json.dumps({"a": each}).encode() for each in (before, after)))
    assert text_of(paths) == [f"~ a: {old} -> {new}"]
    texts = difference(before.encode(), after.encode())
    assert text_of(texts)[1:] == [f"- {old}", f"+ {new}"]
    assert text_of(texts, "side-by-side", width=60)[1].split(" ~ ") == [f"{old:<28}", new]
    assert plain(texts.brief()) == f'"{old}" -> "{new}"'
    first, second = old.split()[0], new.split()[0]
    assert text_of(texts, "words")[1].startswith(f"~ [-{first}-]{{+{second}+}}")


def test_json_after_a_byte_order_mark_is_json() -> None:
    value = b'{"a": 1}'
    changed = difference(b"\xef\xbb\xbf" + value, value)
    assert text_of(changed)[0] == "same data, other formatting"
    assert text_of(difference(b"\xef\xbb\xbf" + value, b'{"a": 2}')) == ["~ a: 1 -> 2"]
