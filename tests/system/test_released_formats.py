"""What a released version stored is read by this one: a file of each format, and what is in it.

`make.py` of each folder made it. docs/compatibility.md lists the formats.
"""

import json
from functools import partial

import pytest

import snapkv
from cdcmeta import ChangesDB
from cdcmeta.cli import main
from cdcmeta.generations import CdcLog, GenerationLog, StreamConsumer, StreamId
from cdcmeta.scheduler.executors.contracts import Origin
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter
from cdcmeta.scheduler.runtime import Changefeeds

from .released import RELEASED, Released

pytestmark = pytest.mark.slow


@pytest.fixture(params=RELEASED, ids=lambda folder: folder.name)
def released(request, tmp_path):
    return Released(request.param, tmp_path)


@pytest.fixture
def expected(released):
    return released.expected


@pytest.fixture
def store(released):
    with snapkv.open(released.url, create=False) as store:
        yield store
        assert store.check().problems == ()


def test_a_store_has_each_moment(store, expected):
    for state in expected["store"]["states"]:
        found = {key: value.hex() for key, value in store.at(state["ts"]).items()}
        assert found == state["keys"]
    assert len(expected["store"]["states"]) > 20
    assert store.space("layer/100%").load(b"\0k\xff") == b"of a layer"


def test_a_store_says_who_wrote_when_and_why(store, expected):
    wanted = expected["store"]["commits"]
    found = {c.ts: c for c in store.commits()}
    for each in wanted:
        commit = found[each["ts"]]
        meta = None if commit.meta is None else dict(commit.meta)
        assert each == {
            "ts": commit.ts, "writer": commit.writer, "note": commit.note, "meta": meta
        }  # fmt: skip
    assert {each["note"] for each in wanted} > {None}
    assert any(each["meta"] for each in wanted)


def test_a_store_is_written_on(store, expected):
    last = expected["store"]["states"][-1]
    stamp = store.save("new", b"1")
    assert stamp > last["ts"]
    assert store.load("new", stamp) == b"1"
    assert "new" not in store.at(last["ts"])


def test_a_session_and_a_leader_are_as_they_were(store, expected):
    leases = expected["leases"]
    assert leases["session"].encode() in [each.value for each in store.sessions()]
    leader = store.election(leases["election"]).leader()
    assert leader is not None
    assert leader.value == leases["leader"].encode()


def test_a_dump_is_loaded(released, expected):
    newest = expected["store"]["states"][-1]
    with snapkv.open("memory:") as target:
        target.load_dump(released.dump)
        assert {key: value.hex() for key, value in target.at().items()} == newest["keys"]
        assert target.space("layer/100%").load(b"\0k\xff") == b"of a layer"


def test_an_archive_answers_each_moment(released, expected):
    with snapkv.open_archive(str(released.archive)) as archive:
        for state in expected["store"]["states"]:
            found = {key: value.hex() for key, value in archive.at(state["ts"]).items()}
            assert found == state["keys"]
        notes = {c.ts: c.note for c in archive.commits()}
        assert [notes[c["ts"]] for c in expected["store"]["commits"]] == [
            c["note"] for c in expected["store"]["commits"]
        ]


def test_an_archive_is_recorded_on(released, store, expected):
    """The store and the manifest fit together: the recorder continues there."""
    first = expected["store"]["states"][0]
    stamp = store.save("new", b"1")
    snapkv.record(released.url, into=str(released.archive)).catch_up()
    with snapkv.open_archive(str(released.archive)) as archive:
        assert archive.load("new", stamp) == b"1"
        assert {key: value.hex() for key, value in archive.at(first["ts"]).items()} == first["keys"]


def test_a_recorded_store_is_recorded_on(released, store, expected):
    first = expected["store"]["states"][0]
    stamp = store.save("new", b"1")
    snapkv.record(released.url, into=released.recorded_url).catch_up()
    with snapkv.open(released.recorded_url, create=False) as recorded:
        assert recorded.load("new", stamp) == b"1"
        found = {key: value.hex() for key, value in recorded.at(first["ts"]).items()}
        assert found == first["keys"]
        notes = {c.ts: c.note for c in recorded.commits()}
    assert [notes[c["ts"]] for c in expected["store"]["commits"]] == [
        c["note"] for c in expected["store"]["commits"]
    ]


def test_a_changes_database_is_read(store, expected):
    wanted, db = expected["documents"], ChangesDB(store, "catalogue")
    page = db.changes(since=0, style="all_docs")
    assert [[c.id, str(c.seq), list(c.revs), c.deleted] for c in page.rows] == wanted["feed"]
    assert db.get("users") == wanted["users"]
    first = wanted["first"]
    assert db.get("users", as_of=first["ts"])["_rev"] == first["rev"]
    assert [c.id for c in db.changes(since=first["seq"]).rows] == ["users", "gone", "orders"]
    assert len(db.open_revs("orders")) == 2
    assert db.local.get("checkpoint")["seq"] == 5
    assert db.put({"_id": "users", "n": 3}, rev=wanted["users"]["_rev"]).rev.startswith("3-")


def test_generations_are_read(store, expected):
    wanted, log = expected["generations"], GenerationLog(store)
    assert [each.time for each in log.generations()] == wanted["times"]
    found = [[str(each) for each in log.streams_of(g)] for g in log.generations()]
    assert found == wanted["streams"]
    (progress,) = log.consumers().values()
    assert progress.position == wanted["position"]


def test_a_cdc_log_is_read_from_where_its_consumer_stopped(store, expected):
    wanted, log = expected["generations"], GenerationLog(store)
    with log.member("reader") as member:
        table = CdcLog(store, member, "orders")
        for stream, ts, value in wanted["rows"]:
            rows = table.read(StreamId(bytes.fromhex(stream)), 0)
            assert (ts, value.encode()) in [(row.timestamp, row.value) for row in rows]
        rest = [row for window in StreamConsumer(log, table, "reader") for row in window.rows]
    later = [row for row in wanted["rows"] if row[1] > wanted["position"]]
    assert {row.timestamp for row in rest} == {ts for _, ts, _ in later}
    assert later


def test_one_command_upgrades_a_store(released, expected, capsys):
    stream, ts, value = expected["generations"]["older"]
    assert main(["upgrade", "--store", released.url]) == 0
    assert capsys.readouterr().out == "table older: 1 log row moved\n"
    assert main(["upgrade", "--store", released.url]) == 0
    assert capsys.readouterr().out == "nothing to upgrade\n"
    with snapkv.open(released.url) as store, GenerationLog(store).member("reader") as member:
        (row,) = CdcLog(store, member, "older").read(StreamId(bytes.fromhex(stream)), 0)
        assert (row.timestamp, row.value) == (ts, value.encode())


def test_changefeeds_are_read(store, expected):
    wanted, feeds = expected["changefeeds"], Changefeeds(store)
    found = [[f.id, f.sink, list(f.prefixes), f.state] for f in feeds.list()]
    assert found == wanted["feeds"]
    assert feeds.get("copy").created == wanted["created"]
    assert feeds.checkpoint("copy").checkpoint == wanted["checkpoint"]
    assert [p.table for p in feeds.history("copy", "a/")][-1] == wanted["place"][0]
    assert feeds.resume("later").state == "running"


def test_lines_of_a_sink_are_continued(released, store, expected):
    (file,) = released.lines.iterdir()
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    ends = [line for line in lines if "checkpoint" in line]
    origin = Origin(*ends[-1]["feed"])
    assert origin.created == expected["changefeeds"]["created"]
    number, part = ends[-1]["token"]
    sink = partial(JsonLinesWriter, released.lines, origin=origin)
    writer = sink("a/", (number + 1, part))
    assert writer.begin(1) == ends[-1]["checkpoint"]
    writer.close()
    keys = {change["key"] for line in lines for change in line.get("changes", ())}
    assert {"a/0", "a/last"} <= keys


def test_a_released_folder_has_every_file(released):
    names = {path.name for path in released.folder.iterdir()}
    assert names - {"__pycache__"} == {
        "archive", "data.mdb.gz", "dump.gz", "expected.json", "lines", "make.py",
        "recorded.mdb.gz",
    }  # fmt: skip


def test_the_code_at_hand_makes_such_files(tmp_path):
    """Released files stay as they are; this is for the next release."""
    from vectors.formats_0_1.make import make

    make(tmp_path / "made")
    made = Released(tmp_path / "made", tmp_path / "copy")
    with snapkv.open(made.url, create=False) as store:
        assert store.check().problems == ()
        assert ChangesDB(store, "catalogue").get("users") == made.expected["documents"]["users"]
