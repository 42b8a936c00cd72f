"""Databases and CDC logs, replicated by processes that are killed, created on the command line."""

import json
import random
import subprocess
import sys

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.generations import CdcLog, GenerationLog, Sharding
from cdcmeta.scheduler.executors.json_lines_sink import file_name
from cdcmeta.scheduler.runtime import Changefeeds

from .fleet import WAIT_S, Fleet

pytestmark = pytest.mark.slow

LABELS = ["c1", "c2"]
DATABASES = ["users", "orders"]
RANGES = [f"rows:{n}/4" for n in range(4)]


@pytest.fixture
def fleet(tmp_path):
    with Fleet(f"lmdb:{tmp_path / 'meta'}", tmp_path) as fleet:
        yield fleet


@pytest.fixture
def store(fleet):
    with snapkv.open(fleet.url) as store:
        yield store


def changefeed(fleet, *words):
    command = [sys.executable, "-m", "cdcmeta", "changefeed", *words, "--store", fleet.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def begin(fleet, store, tables, *words):
    for label in LABELS:
        fleet.start(label)
    done = changefeed(fleet, "create", "copy", "--source", fleet.url, *words)
    assert done.returncode == 0, done.stderr
    feeds = Changefeeds(store)
    eventually(
        lambda: {each.table for each in feeds.places("copy") if each.capture} == set(tables),
        "all tables",
        wait_s=WAIT_S,
    )


def kill_one(fleet, store):
    """End a capture that has a table with -9."""
    feeds = Changefeeds(store)
    alive = feeds.captures()
    victim = next(alive[e.capture].label for e in feeds.places("copy") if e.capture in alive)
    fleet.kill(victim)


@pytest.mark.long
def test_databases_are_the_same_after_a_capture_was_killed(fleet, store, tmp_path):
    rng, limits = random.Random(7), (1, 1_000)
    named = zip(DATABASES, limits, strict=True)
    dbs = [ChangesDB(store, name).create(revs_limit=limit) for name, limit in named]

    def edit(count):
        for _ in range(count):
            db, id = rng.choice(dbs), f"doc{rng.randrange(9)}"
            alive = [row for row in db.changes(doc_ids=[id]).rows if not row.deleted]
            if alive and rng.random() < 0.2:
                db.remove(id, alive[0].rev)
            else:
                db.put({"_id": id, "n": rng.random()}, rev=alive[0].rev if alive else None)

    edit(30)
    words = [word for name in DATABASES for word in ("--database", name)]
    begin(fleet, store, DATABASES, "--sink", f"lmdb:{tmp_path / 'copy'}", *words)
    edit(30)
    kill_one(fleet, store)
    edit(30)
    with snapkv.open(f"lmdb:{tmp_path / 'copy'}") as target:
        for db in dbs:
            copy = ChangesDB(target, db.name)
            eventually(
                lambda db=db, copy=copy: copy.exists() and same(db, copy),
                f"the copy of {db.name}\n{fleet.log()[-3_000:]}",
                wait_s=WAIT_S,
            )


def same(db, copy):
    ours, theirs = (
        {
            row.id: (row.revs, row.doc)
            for row in each.changes(include_docs=True, style="all_docs").rows
        }
        for each in (db, copy)
    )
    return ours == theirs


def whole_lines(path):
    """Return the lines of a file of which a capture may just be writing the last one."""
    return path.read_text().rpartition("\n")[0].splitlines()


def test_each_row_of_a_log_is_in_one_line_after_a_capture_was_killed(fleet, store, tmp_path):
    log = GenerationLog(store, propagation_delay=0.0, leeway=0.05)
    log.make({0: Sharding(2)})
    with log.member("writer") as member:
        table, rows = CdcLog(store, member, "rows"), []
        rows += [table.write(b"key%d" % n, b"1") for n in range(40)]
        words = ("--log", "rows", "--ranges", "4", "--sink", f"jsonl:{tmp_path / 'lines'}")
        begin(fleet, store, RANGES, *words)
        later = log.make({0: Sharding(2), 1 << 61: Sharding(3)})
        while rows[-1].timestamp < later.time or len(rows) < 80:
            rows.append(table.write(b"key%d" % (len(rows) % 40), b"2"))
        kill_one(fleet, store)
        rows += [table.write(b"key%d" % n, b"3") for n in range(40)]

    def found():
        lines = [
            json.loads(line)
            for name in RANGES
            if (path := tmp_path / "lines" / file_name(name)).exists()
            for line in whole_lines(path)
        ]
        changes = [change for line in lines for change in line.get("changes", ())]
        return sorted((each["key"], each["value"], each["stream"]) for each in changes)

    wanted = sorted((r.key.decode(), r.value.decode(), str(r.stream)) for r in rows)
    eventually(lambda: len(found()) >= len(wanted), "all rows", wait_s=WAIT_S)
    assert found() == wanted
    assert len({stream for _, _, stream in wanted}) > 3  # of both generations


def test_tables_that_the_source_lacks_are_refused(fleet, store):
    store.save("a", b"1")
    for words, text in (
        (("--database", "none"), "the source has no database 'none'"),
        (("--log", "none"), "the source has no CDC log 'none'"),
        (("--log", "none", "--prefix", "a"), "has no CDC log"),
        (("--database", "Bad"), "has no database"),
    ):
        done = changefeed(
            fleet, "create", "copy", "--source", fleet.url, "--sink", "call:x", *words
        )
        assert done.returncode != 0
        assert text in done.stderr
    assert Changefeeds(store).list() == []
