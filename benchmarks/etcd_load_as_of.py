"""What does reading a key as of a past time cost on etcd?"""

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.servers import Bare, etcd_server, server_facts

COMMITS, FOREIGN = 6_000, 24_000


def main() -> None:
    """Look up times among 30,000 revisions, of which a fifth are commits."""
    with etcd_server(fsync=False) as server:
        clock = snapkv.ManualClock(1_700_000_000_000)
        stamps, revisions = _fill(server, clock)
        bare = Bare(server.endpoint)
        tables = {}
        with snapkv.open(server.url, clock=clock, max_clock_skew=1e9) as store:
            tables["one of the newest 1,000 commits (in the ring)"] = _recent(
                store, bare, stamps, revisions
            )
            tables[f"any of {COMMITS:,} commits, anchors warm"] = _anywhere(
                store, bare, stamps, revisions
            )
        tables["one old time, nothing known yet (a new store each time)"] = _cold(
            server.url, clock, bare, stamps, revisions
        )
    notes = (
        f"{server_facts(fsync=False)} "
        f"{COMMITS:,} commits and {FOREIGN:,} writes of others between them. The "
        "floor reads the key at a revision that it is told. The walk is the one of Milvus's "
        "metaSnapshot: one read for each version of the timestamp key, newest first; here it "
        "walks 200 versions, and its cost grows with the distance."
    )
    report("etcd_load_as_of", "What does a read of the past cost on etcd?", tables, notes)


def _fill(server, clock: snapkv.ManualClock) -> tuple[list[int], list[int]]:  # type: ignore[no-untyped-def]
    rng, bare = seeded("etcd_load_as_of"), Bare(server.endpoint)
    stamps, revisions = [], []
    with snapkv.open(server.url, clock=clock, max_clock_skew=1e9) as store:
        for i in range(COMMITS):
            clock.advance(rng.randrange(1, 2_000))
            commit = store.commit(puts={f"k{i % 500}": b"%d" % i})
            stamps.append(commit.ts)
            revisions.append(commit.revision)
            for _ in range(FOREIGN // COMMITS):
                bare.put(b"foreign/%d" % rng.randrange(1_000), b"x")
    return stamps, revisions


def _load(store: snapkv.SnapshotKV, i: int, stamps: list[int]) -> None:
    assert store.load(f"k{i % 500}", stamps[i]) == b"%d" % i


def _floor(bare: Bare, i: int, revisions: list[int]) -> None:
    key = b"default/data/k%d" % (i % 500)
    assert bare.range(key, revision=revisions[i]).kvs[0].value == b"%d" % i


def _recent(  # type: ignore[no-untyped-def]
    store, bare: Bare, stamps: list[int], revisions: list[int]
) -> list[Row]:
    rng = seeded("recent")
    picks = [COMMITS - 1 - rng.randrange(1_000) for _ in range(4_000)]
    return measure(
        [
            Rival(
                "a bare read at a known revision (floor)",
                lambda i: _floor(bare, picks[i], revisions),
            ),
            Rival("snapkv load(key, ts)", lambda i: _load(store, picks[i], stamps)),
        ],
        rounds=1_500,
        warmup=50,
    )


def _anywhere(  # type: ignore[no-untyped-def]
    store, bare: Bare, stamps: list[int], revisions: list[int]
) -> list[Row]:
    rng = seeded("anywhere")
    picks = [rng.randrange(COMMITS) for _ in range(4_000)]
    return measure(
        [
            Rival(
                "a bare read at a known revision (floor)",
                lambda i: _floor(bare, picks[i], revisions),
            ),
            Rival("snapkv load(key, ts)", lambda i: _load(store, picks[i], stamps)),
        ],
        rounds=1_500,
        warmup=200,
    )


def _cold(  # type: ignore[no-untyped-def]
    url: str, clock, bare: Bare, stamps: list[int], revisions: list[int]
) -> list[Row]:
    rng = seeded("cold")
    picks = [rng.randrange(COMMITS - 2_000) for _ in range(400)]

    def by_store(i: int) -> None:
        with snapkv.open(url, clock=clock, max_clock_skew=1e9) as store:
            _load(store, picks[i], stamps)

    def by_walk(i: int) -> None:
        revision = revisions[-1]
        for _ in range(200):
            revision = bare.range(b"default/sys/ts", revision=revision).kvs[0].mod_revision - 1

    return measure(
        [
            Rival(
                "a bare read at a known revision (floor)",
                lambda i: _floor(bare, picks[i], revisions),
            ),
            Rival("snapkv open, load(key, ts), close", by_store),
            Rival("a walk of 200 versions", by_walk),
        ],
        rounds=150,
    )
