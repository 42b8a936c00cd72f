"""The command fleet log: commits of all members in one order, versions of a key."""

import pytest
from cli_fleet import Sites, at
from cli_runner import Cli

from tests.cli.test_cli_fleet import said


@pytest.fixture
def sites(cli: Cli) -> Sites:
    """Two members that commit in turn, with one equal timestamp, at second 4."""
    made = Sites(cli)
    made.describe(eu="lmdb:./eu", us="lmdb:./us")
    made.put("eu", 1, image="v1")
    made.put("us", 2, image="v1")
    made.put("eu", 3, "release", image="v2", app="1")
    made.put("us", 4, "both", image="v2")
    made.put("eu", 4, "both", app="2")
    made.tick(9)
    return made


def places(rows: list[dict[str, object]]) -> list[tuple[object, object]]:
    return [(row["member"], row["time"]) for row in rows]


def test_commits_of_all_members_newest_first(sites: Sites) -> None:
    cli = sites.cli
    answer = cli.ok("fleet", "log")
    assert answer.lines == [
        f'{at(4)}  us  4  ann@us  "both"',
        f'{at(4)}  eu  5  ann@eu  "both"',
        f'{at(3)}  eu  4  ann@eu  "release"',
        f"{at(2)}  us  3  ann@us",
        f"{at(1)}  eu  3  ann@eu",
    ]
    assert said(answer.err) == ["snapkv: 2 ticks left out: --ticks shows them"]
    rows = cli.ok("fleet", "log", "--json").json
    assert [f"{row['time']}  {row['member']}" for row in rows] == [
        line.rsplit("  ", 2 if "both" not in line and "release" not in line else 3)[0]
        for line in answer.lines
    ]
    assert rows == cli.ok("fleet", "log", "--oldest-first", "--json").json[::-1]
    table = cli.ok("fleet", "log", "-n", "1", "-o", "table").lines
    assert table[0].split() == ["TIME", "MEMBER", "REVISION", "WRITER", "NOTE", "META"]
    assert len(table) == 2


def test_parts_of_the_log(sites: Sites) -> None:
    cli = sites.cli
    log = ["fleet", "log", "--json"]
    whole = places(cli.ok(*log).json)
    for count in range(7):
        assert places(cli.ok(*log, "-n", str(count)).json) == whole[:count]
        oldest = cli.ok(*log, "-n", str(count), "--oldest-first").json
        assert places(oldest) == whole[::-1][:count]
    assert places(cli.ok(*log, "--since", at(2)).json) == whole[:3]
    assert places(cli.ok(*log, "--until", at(3)).json) == whole[2:]
    assert places(cli.ok(*log, "--since", at(1), "--until", at(3)).json) == whole[2:4]
    assert cli.ok(*log, "--since", "now").json == []
    assert places(cli.ok(*log, "--members", "eu").json) == [whole[1], whole[2], whole[4]]
    assert places(cli.ok(*log, "--prefix", "app").json) == whole[1:3]
    assert places(cli.ok(*log, "--writer", "*@us").json) == [whole[0], whole[3]]
    assert places(cli.ok(*log, "--grep", "BOTH", "-i").json) == whole[:2]
    ticks = cli.ok(*log, "--ticks", "-n", "2").json
    assert places(ticks) == [("us", at(9)), ("eu", at(9))]


def test_what_commits_changed(sites: Sites) -> None:
    cli = sites.cli
    assert cli.ok("fleet", "log", "-p", "-n", "3").lines == [
        f'{at(4)}  us  4  ann@us  "both"',
        '  ~ image  "v1" -> "v2"',
        "",
        f'{at(4)}  eu  5  ann@eu  "both"',
        '  ~ app  "1" -> "2"',
        "",
        f'{at(3)}  eu  4  ann@eu  "release"',
        '  + app  "1"',
        '  ~ image  "v1" -> "v2"',
        "",
    ]
    (row,) = cli.ok("fleet", "log", "-p", "-n", "1", "--json").json
    assert row["member"] == "us"
    assert row["changes"] == [{"key": "image", "before": "v1", "after": "v2"}]
    stat = cli.ok("fleet", "log", "--stat", "-n", "1").lines
    assert stat[1:3] == ["  ~ image  +1 -1 lines", "  1 key: 0 added, 0 removed, 1 changed"]


def test_versions_of_a_key(sites: Sites) -> None:
    cli = sites.cli
    answer = cli.ok("fleet", "log", "image")
    assert answer.lines == [
        f'{at(4)}  us  4  "v2"  ann@us  "both"',
        f'{at(3)}  eu  4  "v2"  ann@eu  "release"',
        f'{at(2)}  us  3  "v1"  ann@us',
        f'{at(1)}  eu  3  "v1"  ann@eu',
    ]
    key = ["fleet", "log", "image"]
    assert cli.ok(*key, "--oldest-first").lines == answer.lines[::-1]
    assert cli.ok(*key, "-n", "2").lines == answer.lines[:2]
    assert cli.ok(*key, "-n", "2", "--oldest-first").lines == answer.lines[:1:-1]
    assert cli.ok(*key, "--since", at(1), "--until", at(3)).lines == answer.lines[1:3]
    assert cli.ok(*key, "--grep", "release").lines == answer.lines[1:2]
    assert cli.ok(*key, "--members", "eu", "-o", "table").lines[0].split() == (
        ["TIME", "MEMBER", "REVISION", "VALUE", "WRITER", "NOTE", "META"]
    )
    row = cli.ok(*key, "-n", "1", "--json").json[0]
    assert (row["member"], row["value"], row["note"]) == ("us", "v2", "both")
    redacted = cli.ok(*key, "-n", "1", "--redact", "im", "--json").json[0]
    assert redacted["value"] == {"redacted": 2}


def test_a_removed_and_a_missing_key(sites: Sites) -> None:
    cli = sites.cli
    sites.remove("us", 10, "image")
    sites.tick(11)
    first = cli.ok("fleet", "log", "image", "-n", "1").lines[0]
    assert first == f"{at(10)}  us  6  removed  ann@us"
    assert cli.ok("fleet", "log", "image", "-n", "1", "--json").json[0]["value"] is None
    answer = cli("fleet", "log", "none")
    assert (answer.code, answer.out) == (1, "")
    assert "no key 'none'" in answer.err


def test_only_what_was_final_on_all(sites: Sites) -> None:
    cli = sites.cli
    sites.put("eu", 20, image="v3")
    assert len(cli.ok("fleet", "log").lines) == 5, "us may still commit before second 20"
    answer = cli("fleet", "log", "--until", at(20))
    assert (answer.code, answer.out) == (7, "")
    stale = cli.ok("fleet", "log", "--until", at(20), "--behind", "stale")
    assert stale.lines[0] == f"{at(20)}  eu  7  ann@eu"
    assert len(stale.lines) == 6
    assert "not final at that time, and shown as of the newest: us" in stale.err
    without = cli.ok("fleet", "log", "--until", at(20), "--behind", "leave-out")
    assert len(without.lines) == 4
    assert "1 of 2 members is left out: us" in without.err
    versions = cli.ok("fleet", "log", "image", "--until", at(20), "--behind", "leave-out").lines
    assert [line.split("  ")[1] for line in versions] == ["eu"] * 3


def test_members_are_shown_while_they_belong_to_the_fleet(sites: Sites) -> None:
    cli = sites.cli
    sites.put("fr", 1, image="v1")
    sites.put("fr", 3, image="v2")
    sites.put("fr", 5, image="v3")
    sites.tick(9, "fr")
    sites.describe(fr=f'url = "lmdb:./fr", joined = "{at(2)}", left = "{at(4)}"')
    for words in ([], ["image"], ["-p"]):
        rows = cli.ok("fleet", "log", *words, "--json").json
        assert [row["time"] for row in rows if row["member"] == "fr"] == [at(3)], words
    since = cli.ok("fleet", "log", "--since", at(4), "--json").json
    assert {row["member"] for row in since} <= {"eu", "us"}


def test_a_member_that_left_and_is_gone(sites: Sites) -> None:
    """What it did before it left is asked for, so it is named; afterwards nothing is missing."""
    cli = sites.cli
    sites.describe(fr=f'url = "lmdb:./gone", left = "{at(4)}"')
    answer = cli("fleet", "log", "--since", at(2), "--until", at(8))
    assert (answer.code, answer.out) == (7, "")
    assert "fr: no store at" in answer.err
    shown = cli.ok("fleet", "log", "--since", at(2), "--until", at(8), "--behind", "leave-out")
    assert len(shown.lines) == 3
    assert "1 of 3 members is left out: fr" in shown.err
    later = cli.ok("fleet", "log", "--since", at(5), "--until", at(8))
    assert (later.lines, later.err) == ([], "")
