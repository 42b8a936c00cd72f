"""What does a save cost on etcd, beside a bare transaction of two puts?"""

import time

import snapkv
from benchmarks.harness import Rival, Row, measure, measure_threads, report
from benchmarks.servers import Bare, etcd_server, server_facts
from snapkv.engine.etcd import etcd_pb2 as pb

THREADS, SAVES_EACH = 8, 25


def main() -> None:
    """Save 100 bytes: from one thread, and from eight at once."""
    tables = {}
    with etcd_server() as server, snapkv.open(server.url) as store:
        bare = Bare(server.endpoint)
        tables["one thread"] = _one_thread(store, bare)
        tables[f"{THREADS} threads, {SAVES_EACH} saves each (per save)"] = _threads(store, bare)
        bare.close()
    notes = (
        f"{server_facts()} The floor sends one transaction of two puts, of the key and of 8 bytes "
        "that stand for the timestamp. The guarded one does by hand what a save does: compare the "
        "timestamp key, put it, put the key, and get its previous value. Threads share "
        "transactions; their floor is a put, the smallest write."
    )
    report("etcd_save", "What does a save cost on etcd?", tables, notes)


def _one_thread(store: snapkv.SnapshotKV, bare: Bare) -> list[Row]:
    value = bytes(100)
    bare.put(b"bare/ts", bytes(8))

    def puts(i: int, stamp: bytes, previous: bool) -> list[pb.RequestOp]:
        return [
            pb.RequestOp(request_put=pb.PutRequest(key=b"bare/ts", value=stamp, prev_kv=previous)),
            pb.RequestOp(request_put=pb.PutRequest(key=b"bare/%d" % (i % 1_000), value=value)),
        ]

    def two_puts(i: int) -> None:
        stamp = time.time_ns().to_bytes(8, "big")
        assert bare.txn(pb.TxnRequest(success=puts(i, stamp, False))).succeeded

    def guarded(i: int) -> None:
        stamp = time.time_ns().to_bytes(8, "big")
        compare = pb.Compare(
            result=pb.Compare.LESS, target=pb.Compare.VALUE, key=b"bare/ts", value=stamp
        )
        failed = [pb.RequestOp(request_range=pb.RangeRequest(key=b"bare/ts"))]
        request = pb.TxnRequest(compare=[compare], success=puts(i, stamp, True), failure=failed)
        assert bare.txn(request).succeeded

    rivals = [
        Rival("a bare transaction of two puts (floor)", two_puts),
        Rival("a bare guarded transaction", guarded),
        Rival("a bare put", lambda i: bare.put(b"bare/%d" % (i % 1_000), value)),
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
