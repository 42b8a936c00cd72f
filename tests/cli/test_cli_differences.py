"""Differences that a person can read: diff and its options, and one-line values."""

import json
from functools import partial

import pytest
import yaml
from cli_runner import Cli
from cli_terminal import terminal

import snapkv
from snapkv.cli import difference_output

pytestmark = pytest.mark.slow

POD = {
    "kind": "Pod",
    "metadata": {"name": "web-0", "resourceVersion": "1", "labels": {"app": "web"}},
    "spec": {"containers": [{"name": "web", "image": "nginx:1.25"}, {"name": "log", "image": "l"}]},
}
CONFIG_MAP = (
    b'k8s\x00\n\x0f\n\x02v1\x12\tConfigMap\x12*\n\x18\n\x08settings\x12\x00\x1a\x00"\x00*\x002\x008\x00B'
    b'\x00\x12\x0e\n\x05level\x12\x05debug\x1a\x00"\x00'
)
EVIL = "two\nlines\x1b[31m\u202e"


def pod(image: str = "nginx:1.25", version: int = 1) -> bytes:
    made = json.loads(json.dumps(POD))
    made["metadata"]["resourceVersion"] = str(version)
    made["spec"]["containers"][0]["image"] = image
    return json.dumps(made).encode()


@pytest.fixture
def then(cli: Cli) -> str:
    """Fill the store, and return the time before the newest changes."""
    with snapkv.open(cli.url, writer="ann@laptop") as store:
        store.multi_save(
            {
                "pod": pod(),
                "beat": pod(version=1),
                "readme": b"one\ntwo\nthree\nfour\nfive\n",
                "short": b"v1",
                "bytes": bytes(range(200)),
                "gone": b"old",
                "secret/a": b"hunter2",
                "config": b"a: 1\nb: 2\n",
            }
        )
        before = str(store.resolved())
        store.commit(
            puts={
                "pod": pod("nginx:1.26", 2),
                "beat": pod(version=2),
                "readme": b"one\ntwo\n3\nfour\nfive\n",
                "short": b"v2",
                "bytes": bytes(range(199)) + b"\x00",
                "new": b"n",
                "secret/a": b"hunter33",
                "config": b"a: 1\nb: 3\n",
            },
            deletes=["gone"],
        )
    return before


def test_diff_shows_paths_lines_and_bytes(cli: Cli, then: str) -> None:
    assert cli.ok("diff", then).lines == [
        "~ beat",
        '  ~ metadata.resourceVersion: "1" -> "2"',
        "~ bytes",
        "  @@ byte 199: 1 byte -> 1 byte @@",
        "  - 000000c7  c7                                               |.|",
        "  + 000000c7  00                                               |.|",
        "~ config",
        "  ~ b: 2 -> 3",
        '- gone  "old"',
        '+ new  "n"',
        "~ pod",
        '  ~ metadata.resourceVersion: "1" -> "2"',
        "  ~ spec.containers[0].image: nginx:1.25 -> nginx:1.26",
        "~ readme",
        "  @@ -1,5 +1,5 @@",
        "    one",
        "    two",
        "  - three",
        "  + 3",
        "    four",
        "    five",
        '~ secret/a  "hunter2" -> "hunter33"',
        '~ short  "v1" -> "v2"',
    ]


def test_stat_and_name_only(cli: Cli, then: str) -> None:
    shown = cli.ok("diff", then, "--stat").lines
    assert "~ pod  +0 -0 ~2 paths" in shown
    assert "~ readme  +1 -1 lines" in shown
    assert "~ bytes  +1 -1 bytes" in shown
    assert shown[-1] == "9 keys: 1 added, 1 removed, 7 changed"
    rows = cli.ok("diff", then, "--stat", "--json").json
    counts = {"added": 1, "removed": 1, "changed": 0, "unit": "line"}
    assert {"key": "readme", "change": "changed", **counts} in rows
    head, *table = cli.ok("diff", then, "--stat", "-o", "table").lines
    assert head.split() == ["KEY", "ADDED", "REMOVED", "CHANGED", "UNIT"]
    assert ["~", "pod", "0", "0", "2", "paths"] in [line.split() for line in table]
    names = cli.ok("diff", then, "--name-only").lines
    assert names == [row["key"] for row in rows]
    assert cli.ok("diff", then, "--name-only", "--json").json == [{"key": key} for key in names]


def test_views_of_lines(cli: Cli, then: str) -> None:
    only = ("diff", then, "--prefix", "readme")
    assert cli.ok(*only, "-U", "0").lines[1:] == ["  @@ -3 +3 @@", "  - three", "  + 3"]
    assert cli.ok(*only, "-U", "1").lines[1] == "  @@ -2,3 +2,3 @@"
    assert "  ~ [-three-]{+3+}" in cli.ok(*only, "--word").lines
    full = cli.ok("diff", then, "--prefix", "pod", "--full").lines
    assert '  -         "image": "nginx:1.25"' in full
    assert '      "kind": "Pod",' in full
    cli.patch.setenv("COLUMNS", "60")
    beside = cli.ok(*only, "--side-by-side").lines
    assert any("three" in line and line.endswith("~ 3") for line in beside)
    assert max(map(len, beside)) <= 60


def test_what_was_added_is_shown_whole_when_lines_are_asked_for(cli: Cli, then: str) -> None:
    assert cli.ok("diff", then, "--prefix", "new", "--full").lines == [
        "+ new",
        "  + n",
    ]


@pytest.mark.parametrize(
    "options",
    [
        ["--stat", "--name-only"],
        ["--full", "--word"],
        ["--side-by-side", "--stat"],
        ["--full", "-U", "1"],
        ["--as", "json", "--decoder", "cat"],
    ],
)
def test_options_that_exclude_each_other(cli: Cli, then: str, options: list[str]) -> None:
    answer = cli("diff", then, *options)
    assert answer.code == 2
    assert "exclude each other: give one of them" in answer.err


def test_ignored_paths_do_not_count(cli: Cli, then: str) -> None:
    answer = cli.ok("diff", then, "--ignore", "kubernetes", "--prefix", "b")
    assert [line for line in answer.lines if not line.startswith(" ")] == ["~ bytes"]
    left_out, longer = answer.err.splitlines()
    assert left_out == "snapkv: 1 key with only ignored paths was left out: --ignore none shows it"
    assert longer.startswith("snapkv: warning: prefix 'b' also matches 'beat' and 1 more key")
    assert cli.ok("diff", then, "--ignore", "metadata.*", "--prefix", "pod").lines == [
        "~ pod",
        "  (1 ignored path differs, too)",
        "  ~ spec.containers[0].image: nginx:1.25 -> nginx:1.26",
    ]
    only = ("diff", then, "--prefix", "beat", "--exit-code")
    assert cli(*only).code == 1
    assert cli(*only, "--ignore", "metadata.resourceVersion").code == 0
    both = ("--ignore", "metadata.resourceVersion", "--ignore", "spec")
    assert cli.ok("diff", then, "--prefix", "pod", *both, "--json").lines == []
    answer = cli("diff", then, "--ignore", "a..b")
    assert (answer.code, answer.out) == (2, "")
    assert "ignored path 'a..b'" in answer.err


REDACTED = [
    ["diff", "0"],
    ["diff", "0", "--full"],
    ["diff", "0", "--stat"],
    ["diff", "{then}", "--word"],
    ["diff", "0", "--json"],
    ["diff", "0", "-o", "yaml"],
    ["diff", "0", "-o", "table"],
    ["show"],
    ["show", "--json"],
    ["log", "-p"],
    ["log", "-p", "--json"],
    ["log", "-p", "-o", "table"],
    ["ls", "--long"],
    ["ls", "--long", "--json"],
    ["history", "secret/a"],
    ["history", "secret/a", "--json"],
    ["watch", "--since", "0", "--timeout", "0s"],
    ["watch", "--since", "0", "--timeout", "0s", "-p"],
    ["watch", "--since", "0", "--timeout", "0s", "--json"],
    ["watch", "--since", "0", "--timeout", "0s", "--json", "-p"],
    ["watch", "--since", "0", "--timeout", "0s", "-o", "table"],
    ["restore", "{then}", "--dry-run"],
    ["restore", "{then}", "--dry-run", "--json"],
    ["restore", "{then}"],
    ["blame", "secret/a"],
]


@pytest.mark.parametrize("words", REDACTED, ids=" ".join)
def test_redacted_values_are_shown_nowhere(cli: Cli, then: str, words: list[str]) -> None:
    words = [word.format(then=then) for word in words]
    plain = cli(*words)
    given = cli(*words, "--redact", "no/", "--redact", "secret/")
    cli.patch.setenv("SNAPKV_REDACT", "no/ secret/")
    for answer in (given, cli(*words)):
        assert "hunter" not in answer.out + answer.err
        assert answer.out + answer.err
    assert "hunter" in plain.out + plain.err or "--stat" in words


def test_a_redacted_difference_has_sizes(cli: Cli, then: str) -> None:
    cli.patch.setenv("SNAPKV_REDACT", "secret/")
    only = ("diff", then, "--prefix", "secret/")
    assert cli.ok(*only).lines == ["~ secret/a  redacted, 7 bytes -> redacted, 8 bytes"]
    (row,) = cli.ok(*only, "--json").json
    assert (row["before"], row["after"]) == ({"redacted": 7}, {"redacted": 8})
    assert cli.ok("get", "secret/a").out == "hunter33", "it was asked for by name"
    assert "hunter" not in cli.ok(*only, "--redact", "app/").out, "an option uncovers nothing"
    answer = cli("blame", "secret/a")
    assert answer.code == 2
    assert "redacted" in answer.err


def test_values_are_read_as_is_said(cli: Cli, then: str) -> None:
    only = ("diff", then, "--prefix", "config")
    assert cli.ok(*only, "--as", "text").lines[-2:] == ["  - b: 2", "  + b: 3"]
    assert cli.ok(*only, "--as", "hex").lines[1] == "  @@ byte 8: 1 byte -> 1 byte @@"
    assert cli.ok(*only, "--decoder", "tr a-c x-z").lines[1:] == ["  ~ y: 2 -> 3"]
    shown = cli.ok("diff", then, "--prefix", "readme", "--as", "json").lines
    assert shown[1].startswith("  (the value of 24 bytes cannot be shown as json: ")
    assert "  - three" in shown
    failing = cli.ok("diff", then, "--prefix", "config", "--decoder", "false").lines
    assert "(the decoder command 'false' ended with code 1: no message)" in failing[1]
    assert failing[2] == "  ~ b: 2 -> 3"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--as", "jsn"],
            "--as takes json, yaml, text, msgpack, kubernetes, encrypted, hex, not 'jsn'",
        ),
        (["--decoder", "absent-program x"], "the program 'absent-program' was not found"),
        (["--decoder", "./meta"], "the program './meta' is not a file that can be executed"),
        (["--decoder", "'"], 'decoder command "\'": No closing quotation'),
        (["--decoder", ""], "the decoder command is empty"),
    ],
)
def test_what_cannot_be_read_so_is_told_at_once(
    cli: Cli, then: str, options: list[str], says: str
) -> None:
    for words in (["diff", then], ["get", "pod"], ["blame", "pod"]):
        answer = cli(*words, *options)
        assert (answer.code, answer.out) == (2, "")
        assert says in answer.err


def test_get_reads_a_value_as_is_said(cli: Cli, then: str) -> None:
    assert cli.ok("get", "pod").raw == pod("nginx:1.26", 2), "a pipe gets exact bytes"
    assert json.loads(cli.ok("get", "pod", "--as", "json").out) == json.loads(pod("nginx:1.26", 2))
    assert cli.ok("get", "pod", "--as", "json").lines[1] == '  "kind": "Pod",'
    assert cli.ok("get", "readme", "--decoder", "tr a-z A-Z").lines[0] == "ONE"
    found = cli.ok("get", "config", "--as", "yaml", "--json").json[0]
    assert (found["kind"], found["decoded"]) == ("yaml", {"a": 1, "b": 3})
    assert found["value"] == "a: 1\nb: 3\n"
    assert "decoded" not in cli.ok("get", "config", "--json").json[0]
    answer = cli("get", "readme", "--as", "json")
    assert answer.code == 2
    assert "cannot be shown as json" in answer.err


def test_structured_bytes_are_readable_on_a_terminal(cli: Cli) -> None:
    cli.ok("put", "packed", "-", stdin=b"\x82\xa1a\x01\xa1b\xc4\x02\xff\x00")
    with terminal(cli, "get", "packed") as screen:
        pass
    assert b'"a": 1,' in screen.shown
    assert b"(msgpack, 10 bytes; into a pipe or file they go as they are)" in screen.shown
    found = cli.ok("get", "packed", "--as", "msgpack", "--json").json[0]
    assert found["decoded"] == {"a": 1, "b": {"base64": "/wA="}}


def test_a_value_of_kubernetes_is_readable(cli: Cli) -> None:
    then = cli.ok("put", "/registry/x", "-", "--raw", stdin=CONFIG_MAP).out.strip()
    changed = CONFIG_MAP.replace(b"debug", b"error")
    cli.ok("put", "/registry/x", "-", stdin=changed)
    assert cli.ok("diff", then).lines == ["~ /registry/x", "  ~ data.level: debug -> error"]
    assert cli.ok("ls", "-l").out.endswith("/registry/x  ConfigMap settings (69 bytes)\n")
    assert "  data.level: debug -> error  " in cli.ok("history", "/registry/x").lines[0]
    assert cli.ok("get", "/registry/x").raw == changed
    assert "  level: error" in cli.ok("get", "/registry/x", "--as", "kubernetes").lines
    with terminal(cli, "get", "/registry/x") as screen:
        pass
    assert b"kind: ConfigMap\r\n" in screen.shown
    blamed = cli.ok("blame", "/registry/x", "--json").json
    assert blamed[-1]["place"] == "data.level"


def test_a_terminal_shows_differences_in_colours(cli: Cli, then: str) -> None:
    with terminal(cli, "--no-pager", "diff", then, "--prefix", "pod") as screen:
        pass
    assert b"\x1b[33m~ pod" in screen.shown
    assert b"\x1b[31mnginx:1.25" in screen.shown
    assert b"\x1b[32mnginx:1.26" in screen.shown


@pytest.mark.parametrize("view", [[], ["--full"], ["--word"], ["--side-by-side"], ["--stat"]])
def test_what_does_not_print_is_escaped(cli: Cli, view: list[str]) -> None:
    cli.ok("put", EVIL, EVIL, "tree", json.dumps({EVIL: EVIL}))
    then = cli.ok(
        "put", EVIL, EVIL + "x\n" * 5, "tree", json.dumps({EVIL: EVIL + "x"}), "--raw"
    ).out
    for words in (["diff", "0"], ["diff", str(int(then) - 1)], ["show"], ["log", "-p"]):
        answer = cli.ok(*words, *view)
        assert answer.out
        assert not {"\x1b", "\u202e", "\r"} & set(answer.out)


def test_long_values_are_cut_and_full_is_not(cli: Cli) -> None:
    then = cli.ok("put", "a", "\n".join(map(str, range(5_000))), "--raw").out.strip()
    cli.ok("put", "a", "\n".join(f"x{n}" for n in range(5_000)))
    assert "more lines" in cli.ok("diff", then).lines[-1]
    assert "x4999" in cli.ok("diff", then, "--full").out


def test_a_restore_shows_what_differs(cli: Cli, then: str) -> None:
    shown = cli.ok("restore", then, "--dry-run").lines
    (of_pod,) = (line for line in shown if line.startswith("~ pod  "))
    assert of_pod.endswith(" (and 1 more)")
    assert '~ short  "v2" -> "v1"' in shown
    (fields,) = cli.ok("restore", then, "--dry-run", "--json").json
    assert {"key": "short", "before": "v2", "after": "v1"} in fields["changes"]
    head, *rows = cli.ok("restore", then, "--dry-run", "-o", "table").lines
    assert head.split() == ["KEY", "CHANGE"]
    assert len(rows) == 9


def test_long_versions_show_what_differs(cli: Cli) -> None:
    for n in range(3):
        cli.ok("put", "a", "x" * 100 + str(n), "tree", pod(f"nginx:{n}").decode(), "s", str(n))
    cli.ok("rm", "a")
    removed, *shown = [line.split("  ")[2] for line in cli.ok("history", "a").lines]
    assert removed == "removed"
    assert [value[-2] for value in shown[:2]] == ["2", "1"]
    assert shown[2].startswith('"xxxx')
    assert "  spec.containers[0].image: nginx:1 -> nginx:2  " in cli.ok("history", "tree").lines[0]
    assert [line.split("  ")[2] for line in cli.ok("history", "s").lines] == ['"2"', '"1"', '"0"']


def test_large_values_are_not_decoded_for_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference_output, "DECODED_BYTES_MAX", 100)
    for n in range(2):
        cli.ok("put", "tree", pod(f"nginx:{n}").decode())
    assert '"nginx:1"' in cli.ok("history", "tree").lines[0]


def test_watch_shows_each_change_on_a_line_or_whole(cli: Cli, then: str) -> None:
    words = ("watch", "--since", then, "--timeout", "0s")
    lines = cli.ok(*words).lines
    (of_pod,) = (line for line in lines if line.startswith("  ~ pod  "))
    assert of_pod.endswith(" (and 1 more)")
    assert '  - gone  "old"' in lines
    assert '  + new  "n"' in lines
    whole = cli.ok(*words, "-p", "--ignore", "kubernetes").lines
    assert "    ~ spec.containers[0].image: nginx:1.25 -> nginx:1.26" in whole
    assert not any("beat" in line for line in whole)
    head, *rows = cli.ok(*words, "-o", "table").lines
    assert head.split() == ["TIME", "REVISION", "WRITER", "NOTE", "META", "KEY", "CHANGE"]
    assert len(rows) == 9
    assert list(yaml.safe_load_all(cli.ok(*words, "-o", "yaml").out)) == (
        cli.ok(*words, "--json").json
    )


def test_watch_has_both_values_for_programs(cli: Cli, then: str) -> None:
    words = ("watch", "short", "--since", then, "--timeout", "0s", "--json")
    (row,) = cli.ok(*words).json
    assert row["changes"] == [{"key": "short", "value": "v2"}]
    (row,) = cli.ok(*words, "-p").json
    assert row["changes"] == [{"key": "short", "value": "v2", "before": "v1", "after": "v2"}]
    (row,) = cli.ok("watch", "secret/", *words[2:], "-p", "--redact", "secret/").json
    assert row["changes"][0]["before"] == {"redacted": 7}


def test_history_leaves_out_what_is_ignored(cli: Cli) -> None:
    for image, version in (("nginx:1", 1), ("nginx:1", 2), ("nginx:2", 3)):
        cli.ok("put", "pod", pod(image, version).decode())
    answer = cli.ok("history", "pod", "--ignore", "kubernetes")
    assert answer.err == (
        "snapkv: 1 version with only ignored paths was left out: --ignore none shows it\n"
    )
    newest, _ = answer.lines
    assert "image: nginx:1 -> nginx:2" in newest
    assert "resourceVersion" not in newest
    found = cli.ok("history", "pod", "--ignore", "kubernetes", "--json").json
    assert [row["value"] for row in found] == [pod("nginx:2", 3).decode(), pod("nginx:1").decode()]
    assert len(cli.ok("history", "pod").lines) == 3
    as_text = cli.ok("history", "pod", "--as", "text", "-n", "1").lines
    assert "image: nginx:1 -> nginx:2" not in as_text[0]


@pytest.mark.parametrize("words", [["diff"], ["log", "-p"], ["ls", "-l"]], ids=" ".join)
def test_a_decoder_that_takes_too_long_is_asked_once(
    cli: Cli, then: str, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(difference_output, "COMMAND_S_MAX", 0.2)
    made = partial(difference_output.command_decoder, seconds_max=0.2)
    monkeypatch.setattr(difference_output, "command_decoder", made)
    slow = cli.place / "slow"
    slow.write_text("#!/bin/sh\necho >> asked\nexec sleep 60\n")
    slow.chmod(0o755)
    answer = cli.ok(*words, *([then] if words == ["diff"] else []), "--decoder", str(slow))
    assert answer.err.count("did not end within 0.2 s") == 1
    assert answer.err.endswith("; values are shown without it\n")
    assert "did not end" not in answer.out
    assert '"v2"' in answer.out
    assert (cli.place / "asked").read_text() == "\n"


def test_programs_get_what_the_options_find(cli: Cli, then: str) -> None:
    def row(key: str, *options: str) -> dict[str, object]:
        (found,) = cli.ok("diff", then, "--prefix", key, "--json", *options).json
        assert found["key"] == key
        return dict(found)

    sides = {"key": "config", "before": "a: 1\nb: 2\n", "after": "a: 1\nb: 3\n"}
    assert row("config") == row("config", "--redact", "x") == sides
    paths = [{"path": "b", "kind": "changed", "before": 2, "after": 3}]
    assert row("config", "--as", "yaml") == row("config", "--full") == {**sides, "paths": paths}
    image = {"kind": "changed", "before": "nginx:1.25", "after": "nginx:1.26"}
    found = row("pod", "--ignore", "kubernetes")
    assert found["paths"] == [{"path": "spec.containers[0].image", **image}]
    lines = ["@@ -1,2 +1,2 @@", "  a: 1", "- b: 2", "+ b: 3"]
    assert row("config", "--as", "text") == {**sides, "lines": lines}
    assert row("new", "--decoder", "tr a-z A-Z")["lines"] == ["@@ -0,0 +1 @@", "+ N"]
    assert row("config", "--as", "yaml", "--redact", "config").keys() == sides.keys()
    assert row("config", "--as", "yaml", "--stat").keys() >= {"unit"}
    (shown,) = cli.ok("show", "--as", "yaml", "-o", "json", "--prefix", "config").json
    assert shown["changes"] == [{**sides, "paths": paths}]
    (logged,) = cli.ok("log", "config", "-p", "-n", "1", "--as", "yaml", "-o", "json").json
    assert logged["changes"] == [{**sides, "paths": paths}]
