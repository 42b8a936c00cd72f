"""The documents on Spark are what happens: their sessions run, their tables are the code's."""

import doctest
import inspect
import re

import pytest

from cdcmeta.spark import document_sink as couch_sink
from cdcmeta.spark import feed_options as couch_codes
from cdcmeta.spark import feed_options as couch_options
from cdcmeta.spark.feed_tasks import SCHEMA
from snapkv.reading import arrow
from snapkv.spark import api as frames
from snapkv.spark import errors, functions, key_sink, read_options
from tests.project.pages import ROOT, pages_run_by

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
PAGES = pages_run_by("test_every_session_with_spark_gives_what_it_shows")
SHORT = {"docs/spark_sql.md"}
"""The others take half a minute each; make test-all runs them."""
DOCUMENT, OF_FEEDS = ((DOCS / name).read_text() for name in ("spark.md", "couch_spark.md"))


def names_in(heading, column=0, document=DOCUMENT):
    """Return what stands in backticks in a column of the tables of a section."""
    section = re.split(r"^## ", document, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(heading + "\n")]
    cells = [line.strip("|").split("|")[column] for line in text.split("\n") if line[:3] == "| `"]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.spark_since("4.2", "an end by availableNow")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if page in SHORT else pytest.mark.long) for page in PAGES],
)
def test_every_session_with_spark_gives_what_it_shows(spark, tmp_path, page):
    """In a folder of the test: Spark's own is where its JVM was started."""
    here = (ROOT / page).read_text().replace("./", f"{tmp_path}/")
    test = doctest.DocTestParser().get_doctest(here, {}, page, page, 0)
    assert len(test.examples) > 10
    wanted = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    told = []
    runner = doctest.DocTestRunner(optionflags=wanted)
    runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


def test_every_option_is_told_once():
    assert sorted(names_in("Options")) == sorted([*read_options.KNOWN, *read_options.ENGINE])


def test_every_option_of_a_sink_is_told_once():
    assert sorted(names_in("Writing")) == sorted(key_sink.KNOWN)
    assert sorted(names_in("Writing", document=OF_FEEDS)) == sorted(couch_sink.KNOWN)


def test_every_option_of_feeds_is_told_once():
    told = names_in("Options", document=OF_FEEDS)
    assert sorted(told) == sorted([*couch_options.KNOWN, *read_options.ENGINE])


def test_every_column_of_feeds_is_told():
    assert names_in("Columns", document=OF_FEEDS) == SCHEMA.names


def test_every_code_of_feeds_has_a_mend():
    texts = [value for value in vars(couch_codes).values() if isinstance(value, str)]
    known = [text for text in texts if text.startswith("CDCMETA_")]
    assert len(known) == 4
    assert sorted(names_in("Errors", document=OF_FEEDS)) == sorted(known)


def test_every_code_has_a_mend():
    known = [value for name, value in vars(errors).items() if str(value).startswith("SNAPKV_")]
    assert len(known) > 15
    assert sorted(names_in("Errors")) == sorted(known)


def test_the_calls_are_those_of_the_code():
    told = [text for text in names_in("By a call") if "(" in text]
    assert len(told) == 4
    for text in told:
        name, _, parameters = text.rstrip(")").partition("(")
        signature = inspect.signature(getattr(frames, name)).parameters.values()
        placed = [p for p in signature if p.kind is p.POSITIONAL_OR_KEYWORD]
        code = [
            p.name if p.default is p.empty else f"{p.name}={p.default!r}".replace("'", '"')
            for p in placed
        ]
        assert parameters == ", ".join(code), name


def test_the_functions_are_those_of_the_code():
    told = names_in("Table functions", document=(DOCS / "spark_sql.md").read_text())
    assert [text.partition("(")[0] for text in told] == list(functions.FUNCTIONS)
    for text in told:
        name, _, parameters = text.rstrip(")").partition("(")
        placed = list(inspect.signature(functions.FUNCTIONS[name].analyze).parameters)
        assert [*parameters.split(", "), "options"] == placed


def test_every_column_is_told():
    told = names_in("The four views")
    for schema in (arrow.SNAPSHOT_TIMED, arrow.CHANGES, arrow.HISTORY, arrow.COMMITS):
        assert set(schema.names) <= set(told), set(schema.names) - set(told)
    assert len(set(told)) == len(told) - 2 * len(["key", "value"])
