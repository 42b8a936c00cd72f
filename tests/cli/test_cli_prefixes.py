"""Every command with a prefix takes several: none is dropped, none counts twice."""

from collections.abc import Callable

import pytest
from cli_fleet import Sites
from cli_runner import Cli
from test_cli_given_twice import PROGRAMS, ROOTS, commands

BOTH = ("--prefix", "z/", "--prefix", "a/", "--prefix", "a/1")
"""Two prefixes, the later one first, and one below another."""


ONE = (("import",), ("export",))
"""The commands with one prefix: import puts it before keys, export takes it off."""


@pytest.fixture
def filled(cli: Cli) -> Cli:
    cli.ok("put", "a/1", "old", "a/2", "old", "m/1", "old", "z/1", "old", "--note", "first")
    cli.ok("put", "m/1", "new", "--note", "only m")
    cli.ok("put", "a/1", "new", "m/1", "newer", "z/1", "new", "--note", "all")
    return cli


def test_no_command_takes_one_prefix_only() -> None:
    found = [
        (program, *words)
        for program in PROGRAMS
        for words, command in commands(ROOTS[program])
        for param in command.params
        if "--prefix" in param.opts and not param.multiple and words not in ONE
    ]
    assert not found


KEYS: dict[str, Callable[[Cli], list[str]]] = {
    "ls": lambda cli: [each["key"] for each in cli.ok("ls", "--json", *BOTH).json],
    "diff": lambda cli: [each["key"] for each in cli.ok("diff", "rev:3", "--json", *BOTH).json],
    "show": lambda cli: changed(cli, "show", "rev:5", "--json", *BOTH),
    "log": lambda cli: changed(cli, "log", "-p", "-n", "1", "--json", *BOTH),
    "watch": lambda cli: changed(cli, "watch", "--since", "rev:3", "-n", "1", "--json", *BOTH),
}


def changed(cli: Cli, *words: str) -> list[str]:
    return [change["key"] for change in cli.ok(*words).json[0]["changes"]]


@pytest.mark.parametrize("command", KEYS)
def test_several_prefixes_are_the_keys_of_each_once_in_order(filled: Cli, command: str) -> None:
    expected = ["a/1", "a/2", "z/1"] if command == "ls" else ["a/1", "z/1"]
    assert KEYS[command](filled) == expected


@pytest.mark.parametrize(
    "words", [["ls"], ["diff", "rev:3", "now"], ["show", "rev:5"], ["watch", "--since", "rev:4"]]
)
def test_an_argument_is_what_the_option_is(filled: Cli, words: list[str]) -> None:
    words = [*words, "--timeout", "200ms"]
    assert filled.ok(*words, "a/", "z/").out == filled.ok(*words, *BOTH).out != ""
    assert filled.ok(*words, "a/", "--prefix", "z/").out == filled.ok(*words, *BOTH).out


def test_a_log_leaves_out_commits_of_keys_between_two_prefixes(filled: Cli) -> None:
    notes = [each["note"] for each in filled.ok("log", "--json", *BOTH).json]
    assert notes == ["all", "first"]


def test_rm_removes_all_of_them_in_one_commit_or_none(filled: Cli) -> None:
    answer = filled("rm", "--prefix", "a/", "--prefix", "nope/", "--yes")
    assert (answer.code, answer.err) == (1, "snapkv: no key begins with 'nope/'\n")
    assert filled("rm", *BOTH).err.startswith("snapkv: Remove 3 keys under 'a/' and 'z/'? ")
    filled.ok("rm", *BOTH, "--yes")
    assert filled.ok("ls").lines == ["m/1"]
    assert len(filled.ok("log").lines) == 4


def test_each_prefix_that_matches_longer_names_is_warned_of(filled: Cli) -> None:
    answer = filled.ok("diff", "rev:1", "--prefix", "a/1", "--prefix", "z", "--prefix", "a")
    assert answer.err.count("also matches") == 0
    filled.ok("put", "a2", "x", "zebra", "x")
    answer = filled.ok("diff", "rev:1", "--prefix", "z", "--prefix", "a")
    assert "prefix 'a' also matches 'a2'" in answer.err
    assert "prefix 'z' also matches 'zebra'" in answer.err


@pytest.mark.slow
def test_several_prefixes_of_observed_keys(etcd_cli: Cli) -> None:
    etcd_cli.ok("put", "a/1", "x", "m/1", "x", "z/1", "x")
    etcd_cli.ok("tick", "--name", "ticks")
    words = ["--name", "ticks", "--observe", "default/data/"]
    both = ["--prefix", "default/data/a/", "--prefix", "default/data/z/"]
    keys = [each.removeprefix("default/data/") for each in etcd_cli.ok("ls", *words, *both).lines]
    assert keys == ["a/1", "z/1"]
    for command in (["log", "-p"], ["show"]):
        (commit,) = etcd_cli.ok(*command, *words, *both, "--json").json
        keys = [each["key"].removeprefix("default/data/") for each in commit["changes"]]
        assert keys == ["a/1", "z/1"]


@pytest.mark.slow
def test_several_prefixes_of_a_fleet_are_in_the_order_of_members(cli: Cli) -> None:
    sites = Sites(cli)
    sites.describe(eu="lmdb:./eu", us="lmdb:./us")
    for site in ("us", "eu"):
        sites.put(site, 1, a__1="old", m__1="old", z__1="old")
        sites.put(site, 3, a__1="new", m__1="new", z__1="new")
    sites.tick(9)
    expected = [[site, key] for site in ("eu", "us") for key in ("a/1", "z/1")]

    def keys(*words: str) -> list[list[str]]:
        found = cli.ok("fleet", *words, "--json", *BOTH).json
        return [[each["member"], each["key"]] for each in found]

    first = cli.ok("fleet", "log", "--json").json[-1]["timestamp"]
    assert keys("ls") == expected
    assert keys("ls", "--long") == expected
    assert keys("diff", first) == expected
    for commit in cli.ok("fleet", "log", "-p", "--json", *BOTH).json:
        assert [each["key"] for each in commit["changes"]] == ["a/1", "z/1"]
    watch = ["watch", "--since", "0", "--timeout", "200ms", "--json"]
    for item in cli.ok("fleet", *watch, *BOTH).json:
        for member in item["members"]:
            assert [each["key"] for each in member["changes"]] == ["a/1", "z/1"]
