"""How much memory do recording a large first state and `archive verify` take?

Each contestant is a process of its own; its figure is the most memory that it had resident.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import snapkv
from benchmarks.harness import RESULTS, machine, seeded
from snapkv.engine.contract import KeyEvent, KeyValue
from snapkv.layout import Layout, SourceId, StampRecord
from snapkv.model import Held

NAME = "archive_memory"
QUESTION = "How much memory do recording a large first state and `archive verify` take?"
KEYS, VALUE_BYTES, PAGE_ROWS = 1_000_000, 64, 1_000
LARGE_BYTES = 2 << 30
LARGE_KEYS, LARGE_VALUE_BYTES = 400_000, 1_000
DELTA_CHANGES, COMMIT_CHANGES = 60_000, 1_000
LAYOUT = Layout("default")
SOURCE = SourceId(b"0123456789abcdef", "default", 2)
FIRST_TIMESTAMP = 1_700_000_000_000 << 18


def _mark(revision: int, ordinal: int) -> KeyValue:
    stamp = StampRecord(FIRST_TIMESTAMP + ordinal, writer="benchmark").encode()
    return KeyValue(LAYOUT.ts, stamp, SOURCE.created, revision, ordinal)


def _key(number: int) -> bytes:
    return LAYOUT.data.encode(f"tables/{number:012}")


def _pages(keys: int, value_bytes: int) -> Iterator[list[KeyValue]]:
    """Yield a state as a scan of an engine does, made while it is taken."""
    rng = seeded(NAME)
    for low in range(0, keys, PAGE_ROWS):
        yield [
            KeyValue(_key(n), rng.randbytes(value_bytes), n + 3, n + 3, 1)
            for n in range(low, min(keys, low + PAGE_ROWS))
        ]


# --- what the processes do ---


def state_into_nothing(folder: str) -> None:
    """Make the pages, with the modules that a recorder into an archive has: the floor."""
    import snapkv.archive.writer  # noqa: F401

    for _ in _pages(KEYS, VALUE_BYTES):
        pass


def state_into_archive(folder: str) -> None:
    """Record a first state into an archive."""
    from snapkv.archive.folder import Folder
    from snapkv.archive.writer import ArchiveWriter

    ArchiveWriter(Folder(folder), SOURCE).begin(_mark(KEYS + 3, 2), _pages(KEYS, VALUE_BYTES))


def state_into_store(folder: str) -> None:
    """Record a first state into a store in lmdb."""
    from snapkv.copying.store_target import StoreTarget

    with snapkv.open(f"lmdb:{folder}") as store, store.election("record").campaign() as leader:
        target = StoreTarget(store._core, Held(leader.guard.key, leader.guard.revision))
        target.open(SOURCE)
        target.begin(_mark(KEYS + 3, 2), _pages(KEYS, VALUE_BYTES))


def large_archive(folder: str) -> None:
    """Make an archive of `LARGE_BYTES`, with deltas and two bases."""
    from snapkv.archive.folder import Folder
    from snapkv.archive.writer import ArchivedChange, ArchiveWriter

    rng, writer = seeded("changes"), ArchiveWriter(Folder(folder), SOURCE)
    revision, ordinal, versions = LARGE_KEYS + 3, 2, [1] * LARGE_KEYS
    writer.begin(_mark(revision, ordinal), _pages(LARGE_KEYS, LARGE_VALUE_BYTES))
    while sum(file.size for file in writer.manifest.files) < LARGE_BYTES:  # type: ignore[union-attr]
        changes, marks = [], []
        for _ in range(DELTA_CHANGES // COMMIT_CHANGES):
            revision, ordinal = revision + 1, ordinal + 1
            marks.append(_mark(revision, ordinal))
            for n in rng.sample(range(LARGE_KEYS), COMMIT_CHANGES):
                versions[n] += 1
                value = rng.randbytes(LARGE_VALUE_BYTES)
                kv = KeyValue(_key(n), value, n + 3, revision, versions[n])
                changes.append(ArchivedChange(KeyEvent(kv, False), FIRST_TIMESTAMP + ordinal))
        changes.sort(key=lambda each: (each.event.kv.key, each.event.kv.mod_revision))
        writer.append(revision, changes, marks)
        while writer.tidy():
            pass


def verify_archive(folder: str) -> None:
    """Verify an archive as `archive verify` does."""
    from snapkv.archive.folder import Folder
    from snapkv.archive.verify import verify

    assert verify(Folder(folder)).problems == ()


def read_with_pyarrow(folder: str) -> None:
    """Read each row group of each file, and compare nothing: a rival."""
    import pyarrow.parquet as pq

    for path in sorted(Path(folder).glob("*/*.parquet")):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        for number in range(file.num_row_groups):
            file.read_row_group(number)


def state_with_duckdb(folder: str) -> None:
    """Find the newest version of each key, and sum them up: a rival."""
    import duckdb

    files = [str(path) for kind in ("base", "delta") for path in Path(folder, kind).glob("*")]
    query = (
        "SELECT count(*), bit_xor(hash(value)) FROM (SELECT key, arg_max(value, revision) AS value "
        "FROM read_parquet($1, union_by_name = true) GROUP BY key)"
    )
    duckdb.execute(query, [files]).fetchall()


# --- the run ---


def _child(what: str, folder: str) -> tuple[float, float]:
    """Return the peak of a process in MiB, and its seconds."""
    program = [sys.executable, "-m", "benchmarks.archive_memory", what, folder]
    began = perf_counter()
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout) / 1_024, perf_counter() - began


def main() -> None:
    """Measure each contestant, and write what came out."""
    with tempfile.TemporaryDirectory() as folder:
        _child("large_archive", f"{folder}/large")
        size = sum(path.stat().st_size for path in Path(folder, "large").rglob("*.parquet"))
        state = f"a first state of {KEYS:,} keys"
        large = f"an archive of {size / (1 << 30):.2f} GiB"
        rows = [
            (state, "its pages, and the modules (floor)", "state_into_nothing", "0"),
            (state, "into a store in lmdb", "state_into_store", "1"),
            (state, "into an archive", "state_into_archive", "2"),
            (large, "pyarrow reads each row group (floor)", "read_with_pyarrow", "large"),
            (large, "duckdb finds the newest state", "state_with_duckdb", "large"),
            (large, "`archive verify`", "verify_archive", "large"),
        ]
        found = []
        for of, title, what, place in rows:
            mib, seconds = _child(what, f"{folder}/{place}")
            found.append({"of": of, "what": title, "peak MiB": round(mib), "s": round(seconds, 1)})
            print(found[-1])
            if place != "large":
                shutil.rmtree(f"{folder}/{place}", ignore_errors=True)
    notes = (
        f"Keys of 19 bytes; values are random, of {VALUE_BYTES} bytes in the first state and of "
        f"{LARGE_VALUE_BYTES:,} in the large archive, which has {LARGE_KEYS:,} keys, deltas of "
        f"{DELTA_CHANGES:,} changes and two bases. The peak is that of `getrusage`, with the "
        "pages of files that the process has mapped, as lmdb does. duckdb may use all memory."
    )
    _write(found, notes)


def _write(found: list[dict[str, object]], notes: str) -> None:
    lines = [f"# {QUESTION}", "", ", ".join(f"{k} {v}" for k, v in machine().items()), ""]
    names = list(found[0])
    lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    lines += [f"| {' | '.join(str(row[name]) for name in names)} |" for row in found]
    (RESULTS / f"{NAME}.md").write_text("\n".join([*lines, "", notes, ""]))
    data = {"question": QUESTION, "machine": machine(), "peaks": found, "notes": notes}
    (RESULTS / f"{NAME}.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        globals()[sys.argv[1]](sys.argv[2])
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
