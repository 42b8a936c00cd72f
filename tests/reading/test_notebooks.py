"""What notebooks show of snapshots, commits, histories and differences: bounded, and harmless."""

import subprocess
import sys
from html.parser import HTMLParser

import pytest

import snapkv
from snapkv.model import CELL_CHARS_MAX, ROWS_MAX, html_table
from snapkv.times import format_time

SCRIPT = "<script>alert(1)</script>"
EVIL = f"{SCRIPT}<img src=x onerror=alert(1)>\u202e'\"&\0"


class Table(HTMLParser):
    """The cells of tables, as a browser reads them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.rows = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert all(name == "style" for name, _ in attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.fixture
def store():
    with snapkv.open("memory:", writer=EVIL) as store:
        yield store


def shown(found):
    table = Table(found._repr_html_())
    assert table.tags <= {"table", "tr", "td", "th", "p"}
    return table.rows


def test_a_commit_is_a_table_with_its_date(store):
    commit = store.commit(puts={"a": b"1"}, note=EVIL)
    names, cells = shown(commit)
    row = dict(zip(names, cells, strict=True))
    assert row["ts"] == f"{format_time(commit.ts)} ({commit.ts})"
    assert row["note"].startswith(SCRIPT)
    assert "\\u202e" in row["note"]
    assert "\0" not in row["note"]


def test_a_snapshot_shows_its_first_keys(store):
    ts = store.commit(puts={f"k{n:03}": EVIL.encode() for n in range(ROWS_MAX + 1)}).ts
    html = store.at(ts)._repr_html_()
    names, *rows = shown(store.at(ts))
    assert names == ["key", "value"]
    assert [row[0] for row in rows] == [f"k{n:03}" for n in range(ROWS_MAX)]
    assert rows[0][1].startswith(SCRIPT)
    assert "<p>and more</p>" in html
    assert str(ts) in html
    assert format_time(ts) in repr(store.at(ts))


def test_long_and_binary_values_are_short(store):
    store.commit(puts={"a": b"\xff\xfe" * 500_000, "b": b"x" * 1_000_000})
    for _, value in shown(store.at())[1:]:
        assert len(value) == CELL_CHARS_MAX + 1
    assert shown(store.at())[1][1].startswith("\\xff\\xfe")


class Unseen:
    """What is too far in a value for a cell to show."""

    def __repr__(self):
        raise AssertionError("it was written out")


def test_a_huge_value_is_not_written_out_for_a_cell():
    beyond = Unseen()
    long = [*["x" * 1_000_000] * 200, beyond]
    for value in ({"n": [*range(200), beyond]}, long, {"a": {"b": [""] * 200, "c": beyond}}):
        with pytest.raises(AssertionError, match="written out"):
            str(value)
        text = Table(html_table(["value"], [[value]])).rows[1][0]
        assert len(text) == CELL_CHARS_MAX + 1
        assert text.endswith("…")


@pytest.mark.parametrize(
    "value", [{}, [], {"a": [1, "b", {"c": None}], 2: b"\xff"}, [[[]], {}], 1.5, "text", ("a", 1)]
)
def test_a_small_value_is_shown_as_python_shows_it(value):
    assert Table(html_table(["value"], [[value]])).rows[1] == [str(value)]


def test_histories_and_differences_are_shown_and_then_iterated_over(store):
    first = store.save("k", b"1")
    store.save("k", EVIL.encode())
    store.remove("k")
    versions = store.history("k")
    assert "versions of 'k'" in repr(versions)
    names, *rows = shown(versions)
    assert next(row[names.index("value")] for row in rows) == "1"
    assert len(rows) == 3
    assert [each.value for each in versions] == [b"1", EVIL.encode(), None]
    differences = store.diff(None, first)
    assert shown(differences)[1] == ["k", "", "1"]
    assert next(differences) == snapkv.Difference("k", None, b"1")
    assert next(differences, None) is None
    assert differences._repr_html_() is None  # nothing is left
    names, *rows = shown(store.commits())
    assert len(rows) == 3


def test_changes_of_a_watch_are_shown(store):
    with store.watch() as watch:
        store.commit(puts={"a": b"1"}, deletes=["b"], note=SCRIPT)
        changes = watch.next(5)
    assert changes is not None
    rows = shown(changes)
    assert ["a", "1"] in rows
    assert any(SCRIPT in cell for row in rows for cell in row)
    assert shown(changes.changes[0])[0][0] == "key"


def test_a_snapshot_of_a_closed_store_has_its_repr():
    with snapkv.open("memory:") as store:
        snapshot = store.at(store.save("a", b"1"))
    assert snapshot._repr_html_() is None


def test_importing_snapkv_imports_nothing_of_the_page_for_it():
    code = "import sys, snapkv; print(sorted({'html', 'jinja2', 'starlette'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_table_takes_no_rows_from_a_loop(store):
    made = [store.save(f"k{number}", b"v") for number in range(3)]
    found, seen = store.commits(), []
    for commit in found:
        seen.append(commit.ts)
        assert found._repr_html_() is None
    assert seen == made
