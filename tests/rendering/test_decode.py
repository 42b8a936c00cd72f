"""What the kinds are, how they are found, and what is left as text or hex."""

import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.errors import InvalidOptionError, InvalidTypeError
from snapkv.rendering import KINDS, decode
from snapkv.rendering.value_tree import DEPTH_MAX, NODES_MAX
from snapkv.rendering.yaml_text import YAML_CHARS_MAX

YAML = b"image: nginx:1.25\nports: [80, 0644, 12:30]\non: yes\nnothing: ~\n"


@pytest.mark.parametrize(
    ("value", "kind", "data"),
    [
        (b'{"a": [1, 2.5, null, true, "x"]}', "json", {"a": [1, 2.5, None, True, "x"]}),
        (b" [ ] ", "json", []),
        (b"42", "text", "42"),
        (b'"v1"', "text", '"v1"'),
        (b"", "text", ""),
        (b"v1", "text", "v1"),
        ("größe\n".encode(), "text", "größe\n"),
        (
            YAML,
            "yaml",
            {
                "image": "nginx:1.25",
                "ports": [80, "0644", "12:30"],
                "on": "yes",
                "nothing": None,
            },
        ),
        (b"- a: 1\n- a: 2\n", "yaml", [{"a": 1}, {"a": 2}]),
        (b"8080: http\ntrue: x\n", "yaml", {"8080": "http", "true": "x"}),
        (b"a: &x [1]\nb: *x\n", "yaml", {"a": [1], "b": [1]}),
        (b"a: 1", "text", "a: 1"),
        (b"- milk\n- eggs\n", "text", "- milk\n- eggs\n"),
        (b"Hello world\nGoodbye\n", "text", "Hello world\nGoodbye\n"),
        (b"a: 1\na: 2\n", "text", "a: 1\na: 2\n"),
        (b"a: !Ref x\nb: 1\n", "text", "a: !Ref x\nb: 1\n"),
        (b"a: &x {c: 1}\nb:\n  <<: *x\n", "text", "a: &x {c: 1}\nb:\n  <<: *x\n"),
        (b"a: 1\n---\nb: 1\n", "text", "a: 1\n---\nb: 1\n"),
        (
            msgpack.packb({"a": [1, b"\xff"], 5: None}),
            "msgpack",
            {"a": [1, b"\xff"], "int(5)": None},
        ),
        (msgpack.packb([1.5, True]), "msgpack", [1.5, True]),
        (b"\x05", "hex", b"\x05"),
        (b"\x80", "hex", b"\x80"),
        (msgpack.packb({"a": 1}) + b"\x05", "hex", msgpack.packb({"a": 1}) + b"\x05"),
        (b"a\0b", "hex", b"a\0b"),
        (b"\x01\x02\x03\x04", "hex", b"\x01\x02\x03\x04"),
        (b"\xff\xfe", "hex", b"\xff\xfe"),
    ],
)
def test_kinds_are_found(value: bytes, kind: str, data: object) -> None:
    found = decode(value)
    assert (found.kind, found.data, found.value) == (kind, data, value)


LAUGHS = b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 10)
)


@pytest.mark.parametrize(
    "value",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5_000 + b"}",
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2),
        b"[" + b"1," * NODES_MAX + b"1]",
        b"{'a': 1}",
        LAUGHS,
        b"a: &a\n  b: *a\n",
        b"a: " + b"[" * 500 + b"]" * 500 + b"\nb: 1\n",
        b"a: 1\n" + b"# padding\n" * (YAML_CHARS_MAX // 10 + 1),
    ],
    ids=[
        "a key twice",
        "NaN",
        "infinite",
        "digits",
        "brackets",
        "too deep",
        "too many",
        "quotes",
        "billion laughs",
        "loop",
        "deep YAML",
        "long YAML",
    ],
)
def test_what_breaks_a_bound_is_text(value: bytes) -> None:
    assert decode(value).kind == "text"


@pytest.mark.parametrize(
    "value",
    [
        b"\x91" * 100_000 + b"\x01",
        b"\xdd\xff\xff\xff\xff\x01",
        b"\x82\xa1a\x01\xa1a\x02",
        b"k8s\0garbage",
        b"k8s\0",
    ],
    ids=["deep", "claims 4 billion", "a key twice", "garbage", "empty"],
)
def test_what_only_looks_binary_encoded_is_hex(value: bytes) -> None:
    assert decode(value).kind == "hex"


@pytest.mark.parametrize(
    ("value", "kind", "problem"),
    [
        (b"{", "json", "breaks a rule of JSON: Expecting property name"),
        (b'{"a": 1, "a": 2}', "json", 'has the key "a" twice in one object'),
        (b"\xff", "json", "is not valid UTF-8 at byte 0"),
        (b"a: [", "yaml", "breaks a rule of YAML"),
        (b"a: !Ref x", "yaml", "has the tag !Ref"),
        (b"<<: 1", "yaml", "has a merge key"),
        (b"\x91", "msgpack", "breaks a rule of msgpack"),
        (b"a", "kubernetes", "does not begin with k8s and a zero byte"),
        (b"\xff", "text", "is not valid UTF-8"),
    ],
)
def test_a_kind_that_does_not_fit_is_an_error(value: bytes, kind: str, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"of \d+ bytes? cannot be shown as") as caught:
        decode(value, kind)
    assert problem in str(caught.value)


def test_a_given_kind_wins() -> None:
    assert decode(b'"a"', "json").data == "a"
    assert decode(b"a: 1", "yaml").data == {"a": 1}
    assert decode(b'{"a": 1}', "text").data == '{"a": 1}'
    assert decode(b"abc", "hex").text == f"00000000  61 62 63{' ' * 39}  |abc|"
    assert decode(b"\x05", "msgpack").data == 5


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOptionError, match="kind 'toml' is unknown; use one of json, yaml"):
        decode(b"a", "toml")
    with pytest.raises(InvalidTypeError, match="value must be bytes, not str"):
        decode("a")  # type: ignore[arg-type]


def test_the_text_of_json_is_indented_and_visible() -> None:
    shown = decode('{"b":"\u202eabc\u200b é","a":[]}'.encode()).text
    assert shown == '{\n  "b": "\\u202eabc\\u200b é",\n  "a": []\n}'
    assert json.loads(shown) == {"b": "\u202eabc\u200b é", "a": []}


def test_the_text_of_yaml_is_as_it_is_written() -> None:
    value = b"# why\na: 1   # one\nb: [2]\n"
    assert decode(value).text == value.decode()


def test_lines_are_bounded_and_escaped() -> None:
    lines = decode(b"a\x1b[31m\nb\n" + b"c\n" * 10).lines(lines_max=2)
    shown = [part.text for line in lines for part in line]
    assert shown == ["a\\u001b[31m", "b", "... 10 more lines"]
    (long,) = decode(b"x" * 5_000).lines()
    assert long[0].text == "x" * 1_000 + "... (4,000 more characters)"


@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown(value: bytes) -> None:
    found = decode(value)
    assert found.kind in KINDS
    assert found.value == value
    assert all(part.text.isprintable() for line in found.lines() for part in line)


@given(
    st.sampled_from([b"k8s\0", b"k8s\0\x0a\x05\x0a\x01v\x12\x00", b"{", b"[", b"a:\n ", b"\x82"]),
    st.binary(max_size=300),
)
def test_bytes_that_begin_as_a_kind_can_be_shown(head: bytes, rest: bytes) -> None:
    found = decode(head + rest)
    assert found.text is not None
    assert found.preview()


@given(st.text(alphabet="ab:-&*!<{}[]\"'|>%@`?, \n\t#~0159.", max_size=80))
def test_text_full_of_yaml_signs_can_be_shown(text: str) -> None:
    assert decode(text.encode()).kind in ("text", "yaml", "json")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON.filter(lambda tree: isinstance(tree, dict | list)))
def test_json_of_any_data_is_that_data(tree: object) -> None:
    found = decode(json.dumps(tree).encode())
    assert (found.kind, found.data) == ("json", tree)
    assert json.loads(found.text) == tree


def test_numbers_keep_their_digits() -> None:
    value = b'{"price": 12345678901234567.89, "n": [1.50]}'
    assert '"price": 12345678901234567.89' in decode(value).text
    assert decode(value).data == {"price": 12345678901234567.89, "n": [1.5]}


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (msgpack.packb({"a": [1]}), "msgpack", '{"a": [1]}'),
        (b"abc", "hex", "0x616263"),
        (b"abc", "text", '"abc"'),
        (b'{"a":  1}', "json", '{"a":1}'),
    ],
)
def test_one_line_shows_the_kind_that_is_given(value: bytes, kind: str, shown: str) -> None:
    assert decode(value, kind).preview() == shown
