"""What does reading the changes feed cost, and how soon does a follower hear of a commit?"""

import queue
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count

import snapkv
from benchmarks.harness import Rival, Row, Times, measure, report, rows_of
from benchmarks.servers import etcd_server, server_facts
from cdcmeta import Change, ChangesDB
from cdcmeta.changes import database_layout as layout
from snapkv.engine.contract import WatchBatch
from snapkv.store.location import open_engine

ROWS, CONFLICTED = 100_000, 1_000
CHANGES = 1_000


def main() -> None:
    """Read 100,000 rows, with 1 % of the documents in conflict; then follow 1,000 commits."""
    tables = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        snapkv.open(f"lmdb:{folder}/meta", durability="none") as store,
    ):
        tables[f"{ROWS:,} rows, lmdb"] = _reading(store)
    with etcd_server(fsync=False) as server, snapkv.open(server.url) as store:
        tables[f"{ROWS:,} rows, etcd"] = _reading(store)
    with etcd_server() as server, snapkv.open(server.url) as store:
        tables["from the commit's answer to the change, etcd"] = _following(store, server.url)
    notes = (
        f"{server_facts(fsync=False)} "
        f"The floor lists the same keys and values, and decodes nothing. "
        f"{CONFLICTED:,} documents have two branches, none in the first two rivals' database. "
        "Following: from just before the commit is sent to the event in hand; the raw watch "
        "follows the same commits."
    )
    report("couch_feed", "What does the changes feed cost?", tables, notes)


def _reading(store: snapkv.SnapshotKV) -> list[Row]:
    plain, conflicted = ChangesDB(store, "plain").create(), ChangesDB(store, "conflicted").create()
    for db in (plain, conflicted):
        for at in range(0, ROWS, 1_000):
            _replicate(db, range(at, at + 1_000), "a" * 32)
    _replicate(conflicted, range(0, ROWS, ROWS // CONFLICTED), "b" * 32)
    space = store.space("changes/plain")

    def rows(db: ChangesDB, **form: str) -> Callable[[int], None]:
        def run(i: int) -> None:
            assert len(db.changes(**form).rows) == ROWS

        return run

    def listed(i: int) -> None:
        assert sum(1 for _ in space.at().items(layout.ROW_PREFIX)) == ROWS

    rivals = [
        Rival("raw listing of the rows (floor)", listed),
        Rival("changes", rows(plain)),
        Rival("changes, all_docs, no conflicts", rows(plain, style="all_docs")),
        Rival("changes, all_docs, 1 % in conflict", rows(conflicted, style="all_docs")),
    ]
    return measure(rivals, rounds=7, warmup=1)


def _replicate(db: ChangesDB, numbers: range, hash: str) -> None:
    for at in range(0, len(numbers), 500):  # what etcd takes in one request
        docs = [
            {"_id": f"table/{n:06d}", "_revisions": {"start": 1, "ids": [hash]}}
            for n in numbers[at : at + 500]
        ]
        assert all(each.ok for each in db.replicate(docs))


def _following(store: snapkv.SnapshotKV, url: str) -> list[Row]:
    db = ChangesDB(store, "followed").create()
    sent: dict[str, float] = {}
    heard: dict[str, queue.Queue[tuple[str, float]]] = {
        "raw": queue.Queue(),
        "follow": queue.Queue(),
    }
    stop = threading.Event()
    engine = open_engine(url, create=False, options={})
    prefix = b"default/space/changes%2Ffollowed/" + layout.ROW_PREFIX
    watcher = engine.watch(prefix, prefix + b"\xff", start_revision=store.at().revision + 1)
    follower = db.follower("now")

    def watch() -> None:
        while not stop.is_set():
            batch = watcher.next(1.0)
            for event in batch.events if isinstance(batch, WatchBatch) else ():
                if not event.is_delete:
                    row = layout.row_of(
                        event.kv.key[len(prefix) - len(layout.ROW_PREFIX) :], event.kv.value
                    )
                    heard["raw"].put((row.id, time.perf_counter()))

    def follow() -> None:
        while not stop.is_set():
            change = follower.next_within(1.0)
            if isinstance(change, Change):
                heard["follow"].put((change.id, time.perf_counter()))

    threads = [threading.Thread(target=run) for run in (watch, follow)]
    for thread in threads:
        thread.start()
    took: dict[str, list[float]] = {"raw": [], "follow": []}
    for number in count():
        if number == CHANGES:
            break
        id = f"doc{number}"
        sent[id] = time.perf_counter()
        db.put({"_id": id})
        for name, found in heard.items():
            told, at = found.get(timeout=20)
            assert told == id
            took[name].append((at - sent[id]) * 1e6)
    stop.set()
    for thread in threads:
        thread.join()
    follower.close()
    watcher.close()
    engine.close()
    names = {"raw": "raw etcd watch (floor)", "follow": "follow"}
    return rows_of({names[name]: Times(each, []) for name, each in took.items()})
