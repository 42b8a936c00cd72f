"""Does a cluster read 500,000 keys of three etcd nodes while one dies, and with what memory?"""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import snapkv
from benchmarks.harness import RESULTS, machine, seeded, show
from benchmarks.servers import etcd_cluster, etcd_version
from snapkv.spark import read_changes, read_snapshot
from snapkv.spark.local import local_session

KEYS, AT_ONCE, VALUE_BYTES = 500_000, 5_000, 64
MASTER = "local-cluster[2,1,1024]"
KILL_AFTER_S = 0.3
KINDS = {"java": "JVM", "etcd": "etcd"}


def main() -> None:
    """Count and read all keys; then again, while the leader is killed."""
    with etcd_cluster() as cluster, snapkv.open(cluster.url) as store:
        fill(store)
        with local_session({"spark.master": MASTER}) as spark:
            snapshot = read_snapshot(spark, cluster.url)
            rows = [("count, all up; first of the session", *timed(snapshot.count))]
            rows.append(("count, all up", *timed(snapshot.count)))
            rows.append(("keys and values, all up", *timed(lambda: size_of(snapshot))))
            leader = cluster.leader()
            killer = threading.Timer(KILL_AFTER_S, leader.kill)
            killer.start()
            rows.append(("keys and values, the leader dies", *timed(lambda: size_of(snapshot))))
            killer.join()
            rows.append(("keys and values, two are up", *timed(lambda: size_of(snapshot))))
            feed = read_changes(spark, cluster.url, 0)
            rows.append(("feed of all changes, two are up", *timed(lambda: size_of(feed))))
            memory = peak_memory()
    write(rows, memory)


def fill(store: snapkv.SnapshotKV) -> None:
    """Save the keys."""
    rng = seeded("spark_cluster")
    for at in range(0, KEYS, AT_ONCE):
        show(at, KEYS)
        names = (f"table/{n // 1000:06d}/col/{n:08d}" for n in range(at, at + AT_ONCE))
        store.commit(puts={name: rng.randbytes(VALUE_BYTES) for name in names})


def size_of(frame) -> int:  # type: ignore[no-untyped-def]
    """Read all values; return the number of rows."""
    found = frame.selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").first()
    assert found.bytes == found.rows * VALUE_BYTES
    return int(found.rows)


def timed(call) -> tuple[int, float]:  # type: ignore[no-untyped-def]
    """Return the rows of a read, all of them, and its seconds."""
    begin = time.perf_counter()
    rows = call()
    assert rows == KEYS, f"{rows} rows of {KEYS}"
    return rows, time.perf_counter() - begin


def peak_memory() -> dict[str, list[int]]:
    """Return the most memory of each process of this test so far, in MB, by kind."""
    found: dict[str, list[int]] = {}
    for pid in descendants():
        status = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if ":" in line
        )
        if "VmHWM" in status:
            kind = KINDS.get(status["Name"].strip(), "Python")
            found.setdefault(kind, []).append(int(status["VmHWM"].split()[0]) // 1024)
    return {kind: sorted(sizes, reverse=True) for kind, sizes in found.items()}


def descendants() -> Iterator[int]:
    """Yield the processes that this one started, and those that they started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    left = [int(Path("/proc/self").resolve().name)]
    while left:
        parent = left.pop()
        children = [pid for pid, of in parents.items() if of == parent]
        yield from children
        left += children


def write(rows: list[tuple[str, int, float]], memory: dict[str, list[int]]) -> None:
    """Write the results."""
    question = "Does a cluster read 500,000 keys of three etcd nodes while one of them dies?"
    facts = machine()
    lines = ["| | rows | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {count:,} | {seconds:.2f} |" for name, count, seconds in rows]
    lines += ["", "| processes | most memory of each, MB |", "|---|---|"]
    lines += [f"| {kind} | {', '.join(map(str, sizes))} |" for kind, sizes in memory.items()]
    notes = (
        f"{MASTER}: a driver and two executors, each with a JVM, and three nodes of etcd "
        f"{'.'.join(map(str, etcd_version()))} without fsync, all on the same two cores. Keys of "
        f"25 bytes with values of {VALUE_BYTES}. The leader is killed {KILL_AFTER_S} s after the "
        "read began, and does not come back. Memory is VmHWM; the first Python is the driver."
    )
    head = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    text = "\n".join([*head, *lines, "", notes, ""])
    print(text)
    (RESULTS / "spark_cluster.md").write_text(text)
    data = {"question": question, "machine": facts, "reads": rows, "mb": memory, "notes": notes}
    (RESULTS / "spark_cluster.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
