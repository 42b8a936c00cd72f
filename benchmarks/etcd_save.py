"""What does a save cost on etcd, beside a bare put?"""

import subprocess
import sys
import time

import snapkv
from benchmarks.harness import Rival, Row, measure, measure_threads, quantile, report
from benchmarks.servers import Bare, etcd_server, server_facts
from snapkv.engine.etcd import etcd_pb2 as pb

THREADS, SAVES_EACH = 8, 25
PROCESSES, PROCESS_S = (1, 4, 16), 6.0


def main() -> None:
    """Save 100 bytes: from one thread, from eight, and from several processes at once."""
    tables = {}
    with etcd_server() as server, snapkv.open(server.url) as store:
        bare = Bare(server.endpoint)
        tables["one thread"] = _one_thread(store, bare)
        tables[f"{THREADS} threads, {SAVES_EACH} saves each (per save)"] = _threads(store, bare)
    for processes in PROCESSES:
        with etcd_server() as server:
            title = f"{processes} processes, one thread each, as fast as they can (per save of one)"
            tables[title] = _processes(server.url, server.endpoint, processes)
    notes = (
        f"{server_facts()} The floor sends one put. The bare guarded transaction does by hand what "
        "a save does: compare the timestamp key, put it, put the key. Threads share transactions; "
        "processes contend for the timestamp key, and who loses a round tries again."
    )
    report("etcd_save", "What does a save cost on etcd?", tables, notes)


def _one_thread(store: snapkv.SnapshotKV, bare: Bare) -> list[Row]:
    value = bytes(100)
    bare.put(b"bare/ts", bytes(8))

    def guarded(i: int) -> None:
        stamp = time.time_ns().to_bytes(8, "big")
        compare = pb.Compare(
            result=pb.Compare.LESS, target=pb.Compare.VALUE, key=b"bare/ts", value=stamp
        )
        puts = [
            pb.RequestOp(request_put=pb.PutRequest(key=key, value=what, prev_kv=key == b"bare/ts"))
            for key, what in ((b"bare/ts", stamp), (b"bare/%d" % (i % 1_000), value))
        ]
        failed = [pb.RequestOp(request_range=pb.RangeRequest(key=b"bare/ts"))]
        assert bare.txn(pb.TxnRequest(compare=[compare], success=puts, failure=failed)).succeeded

    rivals = [
        Rival("a bare put (floor)", lambda i: bare.put(b"bare/%d" % (i % 1_000), value)),
        Rival("a bare guarded transaction", guarded),
        Rival("snapkv save", lambda i: store.save(f"k{i % 1_000}", value)),
    ]
    return measure(rivals, rounds=1_500)


def _threads(store: snapkv.SnapshotKV, bare: Bare) -> list[Row]:
    value = bytes(100)

    return measure_threads(
        [
            ("bare puts (floor)", lambda i: bare.put(b"bare/%d" % i, value)),
            ("snapkv saves", lambda i: store.save(f"k{i}", value)),
        ],
        threads=THREADS,
        each=SAVES_EACH,
        rounds=40,
    )


_WORKER = """
import sys, time
url, endpoint, what, number, seconds = sys.argv[1:]
if what == "bare":
    from benchmarks.servers import Bare
    bare = Bare(endpoint)
    save = lambda i: bare.put(b"p%s/%d" % (number.encode(), i), bytes(100))
else:
    import snapkv
    store = snapkv.open(url, commit_timeout=60)
    save = lambda i: store.save(f"p{number}/{i}", bytes(100))
save(0)
print("ready", flush=True)
sys.stdin.readline()
until, i, took = time.perf_counter() + float(seconds), 1, []
while (began := time.perf_counter()) < until:
    save(i)
    took.append(round((time.perf_counter() - began) * 1e6))
    i += 1
print(*took)
"""


def _processes(url: str, endpoint: str, count: int) -> list[Row]:
    rows, floor = [], 0.0
    for what, name in (("bare", "bare puts (floor)"), ("snapkv", "snapkv saves")):
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", _WORKER, url, endpoint, what, str(n), str(PROCESS_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(count)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline().strip() == "ready"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        took = [[int(t) for t in w.communicate(timeout=120)[0].split()] for w in workers]
        saves = [len(each) for each in took]
        all_took = [t for each in took for t in each]
        mean_us = PROCESS_S * 1e6 * count / len(all_took)
        floor = floor or mean_us
        title = f"{name}: {round(len(all_took) / PROCESS_S):,}/s, slowest {min(saves)} saves, "
        title += f"fastest {max(saves)}"
        median, p99 = quantile(all_took, 0.5), quantile(all_took, 0.99)
        rows.append(Row(title, median, p99, round(mean_us / floor, 2)))
    return rows
