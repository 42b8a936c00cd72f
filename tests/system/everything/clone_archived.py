"""The same questions, asked of a store without history: its archive has to answer them.

Git's history fills a store in a temporary folder, which is recorded into an archive and then
compacted.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import snapkv
from snapkv.cli.tour import filling, tour_store
from snapkv.cli.tour.examiner import AskedDate, Examiner
from snapkv.errors import CompactedError


def ask(examiner: Examiner, request_bytes_max: int) -> list[AskedDate]:
    """Fill, record and compact a store, and ask it with its archive; add to the report.

    Return the moments that the store has compacted.
    """
    with TemporaryDirectory(prefix="snapkv-tour-") as folder:
        path, archive = str(Path(folder, "store")), str(Path(folder, "archive"))
        with tour_store.open_tour_store(path, request_bytes_max=request_bytes_max) as (
            store,
            clock,
        ):
            filling.import_history(
                store,
                clock,
                examiner.clone,
                examiner.timeline,
                path=path,
                request_bytes_max=request_bytes_max,
                on_commit=lambda done: None,
            )
        url = tour_store.url_of(path)
        snapkv.record(url, into=archive, options=tour_store.clock_options()).catch_up()
        with snapkv.open(url, clock=tour_store.clock_options()["clock"]) as store:
            store.compact(examiner.moments[-1].date)
        with (
            snapkv.open(url, **tour_store.clock_options()) as alone,
            snapkv.open(url, archive=archive, **tour_store.clock_options()) as store,
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
