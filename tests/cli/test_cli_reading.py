"""get, ls, log, history, diff and watch, in this process."""

from collections.abc import Iterator
from typing import Any

import pytest
from cli_runner import Cli

import snapkv
from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import WatchBatch

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(any_cli: Cli) -> Cli:
    """Everything here is the same on every engine."""
    return any_cli


BINARY = bytes(range(256))


def saved(cli: Cli, *words: str) -> str:
    """Put, and return the timestamp."""
    return cli.ok("put", *words, "--raw").out.strip()


def test_get_gives_exact_bytes_now_and_then(cli: Cli) -> None:
    first = saved(cli, "a", "1")
    cli.ok("put", "a", "-", stdin=BINARY)
    assert cli.ok("get", "a").raw == BINARY
    assert cli.ok("get", "a", "--at", first).raw == b"1"
    assert cli("get", "a", "--at", "-1h").code == 1


def test_get_json_carries_any_value(cli: Cli) -> None:
    cli.ok("put", "text", "grün\n", "empty", "")
    cli.ok("put", "binary", "-", stdin=b"\xff\x00")
    assert cli.ok("get", "text", "--json").json[0]["value"] == "grün\n"
    assert cli.ok("get", "empty", "--json").json[0]["value"] == ""
    found = cli.ok("get", "binary", "--json").json[0]
    assert found["value"] == {"base64": "/wA="}
    assert found["at"]["final"] is True
    assert snapkv.to_datetime(int(found["at"]["timestamp"])).isoformat() == found["at"][
        "time"
    ].replace("Z", "000+00:00")


def test_ls_lists_a_prefix_exact_to_the_byte(cli: Cli) -> None:
    cli.ok("put", "a/x", "1", "ab", "2", "a/y", "3")
    assert cli.ok("ls", "a/").lines == ["a/x", "a/y"]
    assert cli.ok("ls").lines == ["a/x", "a/y", "ab"]
    assert cli.ok("ls", "zz").lines == []
    assert cli.ok("ls", "--at", "-1d").lines == []
    assert [row["key"] for row in cli.ok("ls", "--json").json] == ["a/x", "a/y", "ab"]


def test_keys_that_do_not_print_are_quoted_and_exact_in_json(cli: Cli) -> None:
    evil = "two\nlines\x1b[31m"
    cli.ok("put", evil, "v\x1b[0m\n")
    assert cli.ok("ls").out == '"two\\nlines\\u001b[31m"\n'
    assert cli.ok("ls", "--json").json == [{"key": evil}]
    for command in (["ls", "-l"], ["history", evil], ["diff", "0"], ["get", evil, "--at", "0"]):
        answer = cli(*command)
        assert "\x1b" not in answer.out + answer.err
        assert len((answer.out + answer.err).splitlines()) == 1


def test_log_walks_both_ways_within_bounds(cli: Cli) -> None:
    times = [saved(cli, "a", str(n), "--note", f"n{n}") for n in range(4)]
    assert cli.ok("log", "--raw").lines[0].startswith(times[3])
    rows = cli.ok("log", "--json", "--oldest-first").json
    assert [row["timestamp"] for row in rows] == times
    assert [row["note"] for row in rows] == ["n0", "n1", "n2", "n3"]
    assert {row["writer"] for row in rows} == {"ann@laptop"}
    bounded = cli.ok("log", "--since", times[0], "--until", times[2], "--json").json
    assert [row["timestamp"] for row in bounded] == [times[2], times[1]]
    assert len(cli.ok("log", "-n", "1").lines) == 1
    assert cli.ok("log", "-n", "0").lines == []


def test_history_tells_values_and_removals(cli: Cli) -> None:
    cli.ok("put", "a", "1", "--note", "first")
    cli.ok("rm", "a", "--writer", "bob")
    newest, oldest = cli.ok("history", "a", "--json").json
    assert (newest["value"], newest["writer"]) == (None, "bob")
    assert (oldest["value"], oldest["note"]) == ("1", "first")
    assert cli.ok("history", "a", "--oldest-first", "--json").json == [oldest, newest]
    assert "  removed  bob" in cli.ok("history", "a").lines[0]
    assert cli("history", "nobody").code == 1


def test_diff_tells_what_differs_and_can_say_so_by_code(cli: Cli) -> None:
    first = saved(cli, "a", "1", "b", "2")
    second = saved(cli, "a", "x", "c", "3")
    cli.ok("rm", "b")
    assert cli.ok("diff", first).lines == ['~ a  "1" -> "x"', '- b  "2"', '+ c  "3"']
    assert cli.ok("diff", "--prefix", "c", second, first).lines == ['- c  "3"']
    assert cli("diff", first, "--exit-code").code == 1
    assert cli("diff", second, second, "--exit-code").code == 0
    assert cli.ok("diff", first, second, "--json").json[0] == {
        "key": "a",
        "before": "1",
        "after": "x",
    }


def test_watch_begins_after_a_time_and_ends(cli: Cli) -> None:
    first = saved(cli, "a/1", "1")
    cli.ok("put", "b", "2")
    cli.ok("put", "a/2", "3", "a/3", "4")
    cli.ok("rm", "a/1")
    found = cli.ok("watch", "a/", "--since", first, "--timeout", "1s", "--json").json
    assert [row["changes"] for row in found] == [
        [{"key": "a/2", "value": "3"}, {"key": "a/3", "value": "4"}],
        [{"key": "a/1", "value": None}],
    ]
    assert len(cli.ok("watch", "--since", first, "-n", "1", "--json").json) == 1
    assert cli.ok("watch", "--timeout", "10ms").out == ""


def test_long_values_are_cut_in_text_only(cli: Cli) -> None:
    cli.ok("put", "a", "x" * 5_000)
    assert cli.ok("ls", "-l").out.endswith("... (5,000 bytes)\n")
    assert cli.ok("ls", "-l", "--json").json[0]["value"] == "x" * 5_000


@pytest.mark.parametrize("option", ["--store", "--name", "--json"])
def test_common_options_stand_before_or_after(cli: Cli, option: str) -> None:
    cli.ok("put", "a", "1", "--name", "other")
    words = {"--store": ["--store", cli.url], "--name": ["--name", "other"], "--json": ["--json"]}
    given = words.pop(option)
    if option == "--json":
        cli.patch.delenv("SNAPKV_STORE")
    rest = [word for words in words.values() for word in words]
    assert cli.ok(*given, "ls", *rest).out == cli.ok("ls", *given, *rest).out == '{"key": "a"}\n'


def test_the_command_line_goes_before_the_environment(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    cli.patch.setenv("SNAPKV_STORE", "lmdb:./elsewhere")
    assert cli("ls").code == 5
    assert cli.ok("--store", cli.url, "ls").out == "a\n"
    assert cli.ok("ls", "--store", cli.url).out == "a\n"


def test_since_now_is_after_everything(cli: Cli) -> None:
    cli.ok("put", "a", "1")
    assert cli.ok("log").out
    assert cli.ok("log", "--since", "now").out == ""
    assert cli.ok("watch", "--since", "now", "--timeout", "0.1s").out == ""


@pytest.mark.long_on("etcd")
def test_log_leaves_out_ticks(any_cli: Cli) -> None:
    cli = any_cli
    with snapkv.open(cli.url, writer="x") as store:
        store.tick()
        for n in range(3):
            store.save("a", b"%d" % n)
            for _ in range(300):
                store.tick()
        store.commit(note="a note is no tick")
        store.space("s").commit(puts={b"k": b""})
        store.remove("a")
        store.tick()
        every = [commit.revision for commit in store.commits()]
    answer = cli.ok("log", "--json")
    revisions = [row["revision"] for row in answer.json]
    assert len(revisions) == 6
    assert answer.err == "snapkv: 902 ticks left out: --ticks shows them\n"
    assert [row["revision"] for row in cli.ok("log", "--ticks", "--json").json] == every[::-1]
    answer = cli.ok("log", "--oldest-first", "--json")
    assert [row["revision"] for row in answer.json] == revisions[::-1]
    answer = cli.ok("log", "-n", "4", "--json")
    assert [row["revision"] for row in answer.json] == revisions[:4], "lines shown count"
    assert answer.err == "snapkv: 301 ticks left out: --ticks shows them\n"
    assert cli.ok("log", "-n", "2", "--since", f"rev:{revisions[4]}", "--json").err.endswith(
        "snapkv: 1 tick left out: --ticks shows them\n"
    )
    answer = cli.ok("log", "-n", "0")
    assert (answer.out, answer.err) == ("", "")


@pytest.mark.parametrize("count", [1, 3])
def test_log_reads_about_what_it_prints(
    any_cli: Cli, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    read = []

    def counted(*words: Any) -> Iterator[WatchBatch]:
        for batch in replayed(*words):
            read.extend(batch.events)
            yield batch

    with snapkv.open(any_cli.url, writer="x") as store:
        for n in range(40):
            store.save("a", b"%d" % n)
        newest = [commit.revision for commit in store.commits(newest_first=True, limit=count)]
    monkeypatch.setattr(snapkv.reading.change_replay, "replayed", counted)
    rows = any_cli.ok("log", "-n", str(count), "--json").json
    assert [row["revision"] for row in rows] == newest
    assert len(read) == count
