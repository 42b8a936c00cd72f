"""What does an update cost beside the loop that services wrote by hand?"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import lmdb

import snapkv
from benchmarks.harness import Rival, Row, measure, measure_threads, report
from snapkv import AtRevision, ConflictError

THREADS = 8


def main() -> None:
    """Count up a key alone, and with eight threads at once."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"lmdb:{Path(folder) / 'snapkv'}"
        with snapkv.open(url, durability="none") as store:
            store.commit(puts={"alone": b"0", "hand": b"0", "both": b"0"})
            tables = {
                "one thread": _alone(store, Path(folder) / "raw"),
                f"{THREADS} threads, one key": _threads(store),
            }
    notes = (
        "On lmdb without waiting for the disk. The floor reads and writes in one transaction of "
        "LMDB, without history, time or guard. The loop by hand tries again at once."
    )
    report("updates", "What does an update cost?", tables, notes)


def _count(value: bytes | None) -> bytes:
    return b"%d" % (int(value or 0) + 1)


def _loop(store: snapkv.SnapshotKV, key: str) -> None:
    while True:
        entry = store.entry(key)
        guard = AtRevision(key, entry.revision)
        try:
            store.commit(puts={key: _count(entry.value)}, guards=[guard])
        except ConflictError:
            continue
        return


def _raw(folder: Path) -> Callable[[int], None]:
    env = lmdb.open(str(folder), sync=False)

    def run(i: int) -> None:
        with env.begin(write=True) as txn:
            txn.put(b"k", _count(txn.get(b"k")))

    return run


def _alone(store: snapkv.SnapshotKV, folder: Path) -> list[Row]:
    rivals = [
        Rival("py-lmdb, one transaction (floor)", _raw(folder)),
        Rival("store.update", lambda i: store.update("alone", _count)),
        Rival("entry, commit with a guard", lambda i: _loop(store, "hand")),
    ]
    return measure(rivals, rounds=100, block=10)


def _threads(store: snapkv.SnapshotKV) -> list[Row]:
    rivals: list[tuple[str, Callable[[int], object]]] = [
        ("the loop by hand (floor)", lambda i: _loop(store, "both")),
        ("store.update", lambda i: store.update("both", _count)),
    ]
    return measure_threads(rivals, threads=THREADS, each=20, rounds=15)
