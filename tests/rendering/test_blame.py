"""Which version last changed each path, and each line."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapkv
from snapkv import Version
from snapkv.rendering import Blame, blame


def versions(*values: object) -> list[Version]:
    """Return versions with the writers w1, w2 ...: bytes as they are, trees as JSON."""
    stored = [
        value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        for value in values
    ]
    return [Version(n, n, value, f"w{n}") for n, value in enumerate(stored, 1)]


def rows(found: list[Blame]) -> list[tuple[str | int, str, str | None]]:
    return [(each.place, each.text, each.version.writer) for each in found]


def test_each_path_has_the_version_that_last_changed_it() -> None:
    found = blame(
        versions(
            {"image": "nginx:1.25", "env": [{"name": "A", "value": "1"}], "empty": {}},
            {"image": "nginx:1.26", "env": [{"name": "A", "value": "1"}], "empty": {}},
            {
                "image": "nginx:1.26",
                "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}],
                "empty": {},
            },
        )
    )
    assert rows(found) == [
        ("image", "nginx:1.26", "w2"),
        ("env[0].name", "B", "w3"),
        ("env[0].value", '"2"', "w3"),
        ("env[1].name", "A", "w1"),
        ("env[1].value", '"3"', "w3"),
        ("empty", "{}", "w1"),
    ]


def test_each_line_has_the_version_that_last_changed_it() -> None:
    found = blame(versions(b"a\nb\nc\n", b"x\na\nb\nc\n", b"x\na\nB\nc\n", b"x\na\nB\nc\nd"))
    assert rows(found) == [
        (1, "x", "w2"),
        (2, "a", "w1"),
        (3, "B", "w3"),
        (4, "c", "w1"),
        (5, "d", "w4"),
    ]


def test_formatting_changes_no_path() -> None:
    found = blame(versions(b'{"a":1,"b":2}', b'{"b": 2, "a": 1}'))
    assert rows(found) == [("b", "2", "w1"), ("a", "1", "w1")]


def test_a_removal_and_another_form_end_what_was_before() -> None:
    assert rows(blame(versions({"a": 1}, None, {"a": 1}))) == [("a", "1", "w3")]
    assert rows(blame(versions({"a": 1}, b"text", {"a": 1}))) == [("a", "1", "w3")]
    assert rows(blame(versions(b"a\n", {"a": 1}, b"a\n"))) == [(1, "a", "w3")]
    assert blame(versions({"a": 1}, None)) == []
    assert blame([]) == []


def test_a_value_that_came_back_carries_the_version_that_brought_it_back() -> None:
    assert rows(blame(versions({"a": 1}, {"a": 2}, {"a": 1}))) == [("a", "1", "w3")]


def test_what_compaction_left_carries_the_first_known_version() -> None:
    oldest = Version(None, 7, b"a\nb\n", None)  # as `history` yields it after a compaction
    newest = Version(9, 9, b"a\nb\nc\n", "w9")
    found = blame([oldest, newest])
    assert [each.version for each in found] == [oldest, oldest, newest]


def test_the_history_of_a_store_is_what_blame_takes() -> None:
    with snapkv.open("memory:") as store:
        store.save("k", b'{"a": 1, "b": 1}')
        second = store.save("k", b'{"a": 1, "b": 2}')
        found = blame(store.history("k"))
    assert [each.place for each in found if each.version.ts == second] == ["b"]


@pytest.mark.slow
def test_a_value_with_many_paths_is_searched_once() -> None:
    class Value(bytes):
        searches = 0

        def __contains__(self, part: object) -> bool:
            Value.searches += 1
            return super().__contains__(part)  # type: ignore[operator]

    value = Value(json.dumps({f"k{n}": n for n in range(500)}).encode())
    assert len(blame([Version(1, 1, value, None, None)])) == 500
    assert Value.searches <= 3


def test_ten_thousand_versions_are_read_once_and_not_kept() -> None:
    alive = 0

    class Counted(bytes):
        def __new__(cls, content: bytes) -> "Counted":
            nonlocal alive
            alive += 1
            return super().__new__(cls, content)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    most = 0

    def many() -> Iterator[Version]:
        nonlocal most
        for n in range(10_000):
            value = Counted(b'{"a": %d, "b": {"c": %d}, "d": [1, 2]}' % (n, n // 1_000))
            yield Version(n, n, value, f"w{n}")
            del value
            most = max(most, alive)

    found = blame(many())
    assert rows(found)[:2] == [("a", "9999", "w9999"), ("b.c", "9", "w9000")]
    assert most < 20  # each path holds one version, and two are compared


TREES = st.recursive(
    st.integers(0, 2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.sampled_from("xyz"), TREES, max_size=3), min_size=1, max_size=6))
def test_a_path_of_dicts_has_the_version_since_which_it_is_the_same(trees: list) -> None:
    for each in blame(versions(*trees)):
        name = str(each.place).partition("[")[0].partition(".")[0]
        first = int(str(each.version.writer)[1:])
        if f"{each.place}" == name and all(name in tree for tree in trees):
            since = next(
                n
                for n in range(len(trees), 0, -1)
                if n == 1 or trees[n - 2][name] != trees[n - 1][name]
            )
            assert first == since


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=6), min_size=1, max_size=5))
def test_a_line_was_in_every_version_since_its_own(texts: list[list[str]]) -> None:
    values = ["".join(f"{line}\n" for line in lines).encode() for lines in texts]
    for each in blame(versions(*values), kind="text"):
        first = int(str(each.version.writer)[1:])
        assert all(each.text in lines for lines in texts[first - 1 :])


def test_digits_that_a_float_lacks_count() -> None:
    old, new = b'{"price": 12345678901234567.89}', b'{"price": 12345678901234567.01}'
    assert rows(blame(versions(old, new))) == [("price", "12345678901234567.01", "w2")]
