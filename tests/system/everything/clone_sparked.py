"""The same questions, asked of Spark: a past date, and what changed between two.

Spark names contents as git does, in the query itself, so that only ids come back from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from snapkv.cli.git_clone import SUBMODULE_MODE, TreeEntry, object_id
from snapkv.cli.tour.examiner import AskedDate, Examiner, Mismatch
from snapkv.errors import SnapKVError

SHA1_DIGITS = 40
ABSENT = "absent"


class SparkAnswer(NamedTuple):
    """Spark's answer: the question, and how many rows."""

    question: str
    rows: int
    equal: bool


class Started(NamedTuple):
    """Spark on this machine."""

    session: Any
    frames: Any
    failures: tuple[type[Exception], ...]


class NoSpark(Exception):
    """Spark cannot be asked on this machine; the message says why."""


def ask(examiner: Examiner, url: str, name: str, spark: Started) -> list[SparkAnswer]:
    """Ask for a past tree, and for what differs from it now."""
    then, now = examiner.then_and_now()
    asker = _Asker(examiner, spark.frames, (spark.session, url), name, spark.failures)
    answers = [asker.ask_tree(then)]
    if then != now:
        answers.append(asker.ask_diff(then, now))
    return answers


@contextmanager
def started() -> Iterator[Started]:
    """Start Spark, and stop it at the end; give it, `snapkv.spark`, and what its queries raise.

    Raises `NoSpark`.
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from snapkv import spark as frames
        from snapkv.spark import local
    except ModuleNotFoundError as e:
        raise NoSpark(f"{e.name} is not installed (pip install 'snapkv[spark]')") from e
    logging.getLogger().addHandler(logging.NullHandler())  # else py4j shows Ctrl-C as a traceback
    try:
        session = local.local_session()
    except local.SparkStartError as e:
        raise NoSpark(str(e)) from e
    with session as spark:
        yield Started(spark, frames, (SnapKVError, PySparkException, Py4JError))


def named_by_git(column: str, oid: bytes) -> str:
    """Return Spark's expression of git's name for the content in a column, as long as `oid`."""
    blob = f"concat(encode(concat('blob ', octet_length({column})), 'UTF-8'), X'00', {column})"
    return f"sha1({blob})" if len(oid) == SHA1_DIGITS else f"sha2({blob}, 256)"


def content_id(entry: TreeEntry) -> bytes:
    """Return git's name for what the store holds of an entry; of a submodule that is an id."""
    return object_id(entry.oid, entry.oid) if entry.mode == SUBMODULE_MODE else entry.oid


def error_line(error: Exception) -> str:
    """Return the line of an error of Spark that says what is wrong."""
    lines = str(error).strip().split("\n")
    return next((line for line in lines if "[SNAPKV_" in line), lines[0])


class _Asker:
    """Asks Spark and git the same, and adds to the examiner's report."""

    def __init__(
        self,
        examiner: Examiner,
        frames: Any,
        store: tuple[Any, str],
        name: str,
        failures: tuple[type[Exception], ...],
    ) -> None:
        self._examiner, self._frames, self._store, self._name = examiner, frames, store, name
        self._failures = failures

    def ask_tree(self, moment: AskedDate) -> SparkAnswer:
        """Ask for the whole tree at a moment."""

        def ask() -> dict[str, bytes]:
            frame = self._frames.read_snapshot(*self._store, moment.date, name=self._name)
            rows = frame.selectExpr("key", f"{self._named('value')} AS id").collect()
            return {row.key: row.id.encode() for row in rows}

        expected = self._examiner.expected(moment.index)
        wanted = {key: content_id(entry) for key, entry in expected.items()}
        return self._ask(f"the tree at {moment.date}", ask, wanted)

    def ask_diff(self, a: AskedDate, b: AskedDate) -> SparkAnswer:
        """Ask what differs between two moments."""

        def ask() -> dict[str, bytes]:
            frame = self._frames.diff(*self._store, a.date, b.date, name=self._name)
            ids = (f"{self._named(side)} AS {side}" for side in ("before", "after"))
            rows = frame.selectExpr("key", "change", *ids).collect()
            return {row.key: _line(row.change, row.before, row.after) for row in rows}

        wanted = {
            key: _line(
                "added" if c.before is None else "changed" if c.after else "removed",
                *(entry and content_id(entry).decode() for entry in (c.before, c.after)),
            )
            for key, c in self._examiner.changes(a, b)
            if c.of_content
        }
        return self._ask(f"what differs between {a.date} and {b.date}", ask, wanted)

    def _ask(
        self, question: str, ask: Callable[[], dict[str, bytes]], wanted: dict[str, bytes]
    ) -> SparkAnswer:
        """Ask Spark, and compare; a failure of Spark counts as a mismatch."""
        report = self._examiner.report
        try:
            found = ask()
        except self._failures as e:
            said = error_line(e)
            report.answers += 1
            report.mismatches.append(Mismatch(f"Spark: {question}", "*", "an answer", said))
            return SparkAnswer(question, 0, False)
        wrong = report.compare(f"Spark: {question}", found, wanted)
        return SparkAnswer(question, len(found), not wrong)

    def _named(self, column: str) -> str:
        """Return the expression of git's name for the content in a column."""
        return named_by_git(column, self._examiner.timeline.oids[0])


def _line(change: str, before: str | None, after: str | None) -> bytes:
    return f"{change}: {before or ABSENT} -> {after or ABSENT}".encode()
