"""The commands of a fleet on real etcds, one of which is stopped and comes back."""

import json
import signal
from collections.abc import Iterator
from typing import IO, Any

import pytest
from cli_fleet import Sites
from cli_runner import PROCESS_TIMEOUT_S, Cli
from cli_terminal import following
from etcd_server import EtcdPool, EtcdServer, eventually

import snapkv
from snapkv.cli.fleet import tick_members
from snapkv.fleet.tick_rounds import TICK_TIMEOUT_S

SOON = ["--timeout", "1s"]
OUTAGE = {"leave-out": "left out", "stale": "missing"}


@pytest.fixture
def eu(cli: Cli, etcd: EtcdServer, etcd_pool: EtcdPool) -> Iterator[EtcdServer]:
    """The server of eu; us is `etcd`. Both are observed below /r/, in which each has one key."""
    cli.patch.setattr(tick_members, "ROUND_S_MIN", TICK_TIMEOUT_S)
    with etcd_pool.taken() as other:
        made = Sites(cli)
        prefix = 'prefix = "/r/"'
        made.describe(eu=f'url = "{other.url}", {prefix}', us=f'url = "{etcd.url}", {prefix}')
        other.gateway.put(b"/r/a", b"1")
        etcd.gateway.put(b"/r/a", b"1")
        yield other


def rounds(cli: Cli, count: int) -> list[dict[str, str]]:
    return cli.ok("fleet", "tick", "--every", "100ms", "-n", str(count), "--json").json


@pytest.mark.slow
def test_writes_of_other_programs_on_two_clusters(
    cli: Cli, eu: EtcdServer, etcd: EtcdServer
) -> None:
    rounds(cli, 1)
    before = rounds(cli, 2)[0]["timestamp"]
    changed = eu.gateway.put(b"/r/a", b"2")
    etcd.gateway.delete(b"/r/a")
    added = etcd.gateway.put(b"/r/b", b"3")
    after, _ = rounds(cli, 2)
    shown = cli.ok("fleet", "diff", before, after["timestamp"])
    assert shown.lines == ['eu  ~ /r/a  "1" -> "2"', 'us  - /r/a  "1"', 'us  + /r/b  "3"']
    assert shown.err.count("snapkv: shown at the round ") == 2
    log = cli.ok("fleet", "log", "--since", before, "-p", "--json").json
    assert [(row["member"], row["time"], row["revision"]) for row in log[:2]] == [
        ("us", after["time"], added),
        ("us", after["time"], added - 1),
    ]
    assert (log[2]["member"], log[2]["revision"]) == ("eu", changed)
    assert log[2]["changes"] == [{"key": "/r/a", "before": "1", "after": "2"}]
    words = ["fleet", "watch", "--since", before, "--timeout", "300ms", "--json"]
    (item,) = cli.ok(*words).json
    assert [(each["member"], len(each["changes"])) for each in item["members"]] == [
        ("eu", 1),
        ("us", 2),
    ]
    assert item["members"][0]["changes"][0]["revision"] == changed
    (row,) = cli.ok("fleet", "status", "--members", "eu", "--json").json[:1]
    assert (row["state"], row["prefix"]) == ("live", "/r/")


def test_a_member_that_is_away(cli: Cli, eu: EtcdServer, etcd: EtcdServer) -> None:
    known = rounds(cli, 3)[0]["timestamp"]
    etcd.stop()
    for words in (["ls"], ["get", "/r/a"], ["log"], ["diff", known], ["ls", "--at", known]):
        answer = cli("fleet", *words, *SOON)
        assert (answer.code, answer.out) == (7, ""), words
        assert "us: " in answer.err
        assert "eu: " not in answer.err
    for policy, what in OUTAGE.items():
        answer = cli.ok("fleet", "ls", "--behind", policy, *SOON)
        assert answer.lines == ["eu  /r/a"]
        assert answer.err.startswith(f"snapkv: 1 of 2 members is {what}: us (")
        answer = cli.ok("fleet", "log", "/r/a", "--behind", policy, *SOON)
        assert [line.split("  ")[1] for line in answer.lines] == ["eu"]
    answer = cli.ok("fleet", "diff", known, "--behind", "stale", *SOON)
    assert answer.lines == []
    assert "1 member not compared, unknown at one of the two times: us" in answer.err
    assert cli.ok("fleet", "ls", "--members", "eu", *SOON).lines == ["eu  /r/a"]
    members = cli.ok("fleet", "status", "--json", *SOON).json
    assert [row.get("state") for row in members[:2]] == ["live", "missing"]
    assert members[1]["error"]
    etcd.start()
    assert cli.ok("fleet", "ls", "--at", known).lines == ["eu  /r/a", "us  /r/a"]


@pytest.mark.slow
def test_what_an_archive_knows_of_a_member_that_is_away(
    cli: Cli, etcd: EtcdServer, etcd_pool: EtcdPool
) -> None:
    with snapkv.open(etcd.url) as store:
        kept = store.save("a", b"1")
        snapkv.record(etcd.url, into=str(cli.place / "kept")).catch_up()
        store.save("a", b"2")
    made = Sites(cli)
    made.describe(us=f'url = "{etcd.url}", archive = "kept"')
    assert cli.ok("fleet", "get", "a").out == "2"
    etcd.stop()
    assert cli.ok("fleet", "get", "a", *SOON).out == "1"
    (row, resolved) = cli.ok("fleet", "status", "--json", *SOON).json
    assert (row["state"], row["final"]["timestamp"]) == ("archive", str(kept))
    assert row["error"]
    assert resolved["resolved"]["all"]["timestamp"] == str(kept)
    assert len(cli.ok("fleet", "log", *SOON).lines) == 1


def next_round(output: IO[bytes], ticked: list[str]) -> None:
    """Read rounds until one is of these members."""
    while json.loads(output.readline())["ticked"] != ticked:
        pass


@pytest.mark.slow
def test_rounds_go_on_without_a_member_that_is_away(
    cli: Cli, eu: EtcdServer, etcd: EtcdServer
) -> None:
    with following(cli, "fleet", "tick", "--every", "200ms", "--json") as (process, output):
        next_round(output, ["eu", "us"])
        etcd.stop()
        next_round(output, ["eu"])
        next_round(output, ["eu"])
        etcd.start()
        next_round(output, ["eu", "us"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PROCESS_TIMEOUT_S) == 0
        assert process.stderr is not None
        lines = process.stderr.read().decode().splitlines()
    of_us = [line for line in lines if line.startswith(("snapkv: us:", "snapkv: us "))]
    assert of_us[0].endswith("; it goes on trying"), lines
    assert of_us[1].startswith("snapkv: us ticks again, after "), lines


@pytest.mark.slow
def test_a_watch_leaves_a_member_out_and_catches_up(
    cli: Cli, etcd: EtcdServer, etcd_pool: EtcdPool
) -> None:
    with etcd_pool.taken() as other, snapkv.open(other.url) as eu, snapkv.open(etcd.url) as us:
        made = Sites(cli)
        made.describe(eu=other.url, us=etcd.url)
        begun = us.save("a", b"1")
        eu.tick()
        words = ["fleet", "watch", "--since", str(begun - 1), "--behind", "leave-out", "--json"]
        with following(cli, *words) as (process, output):
            assert json.loads(output.readline())["timestamp"] == str(begun)
            etcd.stop()
            alone = eu.save("b", b"2")
            item = json.loads(output.readline())
            assert (item["timestamp"], item["missing"]) == (str(alone), ["us"])
            etcd.start()
            eventually(lambda: us.health(timeout=1.0).answers, "us answers")
            us.save("c", b"3")
            eu.save("d", b"4")
            us.tick()
            eu.tick()
            items: list[dict[str, Any]] = []
            while sorted(map(str, keys_of(items))) != ["c", "d"]:
                items.append(json.loads(output.readline()))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PROCESS_TIMEOUT_S) == 0
    # c came late, or, if us was as far as eu before it was written, in its place
    assert {item["late"] for item in items if "late" in item} <= {"us"}
    stamps = [int(item["timestamp"]) for item in items if "late" not in item]
    assert stamps == sorted(set(stamps))
    assert stamps[0] > alone


def keys_of(items: list[dict[str, Any]]) -> list[str]:
    """Return the keys that items of a watch change, in their order."""
    parts = [part for item in items for part in item.get("members", item.get("commits"))]
    return [change["key"] for part in parts for change in part["changes"]]
