"""The same questions, asked of a store without history: its archive has to answer them.

The tour's own store keeps its history for the next tour. Git's history fills a second one, in a
temporary folder, which is recorded into an archive and then compacted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import snapkv
from snapkv.cli.tour import filling, place
from snapkv.cli.tour.answers import ArchiveAnswer, Examiner
from snapkv.errors import CompactedError, MissingExtraError

STEPS = 4
"""Besides the commits: to record, to compact, and two kinds of questions."""


class NoArchive(Exception):
    """No archive can be made on this machine; the message says why."""


def ask(examiner: Examiner, request_bytes_max: int, advance: Callable[[int], None]) -> None:
    """Fill, record and compact a store, and ask it with its archive; add to the report.

    Raises `NoArchive`.
    """
    try:
        import snapkv.archive.tables
    except MissingExtraError as e:
        raise NoArchive(f"{e.name} is not installed (pip install 'snapkv[{e.extra}]')") from e
    done = len(examiner.timeline.oids)
    with TemporaryDirectory(prefix="snapkv-tour-") as folder:
        path, archive = str(Path(folder, "store")), str(Path(folder, "archive"))
        with place.opened(path, request_bytes_max=request_bytes_max) as (store, clock):
            filling.import_history(
                store,
                clock,
                examiner.clone,
                examiner.timeline,
                path=path,
                request_bytes_max=request_bytes_max,
                on_commit=advance,
            )
        url = place.url_of(path)
        snapkv.record(url, into=archive, options=place.clock_options()).catch_up()
        advance(done + 1)
        with snapkv.open(url, clock=place.clock_options()["clock"]) as store:
            store.compact(examiner.moments[-1].when)
        advance(done + 2)
        with (
            snapkv.open(url, **place.clock_options()) as alone,
            snapkv.open(url, archive=archive, **place.clock_options()) as store,
        ):
            joined = examiner.of(store)
            for tree in joined.ask_trees():
                answer = ArchiveAnswer(tree, _is_compacted(alone, tree.moment.date))
                examiner.report.archived.append(answer)
            advance(done + 3)
            joined.ask_diffs()
            joined.ask_loads()
            advance(done + 4)
    examiner.report.answers += joined.report.answers
    examiner.report.mismatches += [
        wrong._replace(question=f"archive: {wrong.question}") for wrong in joined.report.mismatches
    ]


def _is_compacted(store: snapkv.SnapshotKV, date: str) -> bool:
    try:
        store.at(date)
    except CompactedError:
        return True
    return False
