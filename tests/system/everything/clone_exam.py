"""The questions of `snapkv tour`, asked of each clone alone, in a store of its own.

They are asked again of a compacted store with its archive, and in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snapkv.cli import git_import
from snapkv.cli.formats import counted
from snapkv.cli.tour import tour_store
from snapkv.cli.tour.examiner import Examiner
from system.everything.clone_sparked import Started, ask
from system.everything.clones import Toured
from system.everything.report import ONE_CLONE, Report

from . import clone_archived


def ask_clone(report: Report, toured: Toured, folder: Path, spark: Started | None = None) -> None:
    """Fill a store with one clone in a folder, and ask all questions; add to the report."""
    with filled(toured, str(folder)) as (examiner, done):
        asked = list(examiner.ask(done.ts))
        rows = {each.question: each.equal for each in asked if each.answers}
        before = len(examiner.report.mismatches)
        compacted = clone_archived.ask(examiner)
        archive = f"with an archive, {counted(len(compacted), 'date')} compacted"
        rows[archive] = len(examiner.report.mismatches) == before
        if spark is not None:
            answers = ask(examiner, tour_store.url_of(str(folder)), "default", spark)
            rows |= {f"Spark: {each.question}": each.equal for each in answers}
    report.answers += examiner.report.answers
    report.mismatches += [
        wrong._replace(question=f"{toured.name}: {wrong.question}")
        for wrong in examiner.report.mismatches
    ]
    for question, equal in rows.items():
        report.add(ONE_CLONE, f"{toured.name}: {question}", "git", not equal)


@contextmanager
def filled(toured: Toured, path: str) -> Iterator[tuple[Examiner, git_import.Imported]]:
    """Fill a store in a folder or an etcd with one clone, as `snapkv tour` does."""
    with tour_store.open_tour_store(path) as (store, clock):
        done = git_import.import_history(
            store, clock, toured.clone, toured.timeline, lambda done, total: None
        )
        yield Examiner(store, toured.clone, toured.timeline), done
