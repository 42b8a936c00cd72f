"""The examples are run, as their readers would, and print what they promise."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
ALL = {path.stem for path in EXAMPLES.glob("*.py")} - {"demo"}
TESTED = {
    "spark_couch",
    "spark_past_date",
    "spark_stream",
    "spark_what_changed",
    "tables_without_spark",
}


def run(name, *words):
    """Run an example in a process of its own."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def run_here(spark, capsys, monkeypatch):
    """Run an example in this process, whose Spark it shares and may not stop."""
    monkeypatch.setattr(SparkSession, "__exit__", lambda *_: None)
    monkeypatch.syspath_prepend(EXAMPLES)

    def run(name, *words):
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, *map(str, words)])
        capsys.readouterr()
        runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


def cells(output):
    """Return the rows of all tables that Spark printed, without their headings."""
    rows, rules = [], 0  # a table is a rule, its heading, a rule, its rows, and a rule
    for line in output.split("\n"):
        if line.startswith("+-"):
            rules += 1
        elif line.startswith("|") and rules % 3 == 2:
            rows.append([cell.strip() for cell in line.split("|")[1:-1]])
    return rows


def test_every_example_is_tested():
    assert ALL == TESTED


@pytest.mark.long
def test_a_past_date_in_a_process_of_its_own():
    shown = run("spark_past_date")
    assert "table/tmp_export" in shown  # it was removed since
    assert '{"owner": "ann", "columns": ["id", "email"]}' in shown
    assert ["ann", "2"] in cells(shown)
    assert ["bob", "1"] in cells(shown)


def test_tables_without_spark():
    shown = run("tables_without_spark")
    assert "table/tmp_export" in shown
    assert "2d" in shown  # so long it stood
    assert "update_postimage" in shown


def test_what_changed(run_here):
    shown = cells(run_here("spark_what_changed"))
    assert [row[:2] for row in shown if row[1] in ("added", "changed", "removed")] == [
        ["table/orders", "changed"],
        ["table/tmp_export", "removed"],
        ["table/users", "changed"],
    ]
    steps = [row[1:5] for row in shown if len(row) == 6]
    assert steps == [
        ["ann", "auditors are done", "update_preimage", "table/orders"],
        ["ann", "auditors are done", "update_postimage", "table/orders"],
        ["ann", "auditors are done", "delete", "table/tmp_export"],
        ["bob", "users are mine", "update_preimage", "table/users"],
        ["bob", "users are mine", "update_postimage", "table/users"],
    ]


def test_a_database_of_documents(run_here):
    before, since = run_here("spark_couch").split("Documents that changed since")
    assert [row[0] for row in cells(before)] == ["orders", "users"]
    assert '"owner":"ann"' in before
    assert [row[:2] for row in cells(since)] == [["orders", "false"], ["users", "true"]]
    assert '"owner":"bob"' in since


@pytest.mark.long
def test_a_stream(run_here):
    first, second = run_here("spark_stream").split("After one more commit")
    before = [row[1:3] for row in cells(first)]
    assert before == [["insert", "table/orders"], ["insert", "table/users"]]
    assert [row[1:3] for row in cells(second)] == [
        *before,
        ["insert", "table/invoices"],
        ["delete", "table/users"],
    ]


@pytest.mark.long
@pytest.mark.parametrize("place", ["etcd"], indirect=True)
def test_with_a_store_of_ones_own(run_here, place, tmp_path):
    place.open().save("mine", b"1")
    assert "mine" not in run_here("spark_past_date", place.url)
    assert ["mine", "added", "NULL", "1"] in cells(run_here("spark_what_changed", place.url))
    for _ in range(2):  # the second run brings nothing new
        shown = run_here("spark_stream", place.url, tmp_path / "kept")
        assert [row[1:] for row in cells(shown)] == [["insert", "mine", "1"]]
        assert "second run" not in shown
