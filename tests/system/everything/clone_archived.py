"""The same questions, asked of a store without history: its archive has to answer them.

Git's history fills a store in a temporary folder, which is recorded into an archive and then
compacted.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import snapkv
from snapkv.cli import git_import
from snapkv.cli.tour import tour_store
from snapkv.cli.tour.examiner import AskedDate, Examiner
from snapkv.errors import CompactedError


def ask(examiner: Examiner) -> list[AskedDate]:
    """Fill, record and compact a store, and ask it with its archive; add to the report.

    Return the moments that the store has compacted.
    """
    with TemporaryDirectory(prefix="snapkv-tour-") as folder:
        path, archive = str(Path(folder, "store")), str(Path(folder, "archive"))
        with tour_store.open_tour_store(path) as (store, clock):
            git_import.import_history(
                store, clock, examiner.clone, examiner.timeline, lambda done, total: None
            )
        url = tour_store.url_of(path)
        snapkv.record(url, into=archive, options=git_import.clock_options()).catch_up()
        with snapkv.open(url, clock=git_import.clock_options()["clock"]) as store:
            store.compact(examiner.moments[-1].date)
        with (
            snapkv.open(url, **git_import.clock_options()) as alone,
            snapkv.open(url, archive=archive, **git_import.clock_options()) as store,
        ):
            joined = Examiner(store, examiner.clone, examiner.timeline)
            compacted = [m for m in joined.moments if _is_compacted(alone, m.date)]
            joined.ask_trees()
            joined.ask_diffs()
            joined.ask_loads()
    examiner.report.answers += joined.report.answers
    examiner.report.mismatches += [
        wrong._replace(question=f"archive: {wrong.question}") for wrong in joined.report.mismatches
    ]
    return compacted


def _is_compacted(store: snapkv.SnapshotKV, date: str) -> bool:
    try:
        store.at(date)
    except CompactedError:
        return True
    return False
