"""Do threads that save together save faster than one thread alone?"""

from collections.abc import Callable
from functools import partial

import snapkv
from benchmarks.harness import Rival, Row, measure, report, together
from benchmarks.servers import DURABLE, server_facts

THREADS, SAVES_EACH, ROUNDS = 16, 25, 20


def main() -> None:
    """Save 100 bytes durably: all from one thread, and as many from sixteen at once."""
    tables = {}
    for name, opened in DURABLE.items():
        with opened() as store:
            tables[f"{THREADS * SAVES_EACH} saves, {name} (per save)"] = _table(store)
    notes = (
        f"{server_facts()} The floor is one thread that does all the saves of the round. Threads "
        "whose saves meet share a transaction, and with it the wait for the disk or the server."
    )
    report("thread_saves", "Do threads that save together save faster?", tables, notes)


def _table(store: snapkv.SnapshotKV) -> list[Row]:
    value = bytes(100)

    def save(first: int, count: int) -> None:
        for i in range(first, first + count):
            store.save(f"k{i}", value)

    def one(i: int) -> None:
        save(i * 10**4, THREADS * SAVES_EACH)

    def many(threads: int) -> Callable[[int], None]:
        def run(i: int) -> None:
            each = THREADS * SAVES_EACH // threads
            together([partial(save, i * 10**4 + t * each, each) for t in range(threads)])

        return run

    rivals = [Rival("one thread (floor)", one)]
    rivals += [Rival(f"{n} threads", many(n)) for n in (2, THREADS)]
    return [row.per(THREADS * SAVES_EACH) for row in measure(rivals, rounds=ROUNDS)]
