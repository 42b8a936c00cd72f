"""Finding a change: by what commits say, by a text in values, and by the key that is gone."""

import pytest
from cli_fleet import Sites
from cli_runner import Cli


@pytest.fixture
def told(cli: Cli) -> Cli:
    """Three commits: two keys are new, one is changed, one is removed."""
    cli.ok("put", "web/config", '{"image":"web:1.25"}', "web/flags", "beta", "--meta", "ticket=X-1")
    cli.ok("put", "web/config", '{"image":"web:1.26"}', "--note", "deploy", "--writer", "ci@build")
    cli.ok("rm", "web/flags", "--writer", "bob", "--note", "flags are gone", "--meta", "ticket=X-2")
    return cli


def revisions(cli: Cli, *words: str) -> list[int]:
    return [row["revision"] for row in cli.ok("log", "--json", *words).json]


TAKERS = "; keys begin so: ls, log, diff, rm and restore take --prefix web/\n"
GONE = ' by bob, "flags are gone"; rev:4 has it\n'


@pytest.mark.parametrize("command", ["get", "blame"])
def test_a_removed_key_says_when_by_whom_and_why(told: Cli, command: str) -> None:
    removed = told.ok("log", "-n", "1", "--json").json[0]["time"]
    answer = told(command, "web/flags")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == f"snapkv: no key 'web/flags': removed at {removed}{GONE}"
    assert told.ok("get", "web/flags", "--at", "rev:4").out == "beta"


def test_ls_of_a_removed_key_says_so_beside_an_empty_list(told: Cli) -> None:
    answer = told.ok("ls", "web/flags")
    assert answer.out == ""
    assert answer.err.startswith("snapkv: no key begins with 'web/flags': removed at ")
    assert answer.err.endswith(GONE)
    assert told.ok("ls", "nope/").err == "snapkv: no key begins with 'nope/'\n"
    assert told.ok("ls", "web/").err == ""


def test_a_key_that_was_absent_at_a_time_says_what_removed_it_before(told: Cli) -> None:
    told.ok("put", "web/flags", "again")
    assert told("get", "web/flags", "--at", "rev:5").err.endswith(GONE)
    answer = told("get", "web/flags", "--at", "rev:2")
    assert "removed" not in answer.err, "it did not exist yet"
    assert answer.code == 1


@pytest.mark.parametrize("command", ["get", "history", "blame", "log"])
def test_a_prefix_in_place_of_a_key_is_named(told: Cli, command: str) -> None:
    answer = told(command, "web/")
    assert answer.code == 1
    assert answer.err.endswith(TAKERS)
    told.ok("rm", "--prefix", "web/", "--yes")
    assert told(command, "web/").err == answer.err, "keys that are gone, too"


@pytest.mark.parametrize("command", [["rm"], ["restore", "rev:3"]])
def test_what_writes_suggests_a_prefix_too_and_says_what_removed_a_key(
    told: Cli, command: list[str]
) -> None:
    answer = told(*command, "web/")
    assert answer.code == 1
    assert answer.err.endswith(TAKERS)
    told.ok("rm", "web/config", "--writer", "eve")
    answer = told(*command, "new", "--yes")
    assert "removed" not in answer.err
    told.ok("put", "new", "1")
    told.ok("rm", "new", "--writer", "bob")
    answer = told(*command, "new", "--yes")
    assert answer.code == 1
    assert "no key 'new'" in answer.err
    assert answer.err.endswith(" by bob; rev:7 has it\n")


def test_a_conflict_says_who_wrote_the_newer_version(told: Cli) -> None:
    time = told.ok("log", "web/config", "--json").json[0]["time"]
    answer = told("put", "web/config", "x", "--if-revision", "3")
    assert (answer.code, answer.out) == (3, "")
    why = "'web/config' at revision 3 but found revision 4"
    by = f'written at {time} by ci@build, "deploy"; see snapkv show rev:4'
    assert answer.err == f"snapkv: guard failed: {why}: {by}\n"
    told.ok("show", "rev:4")
    assert by in told("rm", "web/config", "--if-revision", "3").err
    assert by in told("put", "new", "1", "web/config", "x", "--if-absent").err
    answer = told("put", "web/flags", "x", "--if-revision", "3")
    assert (answer.code, answer.err.endswith(GONE)) == (3, True)


def test_a_log_of_what_never_existed_has_code_1(told: Cli) -> None:
    answer = told("log", "nope")
    assert (answer.code, answer.err) == (1, "snapkv: no commit changed a key 'nope'\n")
    answer = told("log", "--prefix", "nope/", "--prefix", "web/")
    assert answer.err == "snapkv: no commit changed a key beginning with 'nope/'\n"
    assert (answer.code, len(answer.lines)) == (1, 3)
    told.ok("log", "web/flags")
    told.ok("log", "web/flags", "--since", "now")
    told.ok("log", "--prefix", "web/", "--since", "now")


@pytest.mark.parametrize("command", [["log"], ["history", "web/config"]])
def test_since_after_until_is_an_error(told: Cli, command: list[str]) -> None:
    answer = told(*command, "--since", "rev:4", "--until", "rev:3")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1].endswith(": exchange the two")
    told.ok(*command, "--since", "rev:3", "--until", "rev:3")


def test_a_fleet_says_so_too(cli: Cli) -> None:
    sites = Sites(cli)
    sites.describe(eu="lmdb:./eu")
    first, last = sites.put("eu", 1, a="1"), sites.put("eu", 5, a="2")
    answer = cli("fleet", "log", "--since", str(last), "--until", str(first))
    assert answer.code == 2
    assert "is after --until" in answer.err
    answer = cli("fleet", "log", "--prefix", "a", "--prefix", "nope/")
    why = "snapkv: no commit changed a key beginning with 'nope/'\n"
    assert (answer.code, answer.err.endswith(why), len(answer.lines)) == (1, True, 2)
    cli.ok("fleet", "log", "--prefix", "a", "--since", "now")


def test_grep_finds_in_notes_writers_and_meta(told: Cli) -> None:
    assert revisions(told, "--grep", "deploy") == [4]
    assert revisions(told, "--grep", "ci@") == [4]
    assert revisions(told, "--grep", "X-2") == revisions(told, "--grep", "ticket=X-2") == [5]
    assert revisions(told, "--grep", "x-") == []
    assert revisions(told, "--grep", "x-", "-i") == [5, 3]
    assert revisions(told, "--grep", "nowhere") == []


def test_meta_finds_a_fact_exactly_and_combines(told: Cli) -> None:
    assert revisions(told, "--meta", "ticket=X-1") == [3]
    assert revisions(told, "--meta", "ticket=X") == []
    assert revisions(told, "--meta", "ticket=X-1", "--meta", "other=1") == []
    assert revisions(told, "--meta", "ticket=X-2", "--writer", "bob", "--grep", "gone") == [5]
    assert told("log", "--meta", "ticket").err == "snapkv: --meta takes NAME=TEXT, not 'ticket'\n"


def test_a_changed_text_is_found_where_it_came_and_where_it_went(told: Cli) -> None:
    assert revisions(told, "-S", "web:1.25") == [4, 3]
    assert revisions(told, "-S", "web:1.25", "--oldest-first") == [3, 4]
    assert revisions(told, "-S", "web:1.25", "-n", "1") == [4]
    assert revisions(told, "-S", "beta", "--writer", "bob") == [5]
    assert revisions(told, "web/config", "-S", "beta") == []
    assert revisions(told, "--prefix", "web/f", "--changed", "BETA", "-i") == [5, 3]
    (first,) = told.ok("log", "-p", "-S", "beta", "--until", "rev:3", "--json").json
    assert [each["key"] for each in first["changes"]] == ["web/flags"], "not the other key"


def test_values_that_are_hidden_are_not_found_by_their_text(
    told: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert revisions(told, "-S", "1.2", "--redact", "web/c") == []
    assert revisions(told, "-S", "beta", "--redact", "web/c") == [5, 3]
    monkeypatch.setenv("SNAPKV_REDACT", "web/config")
    assert revisions(told, "-S", "1.2") == []
    answer = told("grep", "1.2")
    assert (answer.code, answer.out) == (1, "")
    assert told.ok("grep", "beta", "--at", "rev:4").out == 'web/flags  "beta"\n'


def test_grep_prints_keys_and_the_part_around_the_text(told: Cli) -> None:
    assert told.ok("grep", "1.26").out == 'web/config  "{\\"image\\":\\"web:1.26\\"}"\n'
    assert told.ok("grep", "1.25", "--at", "rev:3", "--name-only").out == "web/config\n"
    answer = told("grep", "1.25")
    assert (answer.code, answer.err) == (1, "snapkv: no value has '1.25'\n")
    told.ok("put", "a/long", "x" * 5_000 + "needle" + "y" * 5_000, "b", "NEEDLE")
    assert told.ok("grep", "needle").out == f'a/long  "{"x" * 60}needle{"y" * 60}"\n'
    assert [each["key"] for each in told.ok("grep", "-i", "needle", "--json").json] == [
        "a/long",
        "b",
    ]
    assert told("grep", "needle", "web/", "--prefix", "b").code == 1
    assert (
        told.ok("grep", "needle", "a/", "--prefix", "web/", "-o", "table").lines[0]
        == "KEY     VALUE"
    )


@pytest.mark.slow
def test_a_text_is_found_in_observed_keys(etcd_cli: Cli) -> None:
    etcd_cli.ok("put", "a", "old", "b", "old")
    etcd_cli.ok("put", "a", "new")
    etcd_cli.ok("tick", "--name", "ticks")
    words = ["--name", "ticks", "--observe", "default/data/"]
    found = etcd_cli.ok("log", "-S", "old", "-p", "--json", *words).json
    keys = [[change["key"] for change in each["changes"]] for each in found]
    assert keys == [["default/data/a"], ["default/data/a", "default/data/b"]]
    assert etcd_cli.ok("grep", "new", *words).out == 'default/data/a  "new"\n'
