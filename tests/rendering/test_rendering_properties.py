"""What holds for all values: differences lead from one to the other, and hide nothing."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.rendering import Decoded, PathChange, compare, decode, plain, shortened
from snapkv.rendering.value_difference import ValueDifference

pytestmark = pytest.mark.slow

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, 1.5])
    | st.sampled_from(["", "a", "b", "a\nb\nc\n", "a\nx\nc\n", "\u202e", "x" * 300])
    | st.sampled_from([b"", b"a", b"\xff"])
)
KEYS = st.sampled_from(["name", "id", "a", "b", "a.b", "\n", "0"])
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)
ITEMS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("abcdef")}, optional={"a": SCALARS}), max_size=6
)
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d e", "\x1b[0m", "\u202e", "\r"]), max_size=12)


def tree(data: object) -> Decoded:
    return Decoded("msgpack", data, "tree", repr(data).encode())


def applied(before: object, changes: tuple[PathChange, ...]) -> object:
    """Apply changes as their documentation defines them: parents first, lists by their indexes."""
    root = [copy.deepcopy(before)]
    paths = sorted({len(each.path) for each in changes})
    for length in paths:
        level = [each for each in changes if len(each.path) == length]
        parents = {repr(each.path[:-1]): each.path[:-1] for each in level}
        for key, path in parents.items():
            apply_to_parent(root, path, [e for e in level if repr(e.path[:-1]) == key])
    return root[0]


def apply_to_parent(root: list, path: tuple, changes: list[PathChange]) -> None:
    if not changes[0].path:
        root[0] = changes[0].after
        return
    parent = root[0]
    for step in path:
        parent = parent[step]
    if isinstance(parent, dict):
        for each in changes:
            if each.kind == "removed":
                del parent[each.path[-1]]
            else:
                parent[each.path[-1]] = each.after
        return
    moved = {each.path[-1]: parent[each.index_before] for each in changes if each.kind == "moved"}
    gone = [each.path[-1] for each in changes if each.kind == "removed"]
    gone += [each.index_before for each in changes if each.kind == "moved"]
    for index in sorted(gone, reverse=True):
        del parent[index]
    added = {each.path[-1]: each.after for each in changes if each.kind == "added"}
    for index, item in sorted((moved | added).items()):
        parent.insert(index, copy.deepcopy(item))
    for each in changes:
        if each.kind == "changed":
            parent[each.path[-1]] = each.after


def typed(data: object) -> object:
    """Return data that is equal only to data of the same types."""
    if isinstance(data, dict):
        return {key: typed(part) for key, part in data.items()}
    return [typed(part) for part in data] if isinstance(data, list) else (type(data), data)


@given(TREES, TREES)
def test_path_changes_lead_from_one_tree_to_the_other(before: object, after: object) -> None:
    changes = compare(tree(before), tree(after)).changes
    assert typed(applied(before, changes)) == typed(after)


@given(ITEMS, ITEMS)
def test_path_changes_of_named_items_lead_to_the_other(before: list, after: list) -> None:
    changes = compare(tree({"items": before}), tree({"items": after})).changes
    assert typed(applied({"items": before}, changes)) == typed({"items": after})


@given(TREES)
def test_a_tree_does_not_differ_from_itself(data: object) -> None:
    found = compare(tree(data), tree(copy.deepcopy(data)))
    assert (found.state, found.changes, found.lines("full")) == ("equal", (), [])


@given(TREES, TREES)
def test_trees_that_differ_have_a_line(before: object, after: object) -> None:
    found = compare(tree(before), tree(after))
    if typed(before) != typed(after):
        assert found.state == "changed"
        assert sum(found.stat[:3]) > 0
        for view in ("auto", "paths", "unified", "full", "side-by-side", "words"):
            assert found.lines(view)


def all_lines(found: ValueDifference) -> list:
    views = ("auto", "paths", "unified", "full", "side-by-side", "words")
    lines = [line for view in views for line in found.lines(view, width=40)]
    return [*lines, found.brief(), [(found.summary, "meta")]]


@given(TREES, TREES)
def test_no_line_of_trees_has_a_control_character(before: object, after: object) -> None:
    for line in all_lines(compare(tree(before), tree(after))):
        assert all(part[0].isprintable() for part in line)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_line_of_any_values_has_a_control_character(before: bytes, after: bytes) -> None:
    for line in all_lines(compare(decode(before), decode(after))):
        assert all(part[0].isprintable() for part in line)


@given(TEXTS, TEXTS, st.sampled_from(["\n", ""]), st.integers(0, 3))
def test_lines_lead_from_one_text_to_the_other(
    before: list[str], after: list[str], end: str, context: int
) -> None:
    old, new = "\n".join(before), "\n".join(after) + end
    found = compare(decode(old.encode(), "text"), decode(new.encode(), "text"))
    if old and new and not old.endswith("\n") and not new.endswith("\n"):
        old, new = old + "\n", new + "\n"  # a newline that both lack does not count
    lines = [line + "\n" for line in old.split("\n")[:-1]] + [old.split("\n")[-1]]
    for piece in reversed(found.line_edits):
        end_at = piece.before_at + len(piece.before)
        assert tuple(lines[piece.before_at : end_at]) == piece.before
        lines[piece.before_at : end_at] = piece.after
    assert "".join(lines) == new
    for line in all_lines(found):
        assert all(part[0].isprintable() for part in line)


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_bytes_lead_from_one_value_to_the_other(before: bytes, after: bytes) -> None:
    found = compare(decode(before, "hex"), decode(after, "hex"))
    value = bytearray(before)
    for piece in reversed(found.byte_edits):
        assert value[piece.before_at : piece.before_at + len(piece.before)] == piece.before
        value[piece.before_at : piece.before_at + len(piece.before)] = piece.after
    assert bytes(value) == after


NEAR = st.tuples(
    st.text(max_size=150), st.text(max_size=5), st.text(max_size=5), st.text(max_size=150)
).map(lambda parts: (parts[0] + parts[1] + parts[3], parts[0] + parts[2] + parts[3]))
PAIRS = (
    NEAR.map(lambda pair: (pair[0].encode(), pair[1].encode()))
    | st.tuples(st.binary(max_size=150), st.binary(max_size=150))
    | st.tuples(st.binary(max_size=150), st.binary(max_size=3), st.binary(max_size=3)).map(
        lambda parts: (parts[0] + parts[1], parts[0] + parts[2])
    )
)


@given(PAIRS, st.integers(4, 70))
def test_shortened_values_differ_where_the_values_do(pair: tuple[bytes, bytes], most: int) -> None:
    before, after = shortened(*pair, most)
    assert (before == after) == (pair[0] == pair[1])
    assert before.isprintable()
    assert len(before) <= 12 * most + 12  # an escaped character takes up to twelve


@given(TEXTS, TEXTS)
def test_the_full_view_has_every_line(before: list[str], after: list[str]) -> None:
    old, new = ("\n".join([*side, "end"]) + "\n" for side in (before, after))
    found = compare(decode(old.encode(), "text"), decode(new.encode(), "text"))
    lines = found.lines("full")
    marks = [plain(line)[:2] for line in lines]
    assert marks.count("- ") == found.stat.removed
    assert marks.count("+ ") == found.stat.added
    assert not found or marks.count("  ") == old.count("\n") - found.stat.removed


@given(st.dictionaries(KEYS, st.integers(0, 2), max_size=4))
def test_the_order_of_keys_is_formatting(data: dict[str, int]) -> None:
    before = json.dumps(data).encode()
    after = json.dumps(dict(reversed(data.items()))).encode()
    assert compare(decode(before), decode(after)).state == (
        "equal" if before == after else "formatting"
    )
