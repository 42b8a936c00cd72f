"""Times on the command line, of every command that takes one; and restoring with care."""

import json
from datetime import datetime, timedelta

import pytest
from cli_runner import Cli
from cli_terminal import terminal

import snapkv

pytestmark = pytest.mark.slow

ENTRIES = [
    ["get", "a", "--at"],
    ["ls", "--at"],
    ["log", "--since"],
    ["log", "--until"],
    ["diff"],
    ["diff", "now"],
    ["watch", "--timeout", "0s", "--since"],
    ["dump", "d", "--at"],
    ["restore", "--yes"],
    ["restore", "--dry-run"],
    ["compact", "--yes"],
]


@pytest.fixture
def three(any_cli: Cli) -> list[snapkv.Commit]:
    """Three commits of one key."""
    with snapkv.open(any_cli.url) as store:
        return [store.commit(puts={"a": b"%d" % n, f"k{n}": b""}) for n in range(3)]


@pytest.mark.parametrize("number", ["4", "1795386000", "1795386000000", "1795386000000000"])
def test_a_number_that_is_no_timestamp(
    any_cli: Cli, three: list[snapkv.Commit], number: str
) -> None:
    for entry in ENTRIES:
        answer = any_cli(*entry, number)
        assert (answer.code, answer.out) == (2, ""), entry
        assert answer.err.startswith(f"snapkv: {number} is not a timestamp of this store"), entry
        assert "if it is " in answer.err
    assert any_cli.ok("ls").lines == ["a", "k0", "k1", "k2"]


def test_a_revision_is_a_time(any_cli: Cli, three: list[snapkv.Commit]) -> None:
    cli, revision = any_cli, three[1].revision
    echo = f"snapkv: rev:{revision} = {snapkv.format_time(three[1].ts)}\n"
    for entry in ENTRIES:
        if entry[0] not in ("restore", "compact"):
            answer = cli.ok(*entry, f"rev:{revision}")
            assert answer.err.startswith(echo), entry
    assert cli.ok("get", "a", "--at", f"rev:{revision}").out == "1"
    assert len(cli.ok("log", "--since", f"rev:{revision}").lines) == 1
    answer = cli.ok("get", "a", "--at", f"rev:{revision}", "--json")
    assert answer.json[0]["value"] == "1"
    assert answer.err == echo, "stdout stays clean"
    assert "in the future" in cli("ls", "--at", "rev:999").err
    cli.ok("restore", f"rev:{revision}", "--yes")
    assert cli.ok("ls").lines == ["a", "k0", "k1"]
    cli.ok("compact", f"rev:{revision}", "--yes")


def test_typed_times_are_local_and_shown_in_utc(cli: Cli) -> None:
    with snapkv.open(cli.url, clock=snapkv.ManualClock(1_700_000_000_250), writer="x") as store:
        store.save("a", b"1")  # 2023-11-14T22:13:20.250Z
        store.save("b", b"1")
    cli.environment["TZ"] = "Europe/Berlin"
    answer = cli.process("ls", "--at", "2023-11-14 23:13:20", "--json")
    assert [json.loads(line)["key"] for line in answer.lines] == ["a", "b"]
    assert answer.err == "snapkv: 2023-11-14 23:13:20 = 2023-11-14T22:13:20.999Z\n"
    answer = cli.process("log", "--since", "2023-11-14 23:13:20", "--json")
    assert len(answer.lines) == 2, "a second's start, for a range"
    assert answer.err == "snapkv: 2023-11-14 23:13:20 = 2023-11-14T22:13:20.000Z\n"
    assert cli.process("ls", "--at", "2023-11-14 23:13").out == ""
    answer = cli.process("ls", "--at", "2023-11-14")
    assert answer.err == "snapkv: 2023-11-14 = 2023-11-13T23:00:00.000Z\n"
    answer = cli.process("ls", "--at", "2026-03-29 02:30")
    assert (answer.code, answer.out) == (2, "")
    assert "never was in local time: clocks skipped it" in answer.err
    assert "the first of two" in cli.process("ls", "--at", "2025-10-26 02:30").err


def test_times_that_look_like_options(cli: Cli) -> None:
    """The y of days is not --yes, and what an option takes stays as it is."""
    cli.ok("put", "a", "1")
    for word in ("-1day", "-7days", "-1 day", "- 1d"):
        answer = cli("restore", word, "--before-first")
        assert answer.code == 2
        assert "pass --yes" in answer.err, word
    answer = cli("restore", "--prefix", "-5", "-1h", "--before-first")
    assert "no key begins with '-5'" in answer.err
    cli.ok("diff", "-1h", "-5m")
    cli.ok("diff", "-1h", "--", "-5m")
    assert cli.ok("get", "a").out == "1"


def test_times_of_now(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    for word in ("now", "NOW", "0s ago", "-0s", "+1m"):
        assert cli.ok("get", "a", "--at", word).out == "1"
    tomorrow = f"{datetime.now().astimezone() + timedelta(days=1):%Y-%m-%d %H:%M}"
    assert cli.ok("ls", "--at", tomorrow).err.endswith("Z, in the future\n")
    for word in ("yesterday", "1h ago", "-1h30m", "-1 h", "1h"):
        answer = cli("get", "a", "--at", word)
        assert (answer.code, answer.err.count("\n")) == (1, 2), word
        assert answer.err.startswith(f"snapkv: {word} = 20"), word


# --- restore ---


def test_a_dry_run_shows_everything_and_changes_nothing(any_cli: Cli) -> None:
    cli = any_cli
    then = cli.ok("put", "a", "1", "b", "2", "--raw").out.strip()
    cli.ok("put", "a", "x", "c", "3", *(word for n in range(30) for word in (f"k{n:02}", "v")))
    cli.ok("rm", "b")
    log = cli.ok("log", "--raw").out
    answer = cli.ok("restore", then, "--dry-run")
    assert len(answer.lines) == 33
    assert answer.lines[0] == '~ a  "x" -> "1"'
    assert answer.err.endswith("remove 31 keys, add 1 key, change 1 key\n")
    (plan,) = cli.ok("restore", then, "--dry-run", "--json", "--prefix", "a").json
    assert plan == {
        "keys": 1,
        "removed": 0,
        "added": 0,
        "changed": 1,
        "changes": [{"key": "a", "before": "x", "after": "1"}],
    }
    assert cli.ok("log", "--raw").out == log
    answer = cli("restore", then, stdin=b"y\n")
    assert answer.code == 2
    assert "remove 31 keys, add 1 key, change 1 key?" in answer.err


def test_before_the_first_commit_takes_a_word_of_its_own(any_cli: Cli) -> None:
    cli = any_cli
    cli.ok("put", "a", "1")
    for words in (["0"], ["-1h"], ["2001-01-01"], ["-1h", "--dry-run"], ["-1h", "--prefix", "a"]):
        answer = cli("restore", *words, "--yes")
        assert (answer.code, answer.out) == (2, ""), words
        assert "is before the first commit" in answer.err
        assert "--before-first" in answer.err
    assert cli.ok("get", "a").out == "1"
    cli.ok("restore", "1970-01-02Z", "--before-first", "--yes")
    assert cli.ok("ls").lines == []


def test_a_prefix_without_keys_is_told(any_cli: Cli) -> None:
    cli = any_cli
    cli.ok("put", "a", "1")
    for words in ([], ["--dry-run"], ["--yes"]):
        answer = cli("restore", "now", "--prefix", "nope/", *words)
        assert (answer.code, answer.out) == (1, "")
        assert "no key begins with 'nope/', neither now nor at" in answer.err


def test_typed_and_shown_times_are_in_one_zone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.ok("put", "a", "1")
    monkeypatch.setenv("SNAPKV_TZ", "Asia/Kolkata")
    answer = cli.ok("log", "--since", "2026-01-31 14:05")
    assert answer.err == "snapkv: 2026-01-31 14:05 = 2026-01-31T14:05:00.000+05:30\n"
    shown = answer.lines[0].split()[0]
    assert shown.endswith("+05:30")
    assert cli.ok("get", "a", "--at", shown).out == "1"
    assert cli.ok("log", "--json").json[0]["time"].endswith("Z")
    monkeypatch.setenv("SNAPKV_TZ", "Mars/Olympus")
    answer = cli("log")
    assert (answer.code, answer.out) == (2, "")
    assert "SNAPKV_TZ is 'Mars/Olympus', not a time zone" in answer.err
    monkeypatch.delenv("SNAPKV_TZ")
    assert cli.ok("log").lines[0].split()[0].endswith("Z")


def test_local_times_are_shown_if_asked_for_and_said_on_a_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("put", "a", "1")
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    words, said = ["log", "--no-pager", "--since", "2026-01-31 14:05"], b"--local shows local times"
    with terminal(cli, *words) as shown:
        pass
    assert said in shown.shown
    with terminal(cli, *words, "--local") as shown:
        pass
    assert said not in shown.shown
    assert b"+05:30" in shown.shown


def test_a_pipe_says_that_a_typed_time_was_local_beside_dates_for_people(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    cli.environment["TZ"] = "Asia/Kolkata"

    def lines(*words: str) -> list[str]:
        answer = cli.process(*words)
        assert answer.code == 0, answer.err
        return answer.lines

    remark = "(times are UTC, but '2026-01-31 14:05' is local time: --local shows local times)"
    log, since = ["log", "--since", "2026-01-31 14:05"], ["--since", "2026-01-31 14:05"]
    for words in (
        log,
        [*log, "-o", "table"],
        ["history", "a", *since],
        ["watch", "-n", "1", *since],
    ):
        found = lines(*words)
        assert found[0] == remark, words
        assert found.count(remark) == 1
        assert "Z  " in found[1] or "TIME  " in found[1]
    assert lines("show", "2030-01-31 14:05")[0].startswith("(times are UTC, but '2030-01-31 14:05'")
    for more in (["--json"], ["-o", "yaml"], ["--raw"], ["--local"]):
        assert not any("local time" in line for line in lines(*log, *more)), more
    assert lines("ls", "--at", "2030-01-31 14:05") == ["a"], "it shows no times"
    assert remark[1:14] not in lines("log", "--since", "2026-01-31 14:05Z")[0]
