"""Commits, versions and keys of which only ignored paths differ are left out, and counted."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import Cli

import snapkv

pytestmark = pytest.mark.slow

VECTORS = Path(__file__).parents[1] / "vectors" / "kubernetes"
CRONTAB = (
    b'{"apiVersion":"example.com/v1","kind":"Crontab","metadata":{"generation":%d},"every":%d}'
)
KEY = "/registry/example.com/crontabs/shop/nightly"
NODE = "/registry/minions/n1"


def heartbeats() -> Iterator[tuple[str, bytes]]:
    """Yield what an idle control plane wrote; the first of each key is the version before."""
    for line in (VECTORS / "heartbeats.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield row["key"], base64.b64decode(row["stored"])


@pytest.fixture
def idle(any_cli: Cli) -> Cli:
    """A store with two changes of a custom object among heartbeats."""
    with snapkv.open(any_cli.url) as store:
        rows = list(heartbeats())
        first = dict(reversed(rows))
        store.commit(puts={**first, KEY: CRONTAB % (1, 5)})
        for number, (key, value) in enumerate(rows[len(first) :]):
            if number in (20, 40):
                store.save(KEY, CRONTAB % (number, number))
            store.save(key, value)
    return any_cli


def count() -> int:
    keys = [key for key, _ in heartbeats()]
    return len(keys) - len(set(keys))


def test_an_idle_cluster_shows_only_what_changed(idle: Cli) -> None:
    shown = idle.ok("log", "--json")
    assert len(shown.json) == 3
    assert shown.err == (
        f"snapkv: {count()} commits with only ignored paths were left out: "
        "--ignore none shows them\n"
    )
    everything = idle.ok("log", "--json", "--ignore", "none")
    assert len(everything.json) == count() + 3
    assert everything.err == ""
    assert [each["revision"] for each in shown.json] == [
        each["revision"]
        for each in idle.ok("log", "--json", "--ignore", "none", "-p", "--name-only").json
        if {"key": KEY} in each["changes"]
    ]


def test_as_many_commits_as_asked_for_are_shown(idle: Cli) -> None:
    two = idle.ok("log", "-n2", "-p")
    assert two.lines[1:3] == [f"  ~ {KEY}", "    ~ every: 20 -> 40"]
    assert two.lines[5:7] == [f"  ~ {KEY}", "    ~ every: 5 -> 20"]
    assert "commits with only ignored paths were left out" in two.err


def test_the_log_of_keys_and_prefixes_leaves_them_out(idle: Cli) -> None:
    assert len(idle.ok("log", "--prefix", "/registry/minions/").lines) == 1
    assert len(idle.ok("log", NODE).lines) == 1
    assert len(idle.ok("log", NODE, KEY).lines) == 3
    assert len(idle.ok("log", NODE, "--ignore", "none").lines) > 1
    assert len(idle.ok("log", "--oldest-first", "-n3").lines) == 3


def test_a_commit_that_says_something_is_shown(idle: Cli) -> None:
    with snapkv.open(idle.url) as store:
        value = store.load(KEY)
        store.save(KEY, value.replace(b'"generation":40', b'"generation":41'), note="look")
    assert '"look"' in idle.ok("log", "-n1").out


def test_a_path_that_is_given_adds_to_the_default(idle: Cli) -> None:
    assert len(idle.ok("log", "--ignore", "every").lines) == 1
    only = idle.ok("log", "--ignore", "none", "--ignore", "every")
    assert len(only.lines) == count() + 3  # the generation differs, too


def test_show_without_a_commit_shows_the_newest_that_log_shows(idle: Cli) -> None:
    shown = idle.ok("show")
    assert f"~ {KEY}" in shown.out
    assert "commits with only ignored paths were left out" in shown.err
    newest = idle.ok("log", "--ignore", "none", "--json", "-n1").json[0]["revision"]
    exact = idle.ok("show", f"rev:{newest}")
    assert "~" not in exact.out
    assert "1 key with only ignored paths was left out" in exact.err
    assert "~" in idle.ok("show", f"rev:{newest}", "--ignore", "none").out


def test_history_blame_and_diff_leave_them_out(idle: Cli) -> None:
    history = idle.ok("history", NODE)
    assert len(history.lines) == 1
    assert "with only ignored paths" in history.err
    blame = idle.ok("blame", NODE)
    assert "lastHeartbeatTime" not in blame.out
    assert "status.conditions[0].status: " in blame.out
    assert blame.err == "snapkv: 4 ignored paths left out: --ignore none shows them\n"
    assert "lastHeartbeatTime" in idle.ok("blame", NODE, "--ignore", "none").out
    first = idle.ok("log", "--json", "--oldest-first", "-n1").json[0]["revision"]
    diff = idle.ok("diff", f"rev:{first}", "--name-only")
    assert diff.lines == [KEY]
    assert "keys with only ignored paths were left out" in diff.err
    whole = idle.ok("diff", f"rev:{first}", "--name-only", "--ignore", "none")
    assert NODE in whole.lines


@pytest.mark.parametrize("form", [[], ["--patch"], ["--json"], ["--json", "--patch"]])
def test_a_watch_leaves_them_out(idle: Cli, form: list[str]) -> None:
    first = idle.ok("log", "--json", "--oldest-first", "-n1").json[0]["timestamp"]
    watch = "watch", "--since", first, "--timeout", "1s", *form
    shown = idle.ok(*watch)
    assert shown.out.count("nightly") == 2
    assert "minions" not in shown.out
    assert f"{count()} commits with only ignored paths were left out" in shown.err
    assert idle.ok(*watch, "-n1").out.count("nightly") == 1
    assert "minions" in idle.ok(*watch, "--ignore", "none").out


def test_a_restore_says_all_that_it_changes(idle: Cli) -> None:
    first = idle.ok("log", "--json", "--oldest-first", "-n1").json[0]["revision"]
    assert (
        NODE
        in idle.ok("restore", f"rev:{first}", "--dry-run").err
        + idle.ok("restore", f"rev:{first}", "--dry-run").out
    )


def test_other_values_are_not_touched(any_cli: Cli) -> None:
    for number in range(3):
        any_cli.ok("put", "lease", json.dumps({"spec": {"renewTime": number}}))
    shown = any_cli.ok("log")
    assert len(shown.lines) == 3
    assert shown.err == ""
    assert len(any_cli.ok("log", "--ignore", "kubernetes").lines) == 1
