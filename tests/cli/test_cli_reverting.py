"""snapkv revert: what a commit changed is put back, and nothing else; restore of single keys."""

import pytest
from cli_runner import Cli


@pytest.fixture
def bad(cli: Cli) -> str:
    """The time of a commit that changed three keys, among others."""
    cli.ok("put", "a/1", "old", "a/2", "old", "b", "old")
    time = cli.ok("put", "a/1", "bad", "a/2", "bad", "new", "bad", "--note", "deploy").out.strip()
    cli.ok("put", "b", "later", "--writer", "bob@desk")
    return time


def values(cli: Cli) -> dict[str, str]:
    return {each["key"]: cli.ok("get", each["key"]).out for each in cli.ok("ls", "--json").json}


def test_it_shows_asks_and_reverts(cli: Cli, bad: str) -> None:
    shown = cli.ok("revert", bad, "--dry-run")
    assert shown.lines == ['~ a/1  "bad" -> "old"', '~ a/2  "bad" -> "old"', '- new  "bad"']
    counts = "remove 1 key, add 0 keys, change 2 keys"
    assert shown.err == f"reverting {bad} would change this: {counts}\n"
    asked = cli("revert", bad)
    assert (asked.code, asked.out) == (2, "")
    assert f"snapkv: Revert {bad}: {counts}? Cannot ask" in asked.err
    assert values(cli)["a/1"] == "bad"
    (done,) = cli.ok("revert", bad, "--yes", "--json").json
    assert values(cli) == {"a/1": "old", "a/2": "old", "b": "later"}
    assert (done["keys"], done["removed"], done["changed"]) == (3, 1, 2)
    assert done["commit"]["note"] == f"revert {bad}: deploy"
    again = cli.ok("revert", bad, "--yes")
    assert (again.out, again.err) == (
        "",
        "nothing to revert: the keys have the values from before\n",
    )


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--key", "a/1"], {"a/1": "old", "a/2": "bad", "new": "bad"}),
        (["--prefix", "a/", "--key", "new"], {"a/1": "old", "a/2": "old"}),
        (["--prefix", "a/1", "--prefix", "n"], {"a/1": "old", "a/2": "bad"}),
    ],
)
def test_chosen_keys_only(cli: Cli, bad: str, words: list[str], left: dict[str, str]) -> None:
    cli.ok("revert", bad, *words, "--yes", "--note", "why")
    assert values(cli) == {**left, "b": "later"}
    assert cli.ok("log", "-n", "1", "--json").json[0]["note"] == "why"


def test_a_conflict_is_named_and_decided(cli: Cli, bad: str) -> None:
    hotfix = cli.ok("put", "a/1", "hotfix", "--writer", "eve", "--note", "urgent").out.strip()
    named = ("'a/1' at " + hotfix, "by eve ('urgent')")
    for option in ("--yes", "--dry-run"):
        answer = cli("revert", bad, option)
        assert (answer.code, answer.out) == (3, "")
        for part in (*named, "--theirs leaves", "--force puts"):
            assert part in answer.err
    preview = cli.ok("revert", bad, "--theirs", "--dry-run")
    assert preview.lines == ['~ a/2  "bad" -> "old"', '- new  "bad"']
    for part in ("left as they are: ", *named):
        assert part in preview.err
    assert values(cli)["a/2"] == "bad"
    cli.ok("revert", bad, "--theirs", "--yes")
    assert values(cli) == {"a/1": "hotfix", "a/2": "old", "b": "later"}
    cli.ok("revert", bad, "--force", "--yes")
    assert values(cli) == {"a/1": "old", "a/2": "old", "b": "later"}
    assert cli("revert", bad, "--theirs", "--force").code == 2


def test_several_commits_and_a_revert_of_the_revert(cli: Cli, bad: str) -> None:
    second = cli.ok("put", "a/1", "worse").out.strip()
    state = values(cli)
    assert cli("revert", bad, "--yes").code == 3
    done = cli.ok("revert", bad, second, "--yes").out.strip()
    assert values(cli) == {"a/1": "old", "a/2": "old", "b": "later"}
    cli.ok("revert", done, "--yes")
    assert values(cli) == state
    cli.ok("revert", "now", "--yes")  # the newest commit
    assert values(cli)["a/1"] == "old"


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["rev:4", "--prefix", "shcema/"], 1, "no key begins with 'shcema/' in what the commits"),
        (["rev:4", "--key", "b"], 1, "no key 'b' in what the commits changed"),
        (["1970-01-31T14:05"], 2, "no commit has the time 1970-01-31T14:05:00.000Z ("),
        (["rev:9000"], 2, "in the future"),
        (["soon"], 2, "soon"),
        ([], 2, "COMMIT"),
    ],
)
def test_what_cannot_be_reverted(cli: Cli, bad: str, words: list[str], code: int, why: str) -> None:
    state = values(cli)
    answer = cli("revert", *words, "--yes")
    assert answer.code == code
    assert why in answer.err
    assert values(cli) == state


def test_a_restore_of_single_keys_leaves_their_siblings_alone(cli: Cli, bad: str) -> None:
    cli.ok("put", "a/10", "sibling")
    cli.ok("restore", "rev:3", "a/1", "new", "--yes")
    assert values(cli) == {"a/1": "old", "a/10": "sibling", "a/2": "bad", "b": "later"}
    note = cli.ok("log", "-n", "1", "--json").json[0]["note"]
    assert note.startswith("restore 'a/1', 'new' to ")
    cli.ok("restore", "rev:3", "b", "--prefix", "a/2", "--prefix", "a/", "--yes")
    assert values(cli) == {"a/1": "old", "a/2": "old", "b": "old"}
    answer = cli("restore", "rev:3", "a/1", "a/typo", "--yes")
    assert answer.code == 1
    assert "no key 'a/typo', neither now nor at" in answer.err
