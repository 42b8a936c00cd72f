"""The commands of changefeeds on the command line: exit codes, messages, and what they print."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from etcd_server import eventually

import snapkv
from cdcmeta.cli.app import FAILED, INTERRUPTED, USAGE, main
from cdcmeta.scheduler.runtime import Changefeeds
from cdcmeta.scheduler.runtime.changefeed_records import (
    Registration,
    capture_name,
    encoded,
    encoded_place,
    place_key,
    report_key,
)
from cdcmeta.scheduler.runtime.changefeeds import GONE, NO_CAPTURE

from . import ledger
from .fleet import WAIT_S, Fleet

pytestmark = pytest.mark.slow

TABLES = ["a/", "b/", "c/"]


@pytest.fixture
def typed(tmp_path, monkeypatch, capsys):
    """Run a command in a folder with a store `shop`; return its exit code, lines and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")  # of a terminal: a pipe is never wrapped
    monkeypatch.setenv("SNAPKV_STORE", "lmdb:./meta")
    with snapkv.open("lmdb:./shop") as shop:
        shop.save("a/1", b"1")

    def run(*words):
        code = main(["changefeed", *words])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return run


@pytest.fixture
def create(typed):
    def create(id="copy", *words, sink="jsonl:./rows", tables=TABLES):
        prefixes = [f"--prefix={table}" for table in tables]
        return typed("create", id, "--source", "lmdb:./shop", "--sink", sink, *prefixes, *words)

    return create


def lines(answer):
    code, out, err = answer
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out]


# --- create and update ---


@pytest.mark.parametrize(
    "sink",
    [
        "mirror",
        "json:./rows",
        "couch+http://127.0.0.1:5984",
        "record+foo:x",
        "lmdb:",
        "jsonl:",
        "lmdb:~/copy",
        "record+archive:",
    ],
)
def test_a_sink_of_an_unknown_form_ends_a_command_before_it_writes(tmp_path, typed, create, sink):
    code, out, err = create(sink=sink)
    assert (code, out) == (FAILED, [])
    assert "a sink has one of the forms lmdb:DIR, etcd://HOST:PORT," in err
    assert "couch+http://HOST:PORT/DB" in err
    assert not (tmp_path / "meta").exists()
    assert create()[0] == 0
    before = typed("list", "--json")
    code, out, err = typed("update", "copy", "--sink", sink)
    assert (code, out) == (FAILED, [])
    assert "a sink has one of the forms" in err
    assert typed("list", "--json") == before


def test_paths_are_kept_as_absolute_ones(tmp_path, typed, create):
    code, out, _ = create(sink="record+archive:./copy")
    assert code == 0
    assert out[0].startswith("copy runs from ")
    [feed] = lines(typed("list", "--json"))
    folder = tmp_path.resolve()
    assert feed["sink"] == f"record+archive:{folder / 'copy'}"
    assert feed["source"] == f"lmdb:{folder / 'shop'}"
    assert typed("update", "copy", "--sink", "jsonl:./rows") == (0, [], "")
    assert lines(typed("list", "--json"))[0]["sink"] == f"jsonl:{folder / 'rows'}"


def test_a_source_is_a_store(typed):
    code, out, err = typed("create", "copy", "--source", "shop", "--sink", "call:write")
    assert (code, out) == (FAILED, [])
    assert "a source has one of the forms lmdb:DIR" in err


def test_a_source_without_a_store_leaves_no_control_store(tmp_path, typed):
    code, out, err = typed("create", "copy", "--source", "lmdb:./none", "--sink", "call:write")
    assert code != 0
    assert out == []
    assert "none" in err
    assert not (tmp_path / "meta").exists()


def test_ranges_are_those_of_a_log(tmp_path, typed, create):
    code, out, err = create("copy", "--ranges", "4", tables=[])
    assert (code, out) == (USAGE, [])
    assert "--ranges divides a log: give --log NAME" in err
    assert not (tmp_path / "meta").exists()


def test_an_update_of_nothing_is_an_error(typed, create):
    create()
    before = typed("list", "--json")
    code, out, err = typed("update", "copy")
    assert (code, out) == (USAGE, [])
    assert "--sink, --prefix or --database" in err
    assert typed("list", "--json") == before
    with snapkv.open("lmdb:./meta") as store:
        notes = [each.note for each in store.commits()]
    assert "update changefeed copy" not in notes


def test_help_names_all_forms_of_sinks(typed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    for command in ("create", "update"):
        code, out, _ = typed(command, "--help")
        assert code == 0
        words = " ".join(" ".join(out).replace("│", " ").split())
        for form in ("jsonl:DIR", "call:NAME", "couch+http://HOST:PORT/DB", "record+archive:PLACE"):
            assert form in words, (command, form)


# --- list, status, history, captures ---


def test_tables_are_a_number_in_json(typed, create):
    create()
    [feed] = lines(typed("list", "--json"))
    assert (feed["tables"], feed["problems"], feed["state"]) == (3, 0, "running")
    assert "error" not in feed
    assert lines(typed("status", "copy", "--json"))[0]["tables"] == 3
    past = json.loads(typed("list", "--json", "--at", "-0s")[1][0])
    assert past["tables"] == 3
    assert "problems" not in past


def test_the_time_of_a_checkpoint_is_text_in_json(typed, create):
    """Its number has more digits than many readers of JSON keep."""
    create()
    create("whole", "--start", "0")
    with snapkv.open("lmdb:./meta") as store:
        done = Changefeeds(store).checkpoint("copy").checkpoint
    copy, whole = lines(typed("list", "--json"))
    assert done > 2**53
    assert (copy["checkpoint"], copy["timestamp"]) == (snapkv.format_time(done), str(done))
    assert (whole["checkpoint"], whole["timestamp"]) == (None, None)
    for row in (copy, whole):
        said = lines(typed("status", row["id"], "--json"))[0]
        assert said["timestamp"] == row["timestamp"]
    assert "  -  " in typed("list")[1][2]


def test_problems_of_tables_and_captures_are_counted(monkeypatch, typed, create):
    """Reports of two captures, one of which names fewer of its tables than fail."""
    monkeypatch.setenv("SNAPKV_STORE", "memory:counted")
    create()
    create("quiet")
    with snapkv.open("memory:counted") as store:
        sessions = []
        for label, report in {
            "c1": {"tables": 5, "error": None, "problems": {"a/": "x", "b/": "y"}, "failing": 4},
            "c2": {"tables": 1, "error": "no such host", "problems": {"b/": "z"}},
        }.items():
            said = Registration("default", label, "here", 60.0)
            sessions.append(store.session(60, said.encode()))
            key = report_key(capture_name(label, sessions[-1].id))
            record = encoded({"feeds": {"copy": report}})
            store.space("scheduler/default").commit(puts={key: record})
        assert [each["problems"] for each in lines(typed("list", "--json"))] == [5, 0]
        head, copy, quiet = typed("list")[1]
        assert "  problems  " in head
        assert "  4 tables, 1 capture  " in copy
        assert re.match(r"quiet +running +3 +20", quiet)
        assert "problems" not in typed("list", "--at", "-0s")[1][0]
        assert [each["tables"] for each in lines(typed("captures", "--json"))] == [5, 1]
        for session in sessions:
            session.close()


def test_a_list_shows_changefeeds_whose_tables_fail(tmp_path, monkeypatch, typed, create):
    monkeypatch.setenv("SNAPKV_STORE", f"lmdb:{tmp_path / 'meta'}")
    (tmp_path / "file").write_text("not a folder")
    create("broken", sink="jsonl:./file/rows")
    create("good")
    create("unknown", sink="call:unknown")
    with Fleet(f"lmdb:{tmp_path / 'meta'}", tmp_path) as fleet:
        fleet.start("c1")

        def problems():
            found = {each["id"]: each for each in lines(typed("list", "--json"))}
            assert {each["state"] for each in found.values()} == {"running"}
            return {id: each["problems"] for id, each in found.items()}

        wanted = {"broken": 3, "good": 0, "unknown": 1}
        eventually(lambda: problems() == wanted, "the problems of all", wait_s=WAIT_S)
        assert fleet.end("c1") == 0


@pytest.mark.parametrize(
    ("number", "hangs"),
    [
        pytest.param(signal.SIGKILL, False, id="killed"),
        pytest.param(signal.SIGTERM, True, id="ended while a sink hangs"),
        pytest.param(signal.SIGTERM, False, id="ended", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, True, id="killed while a sink hangs", marks=pytest.mark.long),
    ],
)
def test_a_cluster_without_captures_is_a_problem(
    tmp_path, monkeypatch, typed, create, number, hangs
):
    monkeypatch.setenv("SNAPKV_STORE", f"lmdb:{tmp_path / 'meta'}")
    create(sink="call:ledger", tables=["a/"])
    create("paused", tables=["a/"])
    typed("pause", "paused")
    create("new", tables=["a/"])

    def problems():
        return {each["id"]: each["problems"] for each in lines(typed("list", "--json"))}

    def status(id="copy"):
        feed, table = lines(typed("status", id, "--json"))
        return feed["problems"], table["problem"]

    waits = "no capture has it: not placed yet"
    assert problems() == dict.fromkeys(("copy", "new", "paused"), 0)  # none has begun
    assert (status(), status("paused")) == (([], waits), ([], None))
    typed("pause", "new")
    with Fleet(f"lmdb:{tmp_path / 'meta'}", tmp_path) as fleet:
        if hangs:
            ledger.hang(fleet.ledger, "a/")
        fleet.start("c1")
        eventually(lambda: status() == ([], None), "the table", wait_s=WAIT_S)
        if hangs:
            eventually(lambda: ledger.has_hung(fleet.ledger, "a/"), "the call", wait_s=WAIT_S)
        assert lines(typed("captures", "--json"))
        fleet.signal("c1", number)
        code = fleet.processes.pop("c1").wait(WAIT_S)
    eventually(lambda: not lines(typed("captures", "--json")), "its session", wait_s=WAIT_S)
    typed("resume", "new")
    assert code == (-number if number == signal.SIGKILL else 75 if hangs else 0)
    assert problems() == {"copy": 1, "new": 0, "paused": 0}
    assert status() == ([NO_CAPTURE], GONE)
    assert (status("new"), status("paused")) == (([], waits), ([], None))
    assert "  no capture  " in typed("list")[1][1]
    _, said, _, table = typed("status", "copy")[1]
    assert (said, table.endswith(GONE)) == (NO_CAPTURE, True)


def test_a_status_is_printed_anew_as_json_until_it_is_interrupted(tmp_path, create):
    assert create()[0] == 0
    command = [sys.executable, "-m", "cdcmeta", "changefeed", "status", "copy", "--watch", "--json"]
    environment = os.environ | {"SNAPKV_STORE": f"lmdb:{tmp_path / 'meta'}"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            found = [json.loads(process.stdout.readline()) for _ in range(9)]
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert [each.get("id") for each in found] == ["copy", None, None, None] * 2 + ["copy"]
    assert [each.get("table") for each in found[1:4]] == TABLES
    assert (process.returncode, err) == (INTERRUPTED, "")


def test_the_history_of_an_unknown_table_is_an_error(typed, create):
    create(tables=[f"t{n:02}/" for n in range(12)])
    code, out, err = typed("history", "copy", "t")
    assert (code, out) == (FAILED, [])
    assert "changefeed 'copy' has no table 't'; its tables: t00/, t01/," in err
    assert err.endswith("t09/ and 2 more\n")
    assert typed("history", "copy", "t00/") == (0, [], "")
    with snapkv.open("lmdb:./meta") as store:
        puts = {
            place_key("copy", table): encoded_place("c1-1", "placed") for table in ("t", "t00/")
        }
        store.space("scheduler/default").commit(puts=puts)
        (placed,) = Changefeeds(store).history("copy", "t")
        assert placed.why == "placed"
    (row,) = lines(typed("history", "copy", "t", "--json"))
    time = {"timestamp": str(placed.ts), "time": snapkv.format_time(placed.ts)}
    assert row == {"table": "t", "capture": "c1-1", "why": "placed", **time}
    for table in ("t", "t00/"):
        code, out, _ = typed("history", "copy", table)
        assert code == 0
        assert out[0].endswith("  c1-1  placed")
