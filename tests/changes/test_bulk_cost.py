"""What documents that are stored together cost: as much for each, however many they are."""

import sys
from collections.abc import Callable

import pytest

import snapkv
from cdcmeta import ChangesDB

pytestmark = pytest.mark.slow

FEW, MANY = 250, 2_000


def calls_of(do: Callable[[], object]) -> int:
    """Return how many functions are called, Python's and C's, while something is done."""
    count = 0

    def count_it(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count_it)
    try:
        do()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.long_after(1)
@pytest.mark.parametrize("kind", ["new", "conflicts", "replicated", "without ids"])
@pytest.mark.parametrize("engine", ["memory", "lmdb"])
def test_a_bulk_costs_by_its_documents(tmp_path, engine, kind):
    url = "memory:" if engine == "memory" else f"lmdb:{tmp_path / 'meta'}"
    with snapkv.open(url) as store:
        db = ChangesDB(store, "db").create()
        db.put({"_id": "warm"})

        def stored(size: int) -> int:
            docs = [{"_id": f"{size}/{n:06}", "n": n} for n in range(size)]
            write = db.bulk
            if kind == "conflicts":
                db.bulk(docs)
            elif kind == "without ids":
                docs = [{"n": n} for n in range(size)]
            elif kind == "replicated":
                write = db.replicate
                docs = [{**doc, "_rev": "1-" + "a" * 32} for doc in docs]
            return calls_of(lambda: write(docs))

        few, many = stored(FEW) / FEW, stored(MANY) / MANY
    assert few > 10
    assert many < 1.2 * few
