"""Make the files of this folder with the code at hand: one of each format that outlives a process.

Run it in a clone for a new release, into a new folder; released files are never made anew:

    python tests/vectors/formats_0_1/make.py tests/vectors/formats_0_2
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, chdir
from pathlib import Path
from unittest import mock

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.generations import CdcLog, ConsumerId, GenerationLog, Sharding, StreamConsumer
from cdcmeta.generations.log_rows import encoded
from cdcmeta.scheduler.runtime import Capture, Changefeeds
from cdcmeta.scheduler.transport.local import LocalNetwork
from snapkv.clock import ManualClock
from snapkv.tuples import pack

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
LEASE_S = 1e6
WAIT_S = 60.0
PAGE_BYTES = 4_096
BOOT = 1
"""No machine has it: whichever opens the store sees leases of an earlier boot, none of them due."""


def make(target: Path) -> None:
    """Fill a folder with one file, or folder, of each format, and `expected.json`."""
    target = target.absolute()
    target.mkdir(parents=True, exist_ok=True)
    clock = ManualClock(START_MS)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        url = "lmdb:meta"
        boots = [f"snapkv.engine.lmdb.{each}.boot_tag" for each in ("leases", "writing")]
        with ExitStack() as stack:
            for each in boots:
                stack.enter_context(mock.patch(each, return_value=BOOT))
            stack.enter_context(mock.patch("socket.gethostname", return_value="host"))
            store = stack.enter_context(snapkv.open(url, clock=clock, writer="maker@host"))
            expected = {
                "store": commits(store, clock),
                "documents": documents(store, clock),
                "generations": generations(store, clock),
                "changefeeds": changefeeds(store, clock),
                "leases": leases(store, stack),
            }
            options = {"clock": clock, "writer": "maker@host"}
            for into in ("archive", "lmdb:recorded"):
                snapkv.record(url, into=into, options=options).catch_up()
            expected["store"]["states"] = states(store)
            store.dump("dump")
            data = Path("meta", "data.mdb").read_bytes()  # a backup would have no leases
        (target / "data.mdb.gz").write_bytes(packed(shortened(data)))
        data = Path("recorded", "data.mdb").read_bytes()
        (target / "recorded.mdb.gz").write_bytes(packed(shortened(data)))
        (target / "dump.gz").write_bytes(packed(Path("dump").read_bytes()))
        for name in ("archive", "lines"):
            shutil.rmtree(target / name, ignore_errors=True)
            shutil.copytree(name, target / name)
    text = json.dumps(expected, indent=1, sort_keys=True)
    (target / "expected.json").write_text(text + "\n")


def shortened(data: bytes) -> bytes:
    """Return an LMDB file without the unused zeros at its end, in whole pages."""
    used = data.rstrip(b"\0")
    return data[: -(-len(used) // PAGE_BYTES) * PAGE_BYTES]


def packed(data: bytes) -> bytes:
    """Return data compressed, the same bytes each time."""
    return gzip.compress(data, 9, mtime=0)


# --- snapkv --------------------------------------------------------------------------------


def commits(store: snapkv.SnapshotKV, clock: ManualClock) -> dict[str, object]:
    """Commit keys, removals, bytes of a space, a note, a meta; return how each is stored."""
    for number in range(6):
        clock.advance(1_000)
        store.commit(
            puts={f"a/{number % 4}": b"value %d" % number, "ä/\N{SNOWMAN}": b"\0\xff"},
            deletes=["a/1"] if number == 4 else [],
            note=f"commit {number}" if number % 2 else None,
            writer="ann@laptop" if number == 3 else None,
            meta={"request": "r-17", "try": number} if number == 5 else None,
        )
    space = store.space("layer/100%")
    space.commit(puts={b"\0k\xff": b"of a layer"})
    return {
        "commits": [
            {"ts": c.ts, "writer": c.writer, "note": c.note, "meta": c.meta and dict(c.meta)}
            for c in store.commits()
            if c.ts
        ]
    }


def states(store: snapkv.SnapshotKV) -> list[dict[str, object]]:
    """Return the users' keys at each commit."""
    return [
        {"ts": c.ts, "keys": {key: value.hex() for key, value in store.at(c.ts).items()}}
        for c in store.commits()
    ]


def leases(store: snapkv.SnapshotKV, stack: ExitStack) -> dict[str, object]:
    """Leave a session and a leader behind, as a process that is killed does."""
    session = stack.enter_context(store.session(ttl=LEASE_S, value=b"10.0.0.7:80"))
    election = stack.enter_context(store.election("jobs/daily", session=session))
    election.campaign(b"host-a", timeout=WAIT_S)
    return {"session": "10.0.0.7:80", "election": "jobs/daily", "leader": "host-a"}


# --- cdcmeta -------------------------------------------------------------------------------


def documents(store: snapkv.SnapshotKV, clock: ManualClock) -> dict[str, object]:
    """Write documents: edited, deleted, in conflict, local; in two incarnations of a database."""
    db = ChangesDB(store, "catalogue").create(revs_limit=20)
    first = db.put({"_id": "users", "columns": ["id"]})
    gone = db.put({"_id": "gone"})
    clock.advance(1_000)
    db.relocate()
    db.put({"_id": "users", "columns": ["id", "email"]}, rev=first.rev)
    db.remove("gone", gone.rev)
    branches = [
        {
            "_id": "orders",
            "n": n,
            "_revisions": {"start": 1, "ids": [f"{n:032x}"]},
            "_rev": f"1-{n:032x}",
        }
        for n in (1, 2)
    ]
    db.replicate(branches)
    db.local.put("checkpoint", {"seq": 5})
    clock.advance(1_000)
    page = db.changes(since=0, style="all_docs")
    return {
        "first": {"ts": first.seq.timestamp, "seq": str(first.seq), "rev": first.rev},
        "feed": [[c.id, str(c.seq), list(c.revs), c.deleted] for c in page.rows],
        "users": db.get("users"),
        "revs_limit": 20,
    }


def generations(store: snapkv.SnapshotKV, clock: ManualClock) -> dict[str, object]:
    """Make two generations; write log rows in today's layout and in the older one."""
    log = GenerationLog(store, propagation_delay=0.0, leeway=0.1)
    rows = []
    for ring in ({0: Sharding(2)}, {-100: Sharding(1), 100: Sharding(3, 4)}):
        log.make(ring)
        clock.advance(10_000)
        with log.member("node-1") as member:
            table = CdcLog(store, member, "orders", preimage=True)
            rows.append(table.write(b"key", b"value %d" % len(rows)))
            old = CdcLog(store, member, "older").write(b"key", b"in the older layout")
    older_layout(store, "older", [old])
    consumer = StreamConsumer(log, table, "reader")
    window = next(iter(consumer))
    consumer.save(window)
    clock.advance(1_000)
    log.make({0: Sharding(1)})
    return {
        "times": [each.time for each in log.generations()],
        "streams": [[str(each) for each in log.streams_of(g)] for g in log.generations()],
        "rows": [[str(row.stream), row.timestamp, row.value.decode()] for row in rows],
        "older": [str(old.stream), old.timestamp, "in the older layout"],
        "position": log.consumers()[ConsumerId("orders", "reader")].position,
    }


def older_layout(store: snapkv.SnapshotKV, table: str, rows: list) -> None:
    """Put log rows to where the code before format 1 wrote them."""
    store.space(f"cdc/{table}").commit(
        puts={
            pack(("log", row.stream.ring_key, row.stamp)): pack((0, row.key, row.value))
            for row in rows
        },
        deletes=list(encoded(rows)),
    )


def changefeeds(store: snapkv.SnapshotKV, clock: ManualClock) -> dict[str, object]:
    """Replicate a prefix to JSON lines by a capture; leave a paused changefeed, too."""
    feeds = Changefeeds(store)
    feed = feeds.create("copy", "memory:here", "jsonl:./lines", ["a/"], start=1)
    feeds.create("later", "lmdb:./meta", "jsonl:./elsewhere", ["b/"], start=5, with_state=True)
    feeds.pause("later")
    post = LocalNetwork().post("c1")
    capture = Capture(store, post, label="c1", store_url="memory:here", ttl=60, tick_s=0.02)
    capture.start()
    deadline = time.monotonic() + WAIT_S
    goal = store.commit(puts={"a/last": b"1"}).ts
    while feeds.checkpoint("copy").checkpoint < goal:
        assert time.monotonic() < deadline, "the capture does not finish"
        clock.advance(100)
        time.sleep(0.05)
    (place,) = feeds.places("copy")
    found = {
        "checkpoint": feeds.checkpoint("copy").checkpoint,
        "place": [place.table, place.capture],
        "feeds": [[each.id, each.sink, list(each.prefixes), each.state] for each in feeds.list()],
        "created": feed.created,
    }
    capture.stop(drain=False)
    assert capture.error is None
    return found | {"checkpoint": feeds.checkpoint("copy").checkpoint}


if __name__ == "__main__":
    make(Path(sys.argv[1]))
