"""What does a page of a long listing cost on etcd?"""

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.servers import Bare, etcd_server, put_all, server_facts

KEYS, PAGE = 200_000, 50
START, END = b"default/data/", b"default/data0"


def main() -> None:
    """Read pages of 50 of 200,000 keys, each behind a key, of two kinds of names."""
    rng, tables = seeded("etcd_pages"), {}
    kinds = {
        "numbered names": [f"users/{i:07d}/profile" for i in range(KEYS)],
        "random names": sorted(f"ids/{rng.getrandbits(128):032x}" for _ in range(KEYS)),
    }
    for kind, names in kinds.items():
        with etcd_server(fsync=False) as server, snapkv.open(server.url) as store:
            bare = Bare(server.endpoint)
            put_all(bare, ((START + name.encode(), rng.randbytes(100)) for name in names), KEYS)
            tables[f"pages of {PAGE} of {KEYS:,} {kind}"] = _pages(store, bare, names)
            bare.close()
    notes = (
        f"{server_facts(fsync=False)} The floor knows where the page ends. A range with a limit "
        "makes the server count all keys behind it. snapkv's first page costs that once."
    )
    report("etcd_pages", "What does a page of a long listing cost on etcd?", tables, notes)


def _pages(store: snapkv.SnapshotKV, bare: Bare, names: list[str]) -> list[Row]:
    snapshot = store.at(store.tick().ts)
    ends = [START + name.encode() + b"\0" for name in names[PAGE - 1 :: PAGE]]
    before = [names[at * PAGE - 1] for at in range(1, len(ends))]

    def bounded(i: int) -> None:
        at = i % len(before)
        found = bare.range(ends[at], range_end=ends[at + 1], revision=snapshot.revision)
        assert len(found.kvs) == PAGE

    def by_store(i: int) -> None:
        assert len(list(snapshot.items(after=before[i % len(before)], limit=PAGE))) == PAGE

    def by_limit(i: int) -> None:
        start = ends[i % len(before)]
        found = bare.range(start, range_end=END, revision=snapshot.revision, limit=PAGE)
        assert len(found.kvs) == PAGE

    rivals = [
        Rival("a range with both ends (floor)", bounded),
        Rival("snapkv items(after, limit)", by_store),
        Rival("a range with a limit", by_limit),
    ]
    return measure(rivals, rounds=400, cpu=False)
