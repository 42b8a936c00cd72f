"""Fleets through Spark itself: batches, a view, and a stream over restarts."""

import json
from operator import itemgetter

import pytest
from direct import forget_all
from drivers import ended
from fleets import NAMES, Grown
from frames import together
from pyspark.errors import PySparkException
from reading.tabled import changes_of

import snapkv
from snapkv.spark.micro_batches import LIMITS_KNOWN

pytestmark = pytest.mark.slow


@pytest.fixture
def grown(tmp_path, clock):
    found = Grown(tmp_path, clock)
    yield found
    forget_all()
    found.close()


def load(spark, grown: Grown, **options):
    options |= {"fleet": grown.path, "numPartitions": 1}
    return spark.read.format("snapkv").options(**options).load()


def test_batches(spark, grown):
    """A snapshot, twice in one query, a view of some members, and changes; by one action."""
    grown.steps(30)
    for name in NAMES:
        grown.save(name, "k", name.encode())
    then = grown.tick()
    with snapkv.fleet.open(grown.path) as fleet:
        expected = [(*key, value) for key, value in fleet.at(then).items()]
    frame = load(spark, grown, columns="member,key,value")
    options = f"fleet '{grown.path}', members 'e*,old', columns 'member,key,value'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW fleet USING snapkv OPTIONS ({options})")
    columns = {"columns": "member,key,value"}
    changes = load(spark, grown, readChangeFeed=True, startingTimestamp=0, **columns)
    with grown.restored("us"):
        grown.save("us", "k", b"later")
        grown.save("us", "later", b"")
        grown.tick()
        lost = load(spark, grown)
    some = [frame, frame.where("key = 'k'"), spark.table("fleet"), changes]
    found = [[(m, k, v and bytes(v)) for m, k, v in rows] for rows in together(some)]
    assert sorted(found[0]) == expected, "what was pinned was not restored away"
    assert sorted(found[1]) == [(name, "k", name.encode()) for name in NAMES]
    assert sorted(found[2]) == [row for row in expected if row[0] != "us"]
    of_members = {name: changes_of(grown.writing[name].plain, 0, then) for name in NAMES}
    assert sorted(found[3], key=itemgetter(0)) == [
        (name, *row[:2]) for name, rows in of_members.items() for row in rows
    ]
    with pytest.raises(PySparkException) as caught:
        lost.collect()
    assert "[SNAPKV_STORE_MISMATCH] member us: " in str(caught.value)


@pytest.mark.long
def test_a_stream_over_restarts(spark, grown, tmp_path):
    """A sink that fails once gets the same batch again, with equal times in one batch."""
    brought: dict[int, list] = {}
    failures = [1 if LIMITS_KNOWN else 0]  # the first with rows

    def bring(frame, batch):
        rows = [tuple(row) for row in frame.collect()]
        assert brought.setdefault(batch, rows) == rows, "a batch that comes again is the same"
        if batch in failures:
            failures.remove(batch)
            raise OSError("the disk is full")

    def run():
        limits = {"maxRowsPerTrigger": 20} if LIMITS_KNOWN else {}
        source = spark.readStream.format("snapkv").options(fleet=grown.path, **limits)
        changes = source.options(readChangeFeed=True, startingTimestamp=0).load()
        writer = changes.selectExpr("member", "key", "_commit_version", "_change_type")
        written = writer.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return ended(written.trigger(availableNow=True).foreachBatch(bring).start).recentProgress

    grown.steps(15)
    grown.clock.advance(1_000)
    for name in NAMES:
        grown.save(name, "together", b"")
    grown.tick()
    with pytest.raises(PySparkException, match="the disk is full"):
        run()
    grown.steps(15)
    end = grown.tick()
    progress = run()
    if not LIMITS_KNOWN:  # a batch that comes again comes alone
        run()
    rows = [row for batch in sorted(brought) for row in brought[batch]]
    for name in NAMES:
        expected = changes_of(grown.writing[name].plain, 0, end)
        assert [row[1:3] for row in rows if row[0] == name] == [(r[0], r[3]) for r in expected]
    inserted = [
        {row[0] for row in batch if row[1:4:2] == ("together", "insert")}
        for batch in brought.values()
    ]
    assert [members for members in inserted if members] == [set(NAMES)]
    if LIMITS_KNOWN:
        newest = json.loads(progress[-1]["sources"][0]["latestOffset"])
        assert newest["ts"] == end
        assert newest["metrics"]["membersBehind"] == []
        assert len(brought) > 2
