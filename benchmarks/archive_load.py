"""What does one load cost that falls through to an archive of ten million changes?"""

import random
import tempfile

import pyarrow.compute as pc
import pyarrow.parquet as pq

import snapkv
from benchmarks.harness import Rival, measure, report, seeded
from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.folder import Folder
from snapkv.archive.manifest import existing

KEYS, CHANGES, COMMIT, RECORDED_EACH = 100_000, 10_000_000, 10_000, 500_000
LOADS = 200
FAST = {"durability": "none"}


def main() -> None:
    """Write and record the changes, then load random keys at random times."""
    rng = seeded("archive_load")
    keys = [f"table/{n // 1_000:06}/col/{n:08}" for n in range(KEYS)]
    with tempfile.TemporaryDirectory() as folder:
        url, archive = f"lmdb:{folder}/meta", f"{folder}/archive"
        stamps = []
        with snapkv.open(url, **FAST) as store:
            for done in range(0, CHANGES, COMMIT):
                some = rng.sample(keys, COMMIT) if done >= KEYS else keys[done : done + COMMIT]
                store.commit(puts={key: rng.randbytes(16) for key in some})
                stamps.append(store.resolved())
                if done % RECORDED_EACH == 0:
                    snapkv.record(url, into=archive, options=FAST).catch_up()
            snapkv.record(url, into=archive, options=FAST).catch_up()
        _measure(archive, keys, stamps[CHANGES // COMMIT // 20 :], rng)


def _measure(archive: str, keys: list[str], stamps: list[int], rng: random.Random) -> None:
    manifest = existing(Folder(archive))
    files = [f for f in manifest.files if f.kind in ("delta", "base")]
    asked = [(rng.choice(keys), rng.choice(stamps)) for _ in range(LOADS)]
    with snapkv.open_archive(archive) as alone:
        engine = alone._core.engine
        assert isinstance(engine, ArchiveEngine)

        def load(i: int) -> bytes | None:
            return alone.load(*asked[i % len(asked)])

        def scan(i: int) -> bytes | None:
            key, then = asked[i % len(asked)]
            revision, best = alone.at(then).revision, (0, None)
            for file in files:
                rows = pq.read_table(f"{archive}/{file.path}", columns=["key", "revision", "value"])
                here = rows.filter(pc.equal(rows["key"], key.encode()))
                for number, value in zip(
                    here["revision"].to_pylist(), here["value"].to_pylist(), strict=True
                ):
                    if best[0] < number <= revision:
                        best = number, value
            return best[1]

        assert load(0) == scan(0)
        beside = measure(
            [Rival("a scan of all files (floor)", scan), Rival("load", load)], rounds=5
        )
        before = engine._files_open.groups_read
        alone_rows = measure([Rival("load", load)], rounds=LOADS, warmup=0)
        read = engine._files_open.groups_read - before
    groups = sum(pq.ParquetFile(f"{archive}/{f.path}").num_row_groups for f in files)
    notes = (
        f"{CHANGES:,} changes of {KEYS:,} keys in commits of {COMMIT:,}, recorded each "
        f"{RECORDED_EACH:,}: {len(files)} files of bases and deltas, {groups:,} row groups. Times "
        f"are of random keys at random times, with the files open. Each of the {LOADS} loads alone "
        f"read {read / LOADS:.1f} row groups that were not in memory (64 MiB are kept)."
    )
    tables = {"beside a scan": beside, f"{LOADS} loads": alone_rows}
    report("archive_load", "What does one load cost in a large archive?", tables, notes)


if __name__ == "__main__":
    main()
