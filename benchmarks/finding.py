"""What do searches, a revert, and data in and out cost beside what people use without a store?"""

import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import snapkv
from benchmarks.harness import Rival, Row, Times, measure, report, rows_of, seeded
from benchmarks.servers import Bare, etcd_server, etcdctl_of, server_facts

KEYS, COMMITS, VALUE_BYTES = 100_000, 3_000, 170
GROUP = 100
REVERTED = 1_000
FILES, FILE_BYTES = 1_000, 300
NEEDLE = "image: web:1.25"


def main() -> None:
    """Search on both engines, revert on lmdb, and bring a folder in and out."""
    tables: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder, etcd_server(fsync=False) as server:
        place = Path(folder)
        ctl = etcdctl_of(server)
        for url in (f"lmdb:{place}/lmdb", server.url):
            tables |= _searches(url, f"{ctl} get --prefix ''")
        tables |= _undoing(place)
        tables |= _in_and_out(place, server.endpoint, f"{ctl} put")
    notes = (
        f"{server_facts(fsync=False)} Microseconds an operation. Searches: {KEYS:,} keys of "
        f"{VALUE_BYTES} bytes and {COMMITS:,} commits, a text in one key of 1,000 and in one "
        "commit of 30. SQLite's table is in memory. Programs include their start. Writes of snapkv "
        "and git wait for the disk as they do by default, those of etcd do not."
    )
    report("finding", "What do searches, a revert, and data in and out cost?", tables, notes)


def _value(rng: random.Random, found: bool) -> bytes:
    text = f"{NEEDLE if found else 'image: web:1.24'} {rng.randbytes(VALUE_BYTES).hex()}"
    return text[:VALUE_BYTES].encode()


def _searches(url: str, get: str) -> dict[str, list[Row]]:
    rng, engine = seeded("finding"), url.partition(":")[0]
    names = [f"catalog/table-{number:06d}" for number in range(KEYS)]
    values = {name: _value(rng, number % 1_000 == 0) for number, name in enumerate(names)}
    store = snapkv.open(url, **({"durability": "none"} if engine == "lmdb" else {}))
    for at in range(0, KEYS, GROUP):
        store.commit(puts={name: values[name] for name in names[at : at + GROUP]})
    for number in range(COMMITS - KEYS // GROUP):
        name = rng.choice(names[1:])
        values[name] = _value(rng, number % 30 == 0)
        store.save(name, values[name])
    expected = sorted(name for name, value in values.items() if NEEDLE.encode() in value)
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
    db.executemany("INSERT INTO kv VALUES (?, ?)", [(k, v.decode()) for k, v in values.items()])

    def by_like(_: int) -> list[str]:
        like = "SELECT key FROM kv WHERE value LIKE ? ORDER BY key"
        return [key for (key,) in db.execute(like, (f"%{NEEDLE}%",))]

    def by_search(_: int) -> list[str]:
        return [key for key, _ in store.at().search(NEEDLE)]

    rivals = [Rival("search", by_search), Rival("SQLite LIKE, no history", by_like)]
    assert by_search(0) == by_like(0) == expected
    if engine == "etcd":

        def by_grep(_: int) -> int:
            line = f"{get} | grep -c '{NEEDLE}'"
            done = subprocess.run(line, shell=True, capture_output=True, check=True)
            return int(done.stdout)

        assert by_grep(0) >= len(expected)
        rivals.append(Rival("etcdctl get --prefix to grep, no history", by_grep))

    def all_commits(_: int) -> int:
        return len(list(store.commits(text=NEEDLE)))

    def newest_commits(_: int) -> int:
        return len(list(islice(store.commits(text=NEEDLE, newest_first=True), 10)))

    def commits_alone(_: int) -> int:
        return len(list(store.commits()))

    assert 0 < all_commits(0) < commits_alone(0)
    of_commits = [
        Rival("commits(), without a text (floor)", commits_alone),
        Rival("commits(text=), all", all_commits),
        Rival("commits(text=), the newest 10", newest_commits),
    ]
    cpu = engine == "lmdb"
    found = {
        f"{engine}: keys whose value has a text": measure(
            rivals[::-1], rounds=5, warmup=1, cpu=cpu
        ),
        f"{engine}: commits that brought or removed a text": measure(
            of_commits, rounds=5, warmup=1, cpu=cpu
        ),
    }
    store.close()
    return found


def _undoing(place: Path) -> dict[str, list[Row]]:
    """Undo a commit of 1,000 keys of 10,000, again and again; the floor is its commit."""
    store = snapkv.open(f"lmdb:{place}/undoing")
    good = {f"key/{number:05d}": b"good" for number in range(10 * REVERTED)}
    bad = dict.fromkeys(islice(good, REVERTED), b"bad")
    at = store.commit(puts=good).ts
    worst = [0]

    def spoil(_: int) -> None:
        worst[0] = store.commit(puts=bad).ts

    def revert(_: int) -> None:
        store.revert(worst[0])

    def restore(_: int) -> None:
        store.restore(at)

    rivals = [
        Rival("the commit itself (floor)", spoil),
        Rival("revert", revert),
        Rival("the commit itself, again", spoil),
        Rival("restore", restore),
    ]
    rows = _in_order(rivals, rounds=11)
    assert store.load("key/00000") == b"good"
    store.close()
    return {f"lmdb: undo a commit of {REVERTED:,} keys, of {len(good):,}": rows}


def _in_order(rivals: list[Rival], rounds: int) -> list[Row]:
    """Measure operations of which each needs the one before it: the order does not turn."""
    times = {rival.name: Times([], []) for rival in rivals}
    for round_ in range(-2, rounds):
        for rival in rivals:
            cpu_started, started = time.process_time_ns(), time.perf_counter_ns()
            rival.run(round_)
            ended, cpu_ended = time.perf_counter_ns(), time.process_time_ns()
            if round_ >= 0:
                times[rival.name].wall.append((ended - started) / 1_000)
                times[rival.name].cpu.append((cpu_ended - cpu_started) / 1_000)
    return rows_of(times)


def _in_and_out(place: Path, endpoint: str, put: str) -> dict[str, list[Row]]:
    """Bring a folder in, as a new store each time, and write it out again."""
    rng, folder = seeded("in and out"), place / "files"
    for number in range(FILES):
        path = folder / f"{number % 20:02d}" / f"{number:05d}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(rng.randbytes(FILE_BYTES // 2).hex().encode())
    bare = Bare(endpoint)
    snap = f"{sys.executable} -m snapkv.cli"

    def run(line: str) -> None:
        subprocess.run(line, shell=True, check=True, capture_output=True, cwd=place)

    def by_snapkv(i: int) -> None:
        run(f"{snap} import files --store lmdb:./in-{i}")

    def by_git(i: int) -> None:
        run(
            f"git init -q --bare g-{i} && export GIT_DIR=$PWD/g-{i} GIT_WORK_TREE=$PWD/files && "
            "git add . && git -c user.name=a -c user.email=a@example.com commit -q -m new"
        )

    def by_raw_puts(i: int) -> None:
        for path in sorted(folder.rglob("*.yaml")):
            bare.put(f"{i}/{path.relative_to(folder)}".encode(), path.read_bytes())

    def by_etcdctl(i: int) -> None:
        run(f"find files -name '0000[0-9]*' | while read f; do {put} {i}/$f < $f; done")

    def out_of_snapkv(i: int) -> None:
        run(f"{snap} export out-{i} --store lmdb:./in-0")

    def out_of_snapkv_lines(i: int) -> None:
        run(f"{snap} export out-{i}.jsonl --store lmdb:./in-0")

    def out_of_git(i: int) -> None:
        run(f"mkdir c-{i} && git --git-dir g-0 --work-tree c-{i} checkout -q -f HEAD -- .")

    into = [
        Rival("git add, git commit (floor)", by_git),
        Rival("snapkv import, lmdb", by_snapkv),
        Rival("puts of a raw client into etcd", by_raw_puts),
    ]
    loop = [Rival("etcdctl put in a loop, 10 files", by_etcdctl)]
    out = [
        Rival("git checkout (floor)", out_of_git),
        Rival("snapkv export, a folder", out_of_snapkv),
        Rival("snapkv export, .jsonl", out_of_snapkv_lines),
    ]
    return {
        f"a folder of {FILES:,} files in": measure(into, rounds=5, warmup=1, cpu=False),
        "ten of these files into etcd": measure(loop, rounds=3, warmup=1, cpu=False),
        f"a folder of {FILES:,} files out": measure(out, rounds=5, warmup=1, cpu=False),
    }
